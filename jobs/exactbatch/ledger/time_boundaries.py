"""Pin times to offsets, so that windows that share a boundary neither overlap nor leave a gap."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from exactbatch.ledger.row_types import NearbyTimeBoundaries, TimeBoundary
from exactbatch.ledger.statements import Store, columns, load_queries, read_rows
from exactbatch.model import LogPartition
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("time_boundaries")
_PARTITION: Final = ("topic", "topic_id", "partition")


class TimeBoundaries(Store):
    """The rows of exactbatch.time_boundary."""

    def read_nearby(
        self, pipeline: Pipeline, partitions: Sequence[LogPartition], at: datetime
    ) -> dict[TopicPartition, NearbyTimeBoundaries]:
        """Return the offset that a time is pinned to in each partition, and the offsets of the times around it."""
        rows = _QUERIES.nearby_time_boundaries(
            self._connection, pipeline=pipeline.name, at=at, **columns(partitions, *_PARTITION)
        )
        return {
            (row.topic, row.partition): NearbyTimeBoundaries(row.pinned, row.before, row.after)
            for row in rows
        }

    def pin(self, pipeline: Pipeline, at: datetime, offsets: Mapping[LogPartition, int]) -> None:
        """Pin a time to these offsets from now on."""
        _QUERIES.insert_time_boundaries(
            self._connection,
            pipeline=pipeline.name,
            at=at,
            offset=list(offsets.values()),
            **columns(list(offsets), *_PARTITION),
        )

    def read(
        self,
        pipeline: Pipeline,
        *,
        at: Sequence[datetime] | None = None,
        between: tuple[datetime | None, datetime | None] = (None, None),
        limit: int | None,
    ) -> list[TimeBoundary]:
        """Return the pinned times, the latest first: those in `at`, or all `between` two times, both included."""
        rows = _QUERIES.time_boundaries(
            self._connection,
            pipeline=pipeline.name,
            at=None if at is None else list(at),
            from_time=between[0],
            to_time=between[1],
            limit=limit,
        )
        return read_rows(TimeBoundary, rows)

    def forget(self, pipeline: Pipeline, from_time: datetime, to_time: datetime) -> int:
        """Unpin the times from one to another, both included; return how many there were."""
        return int(
            _QUERIES.forget_time_boundaries(
                self._connection, pipeline=pipeline.name, from_time=from_time, to_time=to_time
            )
        )
