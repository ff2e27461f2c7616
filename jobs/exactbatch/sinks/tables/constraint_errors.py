"""Turn Postgres's refusal of rows into an error that names the constraint, and the offsets of the rows."""

from collections.abc import Sequence
from typing import Final

import psycopg2

from exactbatch.errors import RefusedRecord, TargetMismatch
from exactbatch.errors.sqlstates import INSUFFICIENT_PRIVILEGE, is_row_error
from exactbatch.errors.translation import psycopg2_message
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.tables.candidates import Candidates
from exactbatch.sinks.tables.refused_rows import find_refused
from exactbatch.sinks.tables.target import TargetTable

_OFFSETS_SHOWN: Final = 20
_REJECTS: Final = " To load the other records, let max_rejects allow for these."
_NO_RECORD: Final = " No record can be rejected for it."


def constraint_error(
    cursor: Cursor, target: TargetTable, error: psycopg2.Error, candidates: Candidates | None
) -> TargetMismatch:
    """Return the error that says what a target refuses, and which records are concerned.

    `candidates` are the rows to be written; None if rows do not come from one record each. The transaction must be
    usable: rolled back to a savepoint. Raises psycopg2's errors that are not about rows.
    """
    if error.pgcode == INSUFFICIENT_PRIVILEGE:
        return _missing_privilege(cursor, target, error)
    columns = _columns_of_domain(cursor, target, error)
    where = f", column {' or '.join(columns)}" if columns else ""
    refused: Sequence[RefusedRecord] = ()
    if candidates is not None and cursor.most_refused and is_row_error(error.pgcode):
        refused = find_refused(cursor, target, candidates, sqlstate=error.pgcode, limit=cursor.most_refused)
    first = refused[0] if refused else None
    mismatch = TargetMismatch(
        f"target {target.spec}{where}: it refuses what the batch writes: {psycopg2_message(error)}"
        f"{_shown(refused, cursor.most_refused)} (SQLSTATE {error.pgcode}). Nothing was written. Correct the target, "
        f"or what the pipeline writes.{_remedy(target, error)}{_path_remark(cursor, error)}"
        f"{_NO_RECORD if candidates is None else ''}{_REJECTS if refused else ''}",
        topic=first.topic if first else None,
        partition=first.partition if first else None,
        from_offset=first.offset if first else None,
        until_offset=first.offset + 1 if first else None,
        column=error.diag.column_name or (columns[0] if len(columns) == 1 else None),
        constraint=error.diag.constraint_name,
        sqlstate=error.pgcode,
    )
    mismatch.refused = refused
    return mismatch


def _shown(refused: Sequence[RefusedRecord], limit: int) -> str:
    """Return what a message says of refused records; the search finds at most `limit`."""
    if not refused:
        return ""
    shown = ", ".join(map(str, refused[:_OFFSETS_SHOWN]))
    if len(refused) == 1:
        return f"; this concerns 1 record of the batch, at {shown}"
    count = f"{len(refused)} or more" if len(refused) == limit else str(len(refused))
    first = "" if len(refused) <= _OFFSETS_SHOWN else "the first "
    return f"; this concerns {count} records of the batch, {first}at {shown}"


def _remedy(target: TargetTable, error: psycopg2.Error) -> str:
    """Say what helps if a constraint or an index of this kind refuses rows; "" if nothing else does."""
    if isinstance(error, (psycopg2.errors.UniqueViolation, psycopg2.errors.ExclusionViolation)):
        return " Of rows that exclude each other, the first one can stay."
    if isinstance(error, psycopg2.errors.ForeignKeyViolation):
        return (
            " If another pipeline loads the table that these rows refer to, the missing rows may be on their way, "
            "and a later run of this batch succeeds."
        )
    if isinstance(error, psycopg2.errors.CheckViolation) and error.diag.constraint_name is None:
        return f" Create the partition: create table … partition of {target.spec} for values …;"
    if isinstance(error, psycopg2.errors.ProgramLimitExceeded):
        return " An index over a hash of a long value, such as md5(value), takes values of any length."
    return ""


def _path_remark(cursor: Cursor, error: psycopg2.Error) -> str:
    """Say which schemas Postgres does not search, if it does not find something that a trigger or expression names."""
    not_found = (
        psycopg2.errors.UndefinedFunction,
        psycopg2.errors.UndefinedTable,
        psycopg2.errors.UndefinedObject,
    )
    return cursor.connection.left_out_remark if isinstance(error, not_found) else ""


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
