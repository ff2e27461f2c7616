"""The history of a pipeline: its batches, newest first, and how far one has come that is being processed elsewhere."""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Final

from exactbatch.ledger import (
    Batch,
    BatchFailure,
    BatchStatus,
    FirstRanges,
    Kind,
    Ledger,
    PartlyCommitted,
    ledger_session,
)
from exactbatch.postgres.connection import Connection, transaction

_RANGES: Final = 3  # of a batch; a batch may have thousands
# Rows of finished transactions, and of each COPY in progress; with commit="partition", records of committed ranges.
_STAGED: Final = """
with staging as (
    select oid from pg_class
    where relnamespace = to_regnamespace('exactbatch_staging') and relname ~ %(tables)s
)
select coalesce((select sum(pg_stat_get_tuples_inserted(oid)) from staging), 0)::bigint
     + coalesce((select sum(p.tuples_processed) from pg_stat_progress_copy p join staging s on s.oid = p.relid), 0)
     + coalesce((select sum(records) from exactbatch.batch_range where batch_id = %(batch_id)s), 0)::bigint
"""


@dataclass(frozen=True, slots=True)
class PastBatch:
    """A batch with what the ledger has about it.

    ranges            how many ranges it has, and the first of them; None after `exactbatch prune` has folded it
    partly_committed  the counts of its committed ranges, if it is not committed although some of them are
    failure           how often it has failed, and with which error; None if it has not
    """

    batch: Batch
    ranges: FirstRanges | None
    partly_committed: PartlyCommitted | None
    failure: BatchFailure | None

    @property
    def retry_helps(self) -> bool | None:
        """Whether another try of a batch that has failed may succeed; None if it has not, or will not be tried."""
        return None if self.failure is None or self.batch.status != "planned" else self.failure.retryable

    def as_json(self) -> dict[str, Any]:
        """Return its part of `exactbatch batches --json`."""
        return {
            **asdict(self.batch),
            "seconds": self.batch.seconds,
            "ranges": self.ranges and self.ranges.ranges,
            "first_ranges": [asdict(range_) for range_ in self.ranges.shown] if self.ranges else [],
            "partly_committed": self.partly_committed and asdict(self.partly_committed),
            "failure": self.failure and asdict(self.failure),
            "retry_helps": self.retry_helps,
        }


def load_batches(
    connection: Connection,
    name: str,
    *,
    kind: Kind | None = None,
    status: BatchStatus | None = None,
    before: int | None = None,
    limit: int,
) -> list[PastBatch]:
    """Return the newest batches of a registered pipeline with an ID below `before`, newest first.

    Only batches of a kind or in a status, if one is given. Raises NotRegistered and PostgresUnavailable.
    """
    with transaction(connection):
        ledger = Ledger(connection)
        pipeline = ledger.registry.read(name)
        batches = ledger.batches.read_page(
            pipeline.name, kind=kind, status=status, before=before, limit=limit
        )
        ranges = ledger.batches.read_first_ranges(batches, limit=_RANGES)
        partly = {each.batch_id: each for each in ledger.batches.find_partly_committed(batches)}
        failures = ledger.batches.read_failures(batches)
    return [
        PastBatch(batch, ranges.get(batch.batch_id), partly.get(batch.batch_id), failures.get(batch.batch_id))
        for batch in batches
    ]


def progress_session(postgres: str) -> AbstractContextManager[Connection]:
    """Connect to the ledger. Raises as ledger_session() does."""
    return ledger_session(postgres, "exactbatch progress")


def accounted_offsets(connection: Connection, batch_id: int) -> int:
    """Return how many offsets the ranges of a batch have."""
    with transaction(connection):
        return sum(map(len, Ledger(connection).batches.read_ranges(batch_id)))


def staged_records(connection: Connection, batch_id: int) -> int:
    """Return about how many records of a batch are staged or committed.

    Attempts that were repeated count twice, and tombstones and dropped records not at all. The server shows a COPY in
    progress only to the login that runs it, and to members of pg_read_all_stats.
    """
    tables = rf"^batch_{batch_id}_[0-9a-f]+_(rows|rejects|partition)"
    with transaction(connection) as cursor:
        cursor.execute(_STAGED, {"tables": tables, "batch_id": batch_id})
        return int(cursor.fetchone()[0])
