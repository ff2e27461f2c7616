"""What a connection has set, whatever was set elsewhere; and what it leaves to others."""

import fnmatch
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg2
import pyarrow as pa
import pytest
from adbc_driver_manager import Error as AdbcError
from psycopg2 import sql
from psycopg2.extensions import make_dsn

from exactbatch import Tuning
from exactbatch.batch.rows.copy import PostgresAccess, copy_batches
from exactbatch.batch.staging.staging_tables import StagingTables, hold_launch
from exactbatch.errors import ConfigurationError
from exactbatch.postgres import session_settings
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect, transaction
from exactbatch.postgres.session_settings import SessionSettings
from support.logins import LOGIN, as_login
from support.topics import Topic

# Settings that a client can change, and that stay as they are. What they decide:
LEFT_ALONE: Final = (
    # what only a user's own functions use
    *("lc_monetary", "lc_numeric", "lc_time", "lc_messages", "default_text_search_config", "xmlbinary"),
    # where and how bytes are stored, not which bytes
    *("default_tablespace", "temp_tablespaces", "default_toast_compression", "file_copy_method"),
    *("wal_skip_threshold", "gin_pending_list_limit"),
    # functions, collations, roles and large objects, of which exactbatch creates none
    *("check_function_bodies", "icu_validation_level", "createrole_self_grant", "password_encryption"),
    *("scram_iterations", "md5_password_warnings", "lo_compat_privileges"),
    *("allow_in_place_tablespaces", "allow_system_table_mods"),
    # an error or a warning, or nothing in exactbatch's statements
    *("restrict_nonsystem_relation_kind", "local_preload_libraries", "backslash_quote"),
    "escape_string_warning",
    # whether a database is open to writes: until it is, batches fail and are retried
    *("default_transaction_read_only", "transaction_read_only"),
    *("default_transaction_deferrable", "transaction_deferrable"),
    # speed, not results: no statement depends on an order of rows that it does not request
    *("enable_*", "geqo*", "jit*", "*_cost", "from_collapse_limit", "join_collapse_limit", "plan_cache_mode"),
    *("constraint_exclusion", "cursor_tuple_fraction", "default_statistics_target"),
    *("recursive_worktable_factor", "effective_cache_size", "min_parallel_*", "max_parallel_*"),
    *("parallel_leader_participation", "debug_parallel_query", "synchronize_seqscans"),
    "stats_fetch_consistency",
    # memory, I/O and vacuum
    *("work_mem", "hash_mem_multiplier", "maintenance_work_mem", "temp_buffers", "logical_decoding_work_mem"),
    *("vacuum_*", "backend_flush_after", "effective_io_concurrency", "maintenance_io_concurrency"),
    *("io_combine_limit", "commit_siblings"),
    # how soon the server notices that a client has disappeared
    *("client_connection_check_interval", "tcp_keepalives_*", "tcp_user_timeout", "wal_sender_timeout"),
    "deadlock_timeout",
    # what is logged and displayed
    *("application_name", "client_min_messages", "log_*", "debug_*", "trace_*", "track_*"),
    "plpgsql.*",
)
OPENERS: Final = (connect, connect_arrow)
OWN: Final = "pg_catalog, pg_temp"  # the path of the program's own statements


def documented() -> str:
    """What docs/settings.md says."""
    return (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def asked(connection: Any, query: str | bytes) -> list[tuple[Any, ...]]:
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
    """New ones come with each version of Postgres: then docs/settings.md or LEFT_ALONE says what becomes of them."""
    documented_ones = re.findall(r"^\| `(\w+)`", documented(), re.MULTILINE)
    # The startup option of transaction_isolation has another name.
    patterns = [*documented_ones, "default_transaction_isolation", *LEFT_ALONE]
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


def target_path(connection: Any) -> str:
    """The search path of statements over targets, after a check that others have the program's own."""
    query = "select current_setting('search_path')"
    is_arrow = not isinstance(connection, psycopg2.extensions.connection)
    own = query if is_arrow else query.encode()  # not a statement of a user: support/user_statements.py
    assert asked(connection, own) == [(OWN,)]
    if is_arrow:
        with connection.cursor() as cursor:
            cursor.execute(connection.target_path)
    ((of_targets,),) = asked(connection, query)
    connection.rollback()
    assert asked(connection, own) == [(OWN,)]  # each transaction begins with it
    connection.rollback()
    return str(of_targets)


@pytest.mark.parametrize("opener", OPENERS)
def test_the_users_own_options_stay_where_they_do_no_harm(database, opener):
    own = "-c timezone=Asia/Tokyo -c work_mem=123kB -c search_path=public"
    with closing(opener(make_dsn(database, options=own), application="tests")) as connection:
        query = "select current_setting('timezone') as zone, current_setting('work_mem') as memory"
        assert asked(connection, query) == [("UTC", "123kB")]
        connection.rollback()
        assert target_path(connection) == "public"


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
def test_statements_over_targets_have_the_logins_path_after_pg_catalog(database, opener, path, expected):
    with set_for_all(database, search_path=path), closing(psycopg2.connect(database)) as other:
        with other, other.cursor() as cursor:
            cursor.execute('create schema if not exists "A b"')
        with closing(opener(database, application="tests")) as connection:
            assert target_path(connection) == expected


# Who may create in a schema of the path, and whether statements over targets still search it.
CREATORS: Final = {
    "the login itself": ("grant create on schema s to {me}", True),
    "a superuser": ("grant create on schema s to postgres", True),
    "the schema's owner": ("alter schema s owner to {other}", True),
    "a role of nobody else": ("grant create on schema s to {group}; grant {group} to {me}", True),
    "another login": ("grant create on schema s to {other}", False),
    "everybody": ("grant create on schema s to public", False),
    "another login has created a function": (
        "grant create on schema s to {other}; set role {other}; create function s.f(name) returns int return 1; "
        "reset role; revoke create on schema s from {other}",
        False,
    ),
    "another login has created an operator": (
        "grant create on schema s to {other}; create schema t authorization {other}; set role {other}; "
        "create function t.f(name, name) returns bool return true; "
        "create operator s.=== (leftarg = name, rightarg = name, function = t.f); "
        "reset role; revoke create on schema s from {other}",
        False,
    ),
    "a role of another login": (
        "grant create on schema s to {group}; grant {group} to {other}; grant {group} to {me}",
        False,
    ),
}


@pytest.mark.parametrize("creator", CREATORS)
def test_a_schema_in_which_another_login_may_create_is_not_searched(database, creator):
    grant, is_searched = CREATORS[creator]
    with logins(database) as names:
        run_as_superuser(
            database, "create schema s; grant usage on schema s to public; " + grant.format(**names)
        )
        dsn = make_dsn(as_login(database, names["me"]), options="-c search_path=s,public")
        for opener in OPENERS:
            with closing(opener(dsn, application="tests")) as connection:
                assert target_path(connection) == ("s, public" if is_searched else "public")
        with closing(connect(dsn, application="tests")) as connection:
            assert (connection.left_out is None) == is_searched


def test_a_schema_that_others_have_given_the_logins_name_is_not_searched(database):
    """It is first on the default path."""
    with logins(database) as names:
        run_as_superuser(
            database,
            f"create schema {names['me']} authorization {names['other']}; "
            f"grant usage on schema {names['me']} to public",
        )
        with closing(connect(as_login(database, names["me"]), application="tests")) as connection:
            assert target_path(connection) == "public"
            assert connection.left_out == f"{names['me']} (role {names['other']})"
        run_as_superuser(database, f"alter schema {names['me']} owner to {names['me']}")
        with closing(connect(as_login(database, names["me"]), application="tests")) as connection:
            assert target_path(connection) == f"{names['me']}, public"


def test_after_an_error_each_statement_still_has_its_path(connection):
    """A savepoint takes back the path that was set after it."""
    query = "select current_setting('search_path')"
    with transaction(connection) as cursor:
        for rolled_back in (b"select 1 / 0", sql.SQL("select 1 / 0"), sql.SQL("select 1")):
            cursor.execute(b"savepoint here")
            cursor.execute(sql.SQL(query))
            with suppress(psycopg2.errors.DivisionByZero):
                cursor.execute(rolled_back)
            cursor.execute(b"rollback to savepoint here")
            cursor.execute(sql.SQL(query))
            assert cursor.fetchone() == ("public",)
            cursor.execute(query.encode())
            assert cursor.fetchone() == (OWN,)


@contextmanager
def logins(database: str) -> Iterator[dict[str, str]]:
    """Two logins, and a role that cannot log in."""
    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    names = {"me": f"me_{name}", "other": f"other_{name}", "group": f"group_{name}"}
    run_as_superuser(
        database,
        f"create role {names['me']} {LOGIN}; create role {names['other']} {LOGIN}; create role {names['group']}; "
        f"grant {names['other']} to postgres",
    )
    try:
        yield names
    finally:
        run_as_superuser(database, "drop owned by {me}, {other}, {group} cascade".format(**names))
        run_as_superuser(database, "drop role {me}, {other}, {group}".format(**names))


def run_as_superuser(database: str, statements: str) -> None:
    with closing(psycopg2.connect(database)) as superuser:
        superuser.autocommit = True
        with superuser.cursor() as cursor:
            cursor.execute(statements)


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
    pipeline = make_pipeline(Topic("launches", {}), tuning=Tuning(lock_timeout="300 milliseconds"))
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
        cursor.execute("set local lock_timeout to '100ms'")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            cursor.execute(f"drop table exactbatch_staging.{tables.rejects}")
        connection.rollback()


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


def test_the_time_in_which_rows_are_read_is_no_wait_for_postgres(database):
    def read() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            time.sleep(0.7)
            yield pa.record_batch([pa.array([number], pa.int32())], ["n"])

    access = PostgresAccess(database, lock_timeout=10, statement_timeout=0.5)
    with access.connection(where="a task") as connection, connection.cursor() as cursor:
        cursor.execute("create temporary table read (n int)")
        assert copy_batches(cursor, sql.Identifier("read"), pa.schema([("n", pa.int32())]), read()) == 3


def test_tasks_and_auditors_connect_without_reading_the_columns_of_all_tables(database):
    """Their number grows with partitions and pipelines."""
    access = PostgresAccess(database, lock_timeout=10, statement_timeout=10)
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

            def connect_task() -> None:
                with access.connection(where="a task"):
                    pass

            assert read_by(connect_task) < 1_000
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
