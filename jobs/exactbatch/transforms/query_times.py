"""Find what Spark replaces by the time of the query: constants such as 'now', and text that may lack a date."""

import re
from collections.abc import Iterator
from typing import Any, Final

from exactbatch.transforms.refused_expressions import CLOCK, CONSTANT, DATELESS, UnrepeatableExpression
from exactbatch.transforms.spark_plan import find_class_name, items, sql_text

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
