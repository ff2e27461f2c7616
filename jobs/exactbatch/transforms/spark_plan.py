"""Access to the nodes of Spark's plans, which are Scala objects in the JVM.

Each call of one of their methods is a message of about 0.2 ms: to look at every column of every node of a plan would
take longer than a small batch.
"""

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame


def analyzed_plan(frame: DataFrame) -> Any:
    """Return the analyzed plan of a DataFrame."""
    return frame._jdf.queryExecution().analyzed()


def items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala Seq."""
    return (sequence.apply(index) for index in range(sequence.size()))


def find_class_name(node: Any) -> str:
    """Return the simple class name of one of Spark's objects, and the full one of any other."""
    name = str(node.getClass().getName())
    return name.rpartition(".")[2].removesuffix("$") if name.startswith("org.apache.spark.sql.") else name


def read_id(column: Any) -> int:
    """Return the ID of a column, which no other column of the session has."""
    return int(column.exprId().id())


def list_names(plan: Any) -> list[str]:
    """Return the names of the columns that a plan returns."""
    return [field["name"] for field in json.loads(plan.schema().json())["fields"]]


def renames_nothing(projection: Any) -> bool:
    """True if a projection returns columns of its input, as they are, and nothing else: what it computes or renames
    has a new ID."""
    return bool(projection.outputSet().subsetOf(projection.child().outputSet()))


def sql_text(node: Any) -> str:
    """Return the SQL text that a part of a plan was parsed from; empty if it was not parsed from text."""
    origin = node.origin()
    if not (
        origin.sqlText().isDefined() and origin.startIndex().isDefined() and origin.stopIndex().isDefined()
    ):
        return ""
    text = str(origin.sqlText().get())
    return text[origin.startIndex().get() : origin.stopIndex().get() + 1]


def is_persisted(rdd: Any) -> bool:
    """True if an RDD derives from one that Spark has persisted, as it has the records, or checkpointed."""
    visited, pending = set(), [rdd]
    while pending:
        parent = pending.pop()
        level = parent.getStorageLevel()
        if level.useDisk() or level.useMemory() or parent.isCheckpointed():
            return True
        if parent.id() not in visited:
            visited.add(parent.id())
            pending += [dependency.rdd() for dependency in items(parent.dependencies())]
    return False
