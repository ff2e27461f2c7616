"""Whether Postgres takes a text as a value of a type, and with which message it refuses one."""

from typing import Final

from psycopg2 import sql

from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.server_version import INPUT_CHECKS, Since

# What the ledger has for servers that cannot say it themselves; migration 0022 creates it.
_REFUSAL: Final = sql.Identifier("exactbatch", "refusal_of_input")
_REPEATS: Final = sql.Identifier("exactbatch", "repeats_a_field")


def can_check_input(cursor: Cursor) -> bool:
    """True if the database has what the conditions of this module call."""
    cursor.execute("select to_regproc('exactbatch.repeats_a_field') is not null")
    return cursor.connection.server_version >= INPUT_CHECKS or bool(cursor.fetchone()[0])


def is_refused(text: sql.Composable, type_name: str, modifier: int) -> sql.Composable:
    """Return the condition that Postgres refuses a text as input of a type; false or null for a text that is null.

    `type_name` is the type as a statement writes it, with its modifier, and `modifier` that as pg_attribute has it, or
    -1.
    """
    return Since(
        INPUT_CHECKS,
        sql.SQL("not pg_input_is_valid({}, {})").format(text, sql.Literal(type_name)),
        sql.SQL("{} is not null").format(_refusal(text, type_name, modifier)),
    )


def refusal(text: sql.Composable, type_name: str, modifier: int) -> sql.Composable:
    """Return the message with which Postgres refuses a text as input of a type; null if it takes it."""
    return Since(
        INPUT_CHECKS,
        sql.SQL("(pg_input_error_info({}, {})).message").format(text, sql.Literal(type_name)),
        _refusal(text, type_name, modifier),
    )


def repeats_a_field(document: sql.Composable) -> sql.Composable:
    """Return the condition that an object in a valid JSON text names a field twice; null for a null."""
    return Since(
        INPUT_CHECKS,
        sql.SQL("{} is not json with unique keys").format(document),
        sql.SQL("{}({})").format(_REPEATS, document),
    )


def _refusal(text: sql.Composable, type_name: str, modifier: int) -> sql.Composable:
    return sql.SQL("{}({}, {}::regtype, {})").format(
        _REFUSAL, text, sql.Literal(type_name), sql.Literal(modifier)
    )
