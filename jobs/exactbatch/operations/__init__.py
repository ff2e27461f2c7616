"""What an operator runs between batches: status, reports, and compaction."""
