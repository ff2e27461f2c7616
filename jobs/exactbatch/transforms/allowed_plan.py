"""Decide what a transform may do: walk Spark's analyzed plan of it, operator by operator, expression by
expression.

A class that is known to return the same rows in a retry and in a replay is allowed; anything else must be
allowed by its name.
"""

import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.util import PythonEvalType

from exactbatch.transforms.allowed_expressions import (
    ALLOWED,
    DECLARED,
    EQUAL,
    FLOAT,
    HIDDEN,
    MANY,
    NO_RECORD,
    ORDER,
    OVERFLOW,
    PICK,
    REFUSED,
    TOGETHER,
    UNKNOWN,
    Finding,
    Reason,
)
from exactbatch.transforms.query_times import times_in_expression, times_in_values
from exactbatch.transforms.spark_plan import analyzed_plan, class_of, is_persisted, items

# The alias of the records in a plan, below any that the transform gives them; a transform cannot use it itself.
RECORDS: Final = f"exactbatch_records_{uuid.uuid4().hex[:8]}"

# Each of their rows comes from one row.
_ROW_BY_ROW: Final = {
    "Project", "Filter", "Generate", "Union", "SubqueryAlias", "View", "WithCTE", "CTERelationDef",
    "ResolvedHint", "UnresolvedHint", "PipeOperator", "Sort", "Expand", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "CollectMetrics", "EventTimeWatermark",
    "SQLFunctionNode", "MapInPandas", "MapInArrow",
}  # fmt: skip
# Their rows come from many rows, and are the same whatever the order and the partitions of these.
_SETS: Final = {"Distinct": "distinct", "Intersect": "intersect", "Except": "except"}
_TOGETHER: Final = {
    "Window": "window",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "cogroup",
    "FlatMapCoGroupsInArrow": "cogroup",
}
# Which rows they keep depends on the order of the rows.
_PICKS: Final = {
    "Sample": "sample",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Tail": "tail",
    "Offset": "offset",
    "Deduplicate": "dropDuplicates",
}
_SOURCES: Final = {
    "LocalRelation", "OneRowRelation", "Range", "EmptyRelation", "ResolvedInlineTable", "LogicalRelation",
    "HiveTableRelation", "DataSourceV2Relation", "DataSourceV2ScanRelation",
}  # fmt: skip
_SUBQUERIES: Final = {
    "ScalarSubquery", "ListQuery", "Exists", "LateralSubquery", "FunctionTableSubqueryArgumentExpression",
}  # fmt: skip
_COLUMNS: Final = {
    "AttributeReference", "OuterReference", "OuterScopeReference", "NamedLambdaVariable",
}  # fmt: skip
_ROW_FUNCTIONS: Final = {PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF}
# Intermediate sums of wider decimals may exceed 38 digits: Spark adds ten digits for a sum.
_DECIMAL: Final = re.compile(r"decimal\((\d+),")
_WIDEST_SAFE: Final = 28
# Averages of these are computed as decimals or whole numbers, or from sums that a double holds exactly.
_EXACT_AVERAGES: Final = ("byte", "short", "decimal", "interval")


def marked(records: DataFrame) -> DataFrame:
    """Return the records of a batch with the alias by which findings() recognizes them in a plan."""
    return records.alias(RECORDS)


def findings(frame: DataFrame, *, by_record: bool) -> list[Finding]:
    """Return what in the plan of a transform may return other rows in a retry or a replay, once each.

    With `by_record` a replay may process any part of a batch, so a row must not depend on several of its records.
    Otherwise it may, but not on their order or on how Spark partitions them.
    """
    walk = _Walk(frame, by_record=by_record)
    walk.plan(analyzed_plan(frame))
    return [Finding(name, reason) for name, reason in walk.findings.items()]


class _Walk:
    """Walks a plan and collects what is not allowed."""

    def __init__(self, frame: DataFrame, *, by_record: bool) -> None:
        assert frame.sparkSession.sparkContext._jvm is not None
        self._collations = frame.sparkSession.sparkContext._jvm.org.apache.spark.sql.util.SchemaUtils
        self._by_record = by_record
        self._tables: dict[int, bool] = {}  # by the id of a common table expression: true if records reach it
        self.findings: dict[str, Reason] = {}

    def plan(self, plan: Any) -> bool:
        """Check an operator and everything below it; return True if records reach it."""
        kind = class_of(plan)
        if kind == "SubqueryAlias" and plan.alias() == RECORDS:
            return True
        if kind == "CTERelationRef":
            return self._tables.get(plan.cteId(), True)
        below = [self.plan(child) for child in items(plan.children())]
        reaching = [self.expressions(expression) for expression in items(plan.expressions())]
        in_subqueries = any(reaching)
        if kind == "WithCTE":
            return below[-1]  # the other children are the tables that it names
        reached = any(below) or in_subqueries
        if kind == "CTERelationDef":
            self._tables[plan.id()] = reached
        elif kind == "LateralJoin":
            below.append(in_subqueries)
        elif in_subqueries:
            self._need_batch("subquery")
        self._operator(kind, plan, below, reached=reached)
        return reached

    def expressions(self, expression: Any, flagged: bool | None = None) -> bool:
        """Check an expression and everything below it; return True if records reach a subquery in it."""
        kind = class_of(expression)
        if kind in _COLUMNS:
            return False
        if flagged is None:
            flagged = not expression.deterministic()
        if reason := self._reason(kind, expression):
            self._note(_name(kind, expression), reason)
        elif flagged and kind not in _SUBQUERIES and _is_flagged(expression):
            self._note(_name(kind, expression), DECLARED)
        for finding in times_in_expression(kind, expression):
            self._note(*finding)
        reached = kind in _SUBQUERIES and self.plan(expression.plan())
        for child in self._parts(kind, expression):
            reached |= self.expressions(child, flagged and not child.deterministic())
        return reached

    def _parts(self, kind: str, expression: Any) -> list[Any]:
        """Return the children of an expression; instead of a collect_list() or collect_set() that is sorted, its
        children: the order in which it collects does not matter."""
        children = list(items(expression.children()))
        if (
            kind != "SortArray"
            or class_of(children[0]) != "AggregateExpression"
            or self._is_collated(children[0])
        ):
            return children
        function, *others = items(children[0].children())
        if class_of(function) not in ("CollectList", "CollectSet"):
            return children
        return [*items(function.children()), *others, *children[1:]]

    def _note(self, name: str, reason: Reason) -> None:
        self.findings.setdefault(name, reason)

    def _need_batch(self, name: str, reason: Reason = TOGETHER) -> None:
        if self._by_record:
            self._note(name, reason)

    def _operator(self, kind: str, plan: Any, below: Sequence[bool], *, reached: bool) -> None:
        if kind == "LocalRelation":
            for finding in times_in_values(plan):
                self._note(*finding)
        elif kind == "LogicalRDD":
            if is_persisted(plan.rdd()):
                self._note("rdd", HIDDEN)
        elif kind in ("Join", "LateralJoin"):
            self._join(plan, below, reached=reached)
        elif kind == "Deduplicate" and plan.keys().size() == plan.output().size():
            self._group("distinct", plan.output(), reached=reached)
        elif kind in _PICKS:
            self._note(_PICKS[kind], PICK)
        elif kind in _SETS:
            self._group(_SETS[kind], plan.output(), reached=reached)
        elif kind == "Aggregate":
            self._group("group by", plan.groupingExpressions(), reached=reached)
        elif kind in _TOGETHER:
            if reached:
                self._need_batch(_TOGETHER[kind])
        elif kind not in _ROW_BY_ROW and kind not in _SOURCES:
            self._note(plan.nodeName(), UNKNOWN)

    def _group(self, name: str, grouped: Any, *, reached: bool) -> None:
        if reached:
            self._need_batch(name)
        if any(self._is_collated(expression) for expression in items(grouped)):
            self._note("collate", EQUAL)

    def _join(self, plan: Any, below: Sequence[bool], *, reached: bool) -> None:
        """Check a join: records may be joined with another source as long as each row comes from a record."""
        if not reached:
            return
        left, right = below
        kind = plan.joinType().sql().upper()
        if left and right:
            self._need_batch("self-join")
        elif kind == "FULL OUTER" or kind == ("LEFT OUTER" if right else "RIGHT OUTER"):
            self._need_batch("outer join", NO_RECORD)
        elif right and kind in ("LEFT SEMI", "LEFT ANTI"):
            self._need_batch("semi-join", NO_RECORD)

    def _reason(self, kind: str, expression: Any) -> Reason | None:
        """Return why an expression by itself is refused; None if it is allowed."""
        if kind in ("StaticInvoke", "Invoke"):
            # Spark's own functions call these; a function of a catalog is third-party code.
            return None if _code(kind, expression).startswith("org.apache.spark.") else UNKNOWN
        if kind not in ALLOWED:
            return REFUSED.get(kind, UNKNOWN)
        match kind:
            case "PythonUDF" if expression.evalType() not in _ROW_FUNCTIONS:
                return MANY
            case "Sum" | "Average":
                return _of_sum(kind, expression)
            case "Min" | "Max" if self._is_collated(expression):
                return EQUAL
            case "ListAgg" if not _is_ordered(expression):
                return ORDER
            case "ListAgg" if self._is_collated(expression):
                return EQUAL
            case "WindowExpression" if _is_cut_by_rows(expression):
                return ORDER
        return None

    def _is_collated(self, expression: Any) -> bool:
        """True if values can be equal that are not identical."""
        return bool(self._collations.hasNonUTF8BinaryCollation(expression.dataType()))


def _name(kind: str, expression: Any) -> str:
    """Return the name by which users know an expression."""
    if kind in ("PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"):
        return str(expression.name())
    if kind in ("StaticInvoke", "Invoke"):
        return _code(kind, expression)
    return "rows between" if kind == "WindowExpression" else str(expression.prettyName()).lower()


def _is_flagged(expression: Any) -> bool:
    """True if Spark considers the expression itself nondeterministic."""
    return not expression.deterministic() and all(
        child.deterministic() for child in items(expression.children())
    )


def _code(kind: str, expression: Any) -> str:
    """Return the class whose method an expression calls."""
    if kind == "StaticInvoke":
        return str(expression.staticObject().getName())
    target = expression.targetObject()
    return str((target.value() if class_of(target) == "Literal" else target).getClass().getName())


def _of_sum(kind: str, expression: Any) -> Reason | None:
    """Return why a sum or an average may depend on the order of the rows; None if it does not."""
    type_ = str(expression.child().dataType().typeName())
    if type_ in ("float", "double") or (kind == "Average" and not type_.startswith(_EXACT_AVERAGES)):
        return FLOAT
    decimal = _DECIMAL.match(type_)
    wide = int(decimal[1]) > _WIDEST_SAFE if decimal else type_ == "long" and kind == "Sum"
    # If an overflow is an error or wraps around, the result does not depend on the order.
    mode = str((expression.evalContext() if kind == "Sum" else expression).evalMode())
    safe = mode == "ANSI" or (mode == "LEGACY" and not decimal)
    return OVERFLOW if wide and not safe else None


def _is_ordered(listagg: Any) -> bool:
    """True if rows that tie in the order have the same text."""
    return any(order.child().semanticEquals(listagg.child()) for order in items(listagg.orderExpressions()))


def _is_cut_by_rows(window: Any) -> bool:
    """True if an aggregate covers a number of rows before or after, which may be any of the rows that tie."""
    frame = window.windowSpec().frameSpecification()
    if (
        class_of(window.windowFunction()) != "AggregateExpression"
        or class_of(frame) != "SpecifiedWindowFrame"
    ):
        return False
    ends = {class_of(frame.lower()), class_of(frame.upper())}
    return class_of(frame.frameType()) == "RowFrame" and ends != {"UnboundedPreceding", "UnboundedFollowing"}
