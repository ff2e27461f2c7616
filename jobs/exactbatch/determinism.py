"""Which parts of a Spark plan may give another result when they are tried again."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

# Spark calls these deterministic, because within one query they are.
_CLOCKS: Final = {"current_timestamp", "now", "current_date", "curdate", "current_time", "localtimestamp"}
# Which rows these keep depends on the order in which rows come.
_PICKS: Final = {
    "Sample": "sample",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Tail": "tail",
    "Offset": "offset",
    "Deduplicate": "dropDuplicates",
}


def nondeterministic(frame: DataFrame) -> list[str]:
    """The names of expressions and operators of a plan that may give other results on a retry, once each.

    Spark knows it of its own expressions, and of Python functions only what asNondeterministic() told it.
    """
    plan = frame._jdf.queryExecution().analyzed()
    return list(dict.fromkeys(_of_plan(plan)))


def _of_plan(plan: Any) -> Iterator[str]:
    if (name := plan.nodeName()) in _PICKS:
        yield _PICKS[name]
    for expression in _each(plan.expressions()):
        yield from _of_expression(expression)
    for child in _each(plan.children()):
        yield from _of_plan(child)


def _of_expression(expression: Any) -> Iterator[str]:
    children = list(_each(expression.children()))
    name = expression.prettyName()
    if name.endswith("subquery") or name == "exists":
        yield from _of_plan(expression.plan())
    elif name in _CLOCKS or (not expression.deterministic() and all(c.deterministic() for c in children)):
        # A Python function is a pythonudf to Spark; its name is what its user knows.
        yield expression.name() if name == "pythonudf" else name
    for child in children:
        yield from _of_expression(child)


def _each(sequence: Any) -> Iterator[Any]:
    """A Scala Seq, item by item."""
    return (sequence.apply(index) for index in range(sequence.size()))
