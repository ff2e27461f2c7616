"""Add the results of a batch to the rows of an Aggregate's target, instead of merging all partial results again.

A group that changes in each batch has one partial result for each of them. Unless something is retracted, the row of
the target is already the merge of the earlier ones, so a batch costs what it changes, however many came before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.aggregate.merged_groups import MergedGroups
from exactbatch.sinks.aggregate.partial_results import ADDED, IS_FIRST, staged_values
from exactbatch.sinks.tables.affected_keys import AFFECTED
from exactbatch.sinks.tables.counted_writes import counts_of
from exactbatch.sinks.values.byte_equality import has_one_image


@dataclass(frozen=True)
class AddedResults:
    """The target of an Aggregate, whose rows take the partial results of one more batch."""

    groups: MergedGroups

    def is_possible(self, cursor: Cursor, columns: Sequence[Column]) -> bool:
        """True if adding results gives the same rows as merging all partial results. Ask before they are inserted.

        It does not if the transaction has retracted results, if the order of the results decides, if a trigger may
        alter what is written, or if the target's types are not those of the partial results.
        """
        target, partials = self.groups.target, self.groups.partials
        values, results = staged_values(columns), partials.result_columns(columns)
        functions = partials.aggregates.values()
        in_target = target.casts(cursor, results)
        in_partials = partials.table.table.casts(cursor, results)
        if (
            not all(function.can_add(function.type_of(values)) for function in functions)
            or not all(has_one_image(cast.type) for cast in in_target[: len(partials.group_by)])
            or [cast.target for cast in in_target] != [cast.target for cast in in_partials]
            or target.triggers(cursor)
        ):
            return False
        cursor.execute(sql.SQL("select not exists (select from {})").format(AFFECTED))
        return bool(cursor.fetchone()[0])

    def add(self, cursor: Cursor, columns: Sequence[Column]) -> bool:
        """Add the results in the temporary table ADDED to the rows of their groups.

        Returns False, with nothing written, if the target lacks the row of a group that has earlier partial results:
        somebody has deleted it. Raises TargetMismatch if the target refuses a row.
        """
        cursor.execute("savepoint added")
        self._write(cursor, columns, is_first=True)
        before = counts_of(cursor, self.groups.target)
        rows = self._write(cursor, columns, is_first=False)
        done = counts_of(cursor, self.groups.target) - before
        if (done.inserted, done.updated) != (0, rows):
            cursor.execute("rollback to savepoint added")
            return False
        cursor.execute("release savepoint added")
        return True

    def _write(self, cursor: Cursor, columns: Sequence[Column], *, is_first: bool) -> int:
        """Write the rows of the groups for which these partial results are the first, or of the others."""
        values = staged_values(columns)
        new_values: dict[str, sql.Composable] = {}
        for name, function in self.groups.partials.aggregates.items():
            stored, added = sql.Identifier("t", name), sql.Identifier("excluded", name)
            new_values[name] = added if is_first else function.added(stored, added, function.type_of(values))
        return self.groups.write(
            cursor,
            columns,
            sql.SQL("select * from {} where {} = {}").format(ADDED, IS_FIRST, sql.Literal(is_first)),
            new_values,
        )
