"""Translate exceptions of psycopg2, ADBC, Spark, the Kafka clients and Airflow into errors of exactbatch.

Exceptions are recognized by the names of their modules, so that importing this imports none of the libraries.
"""

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from exactbatch.errors import (
    AirflowUnavailable,
    ConfigurationError,
    ExactbatchError,
    KafkaUnavailable,
    TasksFailed,
    UnexpectedError,
)
from exactbatch.errors.sqlstates import INSUFFICIENT_PRIVILEGE, connection_error, error_for

logger = logging.getLogger("exactbatch")

# libpq's messages about a lost connection. ADBC reports other errors without an SQLSTATE, too.
_GONE: Final = re.compile(
    r"\bFATAL: |server closed the connection|no connection to the server|connection not open|"
    r"could not (receive|send) data|Connection (reset|timed out)|Broken pipe|SSL (error|connection|SYSCALL)|"
    r"terminating connection|server sent data .* without prior|lost synchronization"
)
_NOT_CONNECTED: Final = "Failed to connect"
_OF_PYTHON: Final = "Python exception: "
_ADBC_STATUS: Final = re.compile(r"^[A-Z_]+: ")
# Errors of ADBC's own queries, about catalogs and versions, have no SQLSTATE.
_ADBC_QUERY: Final = re.compile(r"^\[libpq\] Failed to \w+ query '.*?':\s*", re.DOTALL)
_DENIED: Final = re.compile(r"ERROR:\s+permission denied for")


@contextmanager
def translate_errors(where: str = "") -> Iterator[None]:
    """Raise an ExactbatchError instead of a library's exception; other exceptions pass unchanged.

    The message begins with `where`: a batch, range or target.
    """
    try:
        yield
    except Exception as error:
        if (own := translate(error, where)) is None:
            raise
        raise own from error


@contextmanager
def translate_all_errors(*, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise only ExactbatchErrors and exceptions of the classes in `but`: for the outermost frame of a command or
    a task.

    Any other exception becomes an UnexpectedError, and its traceback goes to the log.
    """
    try:
        with translate_errors():
            yield
    except Exception as error:
        if isinstance(error, (ExactbatchError, *but)):
            raise
        logger.exception("traceback of an unexpected error:")
        raise unexpected(error) from error


def translate(error: Exception, where: str = "") -> ExactbatchError | None:
    """Return the error of exactbatch for an exception of a library; None for any other exception."""
    libraries = {class_.__module__.partition(".")[0] for class_ in type(error).__mro__}
    if "psycopg2" in libraries:
        return _of_psycopg2(error, where)
    if "adbc_driver_manager" in libraries:
        return _of_adbc(error, where)
    if libraries & {"pyspark", "py4j"}:
        return TasksFailed(
            f"{_start(where)}Spark failed: {_in_one_line(str(error))}. The logs of the driver and the executors "
            f"have the traceback. Try again: the same ranges are processed."
        )
    if libraries & {"cimpl", "confluent_kafka", "kafka"}:
        return KafkaUnavailable(
            f"{_start(where)}Kafka failed: {_in_one_line(str(error))}. Check that the brokers are up, and "
            f"try again."
        )
    if "airflow" in libraries:
        return _of_airflow(error, where)
    return None


def unexpected(error: Exception) -> UnexpectedError:
    """Return the UnexpectedError for an exception that exactbatch does not recognize."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", raised in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return UnexpectedError(_unexpected(f"{type(error).__name__}: {_in_one_line(str(error))}{place}"))


def psycopg2_message(error: Any) -> str:
    """Return the primary message and the detail of a psycopg2 error, or its text if the server sent neither."""
    primary, detail = error.diag.message_primary, error.diag.message_detail
    if not primary:
        return _in_one_line(str(error))
    return _in_one_line(f"{primary} ({detail})" if detail else primary)


def adbc_message(error: Any) -> str:
    """Return the primary message and the detail of an ADBC error, or its text if ADBC reports neither."""
    primary, detail = adbc_detail(error, "MESSAGE_PRIMARY"), adbc_detail(error, "MESSAGE_DETAIL")
    return _in_one_line(f"{primary} ({detail})" if detail else primary or _adbc_text(error))


def adbc_detail(error: Any, name: str) -> str:
    """Return a field of the server's diagnostics, by libpq's name without PG_DIAG_; empty if it is absent."""
    return {_text(field): _text(value) for field, value in error.details}.get(f"PG_DIAG_{name}", "")


def is_not_connected(error: Any) -> bool:
    """True for an error of ADBC about a connection that was not established."""
    return error.sqlstate is None and _NOT_CONNECTED in _adbc_text(error)


def _of_psycopg2(error: Any, where: str) -> ExactbatchError | None:
    lost = ("OperationalError", "InterfaceError", "DatabaseError")
    if error.pgcode is None and type(error).__name__ not in lost:
        return None  # psycopg2 was used incorrectly
    return error_for(error.pgcode, psycopg2_message(error), where=where)


def _of_airflow(error: Any, where: str) -> ExactbatchError | None:
    """Return the error for what Airflow's task SDK raises if the API server cannot be reached or refuses a request."""
    response = getattr(
        getattr(error, "error", None), "error", None
    )  # an AirflowRuntimeError has an ErrorResponse
    match getattr(response, "value", None):
        case "API_SERVER_ERROR" | "GENERIC_ERROR":
            pass
        case "PERMISSION_DENIED":
            return ConfigurationError(
                f"{_start(where)}Airflow's API server refuses a request of this task: {_in_one_line(str(error))}. "
                f"Check the permissions of the task on its connections, variables and XComs."
            )
        case _ if type(error).__name__ != "ServerResponseError":
            return None
    return AirflowUnavailable(
        f"{_start(where)}Airflow's API server did not answer a request of this task: {_in_one_line(str(error))}. Check "
        f"that the API server is up and can be reached from the worker, and try again."
    )


def _of_adbc(error: Any, where: str) -> ExactbatchError:
    text = _adbc_text(error)
    if error.sqlstate is None and _OF_PYTHON in text:
        # Raised by the Python code that produces ADBC's rows, and wrapped.
        return UnexpectedError(_unexpected(_in_one_line(text.rstrip().splitlines()[-1])))
    if is_not_connected(error):
        return connection_error(_in_one_line(text), where=where)
    if error.sqlstate is None and _DENIED.search(text):
        return error_for(INSUFFICIENT_PRIVILEGE, adbc_message(error), where=where)
    return error_for(error.sqlstate, adbc_message(error), where=where, lost=_GONE.search(text) is not None)


def _adbc_text(error: Any) -> str:
    text = _ADBC_STATUS.sub("", str(error)).partition("Query was:")[0].partition("SQLSTATE:")[0]
    return _ADBC_QUERY.sub("", text)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _unexpected(what: str) -> str:
    return (
        f"unexpected error in exactbatch or in the pipeline's own code: {what}. The log has the traceback. Nothing "
        f"is written twice: a retry processes the same ranges."
    )


def _start(where: str) -> str:
    return f"{where}: " if where else ""


def _in_one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).rstrip(".")
