"""Lines of CSV."""
