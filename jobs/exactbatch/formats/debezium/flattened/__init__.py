"""Change events of Debezium that a transformation has flattened to rows."""
