"""The Spark settings and the environment of Python functions that decide what a batch writes, and who can reach the
ports that a driver opens, with which secret.
"""

import re
from collections.abc import Mapping
from typing import Final
from zoneinfo import available_timezones

from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline

_ZONE: Final = "spark.sql.session.timeZone"
RECORDS_AT_ONCE: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
# A query calls no Python function, and what stages its rows spends less time with larger batches.
QUERY_RECORDS_AT_ONCE: Final = "200000"
_OFFSET: Final = re.compile(r"(UTC|GMT|UT)?[+-]\d.*")  # +02:00
# The settings that decide which rows a transform returns, and that may differ between machines, clusters and
# users: the value in a batch, unless the pipeline's spark_conf has another, and what it decides.
# docs/settings.md shows the values.
PINNED: Final[Mapping[str, tuple[str, str]]] = {
    _ZONE: ("UTC", "what hour(at) returns, and which moment text without an offset stands for"),
    "spark.sql.ansi.enabled": ("true", "whether 1/0, overflow and a bad cast are errors or null"),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("false", 'whether "a" is a column or a string literal'),
    "spark.sql.ansi.enforceReservedKeywords": ("false", "which words can be used as names"),
    "spark.sql.ansi.relationPrecedence": ("false", "the order of joins without parentheses"),
    "spark.sql.caseSensitive": ("false", "whether Name and name are the same column"),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", "what the type timestamp stands for"),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("true", "how many digits a product or quotient has"),
    "spark.sql.mapKeyDedupPolicy": ("EXCEPTION", "what happens if a map has a key twice"),
    "spark.sql.groupByAliases": ("true", "whether a name in group by can be an alias"),
    "spark.sql.groupByOrdinal": ("true", "whether a number in group by is a position"),
    "spark.sql.orderByOrdinal": ("true", "whether a number in order by is a position"),
    "spark.sql.parser.escapedStringLiterals": ("false", "what a backslash in a literal means"),
    "spark.sql.parser.quotedRegexColumnNames": ("false", "whether `a.*` names one column or several"),
    "spark.sql.jsonGenerator.ignoreNullFields": ("true", "whether to_json omits fields that are null"),
    "spark.sql.storeAssignmentPolicy": ("ANSI", "which values are cast when they are inserted into a table"),
    "spark.sql.function.concatBinaryAsString": ("false", "whether concat of bytes returns bytes or text"),
    "spark.sql.function.eltOutputAsString": ("false", "the same for elt"),
    "spark.sql.chunkBase64String.enabled": ("true", "whether base64 returns lines of 76 characters"),
    "spark.sql.preserveCharVarcharTypeInfo": ("false", "whether a cast to char(5) adds spaces"),
    "spark.sql.columnNameOfCorruptRecord": (
        "_corrupt_record",
        "which field of from_json holds a malformed document",
    ),
    "spark.sql.json.enablePartialResults": ("true", "what from_json keeps of a malformed document"),
    "spark.sql.json.enableExactStringParsing": (
        "true",
        "how from_json returns a nested document as a string",
    ),
    "spark.sql.variant.allowDuplicateKeys": (
        "false",
        "whether parse_json accepts an object that has a name twice",
    ),
    "spark.sql.icu.caseMappings.enabled": (
        "true",
        "how upper, lower and initcap convert letters outside ASCII",
    ),
    "spark.sql.retainGroupColumns": ("true", "whether groupBy().agg() returns the grouping columns"),
    "spark.sql.variable.substitute": (
        "false",
        "whether ${env:HOME} in sql is text or the value on the machine",
    ),
    "spark.sql.files.ignoreCorruptFiles": (
        "false",
        "whether a file of another source that cannot be read is an error",
    ),
    "spark.sql.files.ignoreMissingFiles": ("false", "the same for a file that is missing"),
    "spark.sql.sources.partitionColumnTypeInference.enabled": (
        "true",
        "whether 01 in a folder's name is a number",
    ),
    RECORDS_AT_ONCE: ("10000", "how many records a Python function receives at once"),
    "spark.sql.execution.arrow.maxBytesPerBatch": (
        "16777216",
        "how many bytes it receives at once, which bounds its memory",
    ),
    "spark.sql.execution.pyspark.binaryAsBytes": ("true", "whether it receives bytes or a bytearray"),
    "spark.sql.execution.pandas.convertToArrowArraySafely": (
        "true",
        "whether pandas values may lose digits",
    ),
    "spark.sql.execution.pandas.structHandlingMode": ("legacy", "how pandas represents a struct"),
    "spark.sql.execution.pythonUDF.arrow.enabled": (
        "true",
        "how values are passed to Python functions and back",
    ),
    "spark.sql.execution.pythonUDTF.arrow.enabled": ("true", "the same for table functions"),
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled": ("false", "what a dict in a literal becomes"),
}
_LOCAL: Final = re.compile(r"local(\[[^]]*\])?")
# Whoever reaches a driver's ports can send it Java objects, and end its stages on its pages.
_ALONE: Final = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
# Spark makes a secret for each application, and hands it to its executors, if it starts these itself.
_AUTHENTICATED: Final = {"spark.authenticate": "true"}
_SHUFFLE_SERVICE: Final = "spark.shuffle.service.enabled"  # which needs the setting, too


def build_variables(pipeline: Pipeline) -> Mapping[str, str]:
    """Return the environment variables of Python functions, wherever they run: the time zone and the seed of
    hash().

    The zone is UTC, or the one that the pipeline's spark_conf names: that of SQL, of datetimes without a zone
    that become literals on the driver (py4j takes them for local time), and of those that Python functions
    receive on executors (Spark converts them to local time). For an offset such as +02:00, which the C library
    would read in another way, Python functions see UTC. Raises ConfigurationError for a zone that Spark and
    Python do not both know.
    """
    zone = pipeline.spark_conf.get(_ZONE, PINNED[_ZONE][0])
    is_offset = _OFFSET.fullmatch(zone) is not None
    # To list all zones reads hundreds of files: that took a quarter of the driver's time for a small batch.
    if zone != "UTC" and not is_offset and zone not in available_timezones():
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: spark_conf has {_ZONE} = {zone}, which is not in the time zone "
            f"database of this machine. Use one of its names, such as Asia/Tokyo."
        )
    return {
        "TZ": pipeline.spark_conf.get("spark.executorEnv.TZ", "UTC" if is_offset else zone),
        "PYTHONHASHSEED": pipeline.spark_conf.get("spark.executorEnv.PYTHONHASHSEED", "0"),
    }


def is_local(settings: Mapping[str, str]) -> bool:
    """True if the master is a `local` one, so that all is in one process of the JVM."""
    return _LOCAL.fullmatch(settings.get("spark.master", "")) is not None


def choose_guarded_ports(settings: Mapping[str, str]) -> dict[str, str]:
    """Return Spark properties that keep others from the driver's ports; `settings`, which are all those of the driver,
    take precedence.

    With a local master, only this machine reaches them, and there is no web UI. With it, YARN and Kubernetes, Spark
    takes messages only from what has this application's secret. The processes of a standalone cluster run before the
    driver, and must have been given a secret.
    """
    own = dict(_ALONE) if is_local(settings) else {}
    makes_secret = is_local(settings) or re.match(r"yarn$|k8s://", settings.get("spark.master", ""))
    if makes_secret and settings.get(_SHUFFLE_SERVICE) != "true":
        own |= _AUTHENTICATED
    return {name: value for name, value in own.items() if name not in settings}
