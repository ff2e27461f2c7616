"""The SQL of a Window, over staged rows."""

from datetime import datetime
from typing import Final

from psycopg2 import sql

from exactbatch.sinks.aggregate.window import Window
from exactbatch.sinks.values.cast import RejectRule

# Postgres can hold the start and the end of the window of any time between these.
_YEAR_1: Final = datetime(1, 1, 1)
_FIRST_TIME, _END_OF_TIMES = "0001-01-01 00:00:00+00", "10000-01-01 00:00:00+00"


def find_start(window: Window) -> sql.Composable:
    """Return the start of a staged row's window; only for an event time that fits()."""
    # Counted from a time before all others: Postgres 16.0 to 16.2 put a time before the origin, at the start of a
    # window, into the window before.
    before = window.length * -(-(window.origin - _YEAR_1) // window.length)
    return sql.SQL("date_bin({}, {}, (timestamp {} - {}) at time zone 'UTC')").format(
        sql.Literal(window.length),
        sql.Identifier(window.column),
        sql.Literal(window.origin.date().isoformat()),
        sql.Literal(before),
    )


def fits(window: Window) -> sql.Composable:
    """Return the condition that the event time of a staged row is not null, and in the years 1 to 9999."""
    return sql.SQL("coalesce({0} >= {1}::timestamptz and {0} < {2}::timestamptz, false)").format(
        sql.Identifier(window.column), sql.Literal(_FIRST_TIME), sql.Literal(_END_OF_TIMES)
    )


def reject_rule(window: Window) -> RejectRule:
    """Return the rule that rejects staged rows whose event time does not fit."""
    expected = f"column {window.column!r}: expected the time of the event, in the years 1 to 9999, found "
    return RejectRule(
        sql.SQL("not {}").format(fits(window)),
        sql.SQL("{} || coalesce(({} at time zone 'UTC')::text, 'null')").format(
            sql.Literal(expected), sql.Identifier(window.column)
        ),
    )
