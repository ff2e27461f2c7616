"""Bytes."""
