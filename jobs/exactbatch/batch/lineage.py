"""Do the rows of a transform carry the lineage of the records that they were made of?

Spark's analyzed plan tells where a column comes from. Most transforms hand the columns on as they are, and the
plan proves it. Where it proves nothing, as of a Python function that gives whole rows, what is staged has to be
compared with what was decoded.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from exactbatch.batch.staging import LINEAGE_NAMES
from exactbatch.errors import TransformRefused
from exactbatch.transforms.allowed_plan import RECORDS

# Operators that give the rows of their one input, or some of them, or several for one, with columns as they are.
_HAND_ON: Final = {
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
# Expressions that may give the column of a record as it was; of others that are no column it is another value.
_MAY_HAND_ON: Final = {
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


def is_handed_on(pipeline_name: str, transformed: DataFrame, decoded: DataFrame) -> bool:
    """Whether the plan proves that each row has the lineage of a decoded record, unless an outer join has made it
    null. Raises TransformRefused for lineage that the transform computes."""
    plan = _analyzed(transformed)
    ids = {attribute.name(): _id(attribute) for attribute in _each(plan.output())}
    found = [ids[name] for name in LINEAGE_NAMES]
    try:
        return _is_handed_on(plan, found, _source(_analyzed(decoded)), {})
    except _Computed as computed:
        raise TransformRefused(
            f"pipeline {pipeline_name!r}: the transform computes {computed.args[0]}, which says where a row comes "
            f"from. Nothing was written. Let it hand {', '.join(LINEAGE_NAMES)} on as they are."
        ) from None


class _Computed(Exception):
    """A column of the lineage is an expression, which is given as SQL."""


def _is_handed_on(plan: Any, ids: Sequence[int], source: Any, tables: Mapping[int, Any]) -> bool:
    """Whether the columns of a plan with these ids are the lineage of one record of the source."""
    kind = plan.getClass().getSimpleName()
    if kind == _SOURCE and plan.sameResult(source):
        output = list(_each(plan.output()))
        names = {_id(attribute): attribute.name() for attribute in output}
        return tuple(names.get(each) for each in ids) == LINEAGE_NAMES
    if kind == "WithCTE":
        own = {table.id(): table.child() for table in _each(plan.cteDefs())}
        return _is_handed_on(plan.plan(), ids, source, {**tables, **own})
    if kind == "CTERelationRef":
        table = tables.get(plan.cteId())
        return table is not None and _at_same_places(plan, ids, table, source, tables)
    if kind == "Project":
        below = [_below(plan, id_, name) for id_, name in zip(ids, LINEAGE_NAMES, strict=True)]
        child = plan.child()
        known = [each for each in below if each is not None]
        return len(known) == len(ids) and _is_handed_on(child, known, source, tables)
    if kind == "Union":
        return all(_at_same_places(plan, ids, child, source, tables) for child in _each(plan.children()))
    if kind == "Join" or kind in _HAND_ON:
        # All of it comes from one side of a join: it is of one record then.
        return any(
            _is_handed_on(child, ids, source, tables)
            for child in _each(plan.children())
            if set(ids) <= set(map(_id, _each(child.output())))
        )
    return False


def _at_same_places(
    plan: Any, ids: Sequence[int], other: Any, source: Any, tables: Mapping[int, Any]
) -> bool:
    """Whether the columns that another plan has at the places of these are the lineage."""
    places = {_id(attribute): place for place, attribute in enumerate(_each(plan.output()))}
    others = list(map(_id, _each(other.output())))
    return set(ids) <= set(places) and _is_handed_on(
        other, [others[places[each]] for each in ids], source, tables
    )


def _below(project: Any, id_: int, name: str) -> int | None:
    """The column of a projection's input that is one of its own, whatever it is called in between; None where it
    may be any. Raises _Computed, with the name that it has in the lineage."""
    for expression in _each(project.projectList()):
        if _id(expression) != id_:
            continue
        while (kind := expression.getClass().getSimpleName()) == "Alias":
            expression = expression.child()
        if kind == "AttributeReference":
            return _id(expression)
        if _is_computed(expression):
            raise _Computed(f"{name}, as {expression.sql().replace(f'{RECORDS}.', '')}")
    return None


def _is_computed(expression: Any) -> bool:
    """Whether an expression may give what is no column of a record."""
    kind = expression.getClass().getSimpleName()
    children = list(_each(expression.children()))
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
            return kind not in _MAY_HAND_ON
    return any(map(_is_computed, children))


def _source(plan: Any) -> Any:
    while plan.getClass().getSimpleName() != _SOURCE:
        plan = plan.children().apply(0)
    return plan


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _each(sequence: Any) -> Iterator[Any]:
    """A Scala Seq, item by item."""
    return (sequence.apply(index) for index in range(sequence.size()))
