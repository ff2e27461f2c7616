"""Decide which offsets a batch processes, and freeze that plan in the ledger."""
