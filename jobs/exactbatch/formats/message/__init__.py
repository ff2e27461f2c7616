"""Columns from the keys and headers of records."""
