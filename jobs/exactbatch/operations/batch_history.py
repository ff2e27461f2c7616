"""The history of a pipeline: its batches, newest first."""

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
)
from exactbatch.postgres.connection import Connection, transaction

_RANGES: Final = 3  # of a batch; a batch may have thousands


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

    Only those of a kind or in a status, if one is given. Raises NotRegistered and PostgresUnavailable.
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
