"""Store, list, count and delete rejected records."""

from collections.abc import Sequence
from typing import Any, Final

from psycopg2 import sql

from exactbatch.ledger.rows import Batch, Reject, RejectReason, RejectReasons
from exactbatch.ledger.statements import OnConnection, columns, load_queries, read_rows
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("rejects")
_RANGE: Final = ("topic_id", "partition", "from_offset", "until_offset")


class Rejects(OnConnection):
    """The rows of exactbatch.rejected_record."""

    def rejects(self, pipeline: Pipeline, *, limit: int | None = None) -> list[Reject]:
        """Return rejected records in the order of the log, the first `limit` of them or all."""
        return read_rows(Reject, _QUERIES.rejects(self._connection, pipeline=pipeline.name, limit=limit))

    def rejects_by_reason(self, pipeline: Pipeline, *, limit: int) -> RejectReasons:
        """Return the `limit` most frequent reasons: a reason may contain the value, so there may be very many."""
        rows = list(_QUERIES.rejects_by_reason(self._connection, pipeline=pipeline.name, limit=limit))
        return RejectReasons(
            tuple(RejectReason(row.reason, row.records, row.first) for row in rows),
            reasons=rows[0].reasons if rows else 0,
            records=rows[0].all_records if rows else 0,
        )

    def insert_rejects(self, batch: Batch, rejects: sql.Composable, attempts: Sequence[int]) -> int:
        """Store the rejects of task attempts in the staging table `rejects`; return how many there are."""
        query = sql.SQL(_QUERIES.insert_rejects.sql).format(rejects=rejects)
        with self._connection.cursor() as cursor:
            cursor.execute(
                query, {"pipeline": batch.pipeline, "batch_id": batch.batch_id, "attempts": list(attempts)}
            )
            return cursor.rowcount

    def delete_rejects(self, pipeline: Pipeline, parts: Sequence[tuple[OffsetRange, Sequence[int]]]) -> None:
        """Delete the rejects of batches in ranges; `parts` has a range and IDs of batches each."""
        _QUERIES.delete_rejects(self._connection, pipeline=pipeline.name, **_parts(parts))

    def count_rejects(
        self, pipeline: Pipeline, parts: Sequence[tuple[OffsetRange, Sequence[int]]]
    ) -> list[int]:
        """Return how many rejects delete_rejects() would delete in each range."""
        rows = _QUERIES.count_rejects(self._connection, pipeline=pipeline.name, **_parts(parts))
        counts = {row.number: row.rejects for row in rows}
        return [counts.get(number, 0) for number in range(1, len(parts) + 1)]


def _parts(parts: Sequence[tuple[OffsetRange, Sequence[int]]]) -> dict[str, list[Any]]:
    """The parameters of a statement about ranges, and all batches whose results stand for some of their offsets."""
    return {
        **columns([range_ for range_, _ in parts], *_RANGE),
        "batch_ids": sorted({batch_id for _, batch_ids in parts for batch_id in batch_ids}),
    }
