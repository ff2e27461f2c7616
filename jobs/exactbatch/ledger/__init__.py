"""The ledger: the tables that account for every offset, and the SQL that reads and writes them."""

from exactbatch.ledger.definition import Definition
from exactbatch.ledger.ledger import Ledger, bind_transaction, find_parts, ledger_session, target_transaction
from exactbatch.ledger.pruning import FoldedBatches, PlannedReplay
from exactbatch.ledger.range_commits import RangeCommits
from exactbatch.ledger.registry import Registry
from exactbatch.ledger.row_types import (
    Batch,
    BatchFailure,
    BatchStatus,
    DagRun,
    EmptyRun,
    Failing,
    FirstRanges,
    JoinedTopic,
    Kind,
    NearbyTimeBoundaries,
    Origin,
    PartlyCommitted,
    RejectReason,
    RejectReasons,
    StoredReject,
    Stream,
    TimeBoundary,
)
from exactbatch.ledger.schema import (
    apply_migrations,
    check_schema,
    ledger_version,
    migrate,
    newest_version,
    write_migrations,
)
from exactbatch.ledger.staging import count_staged_records, list_staging_tables
from exactbatch.ledger.streams import PendingResult, Streams
from exactbatch.ledger.time_boundaries import TimeBoundaries

__all__ = [
    "Batch",
    "BatchFailure",
    "BatchStatus",
    "DagRun",
    "Definition",
    "EmptyRun",
    "Failing",
    "FirstRanges",
    "FoldedBatches",
    "JoinedTopic",
    "Kind",
    "Ledger",
    "NearbyTimeBoundaries",
    "Origin",
    "PartlyCommitted",
    "PendingResult",
    "PlannedReplay",
    "RangeCommits",
    "Registry",
    "RejectReason",
    "RejectReasons",
    "StoredReject",
    "Stream",
    "Streams",
    "TimeBoundaries",
    "TimeBoundary",
    "apply_migrations",
    "bind_transaction",
    "check_schema",
    "count_staged_records",
    "find_parts",
    "ledger_session",
    "ledger_version",
    "list_staging_tables",
    "migrate",
    "newest_version",
    "target_transaction",
    "write_migrations",
]
