"""commit="partition": account for one range at a time."""

from typing import Final
from uuid import UUID

from exactbatch.ledger.row_types import Batch
from exactbatch.ledger.statements import Store, load_queries
from exactbatch.offsets import OffsetRange

_QUERIES: Final = load_queries("range_commits")


class RangeCommits(Store):
    """The rows of the ledger that a transaction of one range writes.

    It takes its locks in the order batch, shared, then stored offset; it never locks the pipeline.
    """

    def is_committed(self, batch_id: int, range_: OffsetRange) -> bool:
        """True if a batch has committed a range of its own."""
        return bool(_QUERIES.is_range_committed(self._connection, **_key(batch_id, range_)))

    def lock_stored_offset(self, pipeline: str, range_: OffsetRange) -> tuple[int, UUID | None]:
        """Return the stored offset of the range's partition and its topic ID, held until the transaction ends."""
        row = _QUERIES.lock_stored_offset(
            self._connection, pipeline=pipeline, topic=range_.topic, partition=range_.partition
        )
        return row.next_offset, row.topic_id

    def account(
        self,
        batch: Batch,
        range_: OffsetRange,
        *,
        records: int,
        rows: int,
        rejected: int,
        tombstones: int,
        replaced: int,
    ) -> tuple[int, ...]:
        """Write the coverage and the counts of the range, and move the stored offset to its end; return how many rows
        of each were written."""
        counts = {
            "records": records,
            "rows": rows,
            "rejected": rejected,
            "tombstones": tombstones,
            "replaced": replaced,
        }
        return tuple(_QUERIES.account_range(self._connection, **_key(batch.batch_id, range_), **counts))


def _key(batch_id: int, range_: OffsetRange) -> dict[str, object]:
    """Return the primary key of a range in exactbatch.batch_range."""
    return {
        "batch_id": batch_id,
        "topic": range_.topic,
        "partition": range_.partition,
        "from_offset": range_.from_offset,
    }
