"""Connections to the ledger that are closed at the end of a block, and transactions that are bound to a pipeline."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from exactbatch.ledger.ledger import Ledger
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, connect, transaction


@contextmanager
def ledger_session(dsn: str, application: str, pipeline: Pipeline | None = None) -> Iterator[Connection]:
    """Yield a connection to the database that has the ledger, and close it at the end.

    `application` is the name that pg_stat_activity shows. With a `pipeline`, its publish_timeout and its
    statement_timeout apply; otherwise the defaults of connect().

    Raises as connect() does. It does not check the version of the ledger: check_schema() does.
    """
    if pipeline is None:
        connection = connect(dsn, application=application)
    else:
        connection = connect(
            dsn,
            application=application,
            timeout=pipeline.publish_timeout,
            statement_timeout=pipeline.statement_timeout,
        )
    with closing(connection):
        yield connection


@contextmanager
def target_transaction(connection: Connection, pipeline: Pipeline) -> Iterator[Cursor]:
    """Run a block that reads or writes a pipeline's target in a transaction, as transaction() does.

    Code of whoever owns the target runs in it: see Registration.bind().
    """
    with transaction(connection) as cursor:
        Ledger(connection).bind(pipeline)
        yield cursor
