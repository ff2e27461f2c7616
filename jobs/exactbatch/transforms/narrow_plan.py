"""Whether Spark computes the rows of a transform task by task, as it reads the records, and from which columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from exactbatch.transforms.spark_plan import analyzed_plan, class_of, items

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
    while (kind := class_of(plan)) in _NARROW:
        functions += kind == _PYTHON
        children = list(items(plan.children()))
        if len(children) != 1:
            return False
        (plan,) = children
    return kind == _TASKS and functions == 2


def columns_of_records(rows: DataFrame, decoded: DataFrame) -> ColumnsOfRecords | None:
    """Return how the rows of a transform use the columns of the decoded records; None if the plan does not show it."""
    plan = analyzed_plan(rows)
    traced = {attribute.name(): _id(attribute) for attribute in items(plan.output())}
    used: set[int] = set()
    tables: dict[int, Any] = {}
    while class_of(plan) != _SOURCE:
        kind = class_of(plan)
        if kind == "WithCTE":
            tables |= {table.id(): table.child() for table in items(plan.cteDefs())}
            plan = plan.plan()
            continue
        if kind == "CTERelationRef":
            table = tables.get(plan.cteId())
            if table is None:
                return None
            below = dict(zip(map(_id, items(plan.output())), map(_id, items(table.output())), strict=True))
            plan = table
        else:
            children = list(items(plan.children()))
            if len(children) != 1:
                return None
            (plan_below,) = children
            below = {id_: id_ for id_ in map(_id, items(plan_below.output()))}
            for expression in items(plan.projectList() if kind == "Project" else plan.expressions()):
                if kind == "Project" and (input_ := _input_of(expression)) is not None:
                    below[_id(expression)] = input_
                else:
                    used |= set(map(_id, items(expression.references().toSeq())))
            plan = plan_below
        used = {below.get(id_, id_) for id_ in used}
        traced = {name: below[id_] for name, id_ in traced.items() if id_ in below}
    if not plan.sameResult(_source(analyzed_plan(decoded))):
        return None
    names = {_id(attribute): attribute.name() for attribute in items(plan.output())}
    return ColumnsOfRecords(
        {name: names[id_] for name, id_ in traced.items() if id_ in names},
        frozenset(names[id_] for id_ in used if id_ in names),
    )


def computed_from(rows: DataFrame, decoded: DataFrame, records: DataFrame) -> DataFrame:
    """Return the rows of a transform, computed from `records` instead of those that the Python function below `decoded`
    returns. `records` has the same columns, whatever their names.

    The transform itself is not called again: it may have started jobs of its own to plan.
    """
    session = rows.sparkSession
    jvm: Any = session._jvm
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    replaced, by = _source(analyzed_plan(decoded)), analyzed_plan(records)

    def scala(values: list[Any]) -> Any:
        return jvm.org.apache.spark.api.python.PythonUtils.toSeq(values)

    def of_records(plan: Any) -> Any:
        if class_of(plan) == _SOURCE and plan.sameResult(replaced):
            columns = [
                expressions.Alias(
                    column, old.name(), old.exprId(), scala([]), jvm.scala.Option.empty(), scala([])
                )
                for column, old in zip(items(by.output()), items(plan.output()), strict=True)
            ]
            return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(scala(columns), by)
        return plan.withNewChildren(scala(list(map(of_records, items(plan.children())))))

    plan = of_records(analyzed_plan(rows))
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def _input_of(expression: Any) -> int | None:
    """Return the input column that an expression of a projection is, whatever its aliases; None if it is another."""
    while (kind := class_of(expression)) == "Alias":
        expression = expression.child()
    return _id(expression) if kind == "AttributeReference" else None


def _source(plan: Any) -> Any:
    while class_of(plan) != _SOURCE:
        plan = plan.children().apply(0)
    return plan


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())
