"""Interpret Spark's errors: a setting that must be changed, or a job that may succeed on a retry."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    NumberFormatException,
    PySparkException,
    UnsupportedOperationException,
)
from pyspark.errors.exceptions.captured import CapturedException

from exactbatch.errors import ConfigurationError, ExactbatchError

OTHER_VERSION: Final = r"PYTHON_VERSION_MISMATCH|Python in worker has different(?: minor)? version"
LACKS_MODULE: Final = r"ModuleNotFoundError: No module named '[^']+'"
# What Spark says, and the remedy; no retry helps without it.
_SETTINGS: Final = tuple(
    (re.compile(pattern), remedy)
    for pattern, remedy in (
        (
            OTHER_VERSION,
            "PYSPARK_PYTHON, {python}, is another version of Python than the driver's, {version}. Set it to that "
            "version, with exactbatch installed, on every machine of the cluster.",
        ),
        (
            LACKS_MODULE,
            "PYSPARK_PYTHON, {python}, must be a Python with exactbatch, its dependencies and the pipeline's own "
            "modules, on every machine of the cluster; spark.submit.pyFiles ships your modules.",
        ),
        (
            r'Cannot run program "[^"]+": .*',
            "PYSPARK_PYTHON, {python}, must be a Python that exists on every machine of the cluster.",
        ),
        (
            r"Python worker process terminated due to idle timeout[^\n.]*",
            "A worker that reads, or waits for Postgres, may be idle for a long time. Raise "
            "spark.sql.execution.pyspark.udf.idleTimeoutSeconds (spark.python.worker.idleTimeoutSeconds without a "
            "transform), or leave killOnIdleTimeout off.",
        ),
        (r"is bigger than spark\.driver\.maxResultSize[^;)]*", "Raise spark.driver.maxResultSize."),
        (
            r"(?:(?:INVALID_(?:DRIVER|EXECUTOR)_MEMORY)\S*|System memory \d+|Executor memory \d+)[^\n]*",
            "Raise spark.driver.memory or spark.executor.memory.",
        ),
        (
            r"Failed to create (?:any|a) local dir[^\n]*|Failed to create a temp directory[^\n]*",
            "Set spark.local.dir (or SPARK_LOCAL_DIRS, which takes precedence) to directories that are writable.",
        ),
    )
)
_MEMORY: Final = re.compile(
    r"\bMemoryError\b|error return without exception set|Cannot allocate memory|ArrowMemoryError|bad_alloc|"
    r"failed to map segment|"
    r"malloc of size \d+ failed"
)
_MEMORY_LIMIT: Final = "spark.executor.pyspark.memory"
# Failures of a job that no record causes: executors, disks, a cancellation. Whole phrases, because an error over a
# record repeats its values, and an order may be "cancelled", too.
_OF_NO_RECORD: Final = re.compile(
    r"ExecutorLostFailure|worker exited unexpectedly|FetchFailed|No space left on device|"
    r"\b(?:[Jj]ob|[Ss]tage|[Tt]ask) [\d.]+ (?:was )?cancelled|Connection (?:reset|refused)|failed to connect back"
)
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_OWN: Final = re.compile(r"^exactbatch\.errors\.\w+: ")


def cause(error: PySparkException | Py4JJavaError) -> str:
    """Return what a task raised, without the traceback and the last full stop; for a worker that died, what Spark
    reports."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage()).splitlines()[0].rstrip(".")
    lines = str(error).splitlines()
    # Not every indented line: some lines in the message of a lost connection are indented as well.
    traceback = [number for number, line in enumerate(lines) if line.startswith(("  ", "\tat "))]
    after = [line.strip() for line in lines[traceback[-1] + 1 if traceback else 0 :] if line.strip()]
    return "; ".join(after or lines[:1]).rstrip(".")


def find_refused_setting(error: Exception, settings: Mapping[str, str]) -> ExactbatchError | None:
    """Return the terminal error that names the setting which makes Spark fail; None if no known setting does.

    `settings` are the Spark properties in effect.
    """
    text = str(error)
    if (limit := settings.get(_MEMORY_LIMIT)) and (memory := _MEMORY.search(text)):
        return ConfigurationError(
            f"a Python worker of Spark ran out of memory ({memory[0]}): {_MEMORY_LIMIT} is {limit}. Nothing was "
            f"written. Raise it, or remove it: `exactbatch explain limits` says what a worker needs."
        )
    for pattern, remedy in _SETTINGS:
        if match := pattern.search(text):
            python = os.environ.get("PYSPARK_PYTHON") or settings.get("spark.pyspark.python") or "python3"
            version = ".".join(map(str, sys.version_info[:2]))
            return ConfigurationError(
                f"Spark: {match[0].strip()}. Nothing was written. {remedy.format(python=python, version=version)}"
            )
    return None


def is_job_error(error: BaseException | None) -> bool:
    """Return True if Spark raised the error while a job ran, and not while a query was planned."""
    if isinstance(error, Py4JJavaError):
        return True
    if isinstance(error, NumberFormatException):
        return isinstance(error, CapturedException)
    planning = (AnalysisException, IllegalArgumentException, UnsupportedOperationException)
    return isinstance(error, CapturedException) and not isinstance(error, planning)


def may_be_record_error(error: PySparkException | Py4JJavaError) -> bool:
    """Return True if a record may be what made a job fail: an error of a Python function or an expression, but
    not of Postgres, Kafka, an executor or a disk."""
    text = cause(error)
    return not _OWN.search(text) and not _OF_NO_RECORD.search(_QUOTED.sub("", text))


def read_settings(spark: Any) -> dict[str, str]:
    """Return the Spark properties of a session's context."""
    return dict(spark.sparkContext.getConf().getAll())
