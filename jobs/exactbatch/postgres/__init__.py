"""Connections to Postgres and their settings, SQLSTATEs, and the catalog."""
