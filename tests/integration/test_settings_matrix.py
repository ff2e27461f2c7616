"""Whatever a role, a database, the environment or a pooler sets: the same values as without, or refused by name.

Each condition is tried with every sink: a run, a replay of everything, and an audit of the values. Whole in the
long form; the short form has all settings of a role at once, all of the environment, and PgBouncer.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch import Aggregate, Append, Count, Json, Max, Min, Pipeline, Sum, Tuning, Upsert, Window
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError
from exactbatch.ledger import Ledger, migrate
from exactbatch.local import LocalStack
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner
from support.bouncer import bouncer
from support.logins import LOGIN, as_login
from support.postgres_versions import TESTED
from support.topics import Topic

TEXTS: Final = ("Müller €", "zażółć", "漢字 🐘", 'it\'s \\n "q"')
RECORDS: Final = [
    {
        "id": number,
        "name": text,
        "at": f"2026-01-0{number + 1}T23:30:00Z",
        "moment": f"2026-07-0{number + 1} 10:00:00+02",
        "time": f"1{number}:00+01",
        "span": "-1 day +02:03:04",
        "day": f"2026-02-0{number + 1}",
        "ratio": [0.1, 5e-324, 1.7976931348623157e308, -0.1][number],
        "amount": "12345678.90",
        "body": "a\\x00\\134 ü",
        "words": ["NULL", "null", 'with "quotes"', "b\\c"],
        "flag": number % 2 == 0,
    }
    for number, text in enumerate(TEXTS)
]
# What the target makes of the text of a record; the columns of commit="partition" need no cast.
CAST: Final = {
    "moment": "timestamptz",
    "time": "timetz",
    "span": "interval",
    "day": "date",
    "amount": "numeric(12,2)",
}
# What Postgres itself writes depends on the session: a column of the target that no record fills shows it.
TOLD: Final = (
    "told text default timestamptz '2026-01-01T00:00:00Z'::text || interval '-1 day +02:03:04'::text "
    "|| bytea '\\x61'::text || (float8 '0.1' + float8 '0.2')::text"
)
OWN: Final = {
    "id": "int",
    "name": "text",
    "at": "timestamptz",
    "ratio": "double precision",
    "body": "bytea",
    "words": "text[]",
    "flag": "bool",
}
SCHEMA: Final = ", ".join(f"{name} {type_}" for name, type_ in (OWN | dict.fromkeys(CAST, "text")).items())
AMOUNTS: Final = SCHEMA.replace("amount text", "amount numeric(12,2)").replace("day text", "day date")
LINEAGE: Final = (
    "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint"
)
MEASURES: Final = {"events": Count(), "total": Sum("amount"), "first": Min("day"), "last": Max("at")}
SINKS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "append": lambda table: {"sink": Append(table)},
    "partition": lambda table: {"sink": Append(table), "commit": "partition"},
    "upsert": lambda table: {"sink": Upsert(table, key=("id",))},
    "aggregate": lambda table: {
        "value": Json(AMOUNTS),
        "sink": Aggregate(
            table, group_by=("name", Window("at", "1 day", "window_start")), aggregates=MEASURES
        ),
    },
}


@dataclass(frozen=True)
class Condition:
    """What is set where; `refused` is what the message says where nothing else will do."""

    role: Mapping[str, str] = field(default_factory=dict)
    database: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    options: str = ""
    pool_mode: str = ""
    refuses_options: bool = False
    refused: str = ""


# The first versions of Postgres that have these.
SINCE: Final = {
    "stats_fetch_consistency": 15,
    "createrole_self_grant": 16,
    "debug_parallel_query": 16,
    "transaction_timeout": 17,
}
# Each as a role has it, with a value that is not the usual one.
_ALL: Final = {
    "client_encoding": "LATIN1",
    "timezone": "America/New_York",
    "timezone_abbreviations": "Australia",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "search_path": "evil, pg_catalog, public",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "lock_timeout": "1ms",
    "statement_timeout": "3s",
    "idle_in_transaction_session_timeout": "20ms",
    "idle_session_timeout": "2s",
    "transaction_timeout": "3s",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "xmloption": "document",
    "xmlbinary": "hex",
    "transform_null_equals": "on",
    "backslash_quote": "on",
    "escape_string_warning": "off",
    "synchronous_commit": "off",
    "exit_on_error": "on",
    "gin_fuzzy_search_limit": "1",
    "check_function_bodies": "off",
    "plan_cache_mode": "force_generic_plan",
    "wal_skip_threshold": "0",
    "synchronize_seqscans": "off",
    "stats_fetch_consistency": "snapshot",
    "work_mem": "64kB",
    "enable_seqscan": "off",
    "enable_hashagg": "off",
    "jit_above_cost": "0",
    "debug_parallel_query": "on",
    "client_min_messages": "error",
    "createrole_self_grant": "set",
    "lo_compat_privileges": "on",
    "track_activities": "off",
}
ROLE: Final = {name: value for name, value in _ALL.items() if not TESTED or SINCE.get(name, 0) <= TESTED}
OTHERS: Final = {
    "datestyle": ("German, DMY", "Postgres, MDY"),
    "intervalstyle": ("iso_8601", "postgres_verbose"),
    "client_encoding": ("WIN1252", "EUC_JP", "SQL_ASCII"),
    "timezone": ("Asia/Kathmandu",),
    "extra_float_digits": ("3",),
    "search_path": ("",),
    "default_transaction_isolation": ("repeatable read",),
    "synchronous_commit": ("local",),
}
ENVIRONMENT: Final = {
    "PGCLIENTENCODING": "LATIN1",
    "PGTZ": "America/New_York",
    "PGDATESTYLE": "SQL, DMY",
    "PGOPTIONS": "-c intervalstyle=sql_standard -c lock_timeout=1ms -c search_path=evil",
    "PGAPPNAME": "another",
    "PGCONNECT_TIMEOUT": "1",
    "TZ": "Asia/Tokyo",
}
# What a pooler that drops startup options cannot be helped with.
OUTSIDE: Final = ("idle_session_timeout", "quote_all_identifiers")
# Between the beginning of a transaction and its settings the login's own timeout counts.
POOLED: Final = {name: value for name, value in ROLE.items() if name not in OUTSIDE} | {
    "idle_in_transaction_session_timeout": "3s"
}
REFUSED: Final = {
    "session_replication_role": ("replica", "local"),
    "zero_damaged_pages": ("on",),
    "ignore_checksum_failure": ("on",),
}
CONDITIONS: Final = {
    **{f"role: {name}={value}": Condition(role={name: value}) for name, value in ROLE.items()},
    **{
        f"role: {name}={value}": Condition(role={name: value})
        for name, values in OTHERS.items()
        for value in values
    },
    **{
        f"role: {name}={value}": Condition(
            role={name: value}, refused=f"has {name} = {value}, and exactbatch needs"
        )
        for name, values in REFUSED.items()
        for value in values
    },
    **{f"environment: {name}": Condition(environment={name: value}) for name, value in ENVIRONMENT.items()},
    "database: all at once": Condition(database=ROLE),
    "role: all at once": Condition(role=ROLE),
    "environment: all at once": Condition(environment=ENVIRONMENT),
    "options of the connection string": Condition(options="-c timezone=Asia/Tokyo -c lock_timeout=1ms"),
    "PgBouncer, session pooling": Condition(role=POOLED, pool_mode="session"),
    "PgBouncer, transaction pooling": Condition(role=POOLED, pool_mode="transaction"),
    "PgBouncer that refuses options": Condition(role=POOLED, pool_mode="transaction", refuses_options=True),
    **{
        f"PgBouncer, {name}": Condition(
            role={name: ROLE[name]}, pool_mode="transaction", refused="a pooler dropped or refused it"
        )
        for name in OUTSIDE
    },
}
SHORT: Final = {
    "role: all at once": tuple(SINKS),
    "environment: all at once": ("append",),
    "PgBouncer, session pooling": ("upsert",),
    "PgBouncer, transaction pooling": ("append", "partition", "aggregate"),
    "PgBouncer that refuses options": ("append", "upsert"),
}


@dataclass(frozen=True)
class Place:
    """A database with a ledger, its topic, and what every sink makes of it where nothing is set."""

    spark: Any
    stack: LocalStack
    dsn: str
    topic: Topic
    control: dict[str, list[Any]]


@pytest.fixture(scope="module")
def place(spark, stack, make_topic_once):
    """One for all conditions."""
    name = f"d{uuid.uuid4().hex[:12]}"
    execute(stack.postgres_dsn, f"create database {name}")
    dsn = str(make_dsn(stack.postgres_dsn, dbname=name))
    with closing(connect(dsn, application="tests")) as connection:
        migrate(connection)
    execute(
        dsn,
        # Whoever looks names up here first compares in another way.
        "create schema evil; create operator evil.= (leftarg = text, rightarg = text, function = textne); "
        "create function evil.hashtextextended(text, bigint) returns bigint language sql return 1",
    )
    topic = make_topic_once(2)
    for number, record in enumerate(RECORDS):
        topic.produce(json.dumps(record).encode(), partition=number % 2)
    place = Place(spark, stack, dsn, topic, {})
    for sink in SINKS:
        place.control[sink] = outcome(place, sink, dsn)
    yield place
    execute(stack.postgres_dsn, f"drop database {name} with (force)")


def neutral(dsn: str) -> Any:
    """A connection that neither the environment nor the database has any say in."""
    usual = (
        "timezone=UTC datestyle=ISO intervalstyle=postgres extra_float_digits=1 bytea_output=hex lock_timeout=0 "
        "statement_timeout=0 default_transaction_read_only=off exit_on_error=off "
        "default_transaction_isolation=read\\ committed standard_conforming_strings=on array_nulls=on "
        "search_path=public idle_in_transaction_session_timeout=0 idle_session_timeout=0"
    )
    if "transaction_timeout" in ROLE:
        usual += " transaction_timeout=0"
    options = re.sub(r"(?<!\\)\b(?=\w+=)", "-c ", usual)
    with pytest.MonkeyPatch.context() as patch:
        for name in ENVIRONMENT:
            patch.delenv(name, raising=False)
        return psycopg2.connect(make_dsn(dsn, options=options, client_encoding="UTF8"))


def execute(dsn: str, *statements: str) -> None:
    with closing(neutral(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def outcome(place: Place, sink: str, dsn: str) -> list[Any]:
    """What the target holds after a run and after a replay of all, read by a login that sets nothing."""
    name = f"{sink}_{uuid.uuid4().hex[:8]}"
    changes = {"value": Json(SCHEMA), **SINKS[sink](f"public.{name}")}
    pipeline = Pipeline(
        name=name,
        topics=(place.topic.name,),
        tuning=Tuning(read_timeout="10 seconds", lock_timeout="10 seconds"),
        **changes,
    )
    if sink in ("append", "upsert"):
        columns = {**{n: t.replace("bool", "boolean") for n, t in OWN.items()}, **CAST}
        key = "primary key (id)" if sink == "upsert" else LINEAGE
        definitions = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
        execute(place.dsn, f"create table public.{name} ({definitions}, {TOLD}, {key})")
    settings = Settings(kafka=place.topic.properties, postgres=dsn)
    with closing(connect(dsn, application="tests", timeout=10)) as connection:
        world = BatchRunner(place.spark, connection, settings)
        with transaction(connection):
            Ledger(connection).registry.register(pipeline)
        assert world.run(pipeline).batch.records == len(RECORDS)
        after_run = rows(place, name)
        ranges = tuple(RequestedRange(place.topic.name, partition, 0, 2) for partition in (0, 1))
        request = ReplayRequest(ranges=ranges)
        batch_id = freeze_replay(connection, world.log, pipeline, request, origin="cli").batch_id
        assert batch_id is not None
        assert world.process(pipeline, batch_id).batch.records == len(RECORDS)
        assert rows(place, name) == after_run
        report = audit(pipeline, settings, values=True)
        assert report.is_exact, report
        assert world.staging() == []
    return after_run


def rows(place: Place, table: str) -> list[Any]:
    """The rows of a target, as text, without what tells one batch from another."""
    with closing(neutral(place.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select column_name from information_schema.columns where table_name = %s "
            "and column_name not in ('batch_id', 'kafka_topic', 'revisions') order by 1",
            (table,),
        )
        columns = [sql.SQL("{}::text").format(sql.Identifier(name)) for (name,) in cursor.fetchall()]
        cursor.execute(
            sql.SQL("select {} from {} order by 1, 2, 3, 4").format(
                sql.SQL(", ").join(columns), sql.Identifier("public", table)
            )
        )
        return list(cursor.fetchall())


@contextmanager
def under(place: Place, condition: Condition) -> Iterator[str]:
    """The connection string of a login for which it is so; and the environment."""
    login, database = f"login_{time.monotonic_ns()}", parse_dsn(place.dsn)["dbname"]
    execute(place.dsn, f"create role {login} superuser {LOGIN}")
    with ExitStack() as stack:
        stack.callback(
            execute,
            place.dsn,
            f"alter database {database} reset all",
            f"reassign owned by {login} to postgres",
            f"drop role {login}",
        )
        for owner, values in (
            (f"role {login}", condition.role),
            (f"database {database}", condition.database),
        ):
            for name, value in values.items():
                # A path is a list of names, which quotes would make one.
                written = value or "''" if name == "search_path" else f"'{value}'"
                execute(place.dsn, f"alter {owner} set {name} to {written}")
        dsn = as_login(place.dsn, login)
        if condition.options:
            dsn = str(make_dsn(dsn, options=condition.options))
        if condition.pool_mode:
            more = "" if condition.refuses_options else "ignore_startup_parameters = options"
            dsn = stack.enter_context(bouncer(dsn, condition.pool_mode, logins=[login], more=more))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in condition.environment.items():
            patch.setenv(name, value)
            patch.setitem(place.spark.sparkContext.environment, name, value)
        yield dsn


def check(place: Place, name: str, sink: str) -> None:
    condition = CONDITIONS[name]
    with under(place, condition) as dsn:
        if not condition.refused:
            assert outcome(place, sink, dsn) == place.control[sink]
            return
        for opener in (connect, connect_arrow):
            with pytest.raises(ConfigurationError) as caught:
                opener(dsn, application="tests")
            assert condition.refused in str(caught.value)


def test_the_control_is_what_the_records_say(place):
    """Without it all conditions could be wrong in the same way."""
    with closing(psycopg2.connect(place.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select name from exactbatch.pipeline where sink = 'append' order by registered_at")
        for (name,) in cursor.fetchall():
            cursor.execute(
                sql.SQL(
                    "select id, name, at at time zone 'UTC', ratio, convert_from(body, 'UTF8'), words, flag "
                    "from {} order by id"
                ).format(sql.Identifier("public", name))
            )
            found = [list(row) for row in cursor.fetchall()]
            assert [[i, n, f"{at:%Y-%m-%dT%H:%M:%SZ}", *rest] for i, n, at, *rest in found] == [
                [r[column] for column in ("id", "name", "at", "ratio", "body", "words", "flag")]
                for r in RECORDS
            ]
        cursor.execute(
            sql.SQL(
                "select (moment at time zone 'UTC')::text, time::text, span::text, day::text, "
                "amount::text from {} order by id limit 1"
            ).format(sql.Identifier("public", first_append(cursor)))
        )
        assert cursor.fetchone() == (
            "2026-07-01 08:00:00",
            "10:00:00+01",
            "-1 days +02:03:04",
            "2026-02-01",
            "12345678.90",
        )


def first_append(cursor: Any) -> str:
    """The control's target with types of its own."""
    cursor.execute(
        "select table_name from information_schema.columns where column_name = 'span' and data_type = 'interval' "
        "and table_name like 'append%' limit 1"
    )
    return str(cursor.fetchone()[0])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sink"), [(name, sink) for name, sinks in SHORT.items() for sink in sinks])
def test_what_is_set_elsewhere_changes_nothing(place, name, sink):
    check(place, name, sink)


@pytest.mark.long
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("name", CONDITIONS)
def test_every_setting_changes_nothing_or_is_refused(place, name, sink):
    check(place, name, sink)


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252", "EUC_JP", "SQL_ASCII"])
def test_a_database_that_is_not_utf_8_is_refused(stack, encoding):
    """By whatever connects, as `exactbatch register` does first."""
    name = f"d{uuid.uuid4().hex[:12]}"
    execute(
        stack.postgres_dsn,
        f"create database {name} encoding '{encoding}' template template0 lc_collate 'C' lc_ctype 'C'",
    )
    try:
        for opener in (connect, connect_arrow):
            with pytest.raises(ConfigurationError) as caught:
                opener(make_dsn(stack.postgres_dsn, dbname=name), application="tests")
            assert f"has server_encoding = {encoding}, and exactbatch needs UTF8" in str(caught.value)
            assert "create database … encoding 'UTF8' template template0" in str(caught.value)
    finally:
        execute(stack.postgres_dsn, f"drop database {name} with (force)")
