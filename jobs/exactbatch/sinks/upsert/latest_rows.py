"""Write the latest changes of the affected keys into the target of an Upsert."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.tables.candidates import PLACE_OF_LINEAGE, Candidates
from exactbatch.sinks.tables.counted_writes import delete_rows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.upsert.change_order import ROW, Latest
from exactbatch.sinks.upsert.moving_values import MovingValues
from exactbatch.sinks.values.byte_equality import differs, has_one_image
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list, same_values


@dataclass(frozen=True)
class LatestRows:
    """The rows that the latest changes make of the target, one for each key whose change is not a delete.

    staging       the staging table, in which the rows of staged changes are looked up
    casts         the columns that are written
    values        what a staged change writes there, by the names of these columns
    replaces      gives the condition that a row takes the place of the row `t` of its key, from the name of the
                  relation that has the row
    is_written    the condition that the row `t` is one that this batch has written, or need not be written
    may_conflict  False if the target should have no row of these keys
    obsolete      a table of keys whose rows are deleted first; None if there are none
    """

    target: TargetTable
    key: Sequence[str]
    latest: Latest
    staging: sql.Composable
    casts: Sequence[Cast]
    values: Mapping[str, sql.Composable]
    replaces: Callable[[str], sql.Composable]
    is_written: sql.Composable
    may_conflict: bool
    obsolete: sql.Identifier | None = None

    def write(self, cursor: Cursor) -> int:
        """Delete obsolete rows, insert new rows and update those that they replace; return how many were inserted or
        updated. Raises TargetMismatch if the target refuses a row.

        They come in the order of their keys: two sessions that write the same rows so wait for each other instead of
        deadlocking, and the pages of the key's index are written one after another.
        """
        if self.obsolete is not None:
            # Without statistics Postgres would take these for many, and read the whole target.
            cursor.execute(sql.SQL("analyze {}").format(self.obsolete))
            using, checks = sql.SQL("{} l").format(self.obsolete), bool(self.target.triggers(cursor))
            delete_rows(cursor, self.target, self._same_key, using=using, checks=checks)
        # Equal keys can look different: the row has the key as its latest change writes it.
        names = without_alike(self.casts, self.key)
        updated = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names
        )
        update = (
            sql.SQL("do update set {} where {}").format(updated, self.replaces("excluded"))
            if names
            else sql.SQL("do nothing")
        )
        in_order = (
            self._looked_up_in_order
            if _is_cached(cursor, self.staging)
            else sql.SQL("select * from {} l order by {}").format(self._rows, column_list(self.key))
        )
        moving = MovingValues(
            self.target, self.key, self._columns, self._rows, self.replaces("l"), update, self._candidates
        )
        return moving.write(cursor, in_order, may_conflict=self.may_conflict)

    def check(self, cursor: Cursor, written: int | None = None) -> None:
        """Raise TargetMismatch unless each row is in the target, unchanged, or does not replace what is there.

        `written` is how many rows `is_written` must hold for; None for any number.
        """
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where t.tableoid is null) as missing, "
                "count(*) filter (where t.tableoid is not null and ({is_written}) is not true and {replaces}) "
                "as older, "
                "count(*) filter (where {is_written} and {differs}) as altered, "
                "count(*) filter (where {is_written}) as written from {rows} l left join {target} t on {same_key}"
            ).format(
                is_written=self.is_written,
                replaces=self.replaces("l"),
                differs=differs(column_list(self._columns, of="t"), column_list(self._columns, of="l")),
                rows=self._rows,
                target=self.target.identifier,
                same_key=self._same_key,
            )
        )
        missing, older, altered, found = cursor.fetchone()
        if missing or older or altered or written not in (None, found):
            cause = self.target.triggers(cursor) or "a rule or a policy of the table"
            raise TargetMismatch(
                f"target {self.target.spec}: of the latest changes of this batch {missing} did not arrive, {older} did "
                f"not replace an older row, and {altered} are not stored as they were written, because of {cause}. "
                f"Nothing was written. Drop {cause}, or change there only columns that the pipeline does not write."
            )

    @property
    def _columns(self) -> list[str]:
        return [cast.column.name for cast in self.casts]

    @property
    def _same_key(self) -> sql.Composable:
        return same_values(self.key, "l", "t")

    @property
    def _rows(self) -> sql.Composable:
        return sql.SQL("({})").format(self._select_rows())

    @property
    def _candidates(self) -> Candidates:
        """The rows that are not older than that of their key, with the records of this batch that they come from. A
        first statement may have written some of them."""
        no_place = [sql.SQL("null::{}").format(sql.SQL(type_)) for type_ in ("text", "integer", "bigint")]
        rows = sql.SQL(
            "select l.* from ({rows}) l left join {target} t on {same_key} "
            "where t.tableoid is null or {is_written} or {replaces}"
        ).format(
            rows=self._select_rows(PLACE_OF_LINEAGE, sql.SQL(", ").join(no_place)),
            target=self.target.identifier,
            same_key=self._same_key,
            is_written=self.is_written,
            replaces=self.replaces("l"),
        )
        return Candidates(rows, self._columns, self.key, replaces=True)

    def _select_rows(self, *places: sql.Composable) -> sql.Composable:
        """Return a query for the rows; `places` are further columns of staged changes and of kept ones."""
        of_staged, of_kept = self._values
        if places:
            of_staged, of_kept = (
                sql.SQL("{}, {}").format(*each) for each in zip((of_staged, of_kept), places, strict=True)
            )
        rows = sql.SQL(
            "select {of_staged} from {staging} join (select {row} from {staged} where not deleted) latest "
            "on {staging}.ctid = latest.{row}"
        ).format(of_staged=of_staged, staging=self.staging, row=ROW, staged=self.latest.staged)
        if self.latest.kept is not None:
            rows += sql.SQL(" union all select {} from {} where not deleted").format(
                of_kept, self.latest.kept
            )
        return rows

    @property
    def _looked_up_in_order(self) -> sql.Composable:
        """A query for the rows in the order of the keys: the places of the rows are ordered, which are narrow, and then
        the rows are looked up one by one.

        `offset 0` keeps Postgres from joining before it orders.
        """
        aliases = [sql.Identifier(f"exactbatch_key_{number}") for number, _ in enumerate(self.key)]
        kept_row = sql.Identifier("exactbatch kept row")
        of_staged, of_kept = self._values
        places = sql.SQL("select {}, {}, null::tid as {} from {} where not deleted").format(
            sql.SQL(", ").join(
                sql.SQL("{} as {}").format(sql.Identifier(name), alias)
                for name, alias in zip(self.key, aliases, strict=True)
            ),
            ROW,
            kept_row,
            self.latest.staged,
        )
        rows = sql.SQL("select {} from {} where ctid = latest.{}").format(of_staged, self.staging, ROW)
        if self.latest.kept is not None:
            places += sql.SQL(" union all select {}, null, ctid from {} where not deleted").format(
                column_list(self.key), self.latest.kept
            )
            rows += sql.SQL(" union all select {} from {} where ctid = latest.{}").format(
                of_kept, self.latest.kept, kept_row
            )
        return sql.SQL(
            "select {names} from ({places} order by {aliases} offset 0) latest "
            "cross join lateral ({rows} offset 0) looked_up order by {aliases}"
        ).format(
            names=column_list(self._columns), places=places, rows=rows, aliases=sql.SQL(", ").join(aliases)
        )

    @property
    def _values(self) -> tuple[sql.Composable, sql.Composable]:
        """The columns of a row, from a staged change and from one that is kept."""
        of_staged, of_kept = (
            sql.SQL(", ").join(
                sql.SQL("({})::{} as {}").format(value, sql.SQL(cast.type), sql.Identifier(cast.column.name))
                for value, cast in zip(values, self.casts, strict=True)
            )
            for values in (
                [self.values[name] for name in self._columns],
                [sql.Identifier(name) for name in self._columns],
            )
        )
        return of_staged, of_kept


def without_alike(casts: Sequence[Cast], key: Sequence[str]) -> list[str]:
    """Return the columns that may differ between rows with equal keys."""
    return [cast.column.name for cast in casts if cast.column.name not in key or not has_one_image(cast.type)]


def _is_cached(cursor: Cursor, staging: sql.Composable) -> bool:
    """True if the staging table, which this batch has just written, fits into a quarter of the server's cache."""
    cursor.execute(
        "select pg_relation_size(%s::regclass) <= pg_size_bytes(current_setting('effective_cache_size')) / 4",
        (staging.as_string(cursor),),
    )
    return bool(cursor.fetchone()[0])
