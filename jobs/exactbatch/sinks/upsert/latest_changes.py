"""Find the latest changes of the keys that a batch affects.

The latest change of a key is a staged one, or one that an earlier batch left. Each is found by a sort of narrow
rows, which name the place of the change; only the latest are then read as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import StagedRowsDiffer
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.change_order import (
    LAST_OFFSET,
    PLACE,
    ROW,
    STAGED,
    ChangeOrder,
    find_latest_staged,
    is_greater,
    latest_first,
)
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

# The latest change of each affected key and partition that earlier batches left.
_EARLIER: Final = sql.Identifier("exactbatch_earlier")
# The changes of these that are the latest of their keys: their places, and then their columns.
_KEPT_PLACES: Final = sql.Identifier("exactbatch_kept_places")
_KEPT: Final = sql.Identifier("exactbatch_kept")
# The table in which a change is stored; ROW is its row there.
_TABLE: Final = sql.Identifier("exactbatch stored table")
# From this number of affected keys on, it pays to look whether earlier batches left changes of some of them.
MANY_KEYS: Final = 10_000
_KEYS_LOOKED_UP: Final = 1_000


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest changes of the affected keys, in temporary tables of the transaction.

    staged   those that are staged: their keys, versions and places, `deleted`, and ROW, their rows in the staging table
    kept     the others, which earlier batches left, as whole rows of the table of changes
    all_new  True if no affected key had a change before: one that an earlier batch left, or that this transaction has
             retracted
    """

    staged: sql.Identifier
    kept: sql.Identifier
    all_new: bool


@dataclass(frozen=True)
class LatestChanges:
    """The changes of an Upsert, and the target that holds the latest one of each key."""

    target: TargetTable
    changes: LineageTable
    order: ChangeOrder

    def find(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column], affected: sql.Identifier
    ) -> Latest:
        """Find the latest change of each affected key, before the staged changes are inserted.

        `affected` is the table of the keys that are affected besides those of staged changes. Raises KeyOnTwoPartitions
        if the order of a key's changes is unknown, and ChangesBehind if positions may have gone back.
        """
        casts = self.changes.casts(cursor, columns)
        keys = find_latest_staged(cursor, staged, self.order, casts, self.changes.table)
        cursor.execute(sql.SQL("analyze {}").format(STAGED))
        cursor.execute(sql.SQL("select exists (select from {})").format(affected))
        has_retracted = bool(cursor.fetchone()[0])
        later_only = (
            not has_retracted
            and keys >= MANY_KEYS
            and self._is_comparable(cursor)
            and self._is_any_known(cursor)
        )
        has_earlier = self._find_earlier(
            cursor, retracted=affected if has_retracted else None, later_only=later_only
        )
        if self.order.are_positions:
            self._check_positions(cursor, staged)
        if self.order.check(cursor, self.target.spec, *self._latest_by_partition(cursor, staged, columns)):
            self.order.forget_older(cursor, STAGED)
        kept = self._keep_latest(cursor) if has_earlier else 0
        # Read as a whole now: what is not the latest may be compacted while this transaction goes on.
        cursor.execute(
            sql.SQL(
                "create temporary table {kept} on commit drop as select c.* from {change} c "
                "join {places} p on c.tableoid = p.{table} and c.ctid = p.{row}"
            ).format(kept=_KEPT, change=self.changes.identifier, places=_KEPT_PLACES, table=_TABLE, row=ROW)
            if kept
            else sql.SQL("create temporary table {} on commit drop as select * from {} with no data").format(
                _KEPT, self.changes.identifier
            )
        )
        if kept and cursor.rowcount != kept:
            raise StagedRowsDiffer(
                f"table {self.changes.table.spec}: expected {kept} changes where they were found, found "
                f"{cursor.rowcount}: another session rewrites the table. Nothing was written; try again.",
                batch_id=staged.batch_id,
            )
        return Latest(STAGED, _KEPT, all_new=not (has_earlier or has_retracted or later_only))

    def _is_comparable(self, cursor: Cursor) -> bool:
        """True if `>` compares versions as `order by` does: for other types than Postgres's own, the login's search
        path decides what `>` means."""
        cursor.execute(
            "select coalesce(bool_and(t.typtype = 'b' and t.typnamespace = 'pg_catalog'::regnamespace), true) "
            "from pg_attribute a join pg_type t on t.oid = a.atttypid "
            "where a.attrelid = %s::regclass and a.attname = any(%s)",
            (self.changes.identifier.as_string(cursor), list(self.order.version)),
        )
        return bool(cursor.fetchone()[0])

    def _is_any_known(self, cursor: Cursor) -> bool:
        """True if earlier batches left a change of one of the first keys."""
        cursor.execute(
            sql.SQL(
                "select exists (select from (select {key} from {staged} limit {limit}) first_keys "
                "join {change} using ({key}))"
            ).format(**self._names, limit=sql.Literal(_KEYS_LOOKED_UP))
        )
        return bool(cursor.fetchone()[0])

    def _find_earlier(self, cursor: Cursor, *, retracted: sql.Identifier | None, later_only: bool) -> bool:
        """Find the latest change of each affected key and partition that earlier batches left; return whether there are
        any.

        `retracted` is the table of the keys whose changes a replay has retracted. With `later_only`, changes are left
        out that a staged change in the same partition, or with a version, follows.
        """
        keys: sql.Composable = sql.SQL("select {} from {}").format(self._names["key"], STAGED)
        condition: sql.Composable = sql.SQL("true")
        if later_only:
            keys, condition = self._staged_versions, self._is_not_followed
        if retracted is not None:
            keys = sql.SQL("{} union select {} from {}").format(keys, self._names["key"], retracted)
        # Each key is looked up once, so that a cache of results holds none that is asked for again; Postgres expects
        # otherwise, and would look up many keys one by one instead of merging them with the index.
        cursor.execute("set local enable_memoize to off")
        cursor.execute(
            sql.SQL(
                "create temporary table {earlier} on commit drop as "
                "select distinct on ({group}) {ordered}, {place}, deleted, c.tableoid as {table}, c.ctid as {row} "
                "from {change} c join ({keys}) affected using ({key}) where {condition} order by {order}"
            ).format(**self._names, keys=keys, condition=condition)
        )
        return cursor.rowcount > 0

    def _keep_latest(self, cursor: Cursor) -> int:
        """Keep the earlier changes that are the latest of their keys, and forget staged changes that are older;
        return how many are kept."""
        cursor.execute(
            sql.SQL(
                "create temporary table {places} on commit drop as select * from ("
                "select distinct on ({key}) {key}, {table}, {row} from ("
                "select {ordered}, {place}, null::oid as {table}, {row} from {staged} union all "
                "select {ordered}, {place}, {table}, {row} from {earlier}) change "
                "order by {key}, {latest_first}) latest where {table} is not null"
            ).format(**self._names, places=_KEPT_PLACES, latest_first=latest_first(self.order.version))
        )
        if kept := cursor.rowcount:
            cursor.execute(sql.SQL("analyze {}").format(_KEPT_PLACES))
            cursor.execute(
                sql.SQL("delete from {staged} t using {places} l where {same_key}").format(
                    **self._names, places=_KEPT_PLACES
                )
            )
        return kept

    def _check_positions(self, cursor: Cursor, staged: StagedRows) -> None:
        """Raise ChangesBehind if the last staged change of a key in a partition is not the latest one there."""
        self.order.check_behind(
            cursor,
            sql.SQL(
                "select kafka_topic, kafka_partition, {last}, kafka_offset from {staged} "
                "where kafka_offset < {last} union "
                "select s.kafka_topic, s.kafka_partition, s.{last}, c.kafka_offset from {staged} s "
                "join {earlier} c using ({group}) where c.kafka_offset < s.{last} and {is_greater}"
            ).format(**self._names, last=LAST_OFFSET, is_greater=is_greater(self.order.version, "c", "s")),
            staged.repeats,
        )

    def _latest_by_partition(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]
    ) -> tuple[sql.Composable, sql.Composable]:
        """A query for the latest changes of each key and partition, and an expression for the text of their rows."""
        casts = self.changes.casts(cursor, columns)
        changes = sql.SQL(
            "select {ordered}, {place}, null::oid as {table}, {row} from {staged} union all "
            "select {ordered}, {place}, {table}, {row} from {earlier}"
        ).format(**self._names)
        image = sql.SQL(
            "case when {table} is null then (select row({values})::text from {staging} where ctid = {row}) "
            "else (select row({names})::text from {change} c where c.tableoid = {table} and c.ctid = {row}) "
            "end"
        ).format(
            **self._names,
            values=sql.SQL(", ").join(cast.expression for cast in casts),
            names=column_list(cast.column.name for cast in casts),
            staging=staged.table,
        )
        return changes, image

    @property
    def _staged_versions(self) -> sql.Composable:
        """A query for the keys of the latest staged changes, their versions and places."""
        versions = [
            sql.SQL("{} as {}, ").format(sql.Identifier(name), staged)
            for name, staged in zip(self.order.version, self._staged_version, strict=True)
        ]
        return sql.SQL(
            "select {key}, {versions} kafka_topic as exactbatch_topic, "
            "kafka_partition as exactbatch_partition, kafka_offset as exactbatch_offset from {staged}"
        ).format(**self._names, versions=sql.Composed(versions))

    @property
    def _is_not_followed(self) -> sql.Composable:
        """The condition of an earlier change `c` that is later than the staged change, or in another partition with an
        equal version."""
        later: sql.Composable = sql.SQL(
            "((c.kafka_topic, c.kafka_partition) <> (exactbatch_topic, exactbatch_partition) "
            "or c.kafka_offset >= exactbatch_offset)"
        )
        for name, staged in reversed([*zip(self.order.version, self._staged_version, strict=True)]):
            later = sql.SQL(
                "(c.{version} > {staged} or c.{version} is not null and {staged} is null "
                "or c.{version} is not distinct from {staged} and {later})"
            ).format(version=sql.Identifier(name), staged=staged, later=later)
        return later

    @property
    def _staged_version(self) -> list[sql.Identifier]:
        """The names of the version of a staged change, next to those of an earlier one."""
        return [sql.Identifier(f"exactbatch_version_{number}") for number, _ in enumerate(self.order.version)]

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "change": self.changes.identifier,
            "staged": STAGED,
            "earlier": _EARLIER,
            "table": _TABLE,
            "row": ROW,
            "key": column_list(self.order.key),
            "ordered": column_list(self.order.ordered),
            "place": column_list(PLACE),
            "group": self.order.by_partition,
            "order": self.order.latest_first_by_partition,
            "same_key": same_values(self.order.key, "l", "t"),
        }
