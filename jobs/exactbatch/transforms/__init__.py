"""Decide which SQL transforms are allowed, and where the rows they produce come from."""
