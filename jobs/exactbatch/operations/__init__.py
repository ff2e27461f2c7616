"""Operations between batches: status, reports and compaction."""
