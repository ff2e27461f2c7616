"""Check the version of the ledger's tables, and migrate them from an older one."""

from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import psycopg2.errors
from psycopg2 import sql

from exactbatch.errors import NotRegistered
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.postgres.creation import create_named, create_schema

_MIGRATIONS = resources.files("exactbatch.ledger") / "migrations"
_SCHEMAS: Final = ("exactbatch", "exactbatch_staging")
_VERSIONS: Final = (
    "create table if not exists exactbatch.schema_version "
    "(version integer primary key, applied_at timestamptz not null default now())"
)
_APPLIED: Final = "insert into exactbatch.schema_version (version) values (%s)"
_LOCK: Final = "lock table exactbatch.schema_version in exclusive mode"


def migrations(folder: Traversable = _MIGRATIONS) -> list[tuple[int, str]]:
    """Return all migrations as (version, SQL), in order; the file `0001_ledger.sql` has version 1."""
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted((int(file.name.split("_")[0]), file.read_text(encoding="utf-8")) for file in files)


def migrate(
    connection: Connection,
    folder: Traversable = _MIGRATIONS,
    *,
    progress: Callable[[str], None] = lambda _step: None,
) -> list[int]:
    """Migrate the ledger to the newest version, in one transaction; return the versions that were applied.

    `progress` receives a sentence before each version that changes an existing ledger.

    Raises NotRegistered for a ledger of a newer program.
    """
    with transaction(connection) as cursor:
        return apply_migrations(cursor, folder, progress=progress)


def apply_migrations(
    cursor: Cursor,
    folder: Traversable = _MIGRATIONS,
    *,
    progress: Callable[[str], None] = lambda _step: None,
) -> list[int]:
    """Migrate as migrate() does, within the caller's transaction."""
    applied = []
    for schema in _SCHEMAS:
        create_schema(cursor, schema)
    create_named(cursor, sql.SQL(_VERSIONS))
    # If two programs migrate at the same time, the second waits here and then has nothing to do.
    cursor.execute(_LOCK)
    current, known = _version(cursor), migrations(folder)
    if current > known[-1][0]:
        raise _newer(known[-1][0], current)
    for version, statements in known:
        if version > current:
            if current:
                progress(
                    f"Upgrading the ledger to version {version}; it has about {_coverage_rows(cursor):,} rows of "
                    f"coverage. Batches wait meanwhile …"
                )
            cursor.execute(statements)
            cursor.execute(_APPLIED, (version,))
            applied.append(version)
    return applied


def write_migrations(connection: Connection, folder: Traversable = _MIGRATIONS) -> str:
    """Return the SQL that migrate() would run, as one transaction; empty if there is nothing to do.

    Raises NotRegistered for a ledger of a newer program.
    """
    current, known = ledger_version(connection), migrations(folder)
    if current is not None and current > known[-1][0]:
        raise _newer(known[-1][0], current)
    missing = [(version, statements) for version, statements in known if version > (current or 0)]
    if not missing:
        return ""
    lines = ["begin;"]
    if current is None:
        lines += [*(f"create schema if not exists {schema};" for schema in _SCHEMAS), f"{_VERSIONS};"]
    lines.append(f"{_LOCK};")
    for version, statements in missing:
        lines += [f"-- version {version}", statements.rstrip()]
        lines.append(f"{_APPLIED % version};")
    return "\n".join([*lines, "commit;"])


def newest_version() -> int:
    """Return the version of the ledger that this program needs."""
    return migrations()[-1][0]


def ledger_version(connection: Connection) -> int | None:
    """Return the version of the database's ledger, or None without one."""
    with transaction(connection) as cursor:
        try:
            return _version(cursor)
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName):
            return None


def check_schema(connection: Connection) -> None:
    """Raise NotRegistered unless the database has a ledger of the version that this program needs."""
    expected, version = newest_version(), ledger_version(connection)
    if version is None:
        raise NotRegistered(
            f"the database {connection.info.dbname!r} has no ledger (no table exactbatch.schema_version). Check "
            f"the connection string. If this is the right database, run `exactbatch migrate` once."
        )
    if version < expected:
        raise NotRegistered(
            f"expected version {expected} of the ledger, found version {version}. Run `exactbatch migrate` to "
            f"upgrade it."
        )
    if version > expected:
        raise _newer(expected, version)


def _newer(expected: int, version: int) -> NotRegistered:
    return NotRegistered(
        f"expected version {expected} of the ledger, found the newer version {version}. Upgrade exactbatch."
    )


def _coverage_rows(cursor: Cursor) -> int:
    """Return the number of rows of coverage as Postgres estimates it; 0 if it was never analyzed."""
    cursor.execute(
        "select greatest(reltuples, 0)::bigint from pg_class where oid = 'exactbatch.coverage'::regclass"
    )
    return int(cursor.fetchone()[0])


def _version(cursor: Cursor) -> int:
    cursor.execute("select coalesce(max(version), 0) from exactbatch.schema_version")
    return int(cursor.fetchone()[0])
