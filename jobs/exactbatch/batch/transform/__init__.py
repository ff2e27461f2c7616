"""Stage the rows that a pipeline's transform makes of decoded records."""
