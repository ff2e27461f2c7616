"""Drop the markers of keys that were deleted before a horizon."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Part
from exactbatch.sinks.tables.counted_writes import delete_rows
from exactbatch.sinks.tables.lineage_table import LineageTable


@dataclass(frozen=True)
class MarkerCompactor:
    """Drops markers below a horizon, the end of each part: nothing below it can be replayed any more.

    A change that is older than a dropped marker, and arrives late, brings its row back.
    """

    markers: LineageTable

    def first_since(self, cursor: Cursor, parts: Sequence[Part], at: datetime) -> dict[tuple[str, int], int]:
        """Return the offset of the first marker in each (topic, partition) that is not from before a time.

        The time of a marker is the Kafka timestamp of its delete; one without may be from any time. Partitions
        without such a marker are left out.
        """
        if (rows := self.markers.select_rows(parts)) is None:
            return {}
        source, condition = rows
        cursor.execute(
            sql.SQL(
                "select t.kafka_topic, t.kafka_partition, min(t.kafka_offset) from {} t, {} "
                "where {} and (t.kafka_timestamp < {}) is not true group by 1, 2"
            ).format(self.markers.identifier, source, condition, sql.Literal(at))
        )
        return {(topic, partition): offset for topic, partition, offset in cursor.fetchall()}

    def preview(self, cursor: Cursor, parts: Sequence[Part]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return what compact() would return. Writes nothing."""
        if (rows := self.markers.select_rows(parts)) is None:
            return {}
        source, condition = rows
        cursor.execute(
            sql.SQL(
                "select t.kafka_topic, t.kafka_partition, count(*) from {} t, {} where {} group by 1, 2"
            ).format(self.markers.identifier, source, condition)
        )
        return {(topic, partition): (count, 0) for topic, partition, count in cursor.fetchall()}

    def compact(self, cursor: Cursor, parts: Sequence[Part]) -> dict[tuple[str, int], tuple[int, int]]:
        """Drop the markers in these parts; return how many were dropped, and none kept, by (topic, partition)."""
        dropped = self.preview(cursor, parts)
        if (rows := self.markers.select_rows(parts)) is not None:
            source, condition = rows
            delete_rows(
                cursor,
                self.markers.table,
                sql.SQL("delete from {} t using {} where {}").format(
                    self.markers.identifier, source, condition
                ),
                remaining=sql.SQL("select count(*) from {} t, {} where {}").format(
                    self.markers.identifier, source, condition
                ),
            )
        return dropped
