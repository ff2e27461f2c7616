"""Spark's expressions that may return another result in a retry or a replay, and why.

The names are those of classes in org.apache.spark.sql, which every supported version of Spark has had so far. Spark
itself marks many of them as nondeterministic, and those that are not listed here, too; the list gives the reasons.
"""

from typing import Final, NamedTuple


class Reason(NamedTuple):
    """Why an expression or an operator is refused, and what to use instead."""

    why: str
    instead: str


class UnrepeatableExpression(NamedTuple):
    """Something in a plan that may return other rows next time: the name that allows it, and the reason."""

    name: str
    reason: Reason


CLOCK: Final = Reason(
    "returns the time of the attempt", "Use a column of the record for the time, such as kafka_timestamp."
)
SESSION: Final = Reason(
    "depends on who runs the batch, and on the version of Spark", "Write the value into the transform."
)
RANDOM: Final = Reason(
    "returns a different value each time",
    "Compute the value from columns of the record, for example with xxhash64().",
)
ORDER: Final = Reason(
    "depends on the order in which Spark processes the rows",
    "Use min, max, count, sum, rank, or sort_array(collect_list(…)).",
)
PICK: Final = Reason("keeps the rows that Spark processes first", "Use rank(), or min and max over a column.")
MANY: Final = Reason(
    "is a Python function that receives many rows at a time, divided as the tasks happen to be",
    "Use a plain Python function of one row.",
)
DECLARED: Final = Reason(
    "is nondeterministic, as Spark or its author says",
    "Use a function that returns the same result for the same record.",
)
TOGETHER: Final = Reason(
    "combines records of a batch, and a replay of a part of the batch does not have all of them",
    "Use a sink that works by batch: Append(…, lineage='batch').",
)
NO_RECORD: Final = Reason(
    "returns rows that come from no record, or that depend on which records are in the batch",
    "Put the records on the side of the join whose rows are all kept, or use a sink that works by batch: "
    "Append(…, lineage='batch').",
)
HIDDEN: Final = Reason(
    "hides from Spark's plan how the rows were computed", "Use only DataFrames and SQL functions."
)
CONSTANT: Final = Reason(
    "converts text that Spark computes to a time, and the text may be a word such as 'now'",
    "Write the text itself.",
)
DATELESS: Final = Reason(
    "converts text to a timestamp, and gives text without a date, such as '10:15', the date of the attempt",
    "Let the value format read the time (at timestamptz), or specify a format: as in "
    "to_timestamp(text, 'yyyy-MM-dd HH:mm'), or as timestampFormat of from_json, from_csv and from_xml.",
)
UNKNOWN: Final = Reason(
    "is an operator that is not known to return the same rows each time",
    "Use operators that `exactbatch explain transform` lists.",
)

_REFUSED: Final = {
    CLOCK: "CurrentTimestamp Now CurrentDate CurrentTime LocalTimestamp",
    SESSION: "CurrentTimeZone CurrentDatabase CurrentCatalog CurrentPath CurrentUser SparkVersion",
    RANDOM: """
        Rand Randn RandStr Uniform Uuid Shuffle AesEncrypt CallMethodViaReflection TryReflect
        MonotonicallyIncreasingID SparkPartitionID InputFileName InputFileBlockStart InputFileBlockLength
    """,
    ORDER: """
        First Last AnyValue CollectList CollectSet MaxBy MinBy MaxMinByK Mode RowNumber NTile Lag Lead NthValue
    """,
    MANY: "PythonUDAF PythonUDTF UnresolvedPolymorphicPythonUDTF",
}
REFUSED: Final = {name: reason for reason, names in _REFUSED.items() for name in names.split()}
