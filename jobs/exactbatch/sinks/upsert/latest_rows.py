"""Derive the rows of an Upsert's target from the latest changes of the affected keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.affected_keys import AFFECTED
from exactbatch.sinks.tables.constraint_errors import candidates_of
from exactbatch.sinks.tables.counted_writes import delete_rows, forbid_changes, write_rows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.latest_changes import KEPT, ROW, STAGED
from exactbatch.sinks.values.byte_equality import differs, has_one_image
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list

# The affected keys that have no row in the target any more.
_OBSOLETE: Final = sql.Identifier("exactbatch_obsolete")


@dataclass(frozen=True)
class LatestRows:
    """The target of an Upsert, which holds the latest change of each key."""

    target: TargetTable
    changes: LineageTable
    key: Sequence[str]

    def write(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Write the rows of all affected keys as LatestChanges.find() has found them.

        Raises TargetMismatch if the target refuses or alters a row.
        """
        casts = self.target.casts(cursor, columns)
        first = self.changes.casts(cursor, columns)
        candidates = sql.SQL("{} and not deleted").format(candidates_of(casts, staged))
        with forbid_changes(cursor, self.changes.table, while_writing=self.target):
            self._write(cursor, casts, _latest_rows(first, casts, staged), candidates)

    def _write(
        self, cursor: Cursor, casts: Sequence[Cast], latest: sql.Composable, candidates: sql.Composable
    ) -> None:
        """Delete and write rows of the affected keys; `candidates` are those of this batch, for errors."""
        # Equal keys can look different: the row has the key as its latest change writes it.
        written = [
            cast.column.name
            for cast in casts
            if cast.column.name not in self.key or not has_one_image(cast.type)
        ]
        triggers = self.target.triggers(cursor)
        self._find_obsolete(cursor)
        if cursor.rowcount:
            self._delete(cursor, triggers)
        # An unchanged row is not written: no dead row, and no trigger sees a change.
        update = (
            sql.SQL("do update set {} where {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in written
                ),
                differs(written, "t", "excluded"),
            )
            if written
            else sql.SQL("do nothing")
        )
        # In the order of the keys: two sessions that write the same rows so wait for each other instead of
        # deadlocking, and the pages of the key's index are written one after another.
        write_rows(
            cursor,
            self.target,
            sql.SQL(
                "insert into {target} as t ({names}) select * from {latest} l order by {key} "
                "on conflict ({key}) {update}"
            ).format(
                **self._names,
                names=column_list(cast.column.name for cast in casts),
                latest=latest,
                update=update,
            ),
            candidates=candidates,
        )
        if triggers:
            self._check_written(cursor, casts, latest, triggers)

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
        rows = sql.SQL("{} t using {} l where {}").format(
            self.target.identifier, _OBSOLETE, self._names["same_key"]
        )
        remaining = sql.SQL("select count(*) from {} t, {} l where {}").format(
            self.target.identifier, _OBSOLETE, self._names["same_key"]
        )
        delete_rows(
            cursor,
            self.target,
            sql.SQL("delete from {}").format(rows),
            # The check costs as much as the statement: only if something could have kept rows.
            remaining=remaining if triggers else None,
        )

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
                "where t.tableoid is null or record_image_ne(row({stored}), row({computed}))"
            ).format(
                **self._names,
                latest=latest,
                stored=column_list(names, of="t"),
                computed=column_list(names, of="l"),
            )
        )
        missing, differing, remaining = cursor.fetchone()
        if differing or remaining:
            raise TargetMismatch(
                f"target {self.target.spec}: of the rows of this batch {missing} did not arrive, "
                f"{differing - missing} are not stored as they were written, and {remaining} that were deleted "
                f"are still there: {triggers} alters them. Nothing was written. Drop it, or let it change only "
                f"columns that the pipeline does not write."
            )

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "target": self.target.identifier,
            "affected": AFFECTED,
            "staged": STAGED,
            "kept": KEPT,
            "obsolete": _OBSOLETE,
            "key": column_list(self.key),
            "same_key": sql.SQL(" and ").join(
                sql.SQL("l.{0} = t.{0}").format(sql.Identifier(name)) for name in self.key
            ),
        }


def _latest_rows(first: Sequence[Cast], casts: Sequence[Cast], staged: StagedRows) -> sql.Composable:
    """Return the rows that the target must hold for the affected keys, in the columns of `casts` and their types.

    `first` are the casts of the same columns into the table of changes: a staged value becomes a change, and then
    a row.
    """
    as_changes = {cast.column.name: cast.expression for cast in first}

    def values(changes: Mapping[str, sql.Composable]) -> sql.Composable:
        return sql.SQL(", ").join(
            sql.SQL("({})::{} as {}").format(
                changes[cast.column.name], sql.SQL(cast.type), sql.Identifier(cast.column.name)
            )
            for cast in casts
        )

    return sql.SQL(
        "(select {of_staged} from {staging} join (select {row} from {staged} where not deleted) latest "
        "on {staging}.ctid = latest.{row} union all select {of_kept} from {kept} where not deleted)"
    ).format(
        of_staged=values(as_changes),
        of_kept=values({cast.column.name: sql.Identifier(cast.column.name) for cast in casts}),
        staging=staged.table,
        staged=STAGED,
        kept=KEPT,
        row=ROW,
    )
