"""What a transform may do: Spark's analyzed plan of it, walked operator by operator and expression by expression.

What is known by its class to give the same rows in a retry and in a replay is allowed; all else has to be allowed
by its name.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.util import PythonEvalType

from exactbatch.transforms.allowed_expressions import (
    ALLOWED,
    CLOCK,
    CONSTANT,
    DATELESS,
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
    Reason,
)

__all__ = ["RECORDS", "Finding", "findings", "marked"]

# The name under which the records are in a plan, below any that the transform gives them; none that it could give.
RECORDS: Final = f"exactbatch_records_{uuid.uuid4().hex[:8]}"

# Each of their rows is made of one row.
_ROW_BY_ROW: Final = {
    "Project", "Filter", "Generate", "Union", "SubqueryAlias", "View", "WithCTE", "CTERelationDef",
    "ResolvedHint", "UnresolvedHint", "PipeOperator", "Sort", "Expand", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "CollectMetrics", "EventTimeWatermark",
    "SQLFunctionNode", "MapInPandas", "MapInArrow",
}  # fmt: skip
# Their rows are made of many rows, the same in whatever order and parts Spark meets them.
_SETS: Final = {"Distinct": "distinct", "Intersect": "intersect", "Except": "except"}
_TOGETHER: Final = {
    "Window": "window",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "cogroup",
    "FlatMapCoGroupsInArrow": "cogroup",
}
# Which rows they keep depends on the order in which rows come.
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
# What Spark makes the time of the query of, in a cast of a constant and in a typed literal: SpecialDatetimeValues.
_WORD: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_QUOTED_WORD: Final = re.compile(r"""["']\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)
# A time of day alone is one of the day of the query: SparkDateTimeUtils.stringToTimestamp.
_TIME_ALONE: Final = re.compile(r"[\s\x00-\x1f]*(T\d|\d\d?:)")
_QUOTED_TIME: Final = re.compile(r"""["'][\s\x00-\x1f]*(T\d|\d\d?:)""")
# In the name of a type: what may hold such a text, and what it becomes. Names of fields stand before a colon.
_TEXT: Final = re.compile(r"(?:^|[:<,])(?:string|char|varchar|variant|time)(?=[>,( ]|$)")
_TIMESTAMP: Final = re.compile(r"(?:^|[:<,])timestamp(?=[>,]|$)")
_DATETIME: Final = re.compile(r"(?:^|[:<,])(?:date|timestamp|timestamp_ntz)(?=[>,]|$)")
_PARSERS: Final = {"JsonToStructs", "CsvToStructs", "XmlToStructs"}
# Sums of such may pass the 38 digits of a decimal in between: Spark adds ten digits for a sum.
_DECIMAL: Final = re.compile(r"decimal\((\d+),")
_WIDEST_SAFE: Final = 28
# Averages of these are computed as decimals or whole numbers, or of sums that a double holds exactly.
_EXACT_AVERAGES: Final = ("byte", "short", "decimal", "interval")


class Finding(NamedTuple):
    """Something in a plan that may give other rows another time: the name that allows it, and why."""

    name: str
    reason: Reason


def marked(records: DataFrame) -> DataFrame:
    """The records of a batch, as findings() knows them again in a plan."""
    return records.alias(RECORDS)


def findings(frame: DataFrame, *, by_record: bool) -> list[Finding]:
    """What in the plan of a transform may give other rows in a retry or a replay, once each.

    With `by_record` a replay may process any part of a batch: no row may depend on several of its records then.
    Otherwise a row may, but not on their order, or on how Spark cuts them.
    """
    walk = _Walk(frame, by_record=by_record)
    walk.plan(frame._jdf.queryExecution().analyzed())
    return [Finding(name, reason) for name, reason in walk.found.items()]


class _Walk:
    """Goes over a plan and notes what it finds."""

    def __init__(self, frame: DataFrame, *, by_record: bool) -> None:
        assert frame.sparkSession.sparkContext._jvm is not None
        self._collations = frame.sparkSession.sparkContext._jvm.org.apache.spark.sql.util.SchemaUtils
        self._by_record = by_record
        self._tables: dict[int, bool] = {}  # whether records reach a common table expression, by its id
        self.found: dict[str, Reason] = {}

    def plan(self, plan: Any) -> bool:
        """Look at an operator and all below it; return whether records reach it."""
        kind = _class(plan)
        if kind == "SubqueryAlias" and plan.alias() == RECORDS:
            return True
        if kind == "CTERelationRef":
            return self._tables.get(plan.cteId(), True)
        below = [self.plan(child) for child in _each(plan.children())]
        reaching = [self.expressions(each) for each in _each(plan.expressions())]
        in_subqueries = any(reaching)
        if kind == "WithCTE":
            return below[-1]  # the others are the tables that it names
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
        """Look at an expression and all below it; return whether records reach a subquery in it."""
        kind = _class(expression)
        if kind in _COLUMNS:
            return False
        if flagged is None:
            flagged = not expression.deterministic()
        if reason := self._reason(kind, expression):
            self._note(_name(kind, expression), reason)
        elif flagged and kind not in _SUBQUERIES and _is_flagged(expression):
            self._note(_name(kind, expression), DECLARED)
        self._words(kind, expression)
        reached = kind in _SUBQUERIES and self.plan(expression.plan())
        for child in self._parts(kind, expression):
            reached |= self.expressions(child, flagged and not child.deterministic())
        return reached

    def _parts(self, kind: str, expression: Any) -> list[Any]:
        """The children of an expression; in place of a collect_list() or collect_set() that is sorted, its own:
        the order in which it collects does not count."""
        children = list(_each(expression.children()))
        if (
            kind != "SortArray"
            or _class(children[0]) != "AggregateExpression"
            or self._is_collated(children[0])
        ):
            return children
        function, *others = _each(children[0].children())
        if _class(function) not in ("CollectList", "CollectSet"):
            return children
        return [*_each(function.children()), *others, *children[1:]]

    def _note(self, name: str, reason: Reason) -> None:
        self.found.setdefault(name, reason)

    def _need_batch(self, name: str, reason: Reason = TOGETHER) -> None:
        if self._by_record:
            self._note(name, reason)

    def _operator(self, kind: str, plan: Any, below: Sequence[bool], *, reached: bool) -> None:
        if kind == "LocalRelation":
            self._values(plan)
        elif kind == "LogicalRDD":
            if _is_kept(plan.rdd()):
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
        if any(self._is_collated(each) for each in _each(grouped)):
            self._note("collate", EQUAL)

    def _join(self, plan: Any, below: Sequence[bool], *, reached: bool) -> None:
        """Records may be joined with another source, as long as each row is of a record."""
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
        """Why an expression by itself is refused; None where it is not."""
        if kind in ("StaticInvoke", "Invoke"):
            # What functions of Spark's own are computed by; a function of a catalog is somebody else's code.
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
        """Whether values may be equal that are not the same."""
        return bool(self._collations.hasNonUTF8BinaryCollation(expression.dataType()))

    def _words(self, kind: str, expression: Any) -> None:
        """Note what Spark makes a time of the query of: a constant, as `timestamp 'now'`, and text that may have
        no date."""
        if kind == "Literal":
            if _has(_DATETIME, expression.dataType()):
                self._quoted(_text(expression))
        elif kind in ("Cast", "ParseToDate", "ParseToTimestamp"):
            has_format = kind == "ParseToTimestamp" and expression.format().isDefined()
            self._cast(expression, expression.children().apply(0), has_format=has_format)
        elif _parses(kind, expression) and _has(_TIMESTAMP, expression.dataType()):
            self._note(expression.prettyName(), DATELESS)

    def _cast(self, expression: Any, child: Any, *, has_format: bool) -> None:
        name, type_, text = expression.prettyName(), expression.dataType(), child.dataType()
        if not (_has(_DATETIME, type_) and _has(_TEXT, text)):
            return
        is_plain = str(text.typeName()).startswith(("string", "char", "varchar"))
        if is_plain and _class(child) == "Literal":
            if word := _WORD.match(str(child.value())):
                self._note(word[1].lower(), CLOCK)
            elif _has(_TIMESTAMP, type_) and not has_format and _TIME_ALONE.match(str(child.value())):
                self._note(name, DATELESS)
        elif is_plain and child.foldable():
            self._note(name, CONSTANT)
        elif _has(_TIMESTAMP, type_) and not has_format:
            self._note(name, DATELESS)

    def _quoted(self, text: str) -> None:
        """Note such constants in the SQL text of values."""
        for word in _QUOTED_WORD.finditer(text):
            self._note(word[1].lower(), CLOCK)
        if _QUOTED_TIME.search(text):
            self._note("timestamp", DATELESS)

    def _values(self, plan: Any) -> None:
        """Note words in `values (…)`, which are values by now."""
        if any(_has(_DATETIME, each.dataType()) for each in _each(plan.output())):
            self._quoted(_text(plan))


def _class(node: Any) -> str:
    """The simple name of the class of one of Spark's objects; the full one of anybody else's."""
    name = str(node.getClass().getName())
    return name.rpartition(".")[2].removesuffix("$") if name.startswith("org.apache.spark.sql.") else name


def _each(sequence: Any) -> Iterator[Any]:
    """A Scala Seq, item by item."""
    return (sequence.apply(index) for index in range(sequence.size()))


def _name(kind: str, expression: Any) -> str:
    """What its user knows an expression by."""
    if kind in ("PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"):
        return str(expression.name())
    if kind in ("StaticInvoke", "Invoke"):
        return _code(kind, expression)
    return "rows between" if kind == "WindowExpression" else str(expression.prettyName()).lower()


def _is_flagged(expression: Any) -> bool:
    """Whether Spark calls an expression nondeterministic by itself."""
    return not expression.deterministic() and all(
        each.deterministic() for each in _each(expression.children())
    )


def _code(kind: str, expression: Any) -> str:
    """The class whose method is called."""
    if kind == "StaticInvoke":
        return str(expression.staticObject().getName())
    target = expression.targetObject()
    return str((target.value() if _class(target) == "Literal" else target).getClass().getName())


def _of_sum(kind: str, expression: Any) -> Reason | None:
    """Why a sum or an average may depend on the order of the rows."""
    type_ = str(expression.child().dataType().typeName())
    if type_ in ("float", "double") or (kind == "Average" and not type_.startswith(_EXACT_AVERAGES)):
        return FLOAT
    decimal = _DECIMAL.match(type_)
    wide = int(decimal[1]) > _WIDEST_SAFE if decimal else type_ == "long" and kind == "Sum"
    # Where it is an error, or wraps around, the result does not depend on the order.
    mode = str((expression.evalContext() if kind == "Sum" else expression).evalMode())
    safe = mode == "ANSI" or (mode == "LEGACY" and not decimal)
    return OVERFLOW if wide and not safe else None


def _has(pattern: re.Pattern[str], type_: Any) -> bool:
    """Whether a type is one of these, or has one of these within."""
    return pattern.search(str(type_.catalogString())) is not None


def _parses(kind: str, expression: Any) -> bool:
    """Whether an expression reads values of a document, and has not been told how a timestamp is written there."""
    if kind in _PARSERS:
        names = expression.options().keys().toSeq()
        return not any(str(name).lower() == "timestampformat" for name in _each(names))
    return kind == "VariantGet"


def _is_ordered(listagg: Any) -> bool:
    """Whether equal places in the order have equal texts."""
    return any(each.child().semanticEquals(listagg.child()) for each in _each(listagg.orderExpressions()))


def _is_cut_by_rows(window: Any) -> bool:
    """Whether an aggregate is over so many rows before or after, which may be any of those that tie."""
    frame = window.windowSpec().frameSpecification()
    if _class(window.windowFunction()) != "AggregateExpression" or _class(frame) != "SpecifiedWindowFrame":
        return False
    ends = {_class(frame.lower()), _class(frame.upper())}
    return _class(frame.frameType()) == "RowFrame" and ends != {"UnboundedPreceding", "UnboundedFollowing"}


def _text(node: Any) -> str:
    """The SQL text that a part of a plan was parsed from; empty where there is none."""
    origin = node.origin()
    if not (
        origin.sqlText().isDefined() and origin.startIndex().isDefined() and origin.stopIndex().isDefined()
    ):
        return ""
    text = str(origin.sqlText().get())
    return text[origin.startIndex().get() : origin.stopIndex().get() + 1]


def _is_kept(rdd: Any) -> bool:
    """Whether an RDD comes from one that Spark keeps, as it does with the records and with checkpoints."""
    seen, left = set(), [rdd]
    while left:
        each = left.pop()
        level = each.getStorageLevel()
        if level.useDisk() or level.useMemory() or each.isCheckpointed():
            return True
        if each.id() not in seen:
            seen.add(each.id())
            left += [dependency.rdd() for dependency in _each(each.dependencies())]
    return False
