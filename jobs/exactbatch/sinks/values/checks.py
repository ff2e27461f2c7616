"""The checks of a pipeline: expressions over the columns of a row. A record for which one is false is a reject.

Publish checks staged rows against the rules of rejects once more.
"""

import re
from collections.abc import Sequence
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, StagedRowsDiffer
from exactbatch.errors.sqlstates import NOT_OF_A_VALUE
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.sql_text import ROW
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import Cast, RejectRule, own_casts, reject_rules

_TABLE: Final = sql.Identifier("pg_temp", "exactbatch_check")
_PASSES: Final = sql.Identifier("exactbatch passes")
_NOT_ALLOWED: Final = "42501"  # insufficient_privilege
_SHOWN: Final = 200  # characters of a value that a reason repeats
_IN_QUOTES: Final = re.compile(r"'(?:[^']|'')*'")


def check_expressions(
    cursor: Cursor, pipeline: str, columns: Sequence[Column], checks: Sequence[str]
) -> None:
    """Raise ConfigurationError for a check that Postgres cannot evaluate over rows with these columns, or whose result
    depends on anything else: a setting, the clock, another table.

    Postgres decides it: a generated column takes the same expressions.
    """
    if not checks:
        return
    list(own_casts(cursor, columns))  # all types exist
    definitions = [sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.type)) for each in columns]
    for check in checks:
        cursor.execute("savepoint exactbatch_check")
        try:
            cursor.execute(
                sql.SQL("create temporary table {} ({}, {} boolean generated always as ({}) stored)").format(
                    _TABLE, sql.SQL(", ").join(definitions), _PASSES, expression(check)
                )
            )
        except psycopg2.Error as error:
            if error.pgcode == _NOT_ALLOWED or re.search(NOT_OF_A_VALUE, error.pgcode or ""):
                raise
            message = str(error.diag.message_primary)
            message = message.replace('column "exactbatch passes" is', "it has to be")
            message = message.replace("but default expression is", "but is")
            raise ConfigurationError(
                f"pipeline {pipeline!r}, check {check!r}: {message}. Write an expression over the "
                f"columns {', '.join(each.name for each in columns)} that is true, false or null, without subqueries "
                f"and without functions that depend on the clock, a setting or a table."
            ) from error
        finally:
            cursor.execute("rollback to savepoint exactbatch_check")


def check_rules(
    cursor: Cursor, columns: Sequence[Column], checks: Sequence[str], *, keeps_deletes: bool
) -> list[RejectRule]:
    """Return rules for staged rows for which a check is false, and before them for values that it cannot see, because
    they are not of their column's type. A row that deletes its key is not checked."""
    if not checks:
        return []
    casts = {cast.column.name: cast for cast in own_casts(cursor, columns)}
    checked = {each.name for check in checks for each in find_columns(check, columns)}
    invalid = reject_rules(casts[each.name] for each in columns if each.name in checked & casts.keys())
    # Invalid input cannot be cast.
    unseen: list[sql.Composable] = [sql.SQL("({})").format(rule.condition) for rule in invalid]
    if keeps_deletes:
        unseen.append(sql.SQL("coalesce(deleted, true)"))
    row = sql.SQL(", ").join(_value(each, casts.get(each.name)) for each in columns)
    return [*invalid, *(_rule(check, columns, unseen, row) for check in checks)]


def find_columns(check: str, columns: Sequence[Column]) -> list[Column]:
    """Return the columns whose names occur in a check, for messages and to know what it sees."""
    names = _IN_QUOTES.sub(" ", check)
    plain = re.sub(r'"[^"]*"', " ", names).lower()
    return [
        each
        for each in columns
        if f'"{each.name}"' in names or re.search(rf"(?<![\w$]){re.escape(each.name)}(?![\w$])", plain)
    ]


def expression(check: str) -> sql.Composable:
    """Return a check as SQL. The line break ends a comment in it."""
    return sql.SQL("({}\n)").format(sql.SQL(check))


def _rule(
    check: str, columns: Sequence[Column], unseen: Sequence[sql.Composable], row: sql.Composable
) -> RejectRule:
    passes = sql.SQL("coalesce((select {} from (select {}) {}), true)").format(expression(check), row, ROW)
    condition = sql.SQL("not {}").format(passes)
    if unseen:
        condition = sql.SQL("case when {} then false else {} end").format(
            sql.SQL(" or ").join(unseen), condition
        )
    found = [
        sql.SQL("{} || coalesce(left({}::text, {}), 'null')").format(
            sql.Literal(f"{each.name} = "), sql.Identifier(each.name), sql.Literal(_SHOWN)
        )
        for each in find_columns(check, columns)
    ]
    reason = sql.SQL("{} || concat_ws(', ', {})").format(
        sql.Literal(failed(check)), sql.SQL(", ").join(found or [sql.Literal("it is false for each row")])
    )
    return RejectRule(condition, reason, failed=failed(check))


def failed(check: str) -> str:
    """Return the start of the reason of a reject."""
    return f'check "{check}" failed: '


def _value(column: Column, cast: Cast | None) -> sql.Composable:
    name = sql.Identifier(column.name)
    value = name if cast is None else sql.SQL("{}::{}").format(name, sql.SQL(cast.type))
    return sql.SQL("{} as {}").format(value, name)


def check_fits(cursor: Cursor, target: TargetTable, staged: StagedRows, rules: Sequence[RejectRule]) -> None:
    """Raise StagedRowsDiffer, retryable, if a staged row breaks a rule: the watermark may have moved since these
    were applied."""
    if not rules:
        return
    cursor.execute(
        sql.SQL(
            "select kafka_topic, kafka_partition, kafka_offset, case {cases} end as reason from {staging} "
            "where {accepted} and ({conditions}) limit 1"
        ).format(
            cases=sql.SQL(" ").join(
                sql.SQL("when {} then {}").format(rule.condition, rule.reason) for rule in rules
            ),
            staging=staged.table,
            accepted=staged.accepted,
            conditions=sql.SQL(" or ").join(sql.SQL("({})").format(rule.condition) for rule in rules),
        )
    )
    if (row := cursor.fetchone()) is not None:
        topic, partition, offset, reason = row
        raise StagedRowsDiffer(
            f"{topic}[{partition}] offset {offset}: a staged row does not fit {target.spec}: {reason}. Such "
            f"records are rejected before publish, unless the watermark moves in between. Nothing was "
            f"written; the retry rejects it.",
            topic=topic,
            partition=partition,
            from_offset=offset,
            until_offset=offset + 1,
        )
