"""The table of partial results: one row for each batch, group and window."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named
from exactbatch.sinks.aggregate.function_sql import over_partials, over_rows
from exactbatch.sinks.aggregate.spec import RECORDS, Aggregate, staged_values
from exactbatch.sinks.aggregate.window import Window
from exactbatch.sinks.aggregate.window_sql import find_start
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.affected_keys import retract_affecting
from exactbatch.sinks.tables.counted_writes import write_rows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target_checks import check_collations, check_companion
from exactbatch.sinks.values.byte_equality import has_one_image
from exactbatch.sinks.values.null_safe_groups import column_list, group_hash, same_group

# The temporary table with the results of the affected groups.
_MERGED: Final = sql.Identifier("exactbatch_merged")
# The temporary table with the results of one batch, each with whether it is the first one of its group.
_ADDED: Final = sql.Identifier("exactbatch_added")
IS_FIRST: Final = sql.Identifier("exactbatch is first")


@dataclass(frozen=True)
class PartialResults:
    """The contribution of each batch to each group: its results, and in `records` its number of staged rows."""

    table: LineageTable
    sink: Aggregate

    def find_group_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns that name the group of a row, with their types."""
        return self.sink.aggregated_columns(columns)[: len(self.sink.groups)]

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve) -> None:
        """Create the table if it is missing, and otherwise check its columns."""
        results = (*self.sink.aggregated_columns(columns), RECORDS)
        if self.table.prepare(cursor, results, evolve=evolve, exact=True):
            # Nulls are equal in the hash of a record, and in no other index that a join can use.
            create_named(
                cursor,
                sql.SQL("create index on {} ({})").format(
                    self.table.identifier, group_hash(self.sink.group_columns)
                ),
            )
        check_companion(cursor, self.table.table)
        check_collations(cursor, self.table.table, self.sink.group_columns)

    def retract(self, cursor: Cursor, parts: Sequence[Part], affected: sql.Identifier) -> int:
        """Delete the partial results of the batches whose results stand for ranges, and add their groups to the
        affected ones; return how many staged rows these had."""
        return retract_affecting(cursor, self.table, parts, self.sink.group_columns, affected)

    def insert_staged(
        self,
        cursor: Cursor,
        staged: StagedRows,
        columns: Sequence[Column],
        *,
        affected: sql.Identifier,
        computed: sql.Identifier | None = None,
    ) -> int:
        """Insert the results of staged rows, which `computed` has if it is given, and add their groups to the affected
        ones.

        Returns the number of staged rows, as it arrived in `records`.
        """
        results = (
            self._select_results(staged, columns)
            if computed is None
            else sql.SQL("select {}, records from {}").format(self._result_list(), computed)
        )
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
                affected=affected,
                group_columns=column_list(self.sink.group_columns),
                count=self.table.row_count,
            ),
        )

    def _select_results(self, staged: StagedRows, columns: Sequence[Column]) -> sql.Composable:
        """Return a query for the results of staged rows, and the number of rows of each."""
        values = staged_values(columns)
        groups = [
            find_start(group) if isinstance(group, Window) else _value(values[group])
            for group in self.sink.groups
        ]
        aggregates = [
            over_rows(
                function,
                sql.SQL("*") if function.column is None else _value(values[function.column]),
                function.find_type(values),
            )
            for function in self.sink.aggregates.values()
        ]
        return sql.SQL(
            "select {representatives}, {aggregates}, count(*) from {staging} where {accepted} group by {groups}"
        ).format(
            representatives=sql.SQL(", ").join(
                _representative(group, column.type)
                for group, column in zip(groups, self.sink.aggregated_columns(columns), strict=False)
            ),
            aggregates=sql.SQL(", ").join(aggregates),
            staging=staged.table,
            accepted=staged.accepted,
            groups=sql.SQL(", ").join(groups),
        )

    def compute(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> sql.Identifier:
        """Return a temporary table with the results of staged rows, each with whether it IS_FIRST of its group.

        Call this before insert_staged().
        """
        cursor.execute(
            sql.SQL(
                "create temporary table {} on commit drop as select {}, records, false as {} from {} with no data"
            ).format(_ADDED, self._result_list(), IS_FIRST, self.table.identifier)
        )
        cursor.execute(sql.SQL("insert into {} {}").format(_ADDED, self._select_results(staged, columns)))
        # A group has an earlier result if the index has its hash. The order makes the planner use the index even for
        # a group with enough results that it would expect to meet one soon in any order. The index must not have the
        # new results yet: each search would pass over those that follow, which the statement does not see.
        cursor.execute(
            sql.SQL(
                "update {added} a set {is_first} = (select {hash_of_earlier} from {partial} p "
                "where {hash_of_earlier} >= {hash_of_result} order by {hash_of_earlier} limit 1) "
                "is distinct from {hash_of_result}"
            ).format(
                added=_ADDED,
                is_first=IS_FIRST,
                hash_of_earlier=group_hash(self.sink.group_columns, of="p"),
                partial=self.table.identifier,
                hash_of_result=group_hash(self.sink.group_columns, of="a"),
            )
        )
        return _ADDED

    def _result_list(self) -> sql.Composable:
        return column_list((*self.sink.group_columns, *self.sink.aggregates))

    def merge(self, cursor: Cursor, columns: Sequence[Column], affected: sql.Identifier) -> sql.Identifier:
        """Merge the partial results of the affected groups; return the temporary table with the results."""
        values = staged_values(columns)
        representatives = [
            sql.SQL("{} as {}").format(
                _representative(sql.Identifier("p", column.name), column.type), sql.Identifier(column.name)
            )
            for column in self.find_group_columns(columns)
        ]
        aggregates = [
            sql.SQL("{} as {}").format(
                over_partials(function, sql.Identifier("p", name), function.find_type(values)),
                sql.Identifier(name),
            )
            for name, function in self.sink.aggregates.items()
        ]
        cursor.execute(sql.SQL("analyze {}").format(affected))
        cursor.execute(
            sql.SQL(
                "create temporary table {merged} on commit drop as select {representatives}, {aggregates} "
                "from {partial} p join (select distinct {group_columns} from {affected}) k on {same_group} "
                "group by {groups}"
            ).format(
                merged=_MERGED,
                representatives=sql.SQL(", ").join(representatives),
                groups=column_list(self.sink.group_columns, of="p"),
                aggregates=sql.SQL(", ").join(aggregates),
                partial=self.table.identifier,
                group_columns=column_list(self.sink.group_columns),
                affected=affected,
                same_group=same_group(self.sink.group_columns, "p", "k"),
            )
        )
        return _MERGED


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
