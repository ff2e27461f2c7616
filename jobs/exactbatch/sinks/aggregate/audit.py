"""The audit of an Aggregate: its target against the partial results, and these against the records.

This is written independently of partial_results.py and merged_groups.py, which it checks.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.columns import LINEAGE, Column
from exactbatch.errors import TargetMismatch
from exactbatch.sinks.aggregate.function_sql import over_partials, over_rows
from exactbatch.sinks.aggregate.functions import AggregateFunction, Sum
from exactbatch.sinks.aggregate.window import Window
from exactbatch.sinks.aggregate.window_finality import WindowFinality
from exactbatch.sinks.aggregate.window_sql import find_start
from exactbatch.sinks.capabilities import Comparison
from exactbatch.sinks.ledger_conditions import committed_batches, has_committed_replay, has_topic_without
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.audited_casts import lost
from exactbatch.sinks.values.null_safe_groups import column_list, same_group

# True of a result that the target's types cannot hold.
_LOST: Final = sql.Identifier("exactbatch Lost")
_KAFKA_TIMESTAMP: Final = next(column for column in LINEAGE if column.name == "kafka_timestamp")


def compare_with_partials(
    target: TargetTable,
    partials: sql.Composable,
    group_columns: Sequence[str],
    aggregates: Mapping[str, AggregateFunction],
    finality: WindowFinality | None,
    types: Mapping[str, str],
    partial_types: Mapping[str, str],
) -> Comparison:
    """Compare the target with the merged partial results. `types` has the types of the target's columns.

    Raises TargetMismatch if the target lacks a column.
    """
    own = () if finality is None else ("final", "revisions")
    if missing := [name for name in (*group_columns, *aggregates, *own) if name not in types]:
        raise TargetMismatch(
            f"target {target.spec}: the column {', '.join(missing)}, which the pipeline writes, does not exist. "
            f"Add it, or correct the pipeline."
        )
    results = {
        name: over_partials(function, sql.Identifier(name), types[name])
        for name, function in aggregates.items()
    }
    losses = [
        loss
        for name, value in results.items()
        if name in partial_types and (loss := lost(value, partial_types[name], types[name])) is not None
    ]
    compared, names = [*aggregates], [*group_columns, *aggregates]
    wrong: list[sql.Composable] = [sql.SQL("m.{}").format(_LOST)] if losses else []
    if finality is not None:
        results["final"] = _is_final(finality)
        compared.append("final")
        names += own
        wrong.append(_impossible_revisions(target, finality))
    # The groups in the types of the target, which may be wider: equal numbers of different types differ in their hash.
    expected = sql.SQL(
        "select {as_stored}{lost_too} from (select {groups}, {results}{lost} from {partials} group by {groups}) merged"
    ).format(
        groups=column_list(group_columns),
        as_stored=sql.SQL(", ").join(
            [
                *(
                    sql.SQL("{0}::{1} as {0}").format(sql.Identifier(name), sql.SQL(types[name]))
                    for name in group_columns
                ),
                *map(sql.Identifier, results),
            ]
        ),
        lost_too=sql.SQL(", {}").format(_LOST) if losses else sql.SQL(""),
        lost=sql.SQL(", {} as {}").format(sql.SQL(" or ").join(losses), _LOST) if losses else sql.SQL(""),
        results=sql.SQL(", ").join(
            sql.SQL("({})::{} as {}").format(value, sql.SQL(types[name]), sql.Identifier(name))
            for name, value in results.items()
        ),
        partials=partials,
    )
    return Comparison(
        expected=expected,
        actual=sql.SQL("select {} from {}").format(column_list(names), target.identifier),
        actual_count=sql.SQL("select count(*) from {}").format(target.identifier),
        same_row=same_group(group_columns, "m", "t"),
        compared=compared,
        also_wrong=sql.SQL(" or ").join(wrong) if wrong else None,
    )


def compare_partials_with_records(
    partials: sql.Composable,
    group_by: Sequence[str | Window],
    group_columns: Sequence[str],
    aggregates: Mapping[str, AggregateFunction],
    *,
    records: sql.Composable,
    batch: sql.Composable,
    columns: Sequence[Column],
    types: Mapping[str, str],
    batch_ids: sql.Composable,
) -> Comparison:
    """Compare the partial results of whole batches with what their decoded records give.

    Sums of floating point numbers depend on the order of the records, and are left out. For the parameters see
    Sink.compare_batches().
    """
    values_of = {column.name: column for column in (*columns, _KAFKA_TIMESTAMP)}
    exact = {
        name: function
        for name, function in aggregates.items()
        if not (isinstance(function, Sum) and function.find_type(values_of) == "double precision")
    }
    groups = [
        find_start(group) if isinstance(group, Window) else _of_record(values_of[group]) for group in group_by
    ]
    values = [
        over_rows(
            function,
            sql.SQL("*") if function.column is None else _of_record(values_of[function.column]),
            function.find_type(values_of),
        )
        for function in exact.values()
    ]
    names = [*group_columns, *exact, "records"]
    expected = sql.SQL(
        "select {results}, count(*) as records, {batch} as batch_id from {records} group by {numbers}, {batch}"
    ).format(
        results=sql.SQL(", ").join(
            sql.SQL("({})::{} as {}").format(value, sql.SQL(types[name]), sql.Identifier(name))
            for name, value in zip(names, [*groups, *values], strict=False)
        ),
        batch=batch,
        records=records,
        numbers=sql.SQL(", ").join(sql.SQL(str(number)) for number in range(1, len(groups) + 1)),
    )
    return Comparison(
        expected=expected,
        actual=sql.SQL("select {}, batch_id from {} where batch_id = any({})").format(
            column_list(names), partials, batch_ids
        ),
        actual_count=sql.SQL("select count(*) from actual"),
        same_row=sql.SQL("m.batch_id = t.batch_id and {}").format(same_group(group_columns, "m", "t")),
        compared=[*exact, "records"],
    )


def _is_final(finality: WindowFinality) -> sql.Composable:
    """The condition that in each partition the greatest event time is at least `wait` past a window's end."""
    return sql.SQL(
        "coalesce({start} + {length} + {wait} <= (select min(greatest) from (select max(event_time) as greatest "
        "from {watermark} group by topic, partition) partitions), false)"
    ).format(**_parts(finality))


def _impossible_revisions(target: TargetTable, finality: WindowFinality) -> sql.Composable:
    """The condition that no history can have given a row t its `revisions`.

    A batch revises a window at most once, and none can before another has moved the watermark. Without a replay or a
    topic that was removed, the watermark never moves back: a window beyond every event time was never final.
    """
    return sql.SQL(
        "t.revisions is null or t.revisions < 0 or t.revisions > greatest(0, {committed} - 1) "
        "or t.revisions > 0 and not {replayed} and not {forgotten} "
        "and t.{start} + {length} + {wait} > (select max(event_time) from {watermark})"
    ).format(
        forgotten=has_topic_without(finality.watermark.identifier, target.name),
        committed=committed_batches(target.name),
        replayed=has_committed_replay(target.name),
        **_parts(finality),
    )


def _parts(finality: WindowFinality) -> dict[str, sql.Composable]:
    return {
        "start": sql.Identifier(finality.window.start.name),
        "length": sql.Literal(finality.window.length),
        "wait": sql.Literal(finality.wait),
        "watermark": finality.watermark.identifier,
    }


def _of_record(column: Column) -> sql.Composable:
    # The cast is needed even if the type is the staged one: ADBC makes a numeric(12,2) a numeric, and 1.50 a 1.5.
    return sql.SQL("{}::{}").format(sql.Identifier(column.name), sql.SQL(column.type))
