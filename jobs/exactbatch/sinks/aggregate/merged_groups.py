"""Derive the rows of an Aggregate's target from the merged partial results of the affected groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.aggregate.group_key import group_key
from exactbatch.sinks.aggregate.partial_results import PartialResults
from exactbatch.sinks.aggregate.window_finality import WindowFinality
from exactbatch.sinks.tables.counted_writes import delete_rows, write_rows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.byte_equality import differs, has_one_image
from exactbatch.sinks.values.kept_values import kept_rules
from exactbatch.sinks.values.null_safe_groups import column_list, same_group

_OBSOLETE: Final = sql.Identifier("exactbatch_obsolete")


@dataclass(frozen=True)
class MergedGroups:
    """The target of an Aggregate: one row for each group, merged from its partial results."""

    target: TargetTable
    partials: PartialResults
    finality: WindowFinality | None

    def derive(
        self, cursor: Cursor, columns: Sequence[Column], merged: sql.Identifier, affected: sql.Identifier
    ) -> None:
        """Bring the rows of the affected groups up to date; `merged` is what partials.merge() has returned.

        Raises TargetMismatch if the target refuses or alters a row, or cannot hold a result.
        """
        results = self.partials.sink.aggregated_columns(columns)
        self._check_fit(cursor, results, merged, affected)
        group_columns = self.partials.sink.group_columns
        # Equal values of a group can look different; the row has the one that represents them all.
        written = [
            column.name
            for column in results
            if column.name in self.partials.sink.aggregates or not has_one_image(column.type)
        ]
        parts = {
            "target": self.target.identifier,
            "affected": affected,
            "merged": merged,
            "obsolete": _OBSOLETE,
            "groups": column_list(group_columns),
        }
        cursor.execute(
            sql.SQL(
                "create temporary table {obsolete} on commit drop as select {groups} from {target} with no data"
            ).format(**parts)
        )
        cursor.execute(
            sql.SQL(
                "insert into {obsolete} select {groups} from {affected} except select {groups} from {merged}"
            ).format(**parts)
        )
        has_obsolete = bool(cursor.rowcount)
        triggers = self.target.triggers(cursor)
        if has_obsolete:
            same = same_group(group_columns, "t", "g")
            using = sql.SQL("{} g").format(_OBSOLETE)
            delete_rows(cursor, self.target, same, using=using, checks=bool(triggers))
        self.write(
            cursor,
            columns,
            sql.SQL("select * from {}").format(merged),
            {name: sql.Identifier("excluded", name) for name in written},
        )
        if triggers:
            self._check_written(cursor, results, merged, triggers)

    def write(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        rows: sql.Composable,
        values: Mapping[str, sql.Composable],
    ) -> int:
        """Insert `rows`, a query for results of groups, into the target; return how many were inserted or updated.

        Where the target has a row t of the group, its columns get `values`, in which `excluded` is the row of the
        query. An unchanged row is not written, and no revision is counted.
        """
        changes: list[sql.Composable] = [
            sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in values.items()
        ]
        own: sql.Composable = sql.SQL("")
        own_values: sql.Composable = sql.SQL("")
        if self.finality is not None:
            changes.append(sql.SQL("revisions = t.revisions + t.final::int"))
            own = sql.SQL(", final, revisions")
            own_values = sql.SQL(", {}, {}::int").format(self.finality.is_final, self.finality.was_final)
        return write_rows(
            cursor,
            self.target,
            sql.SQL(
                "insert into {target} as t ({results}{own}) select {results}{own_values} from ({rows}) r "
                "on conflict ({groups}) do update set {changes} where {differs}"
            ).format(
                target=self.target.identifier,
                results=column_list(
                    [column.name for column in self.partials.sink.aggregated_columns(columns)]
                ),
                own=own,
                own_values=own_values,
                rows=rows,
                groups=group_key(self.partials.find_group_columns(columns)),
                changes=sql.SQL(", ").join(changes),
                differs=differs(column_list(values, of="t"), sql.SQL(", ").join(values.values())),
            ),
        )

    def _check_fit(
        self,
        cursor: Cursor,
        results: Sequence[Column],
        merged: sql.Identifier,
        affected: sql.Identifier,
    ) -> None:
        """Raise TargetMismatch if the target cannot hold a result, because the partial results have wider types."""
        partial = self.partials.table.table
        kept = {cast.column.name: cast.target for cast in partial.casts(cursor, results)}
        rules = kept_rules(kept, self.target.casts(cursor, results))
        groups = self.partials.sink.group_columns
        # A group without a result any more is deleted, and must not become another one either.
        for rows, checked in (
            (merged, rules),
            (affected, [rule for rule in rules if rule.column in groups]),
        ):
            if not checked:
                continue
            cursor.execute(
                sql.SQL(
                    "select concat_ws(', ', {groups}) as key, case {columns} end as column_name, "
                    "case {reasons} end as reason from {rows} where {conditions} limit 1"
                ).format(
                    groups=sql.SQL(", ").join(
                        sql.SQL("coalesce({}::text, 'null')").format(sql.Identifier(name)) for name in groups
                    ),
                    columns=sql.SQL(" ").join(
                        sql.SQL("when {} then {}").format(rule.condition, sql.Literal(rule.column))
                        for rule in checked
                    ),
                    reasons=sql.SQL(" ").join(
                        sql.SQL("when {} then {}").format(rule.condition, rule.reason) for rule in checked
                    ),
                    rows=rows,
                    conditions=sql.SQL(" or ").join(
                        sql.SQL("({})").format(rule.condition) for rule in checked
                    ),
                )
            )
            if (row := cursor.fetchone()) is not None:
                group, column, reason = row
                raise TargetMismatch(
                    f"target {self.target.spec}, column {column}: it cannot hold the result of the group "
                    f"({', '.join(groups)}) = ({group}), which {partial.spec} keeps as {kept[column].sql_name}: "
                    f"{reason}. Nothing was written. Give the target's column that type.",
                    column=column,
                )

    def _check_written(
        self, cursor: Cursor, results: Sequence[Column], merged: sql.Identifier, triggers: str
    ) -> None:
        """Check that the affected groups' rows are as they were computed: a trigger may alter or drop them."""
        casts = self.target.casts(cursor, results)
        names = [cast.column.name for cast in casts]
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where t.tableoid is null) as missing, count(*) as differing "
                "from (select {as_stored} from {merged}) m left join {target} t on {same} "
                "where t.tableoid is null or {differs}"
            ).format(
                # In the types of the target, which may be wider.
                as_stored=sql.SQL(", ").join(
                    sql.SQL("{0}::{1} as {0}").format(sql.Identifier(cast.column.name), sql.SQL(cast.type))
                    for cast in casts
                ),
                merged=merged,
                target=self.target.identifier,
                same=same_group(self.partials.sink.group_columns, "t", "m"),
                differs=differs(column_list(names, of="t"), column_list(names, of="m")),
            )
        )
        missing, differing = cursor.fetchone()
        if differing:
            raise TargetMismatch(
                f"target {self.target.spec}: of the rows of this batch {missing} did not arrive and "
                f"{differing - missing} are not stored as they were computed, because of "
                f"{triggers}. Nothing was written. Drop {triggers}, or change there only columns that the pipeline "
                f"does not write."
            )
