"""Check that the auditor can see all rows, and that the tables cannot lose committed rows."""

from collections.abc import Sequence
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import KeepsEventTimes
from exactbatch.sinks.tables.target_checks import check_operators
from exactbatch.sinks.tables.target_definition import check_castable
from exactbatch.sinks.values.cast import check_two_steps
from exactbatch.sinks.writer import SinkWriter

_LEDGER: Final = (
    "exactbatch.pipeline",
    "exactbatch.stored_offset",
    "exactbatch.batch",
    "exactbatch.batch_range",
    "exactbatch.coverage",
    "exactbatch.rejected_record",
    "exactbatch.replay_horizon",
)


def find_tables(writer: SinkWriter) -> list[sql.Composable]:
    """Return the target, and the tables that its rows are derived from."""
    return [table.identifier for table in reversed(writer.tables)]


def lock_tables(cursor: Cursor, writer: SinkWriter) -> None:
    """Keep partitions from being detached until the transaction ends; call this before it takes its snapshot.

    A snapshot does not keep their rows. A table that is missing or may not be read is left to check_visible().
    """
    for table in find_tables(writer):
        cursor.execute("savepoint lock_tables")
        try:
            cursor.execute(sql.SQL("lock table {} in access share mode").format(table))
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName, psycopg2.errors.WrongObjectType,
                psycopg2.errors.InsufficientPrivilege):  # fmt: skip
            cursor.execute("rollback to savepoint lock_tables")
        # A snapshot cannot be shared from within a savepoint.
        cursor.execute("release savepoint lock_tables")


def check_visible(cursor: Cursor, pipeline: Pipeline, writer: SinkWriter, *, values: bool) -> None:
    """Raise an error unless this login sees all rows of target and ledger.

    Raises TargetMismatch if a table does not exist, or has a column into which no batch could write; ConfigurationError
    if row security hides rows, a privilege is missing, or `values` needs a temporary table that this server or login
    cannot create.
    """
    names = [table.as_string(cursor) for table in find_tables(writer)]
    for name in names:
        cursor.execute("select to_regclass(%s) is null", (name,))
        if cursor.fetchone()[0]:
            raise TargetMismatch(
                f"pipeline {pipeline.name!r}: the table {name} does not exist: either no batch was processed yet, or "
                f"somebody dropped it. `exactbatch status {pipeline.name}` shows the batches."
            )
    cursor.execute(
        "select t.name, row_security_active(t.name::regclass), has_table_privilege(t.name::regclass, 'select') "
        "or has_any_column_privilege(t.name::regclass, 'select'), current_user "
        "from unnest(%s) t (name)",
        ([*names, *_LEDGER],),
    )
    for name, is_filtered, is_readable, login in cursor.fetchall():
        if is_filtered:
            raise ConfigurationError(
                f"Row security on {name} hides rows from the login {login!r}: an audit would report them as missing. "
                f"Nothing was compared. Audit with a login that sees all rows: alter role … bypassrls; or the "
                f"owner of the table, if row security is not forced on it."
            )
        if not is_readable:
            raise ConfigurationError(
                f"The login {login!r} may not read {name}. Nothing was compared. Grant the privilege: grant select on "
                f"{name} to …; `exactbatch roles` grants all that readers need."
            )
    if writer.traits.key_columns:
        check_operators(cursor, writer.tables[-1], writer.traits.key_columns)
    if values or writer.traits.is_derived:
        _check_types(cursor, pipeline, writer)
    if values:
        _check_temporary(cursor)


def _check_types(cursor: Cursor, pipeline: Pipeline, writer: SinkWriter) -> None:
    """Raise TargetMismatch for a column whose type a batch refuses: its values cannot be compared."""
    if pipeline.is_transformed:  # only Spark knows the columns
        return
    traits = writer.traits
    columns = traits.result_columns(pipeline.value.columns)
    event_times = writer.event_times if isinstance(writer, KeepsEventTimes) else None
    for table in (table for table in writer.tables if table != event_times):
        check_castable(cursor, table, columns, exact=traits.lineage == "batch")
    if traits.is_derived and traits.lineage == "record":
        kept, target = writer.lineage_table.table, writer.tables[-1]
        stored = kept.columns(cursor).keys() & target.columns(cursor).keys()
        both = [column for column in columns if column.name in stored]
        check_two_steps(traits.target, kept.casts(cursor, both), target.casts(cursor, both))


def _check_temporary(cursor: Cursor) -> None:
    cursor.execute(
        "select pg_is_in_recovery(), has_database_privilege(current_database(), 'temporary'), current_user, "
        "current_database()"
    )
    is_standby, may_create, login, database = cursor.fetchone()
    if is_standby:
        raise ConfigurationError(
            "The server is a standby, which cannot create the temporary table that an audit of values needs. "
            "Nothing was compared. Audit values on the primary, or audit here without --values."
        )
    if not may_create:
        raise ConfigurationError(
            f"The login {login!r} may not create temporary tables in the database {database!r}, and an audit of "
            f"values needs one. Nothing was compared. Grant the privilege: grant temporary on database … to …; or "
            f"audit without --values."
        )


def find_unsafe_tables(cursor: Cursor, writer: SinkWriter) -> Sequence[str]:
    """Describe each table that can lose committed rows, or commit outside of the transaction."""
    names = [table.as_string(cursor) for table in find_tables(writer)]
    cursor.execute(
        """
        select distinct c.oid::regclass::text as name, c.relkind = 'f' as is_foreign
        from unnest(%s) t (name)
        cross join lateral (
            select t.name::regclass::oid as relid union select relid from pg_partition_tree(t.name::regclass)
        ) part
        join pg_class c on c.oid = part.relid
        where c.relkind = 'f' or c.relpersistence <> 'p'
        order by 1
        """,
        ([*names, *_LEDGER],),
    )
    return [
        f"{name} is a foreign table, which commits separately: a failure can leave its rows without those of the "
        f"ledger, or vice versa"
        if is_foreign
        else f"{name} is unlogged: a crash of the server empties it"
        for name, is_foreign in cursor.fetchall()
    ]
