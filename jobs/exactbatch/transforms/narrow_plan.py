"""Find out whether Spark computes the rows of a transform task by task as it reads, and from which columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from exactbatch.transforms.spark_plan import (
    analyzed_plan,
    find_class_name,
    items,
    list_names,
    read_id,
    renames_nothing,
)

# Physical operators that return the rows that one partition of their only input gives, in its order.
_NARROW: Final = frozenset(
    {
        "ArrowEvalPythonExec",
        "BatchEvalPythonExec",
        "ColumnarToRowExec",
        "FilterExec",
        "GenerateExec",
        "InputAdapter",
        "MapInArrowExec",
        "ProjectExec",
        "WholeStageCodegenExec",
    }
)
_PYTHON: Final = "MapInArrowExec"
_TASKS: Final = "RangeExec"
_SOURCE: Final = "MapInArrow"


@dataclass(frozen=True, slots=True)
class ColumnsOfRecords:
    """How a transform uses the columns of the decoded records.

    `unchanged` has the columns of its rows that are unchanged columns of the record, with these columns' names.
    `used` are the columns of the record that it computes something else with.
    """

    unchanged: Mapping[str, str]
    used: frozenset[str]


def is_narrow(frame: DataFrame) -> bool:
    """Return True if Spark runs the transform between the decoding and the staging of rows, in the same tasks.

    `frame` is what stages the rows; its plan has these two Python functions. Raises the errors of planning.
    """
    plan: Any = frame._jdf.queryExecution().executedPlan()
    if plan.subqueriesAll().size():
        return False
    functions = 0
    while (kind := find_class_name(plan)) in _NARROW:
        functions += kind == _PYTHON
        children = list(items(plan.children()))
        if len(children) != 1:
            return False
        (plan,) = children
    return kind == _TASKS and functions == 2


def columns_of_records(rows: DataFrame, decoded: DataFrame) -> ColumnsOfRecords | None:
    """Return how the rows of a transform use the columns of the decoded records; None if the plan does not show it."""
    plan = analyzed_plan(rows)
    traced = dict(zip(rows.columns, map(read_id, items(plan.output())), strict=True))
    used: set[int] = set()
    tables: dict[int, Any] = {}
    while find_class_name(plan) != _SOURCE:
        kind = find_class_name(plan)
        if kind == "WithCTE":
            tables |= {table.id(): table.child() for table in items(plan.cteDefs())}
            plan = plan.plan()
            continue
        below: dict[int, int] = {}  # the columns of the input that are columns of the plan, by the latter
        if kind == "CTERelationRef":
            table = tables.get(plan.cteId())
            if table is None:
                return None
            below = dict(
                zip(map(read_id, items(plan.output())), map(read_id, items(table.output())), strict=True)
            )
            plan_below = table
        else:
            children = list(items(plan.children()))
            if len(children) != 1:
                return None
            (plan_below,) = children
            if kind != "Project":
                used |= _references(items(plan.expressions()))
            elif not renames_nothing(plan):
                computed = []
                for expression in items(plan.projectList()):
                    if (input_ := _find_input(expression)) is None:
                        computed.append(expression)
                    else:
                        below[read_id(expression)] = input_
                used |= _references(computed)
        plan = plan_below
        used = {below.get(id_, id_) for id_ in used}
        traced = {name: below.get(id_, id_) for name, id_ in traced.items()}
    if not plan.sameResult(_source(analyzed_plan(decoded))):
        return None
    names = dict(zip(map(read_id, items(plan.output())), list_names(plan), strict=True))
    return ColumnsOfRecords(
        {name: names[id_] for name, id_ in traced.items() if id_ in names},
        frozenset(names[id_] for id_ in used if id_ in names),
    )


def computed_from(
    rows: DataFrame, decoded: DataFrame, records: DataFrame, places: Sequence[int]
) -> DataFrame:
    """Return the rows of a transform, computed from `records` instead of those that the Python function below `decoded`
    returns. `records` has the columns at these places of those; the others are null.

    The transform itself is not called again: it may have started jobs of its own to plan.
    """
    session = rows.sparkSession
    jvm: Any = session._jvm
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    replaced, by = _source(analyzed_plan(decoded)), analyzed_plan(records)
    to_scala = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    nothing, none = to_scala([]), jvm.scala.Option.empty()

    def projection(plan: Any) -> Any:
        """Return a projection of the records with the columns of a plan, which keep their IDs."""
        given = dict(zip(places, items(by.output()), strict=True))
        columns = []
        for place, (name, column) in enumerate(zip(list_names(plan), items(plan.output()), strict=True)):
            value = given[place] if place in given else expressions.Literal(None, column.dataType())
            columns.append(expressions.Alias(value, name, column.exprId(), nothing, none, nothing))
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(to_scala(columns), by)

    def of_records(plan: Any) -> Any:
        if find_class_name(plan) == _SOURCE and plan.sameResult(replaced):
            return projection(plan)
        return plan.withNewChildren(to_scala(list(map(of_records, items(plan.children())))))

    plan = of_records(analyzed_plan(rows))
    plan.setAnalyzed()  # Spark shall not analyze again what it has analyzed with the transform
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def _references(expressions: Iterable[Any]) -> set[int]:
    return {
        read_id(column) for expression in expressions for column in items(expression.references().toSeq())
    }


def _find_input(expression: Any) -> int | None:
    """Return the input column that an expression of a projection is, whatever its aliases; None if it is another."""
    while (kind := find_class_name(expression)) == "Alias":
        expression = expression.child()
    return read_id(expression) if kind == "AttributeReference" else None


def _source(plan: Any) -> Any:
    while find_class_name(plan) != _SOURCE:
        plan = plan.children().apply(0)
    return plan
