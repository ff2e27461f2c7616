"""The statements of partition_commit.sql, as text for ADBC."""

from importlib import resources
from typing import Final

import aiosql

_queries = aiosql.from_str(
    (resources.files("exactbatch.ledger") / "partition_commit.sql").read_text(encoding="utf-8"),
    "psycopg2",
    mandatory_parameters=False,
)


def _text(name: str) -> str:
    # Without the semicolon: ADBC puts a query without parameters into a COPY.
    return str(getattr(_queries, name).sql).rstrip(";")


RANGE_STATE: Final = _text("range_state")
SHARE_BATCH: Final = _text("share_batch")
LOCK_STORED_OFFSET: Final = _text("lock_stored_offset")
INSERT_RANGE_REJECTS: Final = _text("insert_range_rejects")
ACCOUNT_RANGE: Final = _text("account_range")
