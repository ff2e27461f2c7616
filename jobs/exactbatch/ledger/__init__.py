"""The ledger: the tables that account for every offset, and the SQL that reads and writes them."""

from exactbatch.ledger.batches import batch_lost
from exactbatch.ledger.definition import Definition
from exactbatch.ledger.forwards import PendingResult
from exactbatch.ledger.ledger import Ledger
from exactbatch.ledger.pruning import PlannedReplay
from exactbatch.ledger.rows import (
    Batch,
    BatchFailure,
    BatchStatus,
    EmptyRun,
    Failing,
    FirstRanges,
    JoinedTopic,
    Kind,
    NearbyTimeBoundaries,
    Origin,
    PartlyCommitted,
    Reject,
    RejectReason,
    RejectReasons,
    Run,
    Stream,
    TimeBoundary,
)
from exactbatch.ledger.schema import apply_migrations, check_schema, ledger_version, migrate, newest_version
from exactbatch.ledger.session import ledger_session, target_transaction

__all__ = [
    "Batch",
    "BatchFailure",
    "BatchStatus",
    "Definition",
    "EmptyRun",
    "Failing",
    "FirstRanges",
    "JoinedTopic",
    "Kind",
    "Ledger",
    "NearbyTimeBoundaries",
    "Origin",
    "PartlyCommitted",
    "PendingResult",
    "PlannedReplay",
    "Reject",
    "RejectReason",
    "RejectReasons",
    "Run",
    "Stream",
    "TimeBoundary",
    "apply_migrations",
    "batch_lost",
    "check_schema",
    "ledger_session",
    "ledger_version",
    "migrate",
    "newest_version",
    "target_transaction",
]
