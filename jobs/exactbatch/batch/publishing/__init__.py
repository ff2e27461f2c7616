"""Publish what was staged, in one transaction, if the batch may still do so."""
