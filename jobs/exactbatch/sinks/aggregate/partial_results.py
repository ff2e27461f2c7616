"""The table of partial results: one row for each batch, group and window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named
from exactbatch.sinks.aggregate.functions import AggregateFunction
from exactbatch.sinks.aggregate.window import Window
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.affected_keys import AFFECTED, retract_affecting
from exactbatch.sinks.tables.counted_writes import write_rows
from exactbatch.sinks.tables.lineage_table import LINEAGE, LineageTable, Part
from exactbatch.sinks.tables.target_checks import check_collations, check_companion
from exactbatch.sinks.tables.target_definition import Evolve
from exactbatch.sinks.values.byte_equality import has_one_image
from exactbatch.sinks.values.null_safe_groups import column_list, group_hash, same_group

RECORDS: Final = Column("records", "bigint")
RECORD_COUNT: Final = sql.SQL("coalesce(sum(records), 0)")
# The temporary table with the results of the affected groups.
MERGED: Final = sql.Identifier("exactbatch_merged")
# The temporary table with the results of one batch, each with whether it is the first one of its group.
ADDED: Final = sql.Identifier("exactbatch_added")
IS_FIRST: Final = sql.Identifier("exactbatch is first")
_KAFKA_TIMESTAMP: Final = next(column for column in LINEAGE if column.name == "kafka_timestamp")


@dataclass(frozen=True)
class PartialResults:
    """The contribution of each batch to each group: its results, and in `records` its number of staged rows."""

    table: LineageTable
    group_by: tuple[str | Window, ...]
    aggregates: Mapping[str, AggregateFunction]

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that name the group of a row."""
        return tuple(group.start.name if isinstance(group, Window) else group for group in self.group_by)

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a result: those of its group, and the aggregates."""
        values = staged_values(columns)
        return (
            *(group.start if isinstance(group, Window) else values[group] for group in self.group_by),
            *(Column(name, function.type_of(values)) for name, function in self.aggregates.items()),
        )

    def group_columns_of(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns that name the group of a row, with their types."""
        return self.result_columns(columns)[: len(self.group_by)]

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve) -> None:
        """Create the table if it is missing, and otherwise check its columns."""
        if self.table.prepare(cursor, (*self.result_columns(columns), RECORDS), evolve=evolve, exact=True):
            # Nulls are equal in the hash of a record, and in no other index that a join can use.
            create_named(
                cursor,
                sql.SQL("create index on {} ({})").format(
                    self.table.identifier, group_hash(self.group_columns)
                ),
            )
        check_companion(cursor, self.table.table)
        check_collations(cursor, self.table.table, self.group_columns)

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the partial results of the batches whose results stand for ranges; return how many staged rows
        these had."""
        return retract_affecting(cursor, self.table, parts, self.group_columns, count=RECORD_COUNT)

    def insert_staged(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column], *, copy: bool = False
    ) -> int:
        """Insert the results of staged rows, and add their groups to the affected ones; with `copy`, through the
        temporary table ADDED.

        Returns the number of staged rows, as it arrived in `records`.
        """
        results = self._results_of(staged, columns)
        if copy:
            self._copy(cursor, results)
            results = sql.SQL("select {}, records from {}").format(self._result_list(), ADDED)
        return write_rows(
            cursor,
            self.table.table,
            sql.SQL(
                "with inserted as (insert into {partial} ({names}, records, batch_id) "
                "select r.*, {batch_id} from ({results}) r returning *), "
                "affected as (insert into {affected} select {group_columns} from inserted) "
                "select {count} as number, count(*) as rows from inserted"
            ).format(
                partial=self.table.identifier,
                names=self._result_list(),
                batch_id=sql.Literal(staged.batch_id),
                results=results,
                affected=AFFECTED,
                group_columns=column_list(self.group_columns),
                count=RECORD_COUNT,
            ),
        )

    def _results_of(self, staged: StagedRows, columns: Sequence[Column]) -> sql.Composable:
        """Return a query for the results of staged rows, and the number of rows of each."""
        values = staged_values(columns)
        groups = [
            group.of_row if isinstance(group, Window) else _value(values[group]) for group in self.group_by
        ]
        aggregates = [
            function.over_rows(
                sql.SQL("*") if function.column is None else _value(values[function.column]),
                function.type_of(values),
            )
            for function in self.aggregates.values()
        ]
        return sql.SQL(
            "select {representatives}, {aggregates}, count(*) from {staging} where {accepted} group by {groups}"
        ).format(
            representatives=sql.SQL(", ").join(
                _representative(group, column.type)
                for group, column in zip(groups, self.result_columns(columns), strict=False)
            ),
            aggregates=sql.SQL(", ").join(aggregates),
            staging=staged.table,
            accepted=staged.accepted,
            groups=sql.SQL(", ").join(groups),
        )

    def _copy(self, cursor: Cursor, results: sql.Composable) -> None:
        """Store the results of a batch in the temporary table ADDED, before they are inserted."""
        cursor.execute(
            sql.SQL(
                "create temporary table {} on commit drop as select {}, records, false as {} from {} with no data"
            ).format(ADDED, self._result_list(), IS_FIRST, self.table.identifier)
        )
        cursor.execute(sql.SQL("insert into {} {}").format(ADDED, results))
        # A group has an earlier result if the index has its hash. The order makes the planner use the index even for
        # a group with enough results that it would expect to meet one soon in any order. The index must not have the
        # new results yet: each search would pass over those that follow, which the statement does not see.
        cursor.execute(
            sql.SQL(
                "update {added} a set {is_first} = (select {hash_of_earlier} from {partial} p "
                "where {hash_of_earlier} >= {hash_of_result} order by {hash_of_earlier} limit 1) "
                "is distinct from {hash_of_result}"
            ).format(
                added=ADDED,
                is_first=IS_FIRST,
                hash_of_earlier=group_hash(self.group_columns, of="p"),
                partial=self.table.identifier,
                hash_of_result=group_hash(self.group_columns, of="a"),
            )
        )

    def _result_list(self) -> sql.Composable:
        return column_list((*self.group_columns, *self.aggregates))

    def merge(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Merge the partial results of the affected groups into the temporary table MERGED."""
        values = staged_values(columns)
        representatives = [
            sql.SQL("{} as {}").format(
                _representative(sql.Identifier("p", column.name), column.type), sql.Identifier(column.name)
            )
            for column in self.group_columns_of(columns)
        ]
        aggregates = [
            sql.SQL("{} as {}").format(
                function.over_partials(sql.Identifier("p", name), function.type_of(values)),
                sql.Identifier(name),
            )
            for name, function in self.aggregates.items()
        ]
        cursor.execute(sql.SQL("analyze {}").format(AFFECTED))
        cursor.execute(
            sql.SQL(
                "create temporary table {merged} on commit drop as select {representatives}, {aggregates} "
                "from {partial} p join (select distinct {group_columns} from {affected}) k on {same_group} "
                "group by {groups}"
            ).format(
                merged=MERGED,
                representatives=sql.SQL(", ").join(representatives),
                groups=column_list(self.group_columns, of="p"),
                aggregates=sql.SQL(", ").join(aggregates),
                partial=self.table.identifier,
                group_columns=column_list(self.group_columns),
                affected=AFFECTED,
                same_group=same_group(self.group_columns, "p", "k"),
            )
        )


def staged_values(columns: Sequence[Column]) -> dict[str, Column]:
    """Return the columns of a staged row that it can be grouped by, and that can be aggregated, by name."""
    return {column.name: column for column in (*columns, _KAFKA_TIMESTAMP)}


def _representative(group: sql.Composable, type_: str) -> sql.Composable:
    """Return the value that names a group: of equal values that look different, always the same one."""
    if has_one_image(type_):
        return group
    return sql.SQL('min({}::text collate "C")::{}').format(group, sql.SQL(type_))


def _value(column: Column) -> sql.Composable:
    """Return the value of a column in a staged row, which may hold it as text."""
    name = sql.Identifier(column.name)
    if column.staged_type == column.type:
        return name
    return sql.SQL("{}::{}").format(name, sql.SQL(column.type))
