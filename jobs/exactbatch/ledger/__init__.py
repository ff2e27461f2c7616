"""The ledger: the tables in which every offset is accounted for, and the SQL that reads and writes them."""

from exactbatch.ledger.ledger import (
    Batch,
    Boundary,
    Failing,
    Ledger,
    PartlyCommitted,
    Reject,
    RejectReason,
    RejectReasons,
    Run,
    batch_lost,
)
from exactbatch.ledger.schema import check_schema, migrate
from exactbatch.ledger.session import ledger_session

__all__ = [
    "Batch",
    "Boundary",
    "Failing",
    "Ledger",
    "PartlyCommitted",
    "Reject",
    "RejectReason",
    "RejectReasons",
    "Run",
    "batch_lost",
    "check_schema",
    "ledger_session",
    "migrate",
]
