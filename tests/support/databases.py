"""Statements that Postgres runs outside of any transaction."""

import psycopg2


def execute_alone(dsn: str, statement: str) -> None:
    """Run a statement such as `create database`."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()
