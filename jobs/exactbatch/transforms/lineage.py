"""Check that the rows of a transform carry the lineage of the records that they come from.

Spark's analyzed plan shows where a column comes from. Most transforms pass the columns through unchanged, and
the plan proves it. Where it does not, as with a Python function that returns whole rows, the staged rows must
be compared with the decoded records.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from exactbatch.columns import LINEAGE_NAMES
from exactbatch.errors import TransformRefused
from exactbatch.transforms.refused_plan import RECORDS
from exactbatch.transforms.spark_plan import (
    analyzed_plan,
    find_class_name,
    items,
    list_names,
    read_id,
    renames_nothing,
)

# Operators that return the rows of their only input, or some of them, or several for one, with unchanged columns.
_PASS_THROUGH: Final = {
    "Filter",
    "Generate",
    "GlobalLimit",
    "Hint",
    "LocalLimit",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sample",
    "Sort",
    "SubqueryAlias",
    "View",
    "Window",
}
# Expressions that may return the unchanged column of a record; any other that is not a column returns another
# value.
_MAY_PASS_THROUGH: Final = {
    "AggregateExpression",
    "ElementAt",
    "GetArrayItem",
    "GetMapValue",
    "GetStructField",
    "NamedLambdaVariable",
    "OuterReference",
    "PythonUDF",
    "ScalarSubquery",
    "ScalaUDF",
}
_SOURCE: Final = "MapInArrow"


def passes_lineage_through(pipeline_name: str, transformed: DataFrame, decoded: DataFrame) -> bool:
    """Return True if the plan proves that each row has the lineage of a decoded record, or null from an outer
    join. Raises TransformRefused for lineage that the transform computes."""
    plan = analyzed_plan(transformed)
    output, names = plan.output(), transformed.columns
    lineage = [read_id(output.apply(names.index(name))) for name in LINEAGE_NAMES]
    try:
        return _is_lineage(plan, lineage, _source(analyzed_plan(decoded)), {})
    except _Computed as computed:
        raise TransformRefused(
            f"pipeline {pipeline_name!r}: the transform computes {computed.args[0]}, which says which record a "
            f"row comes from. Nothing was written. Let it pass {', '.join(LINEAGE_NAMES)} through unchanged."
        ) from None


class _Computed(Exception):
    """A column of the lineage is computed; the argument is its name and its expression as SQL."""


def _is_lineage(plan: Any, ids: Sequence[int], source: Any, tables: Mapping[int, Any]) -> bool:
    """Return True if the columns of a plan with these ids are the lineage of one record of the source."""
    kind = find_class_name(plan)
    if kind == _SOURCE and plan.sameResult(source):
        output, names = plan.output(), list_names(plan)
        return [read_id(output.apply(names.index(name))) for name in LINEAGE_NAMES] == list(ids)
    if kind == "WithCTE":
        own = {table.id(): table.child() for table in items(plan.cteDefs())}
        return _is_lineage(plan.plan(), ids, source, {**tables, **own})
    if kind == "CTERelationRef":
        table = tables.get(plan.cteId())
        return table is not None and _same_positions(plan, ids, table, source, tables)
    if kind == "Project":
        if renames_nothing(plan):
            return _is_lineage(plan.child(), ids, source, tables)
        inputs = [_find_input(plan, id_, name) for id_, name in zip(ids, LINEAGE_NAMES, strict=True)]
        known = [input_ for input_ in inputs if input_ is not None]
        return len(known) == len(ids) and _is_lineage(plan.child(), known, source, tables)
    if kind == "Union":
        return all(_same_positions(plan, ids, child, source, tables) for child in items(plan.children()))
    if kind in _PASS_THROUGH:
        return _is_lineage(plan.child(), ids, source, tables)
    if kind == "Join":
        # All columns come from one side of a join, and so from one record.
        return any(
            _is_lineage(child, ids, source, tables)
            for child in items(plan.children())
            if set(ids) <= set(map(read_id, items(child.output())))
        )
    return False


def _same_positions(
    plan: Any, ids: Sequence[int], other: Any, source: Any, tables: Mapping[int, Any]
) -> bool:
    """Return True if the columns that another plan has at the same positions are the lineage."""
    positions = {read_id(attribute): position for position, attribute in enumerate(items(plan.output()))}
    others = list(map(read_id, items(other.output())))
    return set(ids) <= set(positions) and _is_lineage(
        other, [others[positions[id_]] for id_ in ids], source, tables
    )


def _find_input(project: Any, id_: int, name: str) -> int | None:
    """Return the input column that a column of a projection is, whatever its aliases; None if it cannot be known.
    Raises _Computed, with the column's name in the lineage."""
    for expression in items(project.projectList()):
        if read_id(expression) != id_:
            continue
        while (kind := find_class_name(expression)) == "Alias":
            expression = expression.child()
        if kind == "AttributeReference":
            return read_id(expression)
        if _is_computed(expression):
            raise _Computed(f"{name}, as {expression.sql().replace(f'{RECORDS}.', '')}")
    return None


def _is_computed(expression: Any) -> bool:
    """Return True if an expression may return something other than a column of a record."""
    kind = find_class_name(expression)
    children = list(items(expression.children()))
    match kind:
        case "AttributeReference":
            return False
        case "Literal":
            return expression.value() is not None
        case "CaseWhen":  # a condition before each value, and perhaps a last value
            children = children[1::2] + children[len(children) // 2 * 2 :]
        case "If":
            children = children[1:]
        case "Alias" | "Cast" | "Coalesce":
            pass
        case _:
            return kind not in _MAY_PASS_THROUGH
    return any(map(_is_computed, children))


def _source(plan: Any) -> Any:
    while find_class_name(plan) != _SOURCE:
        plan = plan.children().apply(0)
    return plan
