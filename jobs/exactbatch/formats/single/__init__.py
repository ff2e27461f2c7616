"""Values of one column: bytes and text."""
