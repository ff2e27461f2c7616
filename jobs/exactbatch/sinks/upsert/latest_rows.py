"""Derive the rows of an Upsert's target from the latest changes of the affected keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.candidates import PLACE_OF_LINEAGE, Candidates
from exactbatch.sinks.tables.counted_writes import delete_rows, forbid_changes
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.change_order import ROW
from exactbatch.sinks.upsert.latest_changes import Latest
from exactbatch.sinks.upsert.moving_values import MovingValues
from exactbatch.sinks.values.byte_equality import differs, has_one_image
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.kept_values import kept_rules
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

# The affected keys that have no row in the target any more.
_OBSOLETE: Final = sql.Identifier("exactbatch_obsolete")


@dataclass(frozen=True)
class LatestRows:
    """The target of an Upsert, which holds the latest change of each key.

    `affected` is the table of the keys that are affected besides those which have a latest change.
    """

    target: TargetTable
    changes: LineageTable
    key: Sequence[str]
    latest: Latest
    affected: sql.Identifier

    def write(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Write the rows of all affected keys. Raises TargetMismatch if the target refuses or alters a row, or
        cannot hold an earlier change.
        """
        casts = self.target.casts(cursor, columns)
        first = self.changes.casts(cursor, columns)
        self._check_kept(cursor, first, casts)
        candidates = self._candidates(first, casts, staged)
        with forbid_changes(cursor, self.changes.table, while_writing=self.target):
            triggers = self.target.triggers(cursor)
            self._find_obsolete(cursor)
            if cursor.rowcount:
                self._delete(cursor, triggers)
            rows = self._latest_rows(first, casts, staged)
            # In the order of the keys: two sessions that write the same rows so wait for each other instead of
            # deadlocking, and the pages of the key's index are written one after another.
            in_order = (
                self._looked_up_in_order(first, casts, staged)
                if _is_cached(cursor, staged)
                else sql.SQL("select * from {} l order by {}").format(rows, self._names["key"])
            )
            # Looking up rows takes less time than Postgres expects, and compiling such a statement takes more.
            cursor.execute("set local jit to off")
            all_new = self.latest.all_new and not triggers
            self._write_rows(cursor, casts, rows, in_order, candidates, all_new=all_new)
            if triggers:
                self._check_written(cursor, casts, rows, triggers)

    def _check_kept(self, cursor: Cursor, first: Sequence[Cast], casts: Sequence[Cast]) -> None:
        """Raise TargetMismatch if the target cannot hold an earlier change as it is kept.

        Its columns may have changed since: only staged values are checked before publish.
        """
        kept = {cast.column.name: cast.target for cast in first}
        if not (rules := kept_rules(kept, casts)):
            return
        cursor.execute(
            sql.SQL(
                "select kafka_topic, kafka_partition, kafka_offset, concat_ws(', ', {key}) as key, "
                "case {columns} end as column_name, case {reasons} end as reason from {kept} "
                "where not deleted and ({conditions}) order by 1, 2, 3 limit 1"
            ).format(
                key=sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in self.key),
                columns=sql.SQL(" ").join(
                    sql.SQL("when {} then {}").format(rule.condition, sql.Literal(rule.column))
                    for rule in rules
                ),
                reasons=sql.SQL(" ").join(
                    sql.SQL("when {} then {}").format(rule.condition, rule.reason) for rule in rules
                ),
                kept=self.latest.kept,
                conditions=sql.SQL(" or ").join(sql.SQL("({})").format(rule.condition) for rule in rules),
            )
        )
        if (row := cursor.fetchone()) is not None:
            topic, partition, offset, key, column, reason = row
            raise TargetMismatch(
                f"target {self.target.spec}, column {column}: it cannot hold an earlier change that is the latest "
                f"one of its key, ({', '.join(self.key)}) = ({key}), {topic}[{partition}] offset {offset} in "
                f"{self.changes.table.spec}: {reason}. Nothing was written. Give the column a type that holds the "
                f"value, such as {kept[column].sql_name}, or replay that offset first, which rejects the change.",
                column=column,
                topic=topic,
                partition=partition,
                from_offset=offset,
                until_offset=offset + 1,
            )

    def _write_rows(
        self,
        cursor: Cursor,
        casts: Sequence[Cast],
        latest: sql.Composable,
        in_order: sql.Composable,
        candidates: Candidates,
        *,
        all_new: bool,
    ) -> None:
        """Insert rows, or update those whose keys are there: with `all_new`, there should be none."""
        names = [cast.column.name for cast in casts]
        # Equal keys can look different: the row has the key as its latest change writes it.
        written = [
            cast.column.name
            for cast in casts
            if cast.column.name not in self.key or not has_one_image(cast.type)
        ]
        # An unchanged row is not written: no dead row, and no trigger sees a change.
        update = (
            sql.SQL("do update set {} where {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in written
                ),
                differs(column_list(written, of="t"), column_list(written, of="excluded")),
            )
            if written
            else sql.SQL("do nothing")
        )
        changes = differs(column_list(written, of="t"), column_list(written, of="l"))
        moving = MovingValues(self.target, self.key, names, latest, changes, update, candidates)
        moving.write(cursor, in_order, may_conflict=not all_new)

    def _candidates(self, first: Sequence[Cast], casts: Sequence[Cast], staged: StagedRows) -> Candidates:
        """Return the rows of _latest_rows() with the records of this batch that they come from."""
        no_place = [sql.SQL("null::{}").format(sql.SQL(type_)) for type_ in ("text", "integer", "bigint")]
        rows = sql.SQL(
            "select {of_staged}, {place} from {staging} join (select {row} from {staged} where not deleted) latest "
            "on {staging}.ctid = latest.{row} union all select {of_kept}, {no_place} from {kept} where not deleted"
        ).format(
            **self._build_names(first, casts, staged),
            place=PLACE_OF_LINEAGE,
            no_place=sql.SQL(", ").join(no_place),
        )
        return Candidates(rows, [cast.column.name for cast in casts], self.key, replaces=True)

    def _find_obsolete(self, cursor: Cursor) -> None:
        """Find the affected keys that have no row any more; the cursor's row count is how many there are."""
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

    def _delete(self, cursor: Cursor, triggers: str) -> None:
        """Delete the rows of obsolete keys."""
        # Without statistics Postgres would take these for many, and read the whole target.
        cursor.execute(sql.SQL("analyze {}").format(_OBSOLETE))
        using = sql.SQL("{} l").format(_OBSOLETE)
        delete_rows(cursor, self.target, self._names["same_key"], using=using, checks=bool(triggers))

    def _check_written(
        self,
        cursor: Cursor,
        casts: Sequence[Cast],
        latest: sql.Composable,
        triggers: str,
    ) -> None:
        """Check that the affected keys' rows are their latest changes: a trigger may alter or drop them."""
        names = [cast.column.name for cast in casts]
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where t.tableoid is null) as missing, count(*) as differing, "
                "(select count(*) from {target} t, {obsolete} l where {same_key}) as remaining "
                "from {latest} l left join {target} t on {same_key} "
                "where t.tableoid is null or {differs}"
            ).format(
                **self._names,
                latest=latest,
                differs=differs(column_list(names, of="t"), column_list(names, of="l")),
            )
        )
        missing, differing, remaining = cursor.fetchone()
        if differing or remaining:
            raise TargetMismatch(
                f"target {self.target.spec}: of the rows of this batch {missing} did not arrive, "
                f"{differing - missing} are not stored as they were written, and {remaining} that were deleted "
                f"are still there, because of {triggers}. Nothing was written. Drop {triggers}, or change there only "
                f"columns that the pipeline does not write."
            )

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "target": self.target.identifier,
            "affected": self.affected,
            "staged": self.latest.staged,
            "kept": self.latest.kept,
            "obsolete": _OBSOLETE,
            "key": column_list(self.key),
            "same_key": same_values(self.key, "l", "t"),
        }

    def _latest_rows(
        self, first: Sequence[Cast], casts: Sequence[Cast], staged: StagedRows
    ) -> sql.Composable:
        """Return the rows that the target must hold for the affected keys, in the columns of `casts` and their types.

        `first` are the casts of the same columns into the table of changes: a staged value becomes a change, and then
        a row.
        """
        return sql.SQL(
            "(select {of_staged} from {staging} join (select {row} from {staged} where not deleted) latest "
            "on {staging}.ctid = latest.{row} union all select {of_kept} from {kept} where not deleted)"
        ).format(**self._build_names(first, casts, staged))

    def _looked_up_in_order(
        self, first: Sequence[Cast], casts: Sequence[Cast], staged: StagedRows
    ) -> sql.Composable:
        """Return _latest_rows() in the order of the keys: the places of the rows are ordered, which are narrow, and
        then the rows are looked up one by one.

        `offset 0` keeps Postgres from joining before it orders.
        """
        aliases = [sql.Identifier(f"exactbatch_key_{number}") for number, _ in enumerate(self.key)]
        return sql.SQL(
            "select {names} from ("
            "select {aliased}, {row}, null::tid as {kept_row} from {staged} where not deleted union all "
            "select {key}, null, ctid from {kept} where not deleted order by {aliases} offset 0) latest "
            "cross join lateral ("
            "select {of_staged} from {staging} where ctid = latest.{row} union all "
            "select {of_kept} from {kept} where ctid = latest.{kept_row} offset 0) looked_up order by {aliases}"
        ).format(
            **self._build_names(first, casts, staged),
            names=column_list(cast.column.name for cast in casts),
            key=column_list(self.key),
            aliased=sql.SQL(", ").join(
                sql.SQL("{} as {}").format(sql.Identifier(name), alias)
                for name, alias in zip(self.key, aliases, strict=True)
            ),
            aliases=sql.SQL(", ").join(aliases),
            kept_row=sql.Identifier("exactbatch kept row"),
        )

    def _build_names(
        self, first: Sequence[Cast], casts: Sequence[Cast], staged: StagedRows
    ) -> dict[str, sql.Composable]:
        """Return the tables of the latest changes, and the values of rows from either of them."""
        as_changes = {cast.column.name: cast.expression for cast in first}

        def values(changes: Mapping[str, sql.Composable]) -> sql.Composable:
            return sql.SQL(", ").join(
                sql.SQL("({})::{} as {}").format(
                    changes[cast.column.name], sql.SQL(cast.type), sql.Identifier(cast.column.name)
                )
                for cast in casts
            )

        return {
            "of_staged": values(as_changes),
            "of_kept": values({cast.column.name: sql.Identifier(cast.column.name) for cast in casts}),
            "staging": staged.table,
            "staged": self.latest.staged,
            "kept": self.latest.kept,
            "row": ROW,
        }


def _is_cached(cursor: Cursor, staged: StagedRows) -> bool:
    """True if the staging table, which this batch has just written, fits into a quarter of the server's cache."""
    cursor.execute(
        "select pg_relation_size(%s::regclass) <= pg_size_bytes(current_setting('effective_cache_size')) / 4",
        (staged.table.as_string(cursor),),
    )
    return bool(cursor.fetchone()[0])
