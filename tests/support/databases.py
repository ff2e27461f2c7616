"""Statements that Postgres runs outside of any transaction."""

import psycopg2
from psycopg2.extensions import make_dsn

from exactbatch.ledger import migrate
from exactbatch.postgres.connection import connect


def execute_alone(dsn: str, statement: str) -> None:
    """Run a statement such as `create database`."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


def create_ledger_template(dsn: str) -> str:
    """Create a database with a ledger, and return its name: a copy takes less time than all migrations."""
    execute_alone(dsn, "create database ledger_template")
    connection = connect(make_dsn(dsn, dbname="ledger_template"), application="tests", timeout=10)
    migrate(connection)
    connection.close()
    return "ledger_template"
