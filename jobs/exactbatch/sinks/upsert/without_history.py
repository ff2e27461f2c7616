"""Keep the target of an Upsert alone, for tables with too many changes to keep.

Keys that were deleted leave markers, which a compaction drops below a horizon. Pipelines with one target may not harm
the rows of each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from psycopg2 import sql

from exactbatch.columns import LINEAGE, Column
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target_checks import (
    check_companion,
    check_lineage,
    check_own_types,
    check_same_keys,
    check_unique,
)
from exactbatch.sinks.tables.target_definition import add_columns, prepare_table
from exactbatch.sinks.upsert.latest_only import LatestOnly
from exactbatch.sinks.upsert.writer import UpsertWriter
from exactbatch.sinks.values.cast import RejectRule, reject_rules


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
        self.markers.retract(cursor, parts)
        return dropped


@dataclass(frozen=True)
class LatestWriter(UpsertWriter):
    """The writer of an Upsert with history=False, whose rows carry the lineage of their latest change."""

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target, whose rows name their latest change."""
        return LineageTable(self._target)

    @property
    def markers(self) -> LineageTable:
        """The table of deleted keys."""
        return self._companion

    @property
    def compactor(self) -> MarkerCompactor:
        """Drops markers of deleted keys."""
        return MarkerCompactor(self.markers)

    def _prepare_tables(self, cursor: Cursor, columns: Sequence[Column], evolve: Evolve) -> None:
        columns = (*columns, *self.traits.epoch)
        ordered = [*self.traits.key_columns, *self.traits.ordering_columns]
        of_markers = [column for name in ordered for column in columns if column.name == name]
        markers = self.markers.table
        for table in (self._target, markers):
            add_columns(cursor, table, self.traits.epoch)
        if not prepare_table(
            cursor, self._target, columns, lineage=LINEAGE, key=self.traits.key_columns, evolve=evolve
        ):
            check_unique(cursor, self._target, self.traits.key_columns)
            check_lineage(cursor, self._target, self._target.casts(cursor, LINEAGE))
        if not prepare_table(cursor, markers, of_markers, lineage=LINEAGE, key=self.traits.key_columns):
            check_unique(cursor, markers, self.traits.key_columns)
            check_lineage(cursor, markers, markers.casts(cursor, LINEAGE))
            check_companion(cursor, markers)
        check_same_keys(cursor, self._target, markers, ordered)
        check_own_types(cursor, self._target, self.traits.ordering_columns, "without a history")

    def check_replay(self, cursor: Cursor) -> None:
        """Do nothing: a replay deletes no rows besides those that its records delete."""

    def reject_rules(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        batch_id: int,  # noqa: ARG002
        evolve: Evolve | None = None,
    ) -> list[RejectRule]:
        """Return rules for staged changes that the types of the target cannot hold."""
        return reject_rules(self._target.casts(cursor, columns, evolve=evolve))

    def _open_store(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> LatestOnly:
        return LatestOnly(
            self._target,
            self.markers.table,
            self._order,
            staged,
            self._target.casts(cursor, (*columns, *self.traits.epoch)),
            is_replay=bool(staged.replaced),
        )

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:  # noqa: ARG002
        """Delete nothing, and return 0: the staged changes of the replay replace rows and markers."""
        return 0
