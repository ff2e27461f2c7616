"""Turn Postgres's refusal of rows into an error that names the constraint, and the offsets of the rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import psycopg2
from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.errors.sqlstates import INSUFFICIENT_PRIVILEGE
from exactbatch.errors.translation import psycopg2_message
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import Cast

_OFFSETS_SHOWN: Final = 5
_LONG: Final = 2600  # bytes: an entry of a B-tree holds 2,704 bytes, with its own header
# How Postgres describes a unique, foreign key or exclusion constraint, and a missing partition.
_KEY: Final = re.compile(r"\((?P<columns>.+?)\) ?= ?\((?P<values>.*?)\)(?: |\.$)", re.DOTALL)


class _First(TypedDict, total=False):
    topic: str
    partition: int
    from_offset: int
    until_offset: int


@dataclass(frozen=True, slots=True)
class _Refused:
    """The rows that break a constraint: how many there are, and (topic, partition, offset) of some."""

    count: int = 0
    places: Sequence[tuple[str, int, int]] = ()

    def __str__(self) -> str:
        shown = ", ".join(f"{topic}[{partition}] offset {offset}" for topic, partition, offset in self.places)
        if self.count == 0:
            return ""
        if self.count == 1:
            return f"; this concerns 1 row of the batch, at {shown}"
        return f"; this concerns {self.count} rows of the batch, the first at {shown}"

    @property
    def first(self) -> _First:
        """The attributes of an error that name the first of the rows."""
        for topic, partition, offset in self.places:
            return _First(topic=topic, partition=partition, from_offset=offset, until_offset=offset + 1)
        return _First()


def constraint_error(
    cursor: Cursor, target: TargetTable, error: psycopg2.Error, candidates: sql.Composable | None
) -> TargetMismatch:
    """Return the error that says what a target refuses, and which records are concerned.

    `candidates` is a query of the rows to be written, with the target's columns and their lineage; None if rows
    have no lineage. The transaction must be usable: rolled back to a savepoint.
    """
    if error.pgcode == INSUFFICIENT_PRIVILEGE:
        return _missing_privilege(cursor, target, error)
    columns = _columns_of_domain(cursor, target, error)
    where = f", column {' or '.join(columns)}" if columns else ""
    refused = _Refused() if candidates is None else _refused_rows(cursor, error, candidates, columns)
    return TargetMismatch(
        f"target {target.spec}{where}: it refuses what the batch writes: {psycopg2_message(error)}{refused} (SQLSTATE "
        f"{error.pgcode}). Nothing was written. Correct the target, or what the pipeline writes."
        f"{_deferrable(cursor, target, error)}",
        **refused.first,
        column=error.diag.column_name or (columns[0] if len(columns) == 1 else None),
        constraint=error.diag.constraint_name,
        sqlstate=error.pgcode,
    )


def _deferrable(cursor: Cursor, target: TargetTable, error: psycopg2.Error) -> str:
    """Say how rows can exchange their values if a unique constraint is checked row by row."""
    if not isinstance(error, psycopg2.errors.UniqueViolation):
        return ""
    cursor.execute(
        "select pg_get_constraintdef(oid) from pg_constraint "
        "where conrelid = to_regclass(%s) and conname = %s and contype = 'u' and not condeferrable",
        (target.identifier.as_string(cursor), error.diag.constraint_name),
    )
    if (row := cursor.fetchone()) is None:
        return ""
    return (
        f" If rows of the batch only exchange their values, defer the check to the end of the statement: drop "
        f"the constraint {error.diag.constraint_name}, and add {row[0]} deferrable initially deferred."
    )


def _missing_privilege(cursor: Cursor, target: TargetTable, error: psycopg2.Error) -> TargetMismatch:
    message = psycopg2_message(error)
    cursor.execute(
        "select quote_ident(current_user), relname from pg_class where oid = to_regclass(%s)",
        (target.identifier.as_string(cursor),),
    )
    login, name = cursor.fetchone()
    remedy = (
        f"As its owner: grant select, insert, update, delete on {target.spec} to {login};"
        if message in (f"permission denied for {kind} {name}" for kind in ("table", "view"))
        else f"Grant it to {login}: a trigger or function of the target needs it."
    )
    return TargetMismatch(
        f"target {target.spec}: the login {login} lacks a privilege: {message} (SQLSTATE {error.pgcode}). Nothing was "
        f"written. {remedy}",
        sqlstate=error.pgcode,
    )


def candidates_of(casts: Sequence[Cast], staged: StagedRows) -> sql.Composable:
    """Return a query of staged rows as they are to be written, with their lineage."""
    return sql.SQL(
        "select {values}, kafka_topic, kafka_partition, kafka_offset from {staging} where {accepted}"
    ).format(
        values=sql.SQL(", ").join(
            sql.SQL("{} as {}").format(staged.value(cast), sql.Identifier(cast.column.name)) for cast in casts
        ),
        staging=staged.table,
        accepted=staged.accepted,
    )


def _columns_of_domain(cursor: Cursor, target: TargetTable, error: psycopg2.Error) -> list[str]:
    """Return the columns of the target whose domain refuses a value: Postgres only names the domain."""
    if error.diag.datatype_name is None or error.diag.column_name is not None:
        return []
    cursor.execute(
        "select a.attname from pg_attribute a join pg_type t on t.oid = a.atttypid "
        "join pg_namespace n on n.oid = t.typnamespace where a.attrelid = to_regclass(%s) and a.attnum > 0 "
        "and not a.attisdropped and t.typname = %s and n.nspname = %s order by a.attnum",
        (target.identifier.as_string(cursor), error.diag.datatype_name, error.diag.schema_name),
    )
    return [name for (name,) in cursor.fetchall()]


def _refused_rows(
    cursor: Cursor, error: psycopg2.Error, candidates: sql.Composable, columns: Sequence[str]
) -> _Refused:
    condition = _condition(cursor, error, columns)
    if condition is None:
        return _Refused()
    cursor.execute("savepoint refused_rows")
    try:
        cursor.execute(
            sql.SQL(
                "select kafka_topic, kafka_partition, kafka_offset, count(*) over () as rows from ({}) candidate "
                "where {} order by 1, 2, 3 limit {}"
            ).format(candidates, condition, sql.Literal(_OFFSETS_SHOWN))
        )
    except psycopg2.Error:
        # The condition is over columns that the pipeline does not write: the constraint's name must be enough.
        cursor.execute("rollback to savepoint refused_rows")
        return _Refused()
    rows = cursor.fetchall()
    return _Refused(rows[0].rows if rows else 0, [tuple(row[:3]) for row in rows])


def _condition(cursor: Cursor, error: psycopg2.Error, of_domain: Sequence[str]) -> sql.Composable | None:
    """Return the condition of the candidates that break the constraint; None if Postgres does not say enough."""
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
        names = [name.strip().strip('"') for name in key["columns"].split(",")]
        texts = sql.SQL(" || ', ' || ").join(
            sql.SQL("coalesce({}::text, 'null')").format(sql.Identifier(name)) for name in names
        )
        return sql.SQL("{} = {}").format(texts, sql.Literal(key["values"]))
    return None


def _too_long(cursor: Cursor, diag: Any) -> sql.Composable | None:
    """Return the condition of the candidates whose values are too long for an index."""
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
