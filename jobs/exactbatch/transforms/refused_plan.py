"""Find what a transform may not do: walk Spark's analyzed plan of it, operator by operator, expression by expression.

What may return other rows in a retry or a replay must be allowed by its name: what Spark calls nondeterministic, what
depends on the clock, on chance or on the order of the rows, and what combines records that a replay may not have.
Which functions Spark has does not matter, so this holds for every supported version of Spark.

Refused, too, is what Spark replaces by the time of the query: constants such as 'now', and text that may lack a date.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.util import PythonEvalType

from exactbatch.transforms.refused_expressions import (
    CLOCK,
    CONSTANT,
    DATELESS,
    DECLARED,
    HIDDEN,
    MANY,
    NO_RECORD,
    ORDER,
    PICK,
    REFUSED,
    TOGETHER,
    UNKNOWN,
    Reason,
    UnrepeatableExpression,
)
from exactbatch.transforms.spark_plan import analyzed_plan, find_class_name, is_persisted, items, sql_text

# What Spark replaces by the time of the query, in a cast of a constant and in a typed literal:
# SpecialDatetimeValues.
_WORD: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_QUOTED_WORD: Final = re.compile(r"""["']\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)
# A time of day without a date gets the date of the query: SparkDateTimeUtils.stringToTimestamp.
_TIME_ALONE: Final = re.compile(r"[\s\x00-\x1f]*(T\d|\d\d?:)")
_QUOTED_TIME: Final = re.compile(r"""["'][\s\x00-\x1f]*(T\d|\d\d?:)""")
# In the name of a type: what may hold such text, and what it becomes. Field names precede a colon.
_TEXT: Final = re.compile(r"(?:^|[:<,])(?:string|char|varchar|variant|time)(?=[>,( ]|$)")
_TIMESTAMP: Final = re.compile(r"(?:^|[:<,])timestamp(?=[>,]|$)")
_DATETIME: Final = re.compile(r"(?:^|[:<,])(?:date|timestamp|timestamp_ntz)(?=[>,]|$)")
_PARSERS: Final = {"JsonToStructs", "CsvToStructs", "XmlToStructs"}
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
_TOGETHER: Final = {
    "Aggregate": "group by",
    "Distinct": "distinct",
    "Except": "except",
    "Intersect": "intersect",
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


def times_in_expression(kind: str, expression: Any) -> Iterator[UnrepeatableExpression]:
    """Yield the names and reasons of what in an expression of this class becomes the time of the query."""
    if kind == "Literal":
        if _has(_DATETIME, expression.dataType()):
            yield from _quoted(sql_text(expression))
    elif kind in ("Cast", "ParseToDate", "ParseToTimestamp"):
        has_format = kind == "ParseToTimestamp" and expression.format().isDefined()
        yield from _cast(expression, expression.children().apply(0), has_format=has_format)
    elif _parses(kind, expression) and _has(_TIMESTAMP, expression.dataType()):
        yield UnrepeatableExpression(expression.prettyName(), DATELESS)


def times_in_values(plan: Any) -> Iterator[UnrepeatableExpression]:
    """Yield the same for `values (…)`: the plan holds only its computed values."""
    if any(_has(_DATETIME, column.dataType()) for column in items(plan.output())):
        yield from _quoted(sql_text(plan))


def _cast(expression: Any, child: Any, *, has_format: bool) -> Iterator[UnrepeatableExpression]:
    name, type_, text = expression.prettyName(), expression.dataType(), child.dataType()
    if not (_has(_DATETIME, type_) and _has(_TEXT, text)):
        return
    is_plain = str(text.typeName()).startswith(("string", "char", "varchar"))
    if is_plain and find_class_name(child) == "Literal":
        if word := _WORD.match(str(child.value())):
            yield UnrepeatableExpression(word[1].lower(), CLOCK)
        elif _has(_TIMESTAMP, type_) and not has_format and _TIME_ALONE.match(str(child.value())):
            yield UnrepeatableExpression(name, DATELESS)
    elif is_plain and child.foldable():
        yield UnrepeatableExpression(name, CONSTANT)
    elif _has(_TIMESTAMP, type_) and not has_format:
        yield UnrepeatableExpression(name, DATELESS)


def _quoted(text: str) -> Iterator[UnrepeatableExpression]:
    """Yield such constants in the SQL text of literals."""
    for word in _QUOTED_WORD.finditer(text):
        yield UnrepeatableExpression(word[1].lower(), CLOCK)
    if _QUOTED_TIME.search(text):
        yield UnrepeatableExpression("timestamp", DATELESS)


def _has(pattern: re.Pattern[str], type_: Any) -> bool:
    """True if a type matches the pattern, or contains a type that does."""
    return pattern.search(str(type_.catalogString())) is not None


def _parses(kind: str, expression: Any) -> bool:
    """True if an expression reads values from a document without a format for its timestamps."""
    if kind in _PARSERS:
        names = expression.options().keys().toSeq()
        return not any(str(name).lower() == "timestampformat" for name in items(names))
    return kind == "VariantGet"


def marked(records: DataFrame) -> DataFrame:
    """Return the records of a batch with the alias by which findings() recognizes them in a plan."""
    return records.alias(RECORDS)


def findings(frame: DataFrame, *, by_record: bool) -> list[UnrepeatableExpression]:
    """Return what in the plan of a transform may return other rows in a retry or a replay, once each.

    With `by_record` a replay may process any part of a batch, so a row must not depend on several of its records.
    Otherwise it may, but not on their order or on how Spark partitions them.
    """
    walk = _Walk(by_record=by_record)
    walk.plan(analyzed_plan(frame))
    return [UnrepeatableExpression(name, reason) for name, reason in walk.findings.items()]


class _Walk:
    """Walks a plan and collects what is not allowed."""

    def __init__(self, *, by_record: bool) -> None:
        self._by_record = by_record
        self._tables: dict[int, bool] = {}  # by the id of a common table expression: true if records reach it
        self.findings: dict[str, Reason] = {}

    def plan(self, plan: Any) -> bool:
        """Check an operator and everything below it; return True if records reach it."""
        kind = find_class_name(plan)
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
        kind = find_class_name(expression)
        if kind in _COLUMNS:
            return False
        if flagged is None:
            flagged = not expression.deterministic()
        if reason := _reason(kind, expression):
            self._note(_name(kind, expression), reason)
        elif flagged and kind not in _SUBQUERIES and _is_flagged(expression):
            self._note(_name(kind, expression), DECLARED)
        for finding in times_in_expression(kind, expression):
            self._note(*finding)
        reached = kind in _SUBQUERIES and self.plan(expression.plan())
        for child in _parts(kind, expression):
            reached |= self.expressions(child, flagged and not child.deterministic())
        return reached

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
            if reached:
                self._need_batch("distinct")
        elif kind in _PICKS:
            self._note(_PICKS[kind], PICK)
        elif kind in _TOGETHER:
            if reached:
                self._need_batch(_TOGETHER[kind])
        elif kind not in _ROW_BY_ROW and kind not in _SOURCES:
            self._note(plan.nodeName(), UNKNOWN)

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


def _reason(kind: str, expression: Any) -> Reason | None:
    """Return why an expression by itself is refused; None if nothing is known against it."""
    match kind:
        case "PythonUDF" if expression.evalType() not in _ROW_FUNCTIONS:
            return MANY
        case "ListAgg" if not _is_ordered(expression):
            return ORDER
        case "WindowExpression" if _is_cut_by_rows(expression):
            return ORDER
    return REFUSED.get(kind)


def _parts(kind: str, expression: Any) -> list[Any]:
    """Return the children of an expression; instead of a collect_list() or collect_set() that is sorted, its children:
    the order in which it collects does not matter."""
    children = list(items(expression.children()))
    if kind != "SortArray" or find_class_name(children[0]) != "AggregateExpression":
        return children
    function, *others = items(children[0].children())
    if find_class_name(function) not in ("CollectList", "CollectSet"):
        return children
    return [*items(function.children()), *others, *children[1:]]


def _name(kind: str, expression: Any) -> str:
    """Return the name by which users know an expression."""
    if kind in ("PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"):
        return str(expression.name())
    return "rows between" if kind == "WindowExpression" else str(expression.prettyName()).lower()


def _is_flagged(expression: Any) -> bool:
    """True if Spark considers the expression itself nondeterministic."""
    return not expression.deterministic() and all(
        child.deterministic() for child in items(expression.children())
    )


def _is_ordered(listagg: Any) -> bool:
    """True if rows that tie in the order have the same text."""
    return any(order.child().semanticEquals(listagg.child()) for order in items(listagg.orderExpressions()))


def _is_cut_by_rows(window: Any) -> bool:
    """True if an aggregate covers a number of rows before or after, which may be any of the rows that tie."""
    frame = window.windowSpec().frameSpecification()
    if (
        find_class_name(window.windowFunction()) != "AggregateExpression"
        or find_class_name(frame) != "SpecifiedWindowFrame"
    ):
        return False
    ends = {find_class_name(frame.lower()), find_class_name(frame.upper())}
    return find_class_name(frame.frameType()) == "RowFrame" and ends != {
        "UnboundedPreceding",
        "UnboundedFollowing",
    }
