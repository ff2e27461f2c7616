"""Through PgBouncer: what it drops is set all the same or refused, and nothing is left for its other clients."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from exactbatch.batch.staging.staging_tables import StagingTables, hold_launch
from exactbatch.errors import ConfigurationError, PostgresUnavailable
from exactbatch.ledger import list_staging_tables
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.bouncer import bouncer
from support.logins import LOGIN, as_login
from support.topics import Topic

DROPPED: Final = "ignore_startup_parameters = options"
MODES: Final = ("session", "transaction")
OPENERS: Final = (connect, connect_arrow)
# A login with which nearly every value comes out otherwise, where its settings are left alone.
CONTRARY: Final = {
    "timezone": "America/New_York",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "array_nulls": "off",
    "row_security": "on",
    "bytea_output": "escape",
}


@contextmanager
def login(database: str, **settings: str) -> Iterator[str]:
    """The connection string of a superuser of this test's database with these settings."""
    name = f"login_{time.monotonic_ns()}"
    with closing(psycopg2.connect(database)) as superuser, superuser, superuser.cursor() as cursor:
        cursor.execute(f"create role {name} superuser {LOGIN}")
        for setting, value in settings.items():
            cursor.execute(f"alter role {name} set {setting} to '{value}'")
    try:
        yield as_login(database, name)
    finally:
        with closing(psycopg2.connect(database)) as superuser, superuser, superuser.cursor() as cursor:
            cursor.execute(f"reassign owned by {name} to postgres")
            cursor.execute(f"drop role {name}")


@contextmanager
def pooled(database: str, mode: str, more: str = DROPPED, size: int = 20, **settings: str) -> Iterator[str]:
    """The connection string of such a login through a PgBouncer."""
    with login(database, **settings) as dsn:
        name = psycopg2.extensions.parse_dsn(dsn)["user"]
        with bouncer(dsn, mode, logins=[name], size=size, more=more) as through:
            yield through


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("opener", OPENERS)
def test_pgbouncer_as_it_is_installed_gets_no_options_and_each_transaction_has_all_settings(
    database, mode, opener
):
    contrary = {name: value for name, value in CONTRARY.items() if name != "synchronous_commit"}
    with pooled(database, mode, more="", **contrary) as dsn, closing(opener(dsn, application="tests")) as own:
        for _ in range(2):
            with own.cursor() as cursor:
                cursor.execute(
                    "select current_setting('TimeZone') as zone, current_setting('DateStyle') as style, "
                    "current_setting('row_security')"
                )
                assert tuple(cursor.fetchone()) == ("UTC", "ISO, YMD", "off")
            own.rollback()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("more", [DROPPED, ""], ids=["dropped", "refused"])
@pytest.mark.parametrize(
    ("setting", "value"), [("idle_session_timeout", "5min"), ("quote_all_identifiers", "on")]
)
def test_what_a_transaction_cannot_set_is_refused_by_its_name(database, mode, opener, more, setting, value):
    with (
        pooled(database, mode, more=more, **{setting: value}) as dsn,
        pytest.raises(ConfigurationError) as caught,
    ):
        opener(dsn, application="tests")
    assert f"the connection to Postgres has {setting} = " in str(caught.value)
    assert "a pooler dropped or refused it as a startup option" in str(caught.value)
    assert f"alter role … set {setting} = " in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_is_waited_for_no_longer_than_it_may(connection, database, mode):
    with (
        pooled(database, mode, **CONTRARY) as dsn,
        closing(connect(dsn, application="w", timeout=0.5)) as waits,
    ):
        with transaction(connection) as cursor:
            cursor.execute("lock table exactbatch.pipeline")
            begin = time.monotonic()
            with (
                pytest.raises(PostgresUnavailable, match="lock timeout"),
                transaction(waits) as other,
            ):
                other.execute("select from exactbatch.pipeline")
            assert time.monotonic() - begin < 30
        with pytest.raises(PostgresUnavailable):
            hang(waits)


def hang(connection: Any) -> None:
    """What a driver does that is stopped while it holds locks."""
    with transaction(connection) as cursor:
        cursor.execute("lock table exactbatch.pipeline")
        time.sleep(1)
        cursor.execute("select 1")


@pytest.mark.parametrize("mode", MODES)
def test_launch_keeps_its_tables_and_leaves_nothing_on_pools_connections(
    connection, database, settings, make_pipeline, mode
):
    """Launch after launch, in a pool of few connections, beside other clients of it."""
    pipeline = make_pipeline(Topic("launches", {}))
    with pooled(database, mode, size=4, **CONTRARY) as dsn:
        through = Settings(kafka=settings.kafka, postgres=dsn)
        before = seen_by_others(dsn)
        with (
            closing(connect(dsn, application="exactbatch")) as own,
            closing(connect(dsn, application="x")) as other,
        ):
            first, second = StagingTables(1, 1111), StagingTables(2, 2222)
            with hold_launch(own, through, pipeline, first):
                assert staging(connection) == {first.rejects}
                with hold_launch(other, through, pipeline, second):
                    assert staging(connection) == {first.rejects, second.rejects}
                assert staging(connection) == {first.rejects}
            assert staging(connection) == set()
        assert locks(connection) == []
        assert seen_by_others(dsn) == before


def staging(connection: Any) -> set[str]:
    with transaction(connection):
        return set(list_staging_tables(connection))


def locks(connection: Any) -> list[Any]:
    """Locks that any other session holds on staging tables of the test's database."""
    with transaction(connection) as cursor:
        cursor.execute(
            "select l.* from pg_locks l join pg_database d on d.oid = l.database "
            "where datname = current_database() and l.pid <> pg_backend_pid() "
            "and l.relation in (select oid from pg_class where relnamespace = 'exactbatch_staging'::regnamespace)"
        )
        return list(cursor.fetchall())


def seen_by_others(dsn: str) -> dict[str, str]:
    """All settings that other clients find on the pool's connections, as many as there are."""
    found: dict[str, set[str]] = {}
    clients = [psycopg2.connect(make_dsn(dsn, application_name="other")) for _ in range(4)]
    for client in clients:  # each holds a connection of the pool by its transaction
        with client.cursor() as cursor:
            cursor.execute("select name, setting from pg_settings")
            for name, setting in cursor.fetchall():
                found.setdefault(name, set()).add(setting)
    for client in clients:
        client.close()
    return {name: " and ".join(sorted(settings)) for name, settings in found.items()}


@pytest.mark.parametrize("mode", MODES)
def test_a_pool_without_a_connection_to_give_is_named(connection, database, mode):
    more = "ignore_startup_parameters = options\nquery_wait_timeout = 1"
    with bouncer(database, mode, size=1, more=more) as through:
        held = psycopg2.connect(through)
        held.cursor().execute("select 1")
        try:
            with pytest.raises(PostgresUnavailable, match="the pooler had no free connection within its"):
                connect_arrow(through, application="tests")
            # psycopg2 does not pass on what PgBouncer says.
            with pytest.raises(PostgresUnavailable, match="server closed the connection unexpectedly"):
                connect(through, application="tests")
        finally:
            held.close()
