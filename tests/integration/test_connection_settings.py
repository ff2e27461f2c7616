"""What a connection has set, whatever was set elsewhere; and what it leaves to others."""

import fnmatch
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg2
import pytest
from adbc_driver_manager import Error as AdbcError
from psycopg2.extensions import make_dsn

from exactbatch.batch.rows.arrow_copy import PostgresAccess
from exactbatch.batch.staging.staging_tables import StagingTables, hold_launch
from exactbatch.errors import ConfigurationError
from exactbatch.postgres import session_settings
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect, transaction
from exactbatch.postgres.session_settings import SessionSettings
from support.logins import LOGIN, as_login
from support.topics import Topic

OPENERS: Final = (connect, connect_arrow)


def documented() -> str:
    """What docs/settings.md says."""
    return (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def asked(connection: Any, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query, on either kind of connection, in the transaction that is open."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return [tuple(row) for row in cursor.fetchall()]


@contextmanager
def set_for_all(database: str, **settings: str) -> Iterator[None]:
    """What the database says."""
    with closing(psycopg2.connect(database)) as superuser:
        superuser.autocommit = True
        with superuser.cursor() as cursor:
            cursor.execute("select current_database()")
            (name,) = cursor.fetchone()
            for setting, value in settings.items():
                cursor.execute(f"alter database {name} set {setting} to {value}")
            yield
            cursor.execute(f"alter database {name} reset all")


def test_every_setting_that_a_client_can_change_is_decided_on(connection):
    """New ones come with each version of Postgres: then docs/settings.md says what becomes of them."""
    patterns = [name for line in documented().splitlines() for name in re.findall(r"`([\w.*]+)`", line)]
    names = [
        name
        for (name,) in asked(connection, "select name from pg_settings where context = 'user' order by 1")
    ]
    unknown = [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    assert unknown == []


def test_the_documentation_names_each_setting_with_its_value():
    for setting in session_settings._FIXED:
        name = setting.name
        if setting.scope == "server" and name != "client_encoding":
            assert f"`{name}`" in documented()
        else:
            assert re.search(rf"^\| `{name}` \| {re.escape(setting.value)}", documented(), re.MULTILINE), name


@pytest.mark.parametrize("opener", OPENERS)
def test_function_that_changes_session_changes_one_transaction(database, opener):
    with closing(opener(database, application="tests")) as connection:
        for _ in range(2):
            assert asked(connection, "select current_setting('timezone')") == [("UTC",)]
            asked(connection, "select set_config('timezone', 'Asia/Tokyo', false)")
            assert asked(connection, "select current_setting('timezone')") == [("Asia/Tokyo",)]
            connection.commit()
        connection.rollback()
        assert asked(connection, "select current_setting('timezone')") == [("UTC",)]


@pytest.mark.parametrize("opener", OPENERS)
def test_the_users_own_options_stay_where_they_do_no_harm(database, opener):
    own = "-c timezone=Asia/Tokyo -c work_mem=123kB -c search_path=public"
    with closing(opener(make_dsn(database, options=own), application="tests")) as connection:
        names = ("timezone", "work_mem", "search_path")
        query = "select " + ", ".join(f"current_setting('{name}') as {name}" for name in names)
        assert asked(connection, query) == [("UTC", "123kB", "public")]


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("''", '""'),
        ('"$user", public', "public"),
        ('"A b", public', '"A b", public'),
        ("public, pg_catalog", "public"),
    ],
)
def test_pg_catalog_comes_first(database, opener, path, expected):
    with set_for_all(database, search_path=path), closing(psycopg2.connect(database)) as other:
        with other, other.cursor() as cursor:
            cursor.execute('create schema if not exists "A b"')
        with closing(opener(database, application="tests")) as connection:
            query = "select current_setting('search_path') as path, (current_schemas(true))[1]::text as first"
            assert asked(connection, query) == [(expected, "pg_catalog")]


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("level", "expected"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
def test_a_commit_is_waited_for(database, opener, level, expected):
    with (
        set_for_all(database, synchronous_commit=level),
        closing(opener(database, application="tests")) as connection,
    ):
        assert asked(connection, "select current_setting('synchronous_commit')") == [(expected,)]


@pytest.mark.parametrize("opener", OPENERS)
def test_rows_that_a_policy_hides_are_an_error(database, opener):
    login = f"tenant_{psycopg2.extensions.parse_dsn(database)['dbname']}"
    with closing(psycopg2.connect(database)) as superuser:
        superuser.autocommit = True
        with superuser.cursor() as cursor:
            cursor.execute(
                f"create role {login} {LOGIN}; create table public.shared (id int, tenant text); "
                "alter table public.shared enable row level security; "
                f"grant select on public.shared to {login}; "
                "create policy own on public.shared using (tenant = current_user)"
            )
            try:
                dsn = as_login(database, login)
                with closing(opener(dsn, application="tests")) as connection:
                    with pytest.raises((AdbcError, psycopg2.errors.InsufficientPrivilege)) as caught:
                        asked(connection, "select id from public.shared")
                    assert "row-level security policy for table" in str(caught.value)
                with (
                    closing(connect(dsn, application="tests")) as connection,
                    pytest.raises(ConfigurationError, match="row-level security policy"),
                    transaction(connection) as other,
                ):
                    other.execute("select id from public.shared")
            finally:
                cursor.execute(f"drop owned by {login} cascade; drop role {login}")


def test_launch_holds_up_no_vacuum_and_is_not_ended_while_it_says_nothing(
    connection, settings, make_pipeline
):
    pipeline = make_pipeline(Topic("launches", {}), publish_timeout=0.3)
    tables = StagingTables(1, 1111)
    with (
        hold_launch(connection, settings, pipeline, tables),
        transaction(connection) as cursor,
    ):
        cursor.execute(
            "select state, backend_xmin is null as no_snapshot, backend_xid is null as no_id "
            "from pg_stat_activity where application_name = 'exactbatch launch' and datname = current_database()"
        )
        assert [tuple(row) for row in cursor.fetchall()] == [("idle in transaction", True, True)]
        cursor.execute("select pg_sleep(1)")
        cursor.execute("select pg_try_advisory_xact_lock(1111)")
        assert tuple(cursor.fetchone()) == (False,)


def test_settings_of_one_connection_differ_in_their_times_alone():
    times = SessionSettings(lock_timeout=1, statement_timeout=2, idle_in_transaction=3)
    assert {field.name for field in fields(times)} == {
        "lock_timeout",
        "statement_timeout",
        "idle_in_transaction",
        "read_only",
    }
    other = replace(times, lock_timeout=4)
    different = [
        one.name for one, two in zip(times.all(180000), other.all(180000), strict=True) if one != two
    ]
    assert different == ["lock_timeout"]
    assert "transaction_timeout" not in {setting.name for setting in times.all(160000)}


def test_tasks_and_auditors_connect_without_reading_the_columns_of_all_tables(database):
    """Their number grows with partitions and pipelines."""
    access = PostgresAccess(database, publish_timeout=10, statement_timeout=10)
    with closing(psycopg2.connect(database)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            columns = ", ".join(f"c{number} int" for number in range(50))
            for number in range(100):
                cursor.execute(f"create table wide_{number} ({columns})")

            def read_by(connect_and_close: Callable[[], object]) -> int:
                """The rows of pg_attribute that a connection has read."""
                before = columns_read(cursor)
                connect_and_close()
                return columns_read(cursor) - before

            assert read_by(lambda: access.run(lambda *_: None, where="a task")) < 1_000
            auditor = partial(connect_arrow, database, application="audit", read_only=True)
            assert read_by(lambda: auditor().close()) < 1_000


def columns_read(cursor: Any) -> int:
    """How many rows of pg_attribute the connections to a database have read that have ended, as all others have."""
    others = (
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    for _ in range(200):
        cursor.execute(others)
        if cursor.fetchone() == (0,):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("connections have not ended")
    cursor.execute(
        "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_sys_tables "
        "where relid = 'pg_catalog.pg_attribute'::regclass"
    )
    return int(cursor.fetchone()[0])
