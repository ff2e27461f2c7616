"""Values on their way into a table: exact casts, byte-wise equality, and groups in which null is a value."""
