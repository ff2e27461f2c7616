"""The sink Aggregate, and everything that only it uses."""
