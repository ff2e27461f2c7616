"""Connections to the ledger that are closed at the end of a block, and transactions that are bound to a pipeline."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from exactbatch.ledger.statements import load_queries
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, connect, transaction

_QUERIES: Final = load_queries("session")


@contextmanager
def ledger_session(dsn: str, application: str, pipeline: Pipeline | None = None) -> Iterator[Connection]:
    """Yield a connection to the database that has the ledger, and close it at the end.

    `application` is the name that pg_stat_activity shows. With a `pipeline`, its lock_timeout and its
    statement_timeout apply; otherwise the defaults of connect().

    Raises as connect() does. It does not check the version of the ledger: check_schema() does.
    """
    if pipeline is None:
        connection = connect(dsn, application=application)
    else:
        connection = connect(
            dsn,
            application=application,
            timeout=pipeline.tuning.lock_seconds,
            statement_timeout=pipeline.tuning.statement_seconds,
        )
    with closing(connection):
        yield connection


@contextmanager
def target_transaction(connection: Connection, pipeline: Pipeline) -> Iterator[Cursor]:
    """Run a block that reads or writes a pipeline's target in a transaction, as transaction() does.

    Code of whoever owns the target runs in it: see bind_transaction().
    """
    with transaction(connection) as cursor:
        bind_transaction(connection, pipeline)
        yield cursor


def bind_transaction(connection: Connection, pipeline: Pipeline) -> None:
    """Let the open transaction write rows of this pipeline only, until it ends; nothing can undo this.

    For a transaction on a target: code of whoever owns the target runs in it with the rights of this login.
    """
    _QUERIES.bind_transaction(connection, pipeline=pipeline.name)
