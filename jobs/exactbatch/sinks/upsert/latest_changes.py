"""The changes of an Upsert that keeps all of them: what is known of the keys that a batch affects.

The latest change of a key is a staged one, or one that an earlier batch left. Each is found by a sort of narrow
rows, which name the place of the change; only the latest are then read as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import StagedRowsDiffer, TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.counted_writes import forbid_changes
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.change_index import ChangeIndex
from exactbatch.sinks.upsert.change_order import (
    PLACE,
    ROW,
    STAGED,
    TABLE,
    ChangeOrder,
    Latest,
    StoredChanges,
    check_positions,
    check_ties,
    is_greater,
    latest_first,
)
from exactbatch.sinks.upsert.latest_rows import LatestRows, without_alike
from exactbatch.sinks.upsert.truncates import Truncates
from exactbatch.sinks.upsert.unavailable_values import UnavailableValues
from exactbatch.sinks.values.byte_equality import differs
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.kept_values import kept_rules
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

# The latest change of each affected key and partition that earlier batches left.
_EARLIER: Final = sql.Identifier("exactbatch_earlier")
# The changes of these that are the latest of their keys: their places, and then their columns.
_KEPT_PLACES: Final = sql.Identifier("exactbatch_kept_places")
_KEPT: Final = sql.Identifier("exactbatch_kept")
# The affected keys that have no row in the target any more.
_OBSOLETE: Final = sql.Identifier("exactbatch_obsolete")
# From this number of affected keys on, it pays to look whether earlier batches left changes of some of them.
MANY_KEYS: Final = 10_000
_KEYS_LOOKED_UP: Final = 1_000


@dataclass(frozen=True)
class ChangeStore:
    """The table of changes, and what is known before a batch is recorded there.

    columns          the pipeline's columns
    casts            how a staged change becomes one that is stored
    affected         the table of the keys that are affected besides those of staged changes
    newest_truncate  a table with the version of the newest truncate; None if there is no truncate
    """

    target: TargetTable
    changes: LineageTable
    order: ChangeOrder
    staged: StagedRows
    columns: Sequence[Column]
    casts: Sequence[Cast]
    affected: sql.Identifier
    truncates: Truncates
    newest_truncate: sql.Identifier | None
    unavailable_values: UnavailableValues

    def keep_latest(self, cursor: Cursor) -> Latest:
        """Return the latest change of each affected key; see UpsertStore. Nothing has been inserted yet."""
        cursor.execute(sql.SQL("analyze {}").format(STAGED))
        cursor.execute(sql.SQL("select exists (select from {})").format(self.affected))
        has_retracted = bool(cursor.fetchone()[0])
        later_only = (
            not has_retracted
            and self._are_many(cursor)
            and self._is_comparable(cursor)
            and self._is_any_known(cursor)
        )
        has_earlier = self._find_earlier(
            cursor, retracted=self.affected if has_retracted else None, later_only=later_only
        )
        check_positions(cursor, self.staged, self.order, _EARLIER)
        earlier = StoredChanges(
            sql.SQL("select {ordered}, {place}, {table}, {row} from {earlier}").format(**self._names),
            self.changes.identifier,
            column_list(cast.column.name for cast in self.casts),
        )
        values = sql.SQL(", ").join(cast.expression for cast in self.casts)
        if check_ties(cursor, self.staged, self.order, self.target.spec, values, earlier):
            self.order.forget_older(cursor, STAGED)
        kept = self._keep_latest(cursor) if has_earlier else 0
        # Read as a whole now: what is not the latest may be compacted while this transaction goes on.
        cursor.execute(
            sql.SQL(
                "create temporary table {kept} on commit drop as select c.* from {change} c "
                "join {places} p on c.tableoid = p.{table} and c.ctid = p.{row}"
            ).format(**self._names, places=_KEPT_PLACES)
            if kept
            else sql.SQL(
                "create temporary table {kept} on commit drop as select * from {change} with no data"
            ).format(**self._names)
        )
        if kept and cursor.rowcount != kept:
            raise StagedRowsDiffer(
                f"table {self.changes.table.spec}: expected {kept} changes where they were found, found "
                f"{cursor.rowcount}: another session rewrites the table. Nothing was written; try again.",
                batch_id=self.staged.batch_id,
            )
        return Latest(STAGED, _KEPT, all_new=not (has_earlier or has_retracted or later_only))

    def record(self, cursor: Cursor, latest: Latest) -> int:
        """Insert the staged changes, and complete the latest ones by them; return how many were inserted."""
        with forbid_changes(cursor, self.target, while_writing=self.changes.table):
            inserted = ChangeIndex(self.changes, self.order.key).insert(
                cursor,
                lambda: self.changes.insert_staged(cursor, self.staged, [cast.column for cast in self.casts]),
            )
        if self.newest_truncate is not None:
            self.truncates.delete_older(cursor, latest, self.newest_truncate)
        self.unavailable_values.resolve(
            cursor,
            self.staged,
            self.columns,
            _KEPT,
            affected=self.affected,
            newest_truncate=self.newest_truncate,
        )
        return inserted

    def find_rows(self, cursor: Cursor, latest: Latest) -> LatestRows:
        """Return the rows of all affected keys. Raises TargetMismatch if the target cannot hold an earlier change."""
        casts = self.target.casts(cursor, self.columns)
        self._check_kept(cursor, casts)
        names = without_alike(casts, self.order.key)
        return LatestRows(
            self.target,
            self.order.key,
            latest,
            self.staged.table,
            casts,
            {cast.column.name: cast.expression for cast in self.casts},
            # An unchanged row is not written: no dead row, and no trigger sees a change.
            replaces=lambda rows: differs(column_list(names, of="t"), column_list(names, of=rows)),
            is_written=sql.SQL("t.tableoid is not null"),
            may_conflict=not latest.all_new or bool(self.target.triggers(cursor)),
            obsolete=_OBSOLETE if self._find_obsolete(cursor) else None,
        )

    def check(self, cursor: Cursor, rows: LatestRows, written: int) -> None:  # noqa: ARG002
        """Check the rows if a trigger may have altered or dropped some; those that were there are not written."""
        if self.target.triggers(cursor):
            rows.check(cursor)

    def _are_many(self, cursor: Cursor) -> bool:
        cursor.execute(
            sql.SQL("select exists (select from {} offset {})").format(STAGED, sql.Literal(MANY_KEYS - 1))
        )
        return bool(cursor.fetchone()[0])

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
            keys = sql.SQL("select {ordered}, {place} from {staged}").format(**self._names)
            condition = self._is_not_followed
        if retracted is not None:
            keys = sql.SQL("{} union select {} from {}").format(keys, self._names["key"], retracted)
        # Each key is looked up once, so that a cache of results holds none that is asked for again; Postgres expects
        # otherwise, and would look up many keys one by one instead of merging them with the index.
        cursor.execute("set local enable_memoize to off")
        cursor.execute(
            sql.SQL(
                "create temporary table {earlier} on commit drop as "
                "select distinct on ({group}) {of_change}, c.deleted, c.tableoid as {table}, c.ctid as {row} "
                "from {change} c join ({keys}) affected using ({key}) where {condition} order by {order}"
            ).format(
                **self._names,
                of_change=column_list([*self.order.ordered, *PLACE], of="c"),
                keys=keys,
                condition=condition,
            )
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

    def _check_kept(self, cursor: Cursor, casts: Sequence[Cast]) -> None:
        """Raise TargetMismatch if the target cannot hold an earlier change as it is kept.

        Its columns may have changed since: only staged values are checked before publish.
        """
        kept = {cast.column.name: cast.target for cast in self.casts}
        if not (rules := kept_rules(kept, casts)):
            return
        cursor.execute(
            sql.SQL(
                "select kafka_topic, kafka_partition, kafka_offset, concat_ws(', ', {key}) as key, "
                "case {columns} end as column_name, case {reasons} end as reason from {kept} "
                "where not deleted and ({conditions}) order by 1, 2, 3 limit 1"
            ).format(
                key=sql.SQL(", ").join(
                    sql.SQL("{}::text").format(sql.Identifier(name)) for name in self.order.key
                ),
                columns=sql.SQL(" ").join(
                    sql.SQL("when {} then {}").format(rule.condition, sql.Literal(rule.column))
                    for rule in rules
                ),
                reasons=sql.SQL(" ").join(
                    sql.SQL("when {} then {}").format(rule.condition, rule.reason) for rule in rules
                ),
                kept=_KEPT,
                conditions=sql.SQL(" or ").join(sql.SQL("({})").format(rule.condition) for rule in rules),
            )
        )
        if (row := cursor.fetchone()) is not None:
            topic, partition, offset, key, column, reason = row
            raise TargetMismatch(
                f"target {self.target.spec}, column {column}: it cannot hold an earlier change that is the latest "
                f"one of its key, ({', '.join(self.order.key)}) = ({key}), {topic}[{partition}] offset {offset} in "
                f"{self.changes.table.spec}: {reason}. Nothing was written. Give the column a type that holds the "
                f"value, such as {kept[column].sql_name}, or replay that offset first, which rejects the change.",
                column=column,
                topic=topic,
                partition=partition,
                from_offset=offset,
                until_offset=offset + 1,
            )

    def _find_obsolete(self, cursor: Cursor) -> int:
        """Find the affected keys that have no row any more; return how many there are."""
        # A retracted key without a change has no row either.
        cursor.execute(
            sql.SQL(
                "create temporary table {obsolete} on commit drop as select {key} from {staged} where deleted "
                "union all select {key} from {kept} where deleted "
                "union all select {key} from {affected} t "
                "where not exists (select from {staged} l where {same_key}) "
                "and not exists (select from {kept} l where {same_key})"
            ).format(**self._names)
        )
        return cursor.rowcount

    @property
    def _is_not_followed(self) -> sql.Composable:
        """The condition of an earlier change `c` that is later than the staged change of its key, `affected`, or in
        another partition with an equal version."""
        return is_greater(
            self.order.version,
            "c",
            "affected",
            if_equal=sql.SQL(
                "((c.kafka_topic, c.kafka_partition) <> (affected.kafka_topic, affected.kafka_partition) "
                "or c.kafka_offset >= affected.kafka_offset)"
            ),
        )

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "target": self.target.identifier,
            "change": self.changes.identifier,
            "affected": self.affected,
            "staged": STAGED,
            "earlier": _EARLIER,
            "kept": _KEPT,
            "obsolete": _OBSOLETE,
            "table": TABLE,
            "row": ROW,
            "key": column_list(self.order.key),
            "ordered": column_list(self.order.ordered),
            "place": column_list(PLACE),
            "group": self.order.by_partition,
            "order": self.order.latest_first_by_partition,
            "same_key": same_values(self.order.key, "l", "t"),
        }
