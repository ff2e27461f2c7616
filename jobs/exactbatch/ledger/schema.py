"""Check the version of the ledger's tables, and migrate them from an older one."""

from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable

import psycopg2.errors
from psycopg2 import sql

from exactbatch.errors import NotRegistered
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.postgres.creation import create_named, create_schema

_MIGRATIONS = resources.files("exactbatch.ledger") / "migrations"


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
    create_schema(cursor, "exactbatch")
    create_schema(cursor, "exactbatch_staging")
    create_named(
        cursor,
        sql.SQL(
            "create table if not exists exactbatch.schema_version "
            "(version integer primary key, applied_at timestamptz not null default now())"
        ),
    )
    # If two `exactbatch init` run at the same time, the second waits here and then has nothing to do.
    cursor.execute("lock table exactbatch.schema_version in exclusive mode")
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
            cursor.execute("insert into exactbatch.schema_version (version) values (%s)", (version,))
            applied.append(version)
    return applied


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
            f"the connection string. If this is the right database, run `exactbatch init` once."
        )
    if version < expected:
        raise NotRegistered(
            f"expected version {expected} of the ledger, found version {version}. Run `exactbatch init` to "
            f"migrate it."
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
