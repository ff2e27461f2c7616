"""The Spark session of a process, and the session of each batch within it, with pinned settings."""

import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactbatch.batch.spark.class_archive import with_archive
from exactbatch.batch.spark.pyspark_packages import check_pyspark, find_minor_version, read_jar_versions
from exactbatch.batch.spark.python_daemon import daemon_properties
from exactbatch.batch.spark.spark_errors import find_refused_setting
from exactbatch.batch.spark.spark_settings import (
    PINNED,
    QUERY_RECORDS_AT_ONCE,
    RECORDS_AT_ONCE,
    build_variables,
    choose_guarded_ports,
)
from exactbatch.errors import ConfigurationError, ExactbatchError, TasksFailed
from exactbatch.pipeline import Pipeline
from exactbatch.tables import Tables

_LEGACY: Final = "spark.sql.legacy."

# So that dynamic allocation does not remove an idle executor, with the records that it keeps.
_KEPT: Final = {"spark.dynamicAllocation.cachedExecutorIdleTimeout": f"{2**31 - 1}s"}
# The environment variables for the Python functions of each batch that this process runs.
_running: list[Mapping[str, str]] = []
_lock = threading.Lock()


@contextmanager
def spark_session(
    pipeline: Pipeline | Tables, *, master: str | None = None, offsets: int | None = None
) -> Iterator[SparkSession]:
    """Start a session with the pipeline's Spark properties; without `master`, with the master of spark-submit.

    `offsets` is how many the session is to process, if that is known.

    Executors run the Python that PYSPARK_PYTHON names, by default the one that runs now: it has the package.
    Raises ConfigurationError if a setting prevents the start, and TasksFailed if Spark does not start or its
    JVM exits.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    check_pyspark()
    _check_home()
    # A batch runs its tasks as RDDs, which a session of Spark Connect does not support.
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if name in os.environ:
            raise ConfigurationError(
                f"{name} is set: Spark would start a session of Spark Connect, but this driver needs classic "
                f"Spark. Unset it for batches, and name the cluster with spark-submit --master or in the Spark "
                f"connection. For Spark Connect, use engine='connect' or --master sc://…."
            )
    own = {**_KEPT, **pipeline.spark_conf, "spark.api.mode": "classic"}
    if isinstance(pipeline, Tables):
        own.setdefault("spark.scheduler.mode", "FAIR")  # else a large batch would keep all others waiting
    if "spark.remote" in own:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: spark_conf has spark.remote: Spark would start a session of Spark "
            f"Connect, but this driver needs classic Spark. Remove it, and name the cluster with spark-submit "
            f"--master. For Spark Connect, use engine='connect' or --master sc://…."
        )
    builder = SparkSession.builder.appName(f"exactbatch {pipeline.name}")
    if master is not None:
        builder = builder.master(master)
    for name, value in own.items():
        builder = builder.config(name, value)
    if SparkContext._gateway is None:
        is_transformed = isinstance(pipeline, Tables) or pipeline.is_transformed
        os.environ.update(with_archive(os.environ, is_transformed=is_transformed, offsets=offsets))
    settings = _settings({**own, **({"spark.master": master} if master else {})})
    _check_directories(settings)
    if SparkContext._active_spark_context is None:
        for name, value in {**daemon_properties(settings), **choose_guarded_ports(settings)}.items():
            builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JJavaError, TypeError) as error:
        raise _not_started(error, settings) from error
    except (Py4JNetworkError, ConnectionError) as error:
        raise TasksFailed(
            "the driver's JVM exited while Spark started. Its log lines above this one say why: is a directory "
            "not writable (spark.local.dir, SPARK_LOCAL_DIRS), or is there too little memory for "
            "spark.driver.memory? Nothing was written."
        ) from error
    with jvm_errors(), session:
        _stop_accumulators_later(session.sparkContext)
        # A transform may get it from SparkSession.builder.getOrCreate(), and F.udf() does.
        _pin(session, pipeline)
        yield session


def _stop_accumulators_later(context: SparkContext) -> None:
    """Let the context stop without waiting for the thread that receives accumulators.

    This thread looks once a second whether it is to end. Nothing needs it after the JVM has stopped Spark, and the
    process ends without it; where it listens to a Unix socket, it still has to remove the file.
    """
    server = context._accumulatorServer
    if server.address_family != socket.AF_UNIX:
        stop = threading.Thread(target=server.shutdown, name="stop accumulators", daemon=True)
        server.shutdown = stop.start  # type: ignore[method-assign] # PySpark has no option for this


def _check_home() -> None:
    """Raise ConfigurationError if SPARK_HOME does not exist or has another minor version than PySpark."""
    if not (home := os.environ.get("SPARK_HOME")):
        return
    if not (Path(home) / "bin" / "spark-submit").exists():
        raise ConfigurationError(
            f"SPARK_HOME is {home}, which contains no bin/spark-submit. Unset it to use the Spark of the Python "
            f"package pyspark, or set it to an installation of Spark {pyspark.__version__}."
        )
    versions = read_jar_versions(Path(home))
    if versions and find_minor_version(pyspark.__version__) not in map(find_minor_version, versions):
        raise ConfigurationError(
            f"SPARK_HOME is {home}, which is Spark {', '.join(sorted(versions))}, and the Python package "
            f"pyspark is {pyspark.__version__}. Unset SPARK_HOME, or let it name a Spark "
            f"{find_minor_version(pyspark.__version__)}."
        )


def _settings(own: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that Spark will have, including the properties of its files and of spark-submit; start the
    JVM."""
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
    """Raise ConfigurationError if none of the directories in which Spark keeps blocks is writable: the JVM
    would exit. Without a setting Spark uses java.io.tmpdir."""
    by_environment = os.environ.get("SPARK_LOCAL_DIRS")
    name = "SPARK_LOCAL_DIRS" if by_environment else "spark.local.dir"
    value = by_environment or settings.get("spark.local.dir")
    if not value or SparkContext._active_spark_context is not None:
        return
    if not any(map(_can_write, value.split(","))):
        raise ConfigurationError(
            f"{name} is {value}, which is not writable, and Spark keeps the records of a batch there. Set it to a "
            f"directory that the driver can write, with enough space for a batch."
        )


def _can_write(folder: str) -> bool:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _not_started(error: Exception, settings: Mapping[str, str]) -> ExactbatchError:
    """Return the error for a Spark that does not start."""
    if (refused := find_refused_setting(error, settings)) is not None:
        return refused
    text = str(error)
    reason = next(
        (line.strip() for line in text.splitlines() if "Exception" in line or "Error" in line), text[:200]
    ).removeprefix(": ")
    if missing := re.search(r"ClassNotFoundException: (\S+)", text):
        names = [name for name, value in settings.items() if missing[1] in re.split(r"[,\s]+", value)]
        return ConfigurationError(
            f"Spark does not find the class {missing[1]}, which {' and '.join(names) or 'a setting'} names. "
            f"Remove it from the setting, or add its jar (spark.jars, spark.jars.packages)."
        )
    if re.search(
        r"IllegalArgumentException|NumberFormatException|Could not parse Master URL|ParseException", text
    ):
        named = sorted(name for name in settings if name in text)
        return ConfigurationError(
            f"Spark does not start: {reason}. Correct {' and '.join(named) or 'the setting'}: in the pipeline's "
            f"spark_conf, in spark-defaults.conf, or where spark-submit or the Spark connection sets it."
        )
    return TasksFailed(
        f"Spark does not start: {reason}. Its log lines above this one say more: does spark-submit refuse a "
        f"setting, is Java missing (JAVA_HOME), is there too little memory? Nothing was written; try again."
    )


@contextmanager
def batch_session(spark: SparkSession, pipeline: Pipeline) -> Iterator[SparkSession]:
    """Open a session of the same context for one batch, with the settings of PINNED.

    It does not have the views, functions and settings of other sessions; the pipeline's spark_conf takes
    precedence over PINNED. Raises ConfigurationError for a time zone that Spark and Python do not both know, or
    that differs from that of a batch which this process runs at the same time.
    """
    with _environment(spark, build_variables(pipeline)):
        session = spark.newSession()
        _pin(session, pipeline)
        yield session


def _pin(session: SparkSession, pipeline: Pipeline | Tables) -> None:
    for name in session.conf.getAll:
        if name.startswith(_LEGACY) and session.conf.isModifiable(name):
            session.conf.unset(name)
    for name, (value, _) in PINNED.items():
        session.conf.set(name, value)
    if isinstance(pipeline, Pipeline) and isinstance(pipeline.transform, str):
        session.conf.set(RECORDS_AT_ONCE, QUERY_RECORDS_AT_ONCE)
    for name, value in pipeline.spark_conf.items():
        if name.startswith("spark.sql.") and session.conf.isModifiable(name):
            session.conf.set(name, value)


@contextmanager
def _environment(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[None]:
    """Set the environment variables of Python functions; the time zone is also set for this process, and stays.

    Raises ConfigurationError if a running batch needs other values: a process has only one environment.
    """
    with _lock:
        if any(running != variables for running in _running):
            raise ConfigurationError(
                f"this process runs another batch with {_running[0]} in the environment of Python functions, and "
                f"this batch needs {variables}. Nothing was written. Run batches with different time zones in "
                f"separate processes, or one after the other."
            )
        _running.append(variables)
        # The environment of the Python workers of tasks that start from now on.
        spark.sparkContext.environment.update(variables)
        os.environ["TZ"] = variables["TZ"]
        time.tzset()
    try:
        yield
    finally:
        with _lock:
            _running.remove(variables)


@contextmanager
def jvm_errors() -> Iterator[None]:
    """Raise TasksFailed if the driver's JVM, which Python talks to through a socket, has ended."""
    try:
        yield
    except (Py4JNetworkError, ConnectionRefusedError) as error:
        raise TasksFailed(
            "the driver's JVM exited before the batch finished. A JVM that is killed leaves no message: did the "
            "machine run out of memory? The retry checks the ledger, and processes the same ranges unless the "
            "batch was committed."
        ) from error
