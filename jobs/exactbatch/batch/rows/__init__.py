"""A range of records as rows in a table: decode, encode, COPY."""
