"""Add the results of a batch to the rows of an Aggregate's target, instead of merging all partial results again.

A group that changes in each batch has one partial result for each of them. Unless something is retracted, the row of
the target is already the merge of the earlier ones, so a batch costs what it changes, however many came before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.aggregate.function_sql import add, can_add
from exactbatch.sinks.aggregate.merged_groups import MergedGroups
from exactbatch.sinks.aggregate.partial_results import IS_FIRST
from exactbatch.sinks.aggregate.spec import staged_values
from exactbatch.sinks.tables.counted_writes import count_writes
from exactbatch.sinks.values.byte_equality import has_one_image


@dataclass(frozen=True)
class AddedResults:
    """The target of an Aggregate, whose rows take the partial results of one more batch."""

    groups: MergedGroups

    def is_possible(self, cursor: Cursor, columns: Sequence[Column], affected: sql.Identifier) -> bool:
        """True if adding results gives the same rows as merging all partial results. Ask before they are inserted.

        It does not if the transaction has retracted results, if the order of the results decides, if a trigger may
        alter what is written, or if the target and the partial results differ in their types.
        """
        target, partials = self.groups.target, self.groups.partials
        values, results = staged_values(columns), partials.sink.aggregated_columns(columns)
        functions = partials.sink.aggregates.values()
        in_target = target.casts(cursor, results)
        in_partials = partials.table.table.casts(cursor, results)
        if (
            not all(can_add(function, function.find_type(values)) for function in functions)
            or not all(has_one_image(cast.type) for cast in in_target[: len(partials.sink.groups)])
            or [cast.target for cast in in_target] != [cast.target for cast in in_partials]
            or target.triggers(cursor)
        ):
            return False
        cursor.execute(sql.SQL("select not exists (select from {})").format(affected))
        return bool(cursor.fetchone()[0])

    def add(self, cursor: Cursor, columns: Sequence[Column], computed: sql.Identifier) -> bool:
        """Add the results that partials.compute() has returned to the rows of their groups.

        Returns False, with nothing written, if the target lacks the row of a group that has earlier partial results:
        somebody has deleted it. Raises TargetMismatch if the target refuses a row.
        """
        cursor.execute("savepoint added")
        self._write(cursor, columns, computed, is_first=True)
        before = count_writes(cursor, self.groups.target)
        rows = self._write(cursor, columns, computed, is_first=False)
        done = count_writes(cursor, self.groups.target) - before
        if (done.inserted, done.updated) != (0, rows):
            cursor.execute("rollback to savepoint added")
            return False
        cursor.execute("release savepoint added")
        return True

    def _write(
        self, cursor: Cursor, columns: Sequence[Column], computed: sql.Identifier, *, is_first: bool
    ) -> int:
        """Write the rows of the groups for which these partial results are the first, or of the others."""
        values = staged_values(columns)
        new_values: dict[str, sql.Composable] = {}
        for name, function in self.groups.partials.sink.aggregates.items():
            stored, added = sql.Identifier("t", name), sql.Identifier("excluded", name)
            new_values[name] = added if is_first else add(function, stored, added, function.find_type(values))
        return self.groups.write(
            cursor,
            columns,
            sql.SQL("select * from {} where {} = {}").format(computed, IS_FIRST, sql.Literal(is_first)),
            new_values,
        )
