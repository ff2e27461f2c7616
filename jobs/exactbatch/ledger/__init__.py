"""The ledger: the tables in which every offset is accounted for, and the SQL that reads and writes them."""

from exactbatch.ledger.ledger import (
    Batch,
    Failing,
    Ledger,
    PartlyCommitted,
    Reject,
    RejectReason,
    RejectReasons,
    Run,
    TimeOffset,
    batch_lost,
)
from exactbatch.ledger.schema import check_schema, migrate
from exactbatch.ledger.session import ledger_session

__all__ = [
    "Batch",
    "Failing",
    "Ledger",
    "PartlyCommitted",
    "Reject",
    "RejectReason",
    "RejectReasons",
    "Run",
    "TimeOffset",
    "batch_lost",
    "check_schema",
    "ledger_session",
    "migrate",
]
