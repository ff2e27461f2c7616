"""Write the latest changes of a batch into the target of an Upsert that keeps no history.

A row of the target carries the lineage of the change that it comes from. A deleted key has a marker instead, so that an
older change that arrives late does not bring the row back. A staged change is applied if it is later than the row or
marker of its key; what is not applied is counted, and must be older than what is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import LINEAGE, Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.candidates import PLACE_OF_LINEAGE, Candidates
from exactbatch.sinks.tables.counted_writes import delete_rows, write_rows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.change_order import (
    LAST_OFFSET,
    PLACE,
    ROW,
    STAGED,
    ChangeOrder,
    find_latest_staged,
    is_greater,
)
from exactbatch.sinks.upsert.moving_values import MovingValues
from exactbatch.sinks.values.byte_equality import differs, has_one_image
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

_STORED: Final = sql.Identifier("exactbatch stored")
# The ranges that a replay processes again, and the batches whose rows and markers it may replace.
_REPLAYED: Final = sql.Identifier("exactbatch_replayed")
# The keys and places of all changes that a replay has staged.
_AGAIN: Final = sql.Identifier("exactbatch_again")
_STAGED_CHANGES: Final = sql.SQL("{} l").format(STAGED)
_LINEAGE: Final = [column.name for column in LINEAGE[:-1]]


@dataclass(frozen=True)
class LatestOnly:
    """The target and the markers of deleted keys."""

    target: TargetTable
    markers: TargetTable
    order: ChangeOrder

    def write(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Apply the latest staged change of each key if it is later than what is there; return how many changes
        are staged, which the caller has counted.

        In a replay they replace what it replaces, even with an older change. A record that gives a change of the same
        key again may have another version now, and its former one no longer counts. If it gives none, its row or marker
        stays until a later change: nothing says which change came before.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, ChangesBehind if positions may have gone
        back, and TargetMismatch if a table refuses, alters or drops a row.
        """
        casts = self.target.casts(cursor, columns)
        find_latest_staged(cursor, staged, self.order, casts, self.target, _LINEAGE)
        # Statements look for keys and deletes, and for nothing else of a change. Without statistics of `deleted`, a
        # batch with few deletes would read the whole target for them.
        cursor.execute(sql.SQL("analyze {} ({}, deleted)").format(STAGED, self._names["key"]))
        if self._check_staged(cursor, staged, casts):
            for table in (self.markers, self.target):
                self._check_behind(cursor, staged, table)
            self.order.forget_older(cursor, STAGED)
        is_replay = bool(staged.replaced)
        if is_replay:
            self._note_replaced(cursor, staged.replaced)
            self._find_again(cursor, staged, casts)
        later = self._is_later("l", is_replay=is_replay)
        # Looking up rows takes less time than Postgres expects, and compiling such a statement takes more.
        cursor.execute("set local jit to off")
        self._settle_markers(cursor, staged, casts, later)
        deletes, others = self._count_staged(cursor)
        if deletes:
            self._delete(cursor, staged, casts, later, deletes)
        written = self._insert_or_update(
            cursor,
            staged,
            casts,
            later=later,
            excluded_later=self._is_later("excluded", is_replay=is_replay),
            candidates=self._candidates(staged, casts, later),
        )
        if written != others or self.target.triggers(cursor):
            self._check_written(cursor, staged, casts, later, written)
        return staged.count

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

    def _find_again(self, cursor: Cursor, staged: StagedRows, casts: Sequence[Cast]) -> None:
        """Note the key and the place of each staged change, with an index: a replayed row looks for its own record."""
        expressions = {cast.column.name: cast.expression for cast in casts}
        cursor.execute(
            sql.SQL(
                "create temporary table {again} on commit drop as "
                "select {key}, {place} from {target} where false "
                "union all select {values}, {place} from {staging} where {accepted}"
            ).format(
                **self._names,
                again=_AGAIN,
                values=sql.SQL(", ").join(expressions[name] for name in self.order.key),
                staging=staged.table,
                accepted=staged.accepted,
            )
        )
        cursor.execute(sql.SQL("create index on {} ({})").format(_AGAIN, column_list(PLACE)))
        cursor.execute(sql.SQL("analyze {}").format(_AGAIN))

    def _settle_markers(
        self, cursor: Cursor, staged: StagedRows, casts: Sequence[Cast], later: sql.Composable
    ) -> None:
        """Delete the markers that a staged change is later than, and forget staged changes that are older."""
        cursor.execute(sql.SQL("select exists (select from {})").format(self.markers.identifier))
        if not cursor.fetchone()[0]:
            return
        self._check_stored(cursor, staged, casts, self.markers)
        followed = sql.SQL("{same_key} and {later}").format(**self._names, later=later)
        delete_rows(cursor, self.markers, followed, using=_STAGED_CHANGES, checks=False)
        cursor.execute(
            sql.SQL("delete from {staged} l using {markers} t where {same_key}").format(**self._names)
        )

    def _delete(
        self, cursor: Cursor, staged: StagedRows, casts: Sequence[Cast], later: sql.Composable, deletes: int
    ) -> None:
        """Delete the rows that a staged delete is later than, and leave a marker for each key without a row."""
        self._check_stored(cursor, staged, casts, self.target)
        deleted = sql.SQL("l.deleted and {same_key} and {later}").format(**self._names, later=later)
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
                "insert into {markers} ({ordered}, {lineage}, batch_id) "
                "select {ordered}, {lineage}, {batch_id} from {staged} where deleted order by {key}"
            ).format(**self._names, batch_id=sql.Literal(staged.batch_id)),
        )
        if written != expected:
            raise _missing(self.markers, expected - written)

    def _insert_or_update(
        self,
        cursor: Cursor,
        staged: StagedRows,
        casts: Sequence[Cast],
        *,
        later: sql.Composable,
        excluded_later: sql.Composable,
        candidates: Candidates,
    ) -> int:
        """Insert the latest staged changes, or update the rows that they are later than; return how many.

        They come in the order of their keys: two sessions that write the same rows so wait for each other instead of
        deadlocking, and the pages of the key's index are written one after another.
        """
        names = [*(cast.column.name for cast in casts), *_LINEAGE, "batch_id"]
        # Equal keys can look different: the row has the key as its latest change writes it.
        alike = {
            cast.column.name
            for cast in casts
            if cast.column.name in self.order.key and has_one_image(cast.type)
        }
        rows = sql.SQL(
            "select {values}, {lineage}, {batch_id} as batch_id from ("
            "select {row} from {staged} where not deleted order by {key} offset 0) l "
            "cross join lateral (select * from {staging} where ctid = l.{row} offset 0) looked_up"
        ).format(
            **self._names,
            values=sql.SQL(", ").join(
                sql.SQL("{} as {}").format(cast.expression, sql.Identifier(cast.column.name))
                for cast in casts
            ),
            batch_id=sql.Literal(staged.batch_id),
            staging=staged.table,
        )
        update = sql.SQL("do update set {} where {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
                for name in names
                if name not in alike
            ),
            excluded_later,
        )
        all_rows = sql.SQL("({})").format(rows)
        moving = MovingValues(self.target, self.order.key, names, all_rows, later, update, candidates)
        cursor.execute(sql.SQL("select exists (select from {})").format(self.target.identifier))
        return moving.write(cursor, rows, may_conflict=bool(cursor.fetchone()[0]))

    def _candidates(self, staged: StagedRows, casts: Sequence[Cast], later: sql.Composable) -> Candidates:
        """Return the latest staged changes that are to be inserted, or are later than the row of their key."""
        rows = sql.SQL(
            "select {values}, {lineage}, {batch_id}::bigint as batch_id, {of_record} from ("
            "select l.{row} from {staged} l left join {target} t on {same_key} "
            "where not l.deleted and (t.tableoid is null or {later}) offset 0) l "
            "cross join lateral (select * from {staging} where ctid = l.{row} offset 0) looked_up"
        ).format(
            **self._names,
            values=sql.SQL(", ").join(
                sql.SQL("{} as {}").format(cast.expression, sql.Identifier(cast.column.name))
                for cast in casts
            ),
            batch_id=sql.Literal(staged.batch_id),
            of_record=PLACE_OF_LINEAGE,
            later=later,
            staging=staged.table,
        )
        names = [*(cast.column.name for cast in casts), *_LINEAGE, "batch_id"]
        return Candidates(rows, names, self.order.key, replaces=True)

    def _check_written(
        self,
        cursor: Cursor,
        staged: StagedRows,
        casts: Sequence[Cast],
        later: sql.Composable,
        written: int,
    ) -> None:
        """Check that each staged change is in the target, unchanged, or that the row of its key is later."""
        triggers = self.target.triggers(cursor)
        self._check_stored(cursor, staged, casts, self.target)
        names = [*(cast.column.name for cast in casts), *_LINEAGE]
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where t.tableoid is null) as missing, "
                "count(*) filter (where t.batch_id is distinct from {batch_id} and {later}) as older, "
                "count(*) filter (where t.batch_id = {batch_id} and {differs}) as altered, "
                "count(*) filter (where t.batch_id = {batch_id}) as written "
                "from {staged} l left join {target} t on {same_key} "
                "cross join lateral (select {values}, {lineage} from {staging} where ctid = l.{row} offset 0) "
                "computed ({names}) where not l.deleted"
            ).format(
                **self._names,
                batch_id=sql.Literal(staged.batch_id),
                later=later,
                differs=differs(column_list(names, of="t"), column_list(names, of="computed")),
                values=sql.SQL(", ").join(cast.expression for cast in casts),
                staging=staged.table,
                names=column_list(names),
            )
        )
        missing, older, altered, found = cursor.fetchone()
        if missing or older or altered or found != written:
            cause = triggers or "a rule or a policy of the table"
            raise TargetMismatch(
                f"target {self.target.spec}: of the latest changes of this batch {missing} did not arrive, {older} did "
                f"not replace an older row, and {altered} are not stored as they were written, because of {cause}. "
                f"Nothing was written. Drop {cause}, or change there only columns that the pipeline does not write."
            )

    def _count_staged(self, cursor: Cursor) -> tuple[int, int]:
        """Return how many of the latest staged changes delete a row, and how many do not."""
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where deleted) as deletes, "
                "count(*) filter (where not deleted) as others from {}"
            ).format(STAGED)
        )
        deletes, others = cursor.fetchone()
        return deletes, others

    def _is_later(self, change: str, *, is_replay: bool) -> sql.Composable:
        """Return the condition that a staged change is later than the row or marker `t`, or of the same record.

        In a replay, a row or marker of a replayed record that gives its key again is never later. An operator compares
        versions here as `order by` does, because their types are Postgres's own.
        """
        # Rows that were there before the pipeline have no lineage. Offsets only order one partition.
        later: sql.Composable = sql.SQL(
            "coalesce(({0}) >= ({1}) and ({2}.kafka_topic, {2}.kafka_partition) = (t.kafka_topic, t.kafka_partition), "
            "true)"
        ).format(
            column_list(PLACE, of=change),
            column_list(PLACE, of="t"),
            sql.Identifier(change),
        )
        for name in reversed(self.order.version):
            later = sql.SQL(
                "coalesce({staged} > {stored}, {staged} is not null and {stored} is null) "
                "or {staged} is not distinct from {stored} and ({later})"
            ).format(staged=sql.Identifier(change, name), stored=sql.Identifier("t", name), later=later)
        if not is_replay:
            return sql.SQL("({})").format(later)
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

    def _check_staged(self, cursor: Cursor, staged: StagedRows, casts: Sequence[Cast]) -> bool:
        """Return whether a key has staged changes in several partitions.

        Raises KeyOnTwoPartitions if their order is unknown, and ChangesBehind if the last one in a partition is not the
        latest.
        """
        if self.order.are_positions:
            behind = sql.SQL(
                "select kafka_topic, kafka_partition, {last}, kafka_offset from {staged} where kafka_offset < {last}"
            ).format(last=LAST_OFFSET, staged=STAGED)
            self.order.check_behind(cursor, behind, staged.repeats)
        changes = sql.SQL("select {ordered}, {place}, {row} from {staged}").format(**self._names)
        image = sql.SQL("(select row({values}, deleted)::text from {staging} where ctid = {row})").format(
            values=sql.SQL(", ").join(cast.expression for cast in casts),
            staging=staged.table,
            row=ROW,
        )
        return self.order.check(cursor, self.target.spec, changes, image)

    def _check_stored(
        self, cursor: Cursor, staged: StagedRows, casts: Sequence[Cast], table: TargetTable
    ) -> None:
        """Raise KeyOnTwoPartitions if the order of a staged change and the row or marker of its key is unknown, and
        ChangesBehind if the row or marker is later and at a smaller offset of the partition."""
        self._check_behind(cursor, staged, table)
        names = {**self._names, "table": table.identifier}
        changes = sql.SQL(
            "select {ordered}, {place}, {row}, null::tid as {stored} from {staged} union all "
            "select {ordered}, {place}, null, ctid from {table} t where kafka_topic is not null "
            "and exists (select from {staged} l where {same_key})"
        ).format(stored=_STORED, **names)
        image = sql.SQL(
            "case when {stored} is null then (select row({values}, deleted)::text from {staging} where ctid = {row}) "
            "else {of_stored} end"
        ).format(
            row=ROW,
            stored=_STORED,
            values=sql.SQL(", ").join(cast.expression for cast in casts),
            staging=staged.table,
            of_stored=self._stored_image(casts, table),
        )
        self.order.check(cursor, self.target.spec, changes, image)

    def _check_behind(self, cursor: Cursor, staged: StagedRows, table: TargetTable) -> None:
        """Raise ChangesBehind if the row or marker of a staged change's key is later, and at a smaller offset of the
        partition."""
        if self.order.are_positions:
            behind = sql.SQL(
                "select l.kafka_topic, l.kafka_partition, l.{last}, t.kafka_offset from {staged} l "
                "join {table} t on {same_key} "
                "and (l.kafka_topic, l.kafka_partition) = (t.kafka_topic, t.kafka_partition) "
                "where t.kafka_offset < l.{last} and {is_greater}"
            ).format(
                **self._names,
                last=LAST_OFFSET,
                table=table.identifier,
                is_greater=is_greater(self.order.version, "t", "l"),
            )
            self.order.check_behind(cursor, behind, staged.repeats)

    def _stored_image(self, casts: Sequence[Cast], table: TargetTable) -> sql.Composable:
        """The text of a row, or of a delete that left a marker: unlike any that is staged, if it has other columns."""
        if table is self.markers:
            return sql.SQL(
                "(select row({names}, true)::text from {markers} t where t.ctid = {stored})"
            ).format(
                stored=_STORED,
                names=sql.SQL(", ").join(
                    sql.Identifier(cast.column.name)
                    if cast.column.name in self.order.ordered
                    else sql.SQL("null")
                    for cast in casts
                ),
                markers=table.identifier,
            )
        return sql.SQL("(select row({names}, false)::text from {target} t where t.ctid = {stored})").format(
            stored=_STORED, names=column_list(cast.column.name for cast in casts), target=table.identifier
        )

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "target": self.target.identifier,
            "markers": self.markers.identifier,
            "staged": STAGED,
            "row": ROW,
            "key": column_list(self.order.key),
            "ordered": column_list(self.order.ordered),
            "place": column_list(PLACE),
            "lineage": column_list(_LINEAGE),
            "group": self.order.by_partition,
            "same_key": same_values(self.order.key, "l", "t"),
        }


def _missing(table: TargetTable, rows: int) -> TargetMismatch:
    return TargetMismatch(
        f"table {table.spec}: {rows} rows did not arrive: a rule or a policy of the table drops them. Nothing was "
        f"written. Let this login write them."
    )
