"""Schemas from a registry, and the prefixes and headers that name them."""
