"""The table of partial results: one row for each batch, key and window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.append import LINEAGE, Append, Part
from exactbatch.sinks.groups import group_hash, has_one_image, listed, same_group
from exactbatch.sinks.measures import Measure
from exactbatch.sinks.target import Evolve, TargetTable
from exactbatch.sinks.touched import TOUCHED, take_back_touching
from exactbatch.sinks.window import Window

RECORDS: Final = Column("records", "bigint")
MERGED: Final = sql.Identifier("exactbatch_merged")
_KAFKA_TIMESTAMP: Final = next(column for column in LINEAGE if column.name == "kafka_timestamp")
_ROWS: Final = sql.SQL("coalesce(sum(records), 0)")


@dataclass(frozen=True)
class Partials:
    """What batches contribute: their own results, and in `records` how many rows these are of."""

    table: Append
    by: tuple[str | Window, ...]
    measures: Mapping[str, Measure]

    @property
    def _stored(self) -> TargetTable:
        return self.table.tables[0]

    @property
    def by_names(self) -> tuple[str, ...]:
        """The columns that name the group of a row."""
        return tuple(each.start.name if isinstance(each, Window) else each for each in self.by)

    def results(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns of a result: its group, and what is measured."""
        found = staged_values(columns)
        return (
            *(each.start if isinstance(each, Window) else found[each] for each in self.by),
            *(Column(name, measure.type_of(found)) for name, measure in self.measures.items()),
        )

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve) -> None:
        """Create the table when it is missing, and otherwise check its columns."""
        if self.table.prepare(cursor, (*self.results(columns), RECORDS), evolve=evolve):
            # Nulls are equal in a record's hash, and in no other index that a join can look into.
            cursor.execute(
                sql.SQL("create index on {} ({})").format(self.table.table, group_hash(self.by_names))
            )

        self._stored.check_plain(cursor)

    def count(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """How many rows the partial results are of that take_back() would delete."""
        if (found := self.table.found(parts)) is None or not self._stored.exists(cursor):
            return 0
        source, condition = found
        cursor.execute(
            sql.SQL("select {} from {} t, {} where {}").format(_ROWS, self.table.table, source, condition)
        )
        return int(cursor.fetchone()[0])

    def take_back(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the partial results of the batches that stand for ranges; return how many rows they are of."""
        return take_back_touching(cursor, self.table, parts, self.by_names, count=_ROWS)

    def insert_staged(
        self,
        cursor: Cursor,
        *,
        staging: sql.Composable,
        columns: Sequence[Column],
        batch_id: int,
        rows: sql.Composable,
    ) -> int:
        """Insert the results of the staged rows for which `rows` is true, and note their groups as touched.

        Returns how many rows they are of, as they have arrived.
        """
        found = staged_values(columns)
        groups = [each.of_row if isinstance(each, Window) else _value(found[each]) for each in self.by]
        measures = [
            measure.over_rows(
                sql.SQL("*") if measure.column is None else _value(found[measure.column]),
                measure.type_of(found),
            )
            for measure in self.measures.values()
        ]
        return self._stored.execute(
            cursor,
            sql.SQL(
                "with inserted as (insert into {partial} ({names}, records, batch_id) "
                "select {shown}, {measures}, count(*), {batch_id} from {staging} where {rows} "
                "group by {groups} returning *), "
                "touched as (insert into {touched} select {by} from inserted) "
                "select {count} as number, count(*) as rows from inserted"
            ).format(
                partial=self.table.table,
                names=listed((*self.by_names, *self.measures)),
                shown=sql.SQL(", ").join(
                    _representative(group, column.type)
                    for group, column in zip(groups, self.results(columns), strict=False)
                ),
                groups=sql.SQL(", ").join(groups),
                measures=sql.SQL(", ").join(measures),
                batch_id=sql.Literal(batch_id),
                staging=staging,
                rows=rows,
                touched=TOUCHED,
                by=listed(self.by_names),
                count=_ROWS,
            ),
        )

    def merge(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Merge the partial results of the touched groups into the temporary table MERGED."""
        found = staged_values(columns)
        shown = [
            sql.SQL("{} as {}").format(
                _representative(sql.Identifier("p", column.name), column.type), sql.Identifier(column.name)
            )
            for column in self.results(columns)[: len(self.by)]
        ]
        measures = [
            sql.SQL("{} as {}").format(
                measure.over_partials(sql.Identifier("p", name), measure.type_of(found)), sql.Identifier(name)
            )
            for name, measure in self.measures.items()
        ]
        cursor.execute(sql.SQL("analyze {}").format(TOUCHED))
        cursor.execute(
            sql.SQL(
                "create temporary table {merged} on commit drop as select {shown}, {measures} "
                "from {partial} p join (select distinct {by} from {touched}) k on {same} group by {groups}"
            ).format(
                merged=MERGED,
                shown=sql.SQL(", ").join(shown),
                groups=listed(self.by_names, of="p"),
                measures=sql.SQL(", ").join(measures),
                partial=self.table.table,
                by=listed(self.by_names),
                touched=TOUCHED,
                same=same_group(self.by_names, "p", "k"),
            )
        )


def _representative(group: sql.Composable, type_: str) -> sql.Composable:
    """The value that names a group: of equal values that look different, the same one in whatever order."""
    if has_one_image(type_):
        return group
    return sql.SQL('min({}::text collate "C")::{}').format(group, sql.SQL(type_))


def staged_values(columns: Sequence[Column]) -> dict[str, Column]:
    """What a staged row has that can be grouped by and measured."""
    return {column.name: column for column in (*columns, _KAFKA_TIMESTAMP)}


def _value(column: Column) -> sql.Composable:
    """The value of a column in a staged row, which may hold it as text."""
    name = sql.Identifier(column.name)
    if column.staged_type == column.type:
        return name
    return sql.SQL("{}::{}").format(name, sql.SQL(column.type))
