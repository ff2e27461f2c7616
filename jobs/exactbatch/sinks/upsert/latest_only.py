"""The target of an Upsert that keeps no history, and the markers of deleted keys: what is known is the latest change.

A row of the target carries the lineage of the change that it comes from. A deleted key has a marker instead, so that an
older change that arrives late does not bring the row back. A staged change is applied if it is later than the row or
marker of its key; what is not applied is counted, and must be older than what is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import LINEAGE
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.counted_writes import delete_rows, write_rows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.change_order import (
    PLACE,
    ROW,
    STAGED,
    ChangeOrder,
    Latest,
    StoredChanges,
    check_positions,
    check_ties,
    is_greater,
)
from exactbatch.sinks.upsert.latest_rows import LatestRows
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

# The ranges that a replay processes again, and the batches whose rows and markers it may replace.
_REPLAYED: Final = sql.Identifier("exactbatch_replayed")
# The keys and places of all changes that a replay has staged.
_AGAIN: Final = sql.Identifier("exactbatch_again")
_STAGED_CHANGES: Final = sql.SQL("{} l").format(STAGED)


@dataclass(frozen=True)
class LatestOnly:
    """The target and the markers of deleted keys, which a batch changes in place.

    In a replay the staged changes replace what it replaces, even with an older change. A record that gives a change of
    the same key again may have another version now, and its former one no longer counts. If it gives none, its row or
    marker stays until a later change: nothing says which change came before.

    casts      how a staged change becomes a row, without its lineage
    is_replay  True if the staged changes come from records that were processed before
    """

    target: TargetTable
    markers: TargetTable
    order: ChangeOrder
    staged: StagedRows
    casts: Sequence[Cast]
    is_replay: bool

    def keep_latest(self, cursor: Cursor) -> Latest:
        """Return the staged changes that are later than the markers of their keys, which they delete; see UpsertStore.

        Rows of the target are compared when they are written, so that they are looked up once.
        """
        # Statements look for keys and deletes, and for nothing else of a change. Without statistics of `deleted`, a
        # batch with few deletes would read the whole target for them.
        cursor.execute(sql.SQL("analyze {} ({}, deleted)").format(STAGED, self._names["key"]))
        check_positions(cursor, self.staged, self.order)
        if check_ties(cursor, self.staged, self.order, self.target.spec, self._staged_values):
            check_positions(cursor, self.staged, self.order, self.markers.identifier, self.target.identifier)
            self.order.forget_older(cursor, STAGED)
        if self.is_replay:
            self._note_replaced(cursor, self.staged.replaced)
            self._find_again(cursor)
        cursor.execute(sql.SQL("select exists (select from {})").format(self.markers.identifier))
        if cursor.fetchone()[0]:
            self._check_stored(cursor, self.markers)
            followed = sql.SQL("{same_key} and {later}").format(**self._names, later=self._is_later("l"))
            delete_rows(cursor, self.markers, followed, using=_STAGED_CHANGES, checks=False)
            cursor.execute(
                sql.SQL("delete from {staged} l using {markers} t where {same_key}").format(**self._names)
            )
        return Latest(STAGED, kept=None, all_new=self._is_empty(cursor))

    def record(self, cursor: Cursor, latest: Latest) -> int:  # noqa: ARG002
        """Delete the rows that a staged delete is later than, and leave a marker for each key without a row; return how
        many changes are staged, which the caller has counted."""
        cursor.execute(sql.SQL("select count(*) from {} where deleted").format(STAGED))
        if deletes := cursor.fetchone()[0]:
            self._check_stored(cursor, self.target)
            deleted = sql.SQL("l.deleted and {same_key} and {later}").format(
                **self._names, later=self._is_later("l")
            )
            checks = bool(self.target.triggers(cursor))
            delete_rows(cursor, self.target, deleted, using=_STAGED_CHANGES, checks=checks)
            cursor.execute(
                sql.SQL("delete from {staged} l using {target} t where l.deleted and {same_key}").format(
                    **self._names
                )
            )
            expected = deletes - cursor.rowcount
            written = write_rows(
                cursor,
                self.markers,
                sql.SQL(
                    "insert into {markers} ({ordered}, {place}, kafka_timestamp, batch_id) "
                    "select {ordered}, {place}, "
                    "(select s.kafka_timestamp from {staging} s where s.ctid = {row}), {batch_id} "
                    "from {staged} where deleted order by {key}"
                ).format(
                    **self._names,
                    staging=self.staged.table,
                    row=ROW,
                    batch_id=sql.Literal(self.staged.batch_id),
                ),
            )
            if written != expected:
                raise TargetMismatch(
                    f"table {self.markers.spec}: {expected - written} rows did not arrive: a rule or a policy of the "
                    f"table drops them. Nothing was written. Let this login write them."
                )
        return self.staged.count

    def find_rows(self, cursor: Cursor, latest: Latest) -> LatestRows:
        """Return the rows of the staged changes, which replace those that they are later than."""
        casts = (*self.casts, *self.target.casts(cursor, LINEAGE))
        batch_id = sql.Literal(self.staged.batch_id)
        return LatestRows(
            self.target,
            self.order.key,
            latest,
            self.staged.table,
            casts,
            {cast.column.name: cast.expression for cast in casts} | {"batch_id": batch_id},
            replaces=self._is_later,
            is_written=sql.SQL("t.batch_id = {}").format(batch_id),
            may_conflict=not latest.all_new,
        )

    def check(self, cursor: Cursor, rows: LatestRows, written: int) -> None:
        """Check the rows if a trigger may have altered or dropped some, or if a row of the target is later."""
        cursor.execute(sql.SQL("select count(*) from {} where not deleted").format(STAGED))
        if written != cursor.fetchone()[0] or self.target.triggers(cursor):
            self._check_stored(cursor, self.target)
            rows.check(cursor, written)

    def _is_empty(self, cursor: Cursor) -> bool:
        cursor.execute(sql.SQL("select not exists (select from {})").format(self.target.identifier))
        return bool(cursor.fetchone()[0])

    def _note_replaced(self, cursor: Cursor, replaced: Sequence[Part]) -> None:
        """Note the ranges that a replay processes again, with the batches whose rows and markers it may replace."""
        cursor.execute(
            sql.SQL(
                "create temporary table {} (topic text, partition integer, first bigint, until bigint, "
                "batch_ids bigint[]) on commit drop"
            ).format(_REPLAYED)
        )
        for range_, batch_ids in replaced:
            cursor.execute(
                sql.SQL("insert into {} values (%s, %s, %s, %s, %s)").format(_REPLAYED),
                (range_.topic, range_.partition, range_.from_offset, range_.until_offset, list(batch_ids)),
            )

    def _find_again(self, cursor: Cursor) -> None:
        """Note the key and the place of each staged change, with an index: a replayed row looks for its own record."""
        expressions = {cast.column.name: cast.expression for cast in self.casts}
        cursor.execute(
            sql.SQL(
                "create temporary table {again} on commit drop as "
                "select {key}, {place} from {target} where false "
                "union all select {values}, {place} from {staging} where {accepted}"
            ).format(
                **self._names,
                again=_AGAIN,
                values=sql.SQL(", ").join(expressions[name] for name in self.order.key),
                staging=self.staged.table,
                accepted=self.staged.accepted,
            )
        )
        cursor.execute(sql.SQL("create index on {} ({})").format(_AGAIN, column_list(PLACE)))
        cursor.execute(sql.SQL("analyze {}").format(_AGAIN))

    def _is_later(self, change: str) -> sql.Composable:
        """Return the condition that a staged change is later than the row or marker `t`, or of the same record.

        In a replay, a row or marker of a replayed record that gives its key again is never later. An operator compares
        versions here as `order by` does, because their types are Postgres's own.
        """
        # Rows that were there before the pipeline have no lineage. Offsets only order one partition.
        later = is_greater(
            self.order.version,
            change,
            "t",
            if_equal=sql.SQL(
                "coalesce(({0}) >= ({1}) and ({2}.kafka_topic, {2}.kafka_partition) = "
                "(t.kafka_topic, t.kafka_partition), true)"
            ).format(column_list(PLACE, of=change), column_list(PLACE, of="t"), sql.Identifier(change)),
        )
        if not self.is_replay:
            return later
        return sql.SQL(
            "({later} or exists (select from {replayed} p where p.topic = t.kafka_topic "
            "and p.partition = t.kafka_partition and t.kafka_offset >= p.first and t.kafka_offset < p.until "
            "and t.batch_id = any(p.batch_ids)) "
            "and exists (select from {again} l where ({of_again}) = ({of_row}) and {same_key}))"
        ).format(
            **self._names,
            later=later,
            replayed=_REPLAYED,
            again=_AGAIN,
            of_again=column_list(PLACE, of="l"),
            of_row=column_list(PLACE, of="t"),
        )

    @property
    def _staged_values(self) -> sql.Composable:
        """The columns of a staged change, as it is compared with others."""
        return sql.SQL(", ").join([*(cast.expression for cast in self.casts), sql.Identifier("deleted")])

    def _check_stored(self, cursor: Cursor, table: TargetTable) -> None:
        """Raise KeyOnTwoPartitions if the order of a staged change and the row or marker of its key is unknown, and
        ChangesBehind if the row or marker is later and at a smaller offset of the partition."""
        check_positions(cursor, self.staged, self.order, table.identifier)
        is_marker = table is self.markers
        # A marker is unlike any change that is staged, if it has other columns.
        values = [
            sql.Identifier(cast.column.name)
            if not is_marker or cast.column.name in self.order.ordered
            else sql.SQL("null")
            for cast in self.casts
        ]
        stored = StoredChanges(
            sql.SQL(
                "select {ordered}, {place}, t.tableoid, t.ctid from {stored} t where kafka_topic is not null "
                "and exists (select from {staged} l where {same_key})"
            ).format(**self._names, stored=table.identifier),
            table.identifier,
            sql.SQL(", ").join([*values, sql.Literal(is_marker)]),
        )
        check_ties(cursor, self.staged, self.order, self.target.spec, self._staged_values, stored)

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "target": self.target.identifier,
            "markers": self.markers.identifier,
            "staged": STAGED,
            "key": column_list(self.order.key),
            "ordered": column_list(self.order.ordered),
            "place": column_list(PLACE),
            "same_key": same_values(self.order.key, "l", "t"),
        }
