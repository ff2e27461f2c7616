"""Errors of libraries become errors of exactbatch: psycopg2's, ADBC's, Spark's and Kafka's.

The libraries are told by their names: a DAG file that imports this imports none of them.
"""

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from exactbatch.errors import ExactbatchError, KafkaUnavailable, TasksFailed, UnexpectedError
from exactbatch.errors.sqlstates import INSUFFICIENT_PRIVILEGE, not_let_in, refused

log = logging.getLogger("exactbatch")

# What libpq says of a connection that is gone; ADBC tells no SQLSTATE of other errors either.
_GONE: Final = re.compile(
    r"\bFATAL: |server closed the connection|no connection to the server|connection not open|"
    r"could not (receive|send) data|Connection (reset|timed out)|Broken pipe|SSL (error|connection|SYSCALL)|"
    r"terminating connection|server sent data .* without prior|lost synchronization"
)
_NOT_CONNECTED: Final = "Failed to connect"
_OF_PYTHON: Final = "Python exception: "
_ADBC_STATUS: Final = re.compile(r"^[A-Z_]+: ")
# ADBC's own queries, of catalogs and versions, tell no SQLSTATE.
_ADBC_QUERY: Final = re.compile(r"^\[libpq\] Failed to \w+ query '.*?':\s*", re.DOTALL)
_DENIED: Final = re.compile(r"ERROR:\s+permission denied for")


@contextmanager
def own_errors(where: str = "") -> Iterator[None]:
    """Raise an ExactbatchError instead of a library's error; what is of no such library goes on as it is.

    `where` comes first in what is said: a batch, range or target.
    """
    try:
        yield
    except Exception as error:
        if (own := own_error(error, where)) is None:
            raise
        raise own from error


@contextmanager
def all_errors_own(*, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise nothing but ExactbatchErrors, and those that are `but` a way to end: for the outermost frame of a
    command or a task.

    What nobody has foreseen is an UnexpectedError, whose trace goes into the log.
    """
    try:
        with own_errors():
            yield
    except Exception as error:
        if isinstance(error, (ExactbatchError, *but)):
            raise
        log.exception("the trace of an unexpected error:")
        raise unexpected(error) from error


def own_error(error: Exception, where: str = "") -> ExactbatchError | None:
    """The error of exactbatch for an error of a library; None for any other."""
    libraries = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    if "psycopg2" in libraries:
        return _of_psycopg2(error, where)
    if "adbc_driver_manager" in libraries:
        return _of_adbc(error, where)
    if libraries & {"pyspark", "py4j"}:
        return TasksFailed(
            f"{_start(where)}Spark failed: {_in_one_line(str(error))}. The log of the driver and the executors "
            f"has the trace. Try again: the same ranges are processed."
        )
    if libraries & {"cimpl", "confluent_kafka", "kafka"}:
        return KafkaUnavailable(
            f"{_start(where)}Kafka did not do what it was asked: {_in_one_line(str(error))}. Check that the "
            f"brokers are up, and try again."
        )
    return None


def unexpected(error: Exception) -> UnexpectedError:
    """What is said of an error that nobody has foreseen."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", raised in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return UnexpectedError(_unforeseen(f"{type(error).__name__}: {_in_one_line(str(error))}{place}"))


def psycopg2_said(error: Any) -> str:
    """The primary message and the detail of a psycopg2 error; all of its text where the server sent neither."""
    primary, detail = error.diag.message_primary, error.diag.message_detail
    if not primary:
        return _in_one_line(str(error))
    return _in_one_line(f"{primary} ({detail})" if detail else primary)


def adbc_said(error: Any) -> str:
    """The primary message and the detail of an ADBC error; its text where ADBC tells neither."""
    primary, detail = adbc_detail(error, "MESSAGE_PRIMARY"), adbc_detail(error, "MESSAGE_DETAIL")
    return _in_one_line(f"{primary} ({detail})" if detail else primary or _adbc_text(error))


def adbc_detail(error: Any, name: str) -> str:
    """A field of what the server says of an error, by libpq's name for it without PG_DIAG_; empty without one."""
    return {_text(field): _text(value) for field, value in error.details}.get(f"PG_DIAG_{name}", "")


def _of_psycopg2(error: Any, where: str) -> ExactbatchError | None:
    lost = ("OperationalError", "InterfaceError", "DatabaseError")
    if error.pgcode is None and type(error).__name__ not in lost:
        return None  # psycopg2's own complaint: it was used wrongly
    return refused(error.pgcode, psycopg2_said(error), where=where)


def _of_adbc(error: Any, where: str) -> ExactbatchError:
    text = _adbc_text(error)
    if _OF_PYTHON in text:
        # Raised by what gives ADBC its rows, and wrapped.
        return UnexpectedError(_unforeseen(_in_one_line(text.rstrip().splitlines()[-1])))
    if error.sqlstate is None and _NOT_CONNECTED in text:
        return not_let_in(_in_one_line(text), where=where)
    if error.sqlstate is None and _DENIED.search(text):
        return refused(INSUFFICIENT_PRIVILEGE, adbc_said(error), where=where)
    return refused(error.sqlstate, adbc_said(error), where=where, lost=_GONE.search(text) is not None)


def _adbc_text(error: Any) -> str:
    text = _ADBC_STATUS.sub("", str(error)).partition("Query was:")[0].partition("SQLSTATE:")[0]
    return _ADBC_QUERY.sub("", text)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _unforeseen(what: str) -> str:
    return (
        f"this is an error in exactbatch, or in the pipeline's own code: {what}. The log has the trace. Nothing "
        f"is written twice: a retry processes the same ranges."
    )


def _start(where: str) -> str:
    return f"{where}: " if where else ""


def _in_one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).rstrip(".")
