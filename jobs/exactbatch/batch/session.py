"""The Spark session of a batch."""

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zoneinfo import available_timezones

import pyspark
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.batch.spark_errors import setting_refused
from exactbatch.errors import ConfigurationError, ExactbatchError, TasksFailed
from exactbatch.pipeline import Pipeline

_ZONE: Final = "spark.sql.session.timeZone"
_OFFSET: Final = re.compile(r"(UTC|GMT|UT)?[+-]\d.*")  # +02:00
_LEGACY: Final = "spark.sql.legacy."
# What decides which rows a transform gives, and may differ between machines, clusters and users: its value in a
# batch, unless the pipeline's spark_conf has another, and why. docs/settings.md shows this table.
PINNED: Final[Mapping[str, tuple[str, str]]] = {
    _ZONE: ("UTC", "what hour(at) is, and which moment a text without an offset"),
    "spark.sql.ansi.enabled": ("true", "whether 1/0, overflow and a bad cast are errors or null"),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("false", 'whether "a" is a column or a text'),
    "spark.sql.ansi.enforceReservedKeywords": ("false", "which words may be names"),
    "spark.sql.ansi.relationPrecedence": ("false", "in which order joins without parentheses are made"),
    "spark.sql.caseSensitive": ("false", "whether Name and name are one column"),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", "what the type timestamp is"),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("true", "how many digits a product or quotient has"),
    "spark.sql.mapKeyDedupPolicy": ("EXCEPTION", "what a key means that a map has twice"),
    "spark.sql.groupByAliases": ("true", "what a name in group by is"),
    "spark.sql.groupByOrdinal": ("true", "what a number in group by is"),
    "spark.sql.orderByOrdinal": ("true", "what a number in order by is"),
    "spark.sql.parser.escapedStringLiterals": ("false", "what a backslash in a literal is"),
    "spark.sql.parser.quotedRegexColumnNames": ("false", "whether `a.*` names one column or several"),
    "spark.sql.jsonGenerator.ignoreNullFields": ("true", "whether to_json writes fields that are null"),
    "spark.sql.storeAssignmentPolicy": ("ANSI", "which values are cast on the way into a table"),
    "spark.sql.function.concatBinaryAsString": ("false", "what concat of bytes gives: bytes or text"),
    "spark.sql.function.eltOutputAsString": ("false", "the same of elt"),
    "spark.sql.chunkBase64String.enabled": ("true", "whether base64 gives lines of 76 letters"),
    "spark.sql.preserveCharVarcharTypeInfo": ("false", "whether a cast to char(5) adds spaces"),
    "spark.sql.columnNameOfCorruptRecord": (
        "_corrupt_record",
        "which field of from_json holds what is malformed",
    ),
    "spark.sql.json.enablePartialResults": ("true", "what from_json keeps of what is malformed"),
    "spark.sql.json.enableExactStringParsing": (
        "true",
        "what from_json makes of a document within a document",
    ),
    "spark.sql.variant.allowDuplicateKeys": (
        "false",
        "what parse_json makes of a name that an object has twice",
    ),
    "spark.sql.icu.caseMappings.enabled": (
        "true",
        "what upper, lower and initcap make of letters that are not ASCII",
    ),
    "spark.sql.retainGroupColumns": ("true", "whether groupBy().agg() gives the columns of the group"),
    "spark.sql.variable.substitute": (
        "false",
        "whether ${env:HOME} in sql is text, or what the machine says",
    ),
    "spark.sql.files.ignoreCorruptFiles": (
        "false",
        "whether a file of another source that cannot be read is an error",
    ),
    "spark.sql.files.ignoreMissingFiles": ("false", "the same of one that is gone"),
    "spark.sql.sources.partitionColumnTypeInference.enabled": (
        "true",
        "whether 01 in the name of a folder is a number",
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": (
        "10000",
        "how many records a Python function gets at once",
    ),
    "spark.sql.execution.arrow.maxBytesPerBatch": (
        "16777216",
        "how many bytes it gets at once, which bounds its memory",
    ),
    "spark.sql.execution.pyspark.binaryAsBytes": ("true", "whether it gets bytes or a bytearray"),
    "spark.sql.execution.pandas.convertToArrowArraySafely": (
        "true",
        "whether pandas values may lose digits",
    ),
    "spark.sql.execution.pandas.structHandlingMode": ("legacy", "what a struct is in pandas"),
    "spark.sql.execution.pythonUDF.arrow.enabled": ("true", "how values go into Python functions and back"),
    "spark.sql.execution.pythonUDTF.arrow.enabled": ("true", "the same of table functions"),
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled": ("false", "what a dict in a literal becomes"),
}

# Dynamic allocation does not take an executor away that is done before the others, with the records that it keeps.
_KEPT: Final = {"spark.dynamicAllocation.cachedExecutorIdleTimeout": f"{2**31 - 1}s"}
# What the batches have in the environment of Python functions that this process runs.
_under_way: list[Mapping[str, str]] = []
_lock = threading.Lock()


@contextmanager
def spark_session(pipeline: Pipeline, *, master: str | None = None) -> Iterator[SparkSession]:
    """A session with the pipeline's Spark properties; without `master`, the one that spark-submit was given.

    Executors run the Python that PYSPARK_PYTHON names, and otherwise this very one: it has the package. Raises
    ConfigurationError where a setting lets no session begin, and TasksFailed when Spark does not start or its JVM
    ends before it does.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _check_home()
    # A batch runs its tasks as RDDs, which a session of Spark Connect does not have.
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if name in os.environ:
            raise ConfigurationError(
                f"{name} is set, so that Spark would start a session of Spark Connect, which cannot run a batch. "
                f"Unset it for batches, and name the cluster by spark-submit --master, or the Spark connection."
            )
    own = {**_KEPT, **pipeline.spark_conf, "spark.api.mode": "classic"}
    if "spark.remote" in own:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: spark_conf has spark.remote, so that Spark would start a session of "
            f"Spark Connect, which cannot run a batch. Remove it, and name the cluster by spark-submit --master."
        )
    builder = SparkSession.builder.appName(f"exactbatch {pipeline.name}")
    if master is not None:
        builder = builder.master(master)
    for name, value in own.items():
        builder = builder.config(name, value)
    settings = _settings({**own, **({"spark.master": master} if master else {})})
    _check_directories(settings)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JJavaError, TypeError) as error:
        raise _not_started(error, settings) from error
    except (Py4JNetworkError, ConnectionError) as error:
        raise TasksFailed(
            "the JVM of the driver has ended while Spark started. Its own lines above this one say why: a "
            "directory that it cannot write (spark.local.dir, SPARK_LOCAL_DIRS), or not enough memory for "
            "spark.driver.memory? Nothing was written."
        ) from error
    with end_of_jvm_told(), session:
        # A transform may ask for it, by SparkSession.builder.getOrCreate(), and F.udf() does.
        _pin(session, pipeline)
        yield session


def _check_home() -> None:
    """Raise ConfigurationError for a SPARK_HOME that is not there, or is of another version than PySpark."""
    if not (home := os.environ.get("SPARK_HOME")):
        return
    if not (Path(home) / "bin" / "spark-submit").exists():
        raise ConfigurationError(
            f"SPARK_HOME is {home}, and there is no bin/spark-submit in it. Unset it, to use the Spark of the "
            f"Python package pyspark, or let it name an installation of Spark {pyspark.__version__}."
        )
    found = {
        match[1]
        for jar in (Path(home) / "jars").glob("spark-core_*.jar")
        if (match := re.search(r"-(\d+\.\d+)[^-]*\.jar$", jar.name))
    }
    wanted = ".".join(pyspark.__version__.split(".")[:2])
    if found and wanted not in found:
        raise ConfigurationError(
            f"SPARK_HOME is {home}, a Spark {', '.join(sorted(found))}, and the Python package pyspark is "
            f"{pyspark.__version__}. Unset SPARK_HOME, or install the same version of both."
        )


def _settings(own: Mapping[str, str]) -> dict[str, str]:
    """The properties that Spark will have, also those of its files and of spark-submit; starts the JVM."""
    conf = SparkConf(loadDefaults=False)
    for name, value in own.items():
        conf.set(name, value)
    try:
        SparkContext._ensure_initialized(conf=conf)
    except (PySparkException, OSError) as error:
        raise _not_started(error, own) from error
    assert SparkContext._jvm is not None
    known = dict(SparkConf(_jvm=SparkContext._jvm).getAll())
    if SparkContext._active_spark_context is not None:
        known |= dict(SparkContext._active_spark_context.getConf().getAll())
    return {**known, **own}


def _check_directories(settings: Mapping[str, str]) -> None:
    """Raise ConfigurationError where none of the directories can be written that Spark keeps blocks in: it would
    end the JVM. Without a setting that is what java.io.tmpdir says."""
    by_environment = os.environ.get("SPARK_LOCAL_DIRS")
    name = "SPARK_LOCAL_DIRS" if by_environment else "spark.local.dir"
    value = by_environment or settings.get("spark.local.dir")
    if not value or SparkContext._active_spark_context is not None:
        return
    if not any(map(_can_write, value.split(","))):
        raise ConfigurationError(
            f"{name} is {value}: nothing can be written there, and Spark keeps the records of a batch there. Let "
            f"it name a directory that the driver can write, with room for a batch."
        )


def _can_write(folder: str) -> bool:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _not_started(error: Exception, settings: Mapping[str, str]) -> ExactbatchError:
    """What is said where Spark does not start."""
    if (refused := setting_refused(error, settings)) is not None:
        return refused
    text = str(error)
    said = next(
        (line.strip() for line in text.splitlines() if "Exception" in line or "Error" in line), text[:200]
    ).removeprefix(": ")
    if missing := re.search(r"ClassNotFoundException: (\S+)", text):
        names = [name for name, value in settings.items() if missing[1] in re.split(r"[,\s]+", value)]
        return ConfigurationError(
            f"Spark does not find the class {missing[1]}, which {' and '.join(names) or 'a setting'} names. "
            f"Remove it there, or add its jar (spark.jars, spark.jars.packages)."
        )
    if re.search(
        r"IllegalArgumentException|NumberFormatException|Could not parse Master URL|ParseException", text
    ):
        named = sorted(name for name in settings if name in text)
        return ConfigurationError(
            f"Spark does not start: {said}. Correct {' and '.join(named) or 'the setting'}: in the pipeline's "
            f"spark_conf, in spark-defaults.conf, or where spark-submit or the Spark connection sets it."
        )
    return TasksFailed(
        f"Spark does not start: {said}. Its own lines above this one say more: a setting that spark-submit "
        f"refuses, a Java that is not there (JAVA_HOME), no memory? Nothing was written; try again."
    )


@contextmanager
def batch_session(spark: SparkSession, pipeline: Pipeline) -> Iterator[SparkSession]:
    """A session of the same context for one batch, in which what decides the rows of a transform is as PINNED
    says.

    Views, functions and settings of other sessions are not there; the pipeline's spark_conf goes before PINNED.
    Raises ConfigurationError for a time zone that Spark and Python do not know alike, or that is another than that
    of a batch which this process runs at the same time.
    """
    with _environment(spark, _variables(pipeline)):
        session = spark.newSession()
        _pin(session, pipeline)
        yield session


def _pin(session: SparkSession, pipeline: Pipeline) -> None:
    for name in session.conf.getAll:
        if name.startswith(_LEGACY) and session.conf.isModifiable(name):
            session.conf.unset(name)
    for name, (value, _) in PINNED.items():
        session.conf.set(name, value)
    for name, value in pipeline.spark_conf.items():
        if name.startswith("spark.sql.") and session.conf.isModifiable(name):
            session.conf.set(name, value)


def _variables(pipeline: Pipeline) -> Mapping[str, str]:
    """What Python functions have in their environment, wherever they run: the time zone, and what hash() gives.

    The zone is UTC, or the one that the pipeline's spark_conf names: that of SQL, of datetimes without one that
    become literals on the driver (py4j takes them for local time), and of those that Python functions get on
    executors (Spark makes local times of them). Of an offset, as +02:00, which the C library reads in another way,
    Python functions see UTC. Raises ConfigurationError for a zone that Spark and Python do not know alike.
    """
    zone = pipeline.spark_conf.get(_ZONE, PINNED[_ZONE][0])
    is_offset = _OFFSET.fullmatch(zone) is not None
    if zone not in {"UTC", *available_timezones()} and not is_offset:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: spark_conf has {_ZONE} = {zone}, and the time zone database of this "
            f"machine has no such zone. Name one that it has, as Asia/Tokyo."
        )
    return {
        "TZ": pipeline.spark_conf.get("spark.executorEnv.TZ", "UTC" if is_offset else zone),
        "PYTHONHASHSEED": pipeline.spark_conf.get("spark.executorEnv.PYTHONHASHSEED", "0"),
    }


@contextmanager
def _environment(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[None]:
    """Let Python functions have these variables; the zone is that of this process, too, and stays so.

    Raises ConfigurationError where a batch is under way that needs others: they are the same for a whole process.
    """
    with _lock:
        if any(each != variables for each in _under_way):
            raise ConfigurationError(
                f"this process runs another batch, with {_under_way[0]} in the environment of Python functions, "
                f"and this one needs {variables}. Nothing was written. Run batches whose time zones differ in "
                f"processes of their own, or one after the other."
            )
        _under_way.append(variables)
        # The environment of the Python workers of tasks that begin from here on.
        spark.sparkContext.environment.update(variables)
        os.environ["TZ"] = variables["TZ"]
        time.tzset()
    try:
        yield
    finally:
        with _lock:
            _under_way.remove(variables)


@contextmanager
def end_of_jvm_told() -> Iterator[None]:
    """Raise TasksFailed where the driver's JVM, which Python talks to by a socket, is gone."""
    try:
        yield
    except (Py4JNetworkError, ConnectionRefusedError) as error:
        raise TasksFailed(
            "expected the JVM of the driver to run until the batch is done, found that it has ended. A JVM that "
            "is killed leaves no message: did the machine run out of memory? The next try finds in the ledger "
            "whether the batch was committed, and else processes the same ranges."
        ) from error
