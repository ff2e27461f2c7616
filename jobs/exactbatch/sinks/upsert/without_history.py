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
from exactbatch.errors import TargetMismatch
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.sink import EPOCH, UNAVAILABLE, SinkTraits
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import (
    check_companion,
    check_lineage,
    check_operators,
    check_own_types,
    check_same_keys,
    check_unique,
)
from exactbatch.sinks.tables.target_definition import add_columns, prepare_table
from exactbatch.sinks.upsert.change_order import check_one_per_record, find_order
from exactbatch.sinks.upsert.latest_only import LatestOnly
from exactbatch.sinks.upsert.spec import Upsert
from exactbatch.sinks.values.cast import RejectRule, reject_rules


def check_shared_columns(
    cursor: Cursor,
    traits: SinkTraits,
    lineage_table: LineageTable,
    columns: Sequence[Column],
    pipelines: Sequence[str],
) -> None:
    """Raise TargetMismatch if the changes have columns that only other pipelines with this target write.

    A replay would write the changes of its records without these columns.
    """
    own_columns = {
        column.name
        for column in (*traits.staged_columns(columns), *lineage_table.lineage_columns, UNAVAILABLE, EPOCH)
    }
    if pipelines and (extra := sorted(lineage_table.table.columns(cursor).keys() - own_columns)):
        raise TargetMismatch(
            f"table {lineage_table.table.spec}: this pipeline does not write the columns "
            f"{', '.join(extra)}. It shares the target {traits.target} with {', '.join(pipelines)}: rows would "
            f"lose the values of these columns. Nothing was written. Let all of these pipelines write the "
            f"same columns, or give them different targets."
        )


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
class LatestWriter:
    """The writer of an Upsert with history=False, whose rows carry the lineage of their latest change."""

    sink: Upsert
    traits: SinkTraits

    @property
    def parts(self) -> "tuple[LatestWriter, ...]":
        """The writer itself."""
        return (self,)

    @property
    def _key(self) -> tuple[str, ...]:
        return self.sink.key_columns

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target, whose rows name their latest change."""
        return LineageTable(self._target)

    @cached_property
    def markers(self) -> LineageTable:
        """The table of deleted keys."""
        (suffix,) = self.sink.kind.companions
        return LineageTable(self._target.sibling(suffix))

    @property
    def _markers(self) -> TargetTable:
        return self.markers.table

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table of markers and the target, in the order in which they are locked."""
        return (self._markers, self._target)

    @property
    def _latest_only(self) -> LatestOnly:
        return LatestOnly(self._target, self._markers, find_order(self.traits))

    @property
    def compactor(self) -> MarkerCompactor:
        """Drops markers of deleted keys."""
        return MarkerCompactor(self.markers)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create target and table of markers if they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, the missing unique constraint, or a version
        whose type is not one of Postgres's own.
        """
        # The target first, as in publish: two pipelines may share it.
        self._target.lock(cursor)
        columns = (*columns, *self.traits.epoch)
        for table in (self._target, self._markers):
            add_columns(cursor, table, self.traits.epoch)
        if not prepare_table(cursor, self._target, columns, lineage=LINEAGE, key=self._key, evolve=evolve):
            check_unique(cursor, self._target, self._key)
            check_lineage(cursor, self._target, self._target.casts(cursor, LINEAGE))
        ordered = [*self._key, *self.traits.ordering_columns]
        of_markers = [column for name in ordered for column in columns if column.name == name]
        if not prepare_table(cursor, self._markers, of_markers, lineage=LINEAGE, key=self._key):
            check_unique(cursor, self._markers, self._key)
            check_lineage(cursor, self._markers, self._markers.casts(cursor, LINEAGE))
            check_companion(cursor, self._markers)
        check_same_keys(cursor, self._target, self._markers, ordered)
        check_operators(cursor, self._target, self._key)
        check_own_types(cursor, self._target, self.traits.ordering_columns, "without a history")

    def check_replay(self, cursor: Cursor) -> None:
        """Do nothing: a replay deletes no rows besides those that its records delete."""

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Raise TargetMismatch if the target has columns that only other pipelines with this target write."""
        check_shared_columns(cursor, self.traits, self.lineage_table, columns, pipelines)

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

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them."""
        casts = self.lineage_table.casts(cursor, (*columns, *self.traits.epoch))
        check_one_per_record(
            cursor, staged, find_order(self.traits), self.sink.target, self.lineage_table, casts
        )

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Apply the staged changes that are the latest of their keys; return how many were staged.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, ChangesBehind if positions may have gone
        back, and TargetMismatch if a constraint of the target refuses a row.
        """
        return self._latest_only.write(cursor, staged, (*columns, *self.traits.epoch))

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:  # noqa: ARG002
        """Delete nothing, and return 0: the staged changes of the replay replace rows and markers."""
        return 0
