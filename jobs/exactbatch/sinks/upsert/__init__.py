"""The sink Upsert, and everything that only it uses."""
