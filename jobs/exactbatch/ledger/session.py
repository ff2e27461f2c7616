"""Connections to the ledger that are closed at the end of a block."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, connect


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
