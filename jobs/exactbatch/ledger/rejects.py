"""Store, list, count and delete rejected records."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from psycopg2 import sql

from exactbatch.ledger.row_types import Batch, RejectReason, RejectReasons, StoredReject
from exactbatch.ledger.statements import Store, columns, load_queries, read_rows
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("rejects")
_RANGE: Final = ("topic_id", "partition", "from_offset", "until_offset")


class Rejects(Store):
    """The rows of exactbatch.rejected_record."""

    def read(self, pipeline: Pipeline, *, limit: int | None = None) -> list[StoredReject]:
        """Return rejected records in the order of the log, the first `limit` of them or all."""
        return read_rows(
            StoredReject, _QUERIES.rejects(self._connection, pipeline=pipeline.name, limit=limit)
        )

    def count_by_reason(self, pipeline: Pipeline, *, limit: int) -> RejectReasons:
        """Return the `limit` most frequent reasons: a reason may contain the value, so there may be very many."""
        rows = list(_QUERIES.rejects_by_reason(self._connection, pipeline=pipeline.name, limit=limit))
        return RejectReasons(
            tuple(RejectReason(row.reason, row.records, row.first) for row in rows),
            reasons=rows[0].reasons if rows else 0,
            records=rows[0].all_records if rows else 0,
        )

    def insert(self, batch: Batch, rejects: sql.Composable, attempts: Sequence[int]) -> int:
        """Store the rejects of task attempts in the staging table `rejects`; return how many there are."""
        query = sql.SQL(_QUERIES.insert_rejects.sql).format(rejects=rejects)
        with self._connection.cursor() as cursor:
            cursor.execute(
                query, {"pipeline": batch.pipeline, "batch_id": batch.batch_id, "attempts": list(attempts)}
            )
            return cursor.rowcount

    def delete(self, pipeline: Pipeline, parts: Sequence[tuple[OffsetRange, Sequence[int]]]) -> None:
        """Delete the rejects of batches in ranges; `parts` has a range and IDs of batches each."""
        _QUERIES.delete_rejects(self._connection, pipeline=pipeline.name, **_parts(parts))

    def count(self, pipeline: Pipeline, parts: Sequence[tuple[OffsetRange, Sequence[int]]]) -> list[int]:
        """Return how many rejects delete() would delete in each range."""
        rows = _QUERIES.count_rejects(self._connection, pipeline=pipeline.name, **_parts(parts))
        counts = {row.number: row.rejects for row in rows}
        return [counts.get(number, 0) for number in range(1, len(parts) + 1)]

    def find_batches(self, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> dict[int, set[int]]:
        """Return the batches of the rejects in each range, by the position of the range."""
        rows = _QUERIES.batches_of_rejects(
            self._connection, pipeline=pipeline.name, **columns(ranges, *_RANGE)
        )
        found: dict[int, set[int]] = defaultdict(set)
        for row in rows:
            found[row.number].add(row.batch_id)
        return found


def _parts(parts: Sequence[tuple[OffsetRange, Sequence[int]]]) -> dict[str, list[Any]]:
    """The parameters of a statement about ranges, and all batches whose results stand for some of their offsets."""
    return {
        **columns([range_ for range_, _ in parts], *_RANGE),
        "batch_ids": sorted({batch_id for _, batch_ids in parts for batch_id in batch_ids}),
    }
