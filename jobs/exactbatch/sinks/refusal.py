"""What a target refuses: the constraint, and the offsets of the rows that break it."""

import re
from collections.abc import Sequence
from typing import Any, Final

import psycopg2
from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.errors.sqlstates import INSUFFICIENT_PRIVILEGE
from exactbatch.errors.translation import psycopg2_said
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.cast import Cast

_SHOWN: Final = 5  # offsets
_LONG: Final = 2600  # bytes: an entry of a B-tree holds 2,704 of them, with what it needs for itself
# What Postgres says of a unique, foreign key or exclusion constraint, and of a missing partition.
_KEY: Final = re.compile(r"\((?P<columns>.+?)\) ?= ?\((?P<values>.*?)\)(?: |\.$)", re.DOTALL)


def refusal(
    cursor: Cursor, target: str, error: psycopg2.Error, candidates: sql.Composable | None
) -> TargetMismatch:
    """The error that says what a target refuses, and of which records.

    `candidates` is a query of the rows that were to be written, with the target's columns and their lineage;
    None where rows have no lineage. The transaction must be usable: rolled back to a savepoint.
    """
    if error.pgcode == INSUFFICIENT_PRIVILEGE:
        return _missing_privilege(cursor, target, error)
    columns = _columns_of_domain(cursor, target, error)
    where = f", column {' or '.join(columns)}" if columns else ""
    offsets = _offenders(cursor, error, candidates, columns) if candidates is not None else ""
    return TargetMismatch(
        f"target {target}{where}: it refuses what the batch writes: {psycopg2_said(error)}{offsets} (SQLSTATE "
        f"{error.pgcode}). Nothing was written. Correct the target, or what the pipeline writes."
        f"{_deferrable(cursor, target, error)}"
    )


def _deferrable(cursor: Cursor, target: str, error: psycopg2.Error) -> str:
    """How rows can exchange their values, where a unique constraint is checked row by row."""
    if not isinstance(error, psycopg2.errors.UniqueViolation):
        return ""
    cursor.execute(
        "select pg_get_constraintdef(oid) from pg_constraint "
        "where conrelid = to_regclass(%s) and conname = %s and contype = 'u' and not condeferrable",
        (target, error.diag.constraint_name),
    )
    if (row := cursor.fetchone()) is None:
        return ""
    return (
        f" If rows of the batch only exchange their values, let it be checked at the end of the statement: drop "
        f"the constraint {error.diag.constraint_name}, and add {row[0]} deferrable initially deferred."
    )


def _missing_privilege(cursor: Cursor, target: str, error: psycopg2.Error) -> TargetMismatch:
    said = psycopg2_said(error)
    cursor.execute(
        "select quote_ident(current_user), relname from pg_class where oid = to_regclass(%s)", (target,)
    )
    login, name = cursor.fetchone()
    remedy = (
        f"As its owner: grant select, insert, update, delete on {target} to {login};"
        if said in (f"permission denied for {kind} {name}" for kind in ("table", "view"))
        else f"Grant it to {login}: a trigger or function of the target needs it."
    )
    return TargetMismatch(
        f"target {target}: the login {login} lacks a privilege: {said} (SQLSTATE {error.pgcode}). Nothing was "
        f"written. {remedy}"
    )


def candidates(casts: Sequence[Cast], staging: sql.Composable, attempts: Sequence[int]) -> sql.Composable:
    """The staged rows of these task attempts as they are to be written, with their lineage."""
    return sql.SQL(
        "select {values}, kafka_topic, kafka_partition, kafka_offset from {staging} "
        "where task_attempt = any({attempts})"
    ).format(
        values=sql.SQL(", ").join(
            sql.SQL("{} as {}").format(cast.expression, sql.Identifier(cast.column.name)) for cast in casts
        ),
        staging=staging,
        attempts=sql.Literal(list(attempts)),
    )


def _columns_of_domain(cursor: Cursor, target: str, error: psycopg2.Error) -> list[str]:
    """The columns of the target whose domain refuses a value: Postgres names the domain alone."""
    if error.diag.datatype_name is None or error.diag.column_name is not None:
        return []
    cursor.execute(
        "select a.attname from pg_attribute a join pg_type t on t.oid = a.atttypid "
        "join pg_namespace n on n.oid = t.typnamespace where a.attrelid = to_regclass(%s) and a.attnum > 0 "
        "and not a.attisdropped and t.typname = %s and n.nspname = %s order by a.attnum",
        (target, error.diag.datatype_name, error.diag.schema_name),
    )
    return [name for (name,) in cursor.fetchall()]


def _offenders(
    cursor: Cursor, error: psycopg2.Error, candidates: sql.Composable, columns: Sequence[str]
) -> str:
    condition = _condition(cursor, error, columns)
    if condition is None:
        return ""
    cursor.execute("savepoint offenders")
    try:
        cursor.execute(
            sql.SQL(
                "select kafka_topic, kafka_partition, kafka_offset, count(*) over () as rows from ({}) candidate "
                "where {} order by 1, 2, 3 limit {}"
            ).format(candidates, condition, sql.Literal(_SHOWN))
        )
    except psycopg2.Error:
        # A condition over columns that the pipeline does not write: the constraint's name has to do.
        cursor.execute("rollback to savepoint offenders")
        return ""
    found = cursor.fetchall()
    if not found:
        return ""
    shown = ", ".join(f"{topic}[{partition}] offset {offset}" for topic, partition, offset, _ in found)
    if found[0][3] == 1:
        return f"; 1 row of the batch is such, at {shown}"
    return f"; {found[0][3]} rows of the batch are such, the first at {shown}"


def _condition(cursor: Cursor, error: psycopg2.Error, of_domain: Sequence[str]) -> sql.Composable | None:
    """What is true of the candidates that break the constraint, as far as Postgres tells."""
    diag = error.diag
    if isinstance(error, psycopg2.errors.NotNullViolation):
        names = of_domain or [name for name in (diag.column_name,) if name is not None]
        null = [sql.SQL("{} is null").format(sql.Identifier(name)) for name in names]
        return sql.SQL(" or ").join(null) if null else None
    if isinstance(error, psycopg2.errors.CheckViolation) and diag.constraint_name:
        cursor.execute(
            "select pg_get_expr(c.conbin, c.conrelid) from pg_constraint c "
            "join pg_class t on t.oid = c.conrelid join pg_namespace n on n.oid = t.relnamespace "
            "where c.conname = %s and t.relname = %s and n.nspname = %s",
            (diag.constraint_name, diag.table_name, diag.schema_name),
        )
        row = cursor.fetchone()
        return None if row is None else sql.SQL("not ({})").format(sql.SQL(row[0]))
    if isinstance(error, psycopg2.errors.ProgramLimitExceeded) and diag.constraint_name:
        return _too_long(cursor, diag)
    if (key := _KEY.search(diag.message_detail or "")) is not None:
        names = [each.strip().strip('"') for each in key["columns"].split(",")]
        texts = sql.SQL(" || ', ' || ").join(
            sql.SQL("coalesce({}::text, 'null')").format(sql.Identifier(name)) for name in names
        )
        return sql.SQL("{} = {}").format(texts, sql.Literal(key["values"]))
    return None


def _too_long(cursor: Cursor, diag: Any) -> sql.Composable | None:
    """What is true of the candidates whose values do not fit into an index."""
    cursor.execute(
        "select a.attname from pg_index i join pg_class x on x.oid = i.indexrelid "
        "join pg_class t on t.oid = i.indrelid join pg_namespace n on n.oid = t.relnamespace "
        "join pg_attribute a on a.attrelid = t.oid and a.attnum = any(i.indkey::int2[]) "
        "where x.relname = %s and t.relname = %s and n.nspname = %s",
        (diag.constraint_name, diag.table_name, diag.schema_name),
    )
    sizes = [
        sql.SQL("coalesce(pg_column_size({}), 0)").format(sql.Identifier(name))
        for (name,) in cursor.fetchall()
    ]
    return sql.SQL("{} > {}").format(sql.SQL(" + ").join(sizes), sql.Literal(_LONG)) if sizes else None
