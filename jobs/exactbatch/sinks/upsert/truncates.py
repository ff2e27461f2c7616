"""Truncates of the source: each deletes the keys whose latest change is not newer.

A truncate is a row of the table of changes, with its version and lineage, and null in all columns of the key. So it is
counted, retracted and compacted like any other change. Of several truncates the newest one decides alone.

With equal versions the truncate is the newer one: a snapshot has the position at which it was taken, and the truncate
that starts at this position comes after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.affected_keys import BY_TRUNCATE
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_own_types
from exactbatch.sinks.upsert.change_order import Latest, is_greater
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

# The version of the newest truncate, if there is one, and whether it is staged.
_NEWEST: Final = sql.Identifier("exactbatch_truncate")
_IS_STAGED: Final = sql.Identifier("exactbatch_is_staged")
# The versions of the truncates that this transaction retracts.
_RETRACTED: Final = sql.Identifier("exactbatch_retracted_truncate")


@dataclass(frozen=True)
class Truncates:
    """The truncates among the changes of an Upsert. Without a version there are none.

    `are_staged` is true if the rows of a batch may be truncates.
    """

    target: TargetTable
    changes: LineageTable
    key: Sequence[str]
    version: Sequence[str]
    are_staged: bool = False

    def check(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if the table of changes cannot hold truncates, or order them."""
        check_own_types(cursor, self.changes.table, self.version, "with truncate='apply'")
        stored = self.changes.table.columns(cursor)
        if required := [name for name in self.key if stored[name].required]:
            raise TargetMismatch(
                f"table {self.changes.table.spec}, column {required[0]}: it is not null, and a truncate has no key. "
                f"Nothing was written. Run `alter table {self.changes.table.spec} alter {required[0]} drop not null`.",
                column=required[0],
            )

    def find(
        self, cursor: Cursor, staged: StagedRows, casts: Sequence[Cast], affected: sql.Identifier
    ) -> sql.Identifier | None:
        """Find the newest truncate, before the staged changes are inserted; return a table with its version, or None.

        If it is staged, all rows of the target are affected.
        """
        if not self.version:
            return None
        versions = {cast.column.name: cast.expression for cast in casts}
        cursor.execute(
            sql.SQL(
                "create temporary table {newest} on commit drop as select * from ("
                "(select {version}, false as {is_staged} from {change} where {is_truncate} {newest_first}) union all "
                "select {values}, true from {staging} where {are_staged} and {accepted} and {is_truncate}) truncates "
                "{newest_first}"
            ).format(
                **self._names,
                newest=_NEWEST,
                values=sql.SQL(", ").join(versions[name] for name in self.version),
                staging=staged.table,
                accepted=staged.accepted,
            )
        )
        cursor.execute(sql.SQL("select {} from {}").format(_IS_STAGED, _NEWEST))
        if (row := cursor.fetchone()) is None:
            return None
        if row[0]:
            # A row without a change is none of the pipeline's.
            cursor.execute(
                sql.SQL(
                    "insert into {affected} ({key}, {by_truncate}) select {key}, true from {target} t "
                    "where exists (select from {change} c where {same_key})"
                ).format(**self._names, affected=affected)
            )
        return _NEWEST

    def delete_older(self, cursor: Cursor, latest: Latest, newest: sql.Identifier) -> None:
        """Make a delete of each latest change that is not newer than the newest truncate, which find() has found."""
        for table in latest.tables:
            cursor.execute(
                sql.SQL(
                    "update {latest} c set deleted = true from {newest} t where not c.deleted and not {is_newer}"
                ).format(latest=table, newest=newest, is_newer=is_greater(self.version, "c", "t"))
            )

    def note(self, cursor: Cursor, parts: Sequence[Part]) -> sql.Identifier | None:
        """Note the truncates that batches have written for ranges, before they are retracted; return a table with their
        versions, or None if there are none."""
        if not self.version or (rows := self.changes.select_rows(parts)) is None:
            return None
        source, condition = rows
        cursor.execute(
            sql.SQL(
                "create temporary table if not exists {retracted} on commit drop as "
                "select {version} from {change} with no data"
            ).format(**self._names, retracted=_RETRACTED)
        )
        cursor.execute(
            sql.SQL(
                "insert into {retracted} select {of_change} from {change} t, {source} "
                "where {condition} and {is_truncate}"
            ).format(
                retracted=_RETRACTED,
                change=self.changes.identifier,
                is_truncate=is_truncate(self.key, of="t"),
                of_change=column_list(self.version, of="t"),
                source=source,
                condition=condition,
            )
        )
        return _RETRACTED if cursor.rowcount else None

    def affect(self, cursor: Cursor, retracted: sql.Identifier, affected: sql.Identifier) -> None:
        """Add the keys to the affected ones that may have a row again without the truncates that note() has noted.

        Reads all changes.
        """
        cursor.execute(
            sql.SQL(
                "insert into {affected} select {key} from {change} c "
                "cross join (select {version} from {retracted} {newest_first}) r left join ("
                "select {version}, true as is_there from {change} where {is_truncate} {newest_first}) t on true "
                "group by {key} having not bool_or({is_newer_than_retracted}) "
                "and bool_or(not c.deleted and (t.is_there is null or {is_newer}))"
            ).format(
                **{**self._names, "key": column_list(self.key, of="c")},
                retracted=retracted,
                affected=affected,
                is_newer_than_retracted=is_greater(self.version, "c", "r"),
                is_newer=is_greater(self.version, "c", "t"),
            )
        )

    def are_there(self, cursor: Cursor, staged: StagedRows) -> bool:
        """Return whether there is a truncate, stored or staged."""
        if not self.version:
            return False
        cursor.execute(
            sql.SQL(
                "select exists (select from {change} where {is_truncate}) or {are_staged} and exists ("
                "select from {staging} where {accepted} and {is_truncate})"
            ).format(
                **self._names,
                staging=staged.table,
                accepted=staged.accepted,
            )
        )
        return bool(cursor.fetchone()[0])

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "by_truncate": BY_TRUNCATE,
            "target": self.target.identifier,
            "change": self.changes.identifier,
            "is_staged": _IS_STAGED,
            "are_staged": sql.Literal(self.are_staged),
            "key": column_list(self.key),
            "version": column_list(self.version),
            "is_truncate": is_truncate(self.key),
            "newest_first": newest_first(self.version),
            "same_key": same_values(self.key, "c", "t"),
        }


def is_truncate(key: Sequence[str], *, of: str | None = None) -> sql.Composable:
    """Return the condition of a change, in the table `of` if one is given, that is a truncate: it alone has no key."""
    return sql.SQL("({} is null and {})").format(
        sql.SQL(" is null and ").join(column_list([name], of=of) for name in key),
        column_list(["deleted"], of=of),
    )


def newest_first(version: Sequence[str]) -> sql.Composable:
    """Return the clauses that leave the newest of truncates, which all have a version."""
    return sql.SQL("order by {} limit 1").format(
        sql.SQL(", ").join(sql.SQL("{} desc nulls last").format(sql.Identifier(name)) for name in version)
    )
