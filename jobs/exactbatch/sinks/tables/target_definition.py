"""Create the tables that a sink writes to, add columns to them, and check the columns of those that exist."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column, is_vector
from exactbatch.errors import PostgresUnavailable, TargetMismatch
from exactbatch.model import Evolve
from exactbatch.postgres.catalog import check_kinds, check_schema
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named, create_schema
from exactbatch.sinks.table_name import quoted
from exactbatch.sinks.tables.target import StoredColumn, TargetTable
from exactbatch.sinks.tables.target_checks import check_replicated
from exactbatch.sinks.values.cast import Cast

# What to do with columns that the pipeline has and its target lacks.
# A statement that changes the table waits for its lock no longer than readers that queue behind it can bear.
_DDL_TRIES: Final = 4
_DDL_LOCK_TIMEOUT: Final = "1s"
_DDL_PAUSE: Final = 0.5  # seconds


def prepare_table(
    cursor: Cursor,
    table: TargetTable,
    columns: Sequence[Column],
    *,
    lineage: Sequence[Column] = (),
    required: Sequence[str] = (),
    key: Sequence[str] = (),
    evolve: Evolve = "refuse",
    exact: bool = False,
    partition_by: str = "",
) -> bool:
    """Create a table if it is missing, and otherwise check its columns; return whether it was missing.

    In a new table the `required` columns may not be null, and `key`, if any, is the primary key. With
    evolve="add", `columns` that an older table lacks are added to it; never lineage. With `exact`, no column
    may need a cast. `partition_by` is the clause with which a new table is created.

    Raises TargetMismatch, which names the column and both types.
    """
    check_schema(table.spec, table.name[0])
    # Two launches that create the same target at once: the second waits here and then finds it.
    table.lock(cursor)
    facts = table.facts(cursor)
    check_kinds(table.spec, facts)
    if facts:
        if evolve == "add":
            add_columns(cursor, table, columns)
        _check_present(cursor, table, columns, lineage)
        _check_columns(cursor, table, (*columns, *lineage), exact=exact)
        check_replicated(cursor, table)
        return False
    definitions = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(column.type),
            sql.SQL(" not null" if column.name in required else ""),
        )
        for column in (*columns, *lineage)
    ]
    if key:
        names = sql.SQL(", ").join(map(sql.Identifier, key))
        definitions.append(sql.SQL("primary key ({})").format(names))
    create_schema(cursor, table.name[0])
    _create(cursor, table, definitions, key, partition_by)
    # Text may not be castable to a type that the database's owner made.
    _check_columns(cursor, table, (*columns, *lineage), exact=exact)
    return True


def _create(
    cursor: Cursor,
    table: TargetTable,
    definitions: Sequence[sql.Composable],
    key: Sequence[str],
    partition_by: str,
) -> None:
    create = sql.SQL("create table {} ({}) {}").format(
        table.identifier, sql.SQL(", ").join(definitions), sql.SQL(partition_by)
    )
    cursor.execute("savepoint create_table")
    try:
        create_named(cursor, create)
    except psycopg2.errors.UndefinedObject as error:
        if not key:
            raise
        cursor.execute("rollback to savepoint create_table")
        raise TargetMismatch(
            f"target {table.spec}, key ({', '.join(key)}): {error.diag.message_primary}, so Postgres cannot "
            f"keep one row for each key. Choose a key whose values can be ordered."
        ) from error
    cursor.execute("release savepoint create_table")
    if not key:
        # A table without a key could not be deleted from once a publication includes it.
        cursor.execute(sql.SQL("alter table {} replica identity full").format(table.identifier))


def add_columns(cursor: Cursor, table: TargetTable, columns: Sequence[Column]) -> None:
    """Add the columns that a table lacks, if it exists. Raises PostgresUnavailable if other sessions use the table."""
    if not (stored := table.columns(cursor)):
        return
    added = [
        sql.SQL("add column if not exists {} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
        for column in columns
        if column.name not in stored
    ]
    if added:
        statement = sql.SQL("alter table {} {}").format(table.identifier, sql.SQL(", ").join(added))
        _change(cursor, table, statement)


def _change(cursor: Cursor, table: TargetTable, statement: sql.Composable) -> None:
    """Run a statement that locks the whole table, without holding up readers for long.

    Raises PostgresUnavailable, retryable, if other sessions use the table.
    """
    cursor.execute("select current_setting('lock_timeout')")
    own_timeout = cursor.fetchone()[0]
    for attempt in range(_DDL_TRIES):
        if attempt:
            time.sleep(_DDL_PAUSE)
        cursor.execute("savepoint change")
        try:
            cursor.execute("select set_config('lock_timeout', %s, true)", (_DDL_LOCK_TIMEOUT,))
            cursor.execute(statement)
        except psycopg2.errors.LockNotAvailable:
            cursor.execute("rollback to savepoint change")
            continue
        cursor.execute("select set_config('lock_timeout', %s, true)", (own_timeout,))
        cursor.execute("release savepoint change")
        return
    cursor.execute(
        "select string_agg(distinct "
        "format('%%s (%%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename)), ', ') "
        "from pg_locks l join pg_stat_activity a using (pid) "
        "where l.relation = %s::regclass and l.granted and l.pid <> pg_backend_pid()",
        (table.identifier.as_string(cursor),),
    )
    raise PostgresUnavailable(
        f"target {table.spec} is in use by {cursor.fetchone()[0] or 'another session'}, so no column could "
        f"be added to it in {_DDL_TRIES} tries of {_DDL_LOCK_TIMEOUT}; waiting longer would hold up its "
        f"readers. Nothing was written. Try again when these sessions of pg_stat_activity have ended."
    )


def _check_present(
    cursor: Cursor, table: TargetTable, columns: Sequence[Column], lineage: Sequence[Column]
) -> None:
    """Raise TargetMismatch if columns are missing; it has one statement that adds all of them."""
    stored = table.columns(cursor)
    missing = [column for column in (*columns, *lineage) if column.name not in stored]
    if not missing:
        return
    first, *others = missing
    also = f", nor {', '.join(column.name for column in others)}" if others else ""
    it = "them" if others else "it"
    statement = ", ".join(f"add column {quoted(column.name)} {column.type}" for column in missing)
    # A pipeline adds no lineage: rows that are there already would have none.
    evolve = (
        ""
        if any(column in lineage for column in missing)
        else f"; or let the pipeline add {it}: evolve='add'"
    )
    raise TargetMismatch(
        f"target {table.spec}: expected a column {first.name} of type {first.type}, found none{also}. "
        f"Add {it}: alter table {table.spec} {statement}{evolve}.",
        column=first.name,
    )


def _remedy(column: Column, cast: Cast) -> str:
    if column.element is not None and is_vector(type_ := cast.target.leaf.name):
        return (
            f'Declare it in the pipeline as "{column.name} {type_}": Json and Debezium take an array for it.'
        )
    return "Change the pipeline's schema or the column's type."


def _check_columns(cursor: Cursor, table: TargetTable, columns: Sequence[Column], *, exact: bool) -> None:
    stored = table.columns(cursor)
    for column in columns:
        if stored[column.name].generated:
            raise TargetMismatch(
                f"target {table.spec}, column {column.name}: the column is generated always, so that nothing can "
                f"be written into it. Leave it out of the pipeline's schema.",
                column=column.name,
            )
    _check_types(cursor, table, columns, stored, exact=exact)
    written = {column.name for column in columns}
    for name, actual in stored.items():
        if actual.required and name not in written:
            raise TargetMismatch(
                f"target {table.spec}, column {name}: the pipeline does not write this column, and it is "
                f"{actual.type} not null without a default. Add it to the pipeline's schema, or give it a "
                f"default.",
                column=name,
            )


def check_castable(
    cursor: Cursor, table: TargetTable, columns: Sequence[Column], *, exact: bool = False
) -> None:
    """Raise TargetMismatch, as prepare_table() does, if a column that the table has cannot hold what is written there.

    With `exact`, no column may need a cast.
    """
    stored = table.columns(cursor)
    _check_types(cursor, table, [column for column in columns if column.name in stored], stored, exact=exact)


def _check_types(
    cursor: Cursor,
    table: TargetTable,
    columns: Sequence[Column],
    stored: Mapping[str, StoredColumn],
    *,
    exact: bool,
) -> None:
    for cast in table.casts_into(cursor, columns, stored):
        column, actual = cast.column, stored[cast.column.name]
        if not (cast.is_plain or actual.type == column.type if exact else cast.is_possible):
            raise TargetMismatch(
                f"target {table.spec}, column {column.name}: expected type {column.type}, as the pipeline "
                f"writes it, found {actual.type}. {_remedy(column, cast)}",
                column=column.name,
            )
