"""JSON after the header of a schema registry."""
