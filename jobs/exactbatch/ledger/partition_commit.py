"""The statements of queries/partition_commit.sql, as text with numbered parameters."""

from typing import Final

from exactbatch.ledger.statements import load_queries

_QUERIES: Final = load_queries("partition_commit")


def _text(name: str) -> str:
    # Without the semicolon: ADBC puts a query without parameters into a COPY.
    return str(getattr(_QUERIES, name).sql).rstrip(";")


BIND_TRANSACTION: Final = _text("bind_transaction")
RANGE_STATE: Final = _text("range_state")
SHARE_BATCH: Final = _text("share_batch")
LOCK_STORED_OFFSET: Final = _text("lock_stored_offset")
INSERT_RANGE_REJECTS: Final = _text("insert_range_rejects")
ACCOUNT_RANGE: Final = _text("account_range")
