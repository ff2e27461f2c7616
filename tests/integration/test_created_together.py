"""Members of a group that start at the same moment in a new database: none fails because another one was faster."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Upsert
from exactbatch.errors import ExactbatchError, IdentityChanged, PostgresUnavailable
from exactbatch.ledger import Ledger, migrate
from exactbatch.postgres.connection import connect, transaction
from exactbatch.postgres.creation import create_named, create_schema
from exactbatch.sinks.upsert.change_index import ChangeIndex
from support.databases import execute_alone
from support.environment import LONG
from support.staged_batches import Batches
from support.waiting import wait_for
from support.writers import writer_of

ROUNDS = 100 if LONG else 5
# Postgres shortens the names that it chooses for the indexes of these tables to the same ones.
NAME = "new.orders_of_the_warehouse_in_the_north_by_day"
COLUMNS = "id int, name text"
SINKS = [
    Append(f"{NAME}_1"),
    Append(f"{NAME}_2"),
    Upsert(f"{NAME}_3", key=("id",)),
    Upsert(f"{NAME}_4", key=("id",), history=False),
    Upsert(f"{NAME}_5", key=("id",)),
    Upsert(f"{NAME}_5", key=("id",)),
    Aggregate(f"{NAME}_6", group_by=("id",), aggregates={"many": Count()}),
    [Append(f"{NAME}_7"), Append(f"{NAME}_8")],
    [Append(f"{NAME}_9"), Upsert(f"{NAME}_10", key=("id",))],
    Append(f"{NAME}_11", layout="by_batch"),
]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at the same moment; return their results, or their errors."""
    barrier = Barrier(len(calls))

    def make(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except ExactbatchError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return [*pool.map(make, calls)]


def member(database: str, number: int) -> Callable[[], tuple[int, int]]:
    """The first batch of a member, from `exactbatch register` to the commit; returns the rows of two batches."""

    def run() -> tuple[int, int]:
        sink = SINKS[number]
        pipeline = Pipeline(name=f"group.{number}", topics=(f"t{number}",), value=Json(COLUMNS), sink=sink)
        with closing(connect(database, application="tests", timeout=20)) as connection:
            migrate(connection)
            made = Batches(connection, pipeline)
            deleted = [False] if pipeline.traits.keeps_deletes else []
            rows = [(number * 100 + each, "a", *deleted) for each in range(3)]
            return made.run(*rows).batch.rows, made.run(*rows).batch.rows

    return run


@pytest.mark.slow
def test_ten_members_of_a_group_start_in_a_new_database(stack):
    for round_ in range(ROUNDS):
        name = f"new_{round_}"
        execute_alone(stack.postgres_dsn, f"create database {name}")
        try:
            database = make_dsn(stack.postgres_dsn, dbname=name)
            assert together(*(member(database, number) for number in range(len(SINKS)))) == [(3, 3)] * 10
        finally:
            execute_alone(stack.postgres_dsn, f"drop database {name} with (force)")


@pytest.fixture
def others(database, connection):
    """A second session."""
    with closing(connect(database, application="tests", timeout=20)) as other:
        yield other


def overtaking(connection: Any, other: Any, first: Callable[[Any], Any], then: Callable[[Any], Any]) -> Any:
    """Do `first` in one session, and `then` in another one that has begun to wait when the first one commits."""
    with ThreadPoolExecutor(1) as pool:
        with transaction(connection) as cursor:
            first(cursor)

            def late() -> Any:
                try:
                    with transaction(other) as late_cursor:
                        return then(late_cursor)
                except ExactbatchError as error:
                    return error

            result = pool.submit(late)
            pid = other.info.backend_pid

            def waits() -> bool:
                cursor.execute("select cardinality(pg_blocking_pids(%s)) > 0", (pid,))
                return result.done() or bool(cursor.fetchone()[0])

            wait_for(waits, "the other session", timeout=30)
        return result.result()


def test_a_schema_that_another_session_creates(connection, others):
    def create(cursor):
        create_schema(cursor, "new")

    assert overtaking(connection, others, create, create) is None
    # Also if it does not do it as exactbatch does.
    assert (
        overtaking(
            connection,
            others,
            lambda cursor: cursor.execute("create schema newer"),
            lambda cursor: create_schema(cursor, "newer"),
        )
        is None
    )


def test_a_table_that_another_session_creates(connection, others):
    def create(cursor):
        create_named(cursor, sql.SQL("create table if not exists public.new (id int)"))

    assert overtaking(connection, others, create, create) is None


def test_a_name_that_another_session_takes(connection, others):
    def create(number):
        return lambda cursor: writer_of(Append(f"public.{'x' * 50}_{number}")).prepare(
            cursor, Json(COLUMNS).columns
        )

    assert overtaking(connection, others, create(1), create(2)) is None
    with transaction(connection) as cursor:
        cursor.execute("select count(*) from pg_index where indrelid::regclass::text like 'xxx%'")
        assert cursor.fetchone()[0] == 2


def test_an_object_that_another_session_creates_is_a_retryable_error(connection, others):
    def create(cursor):
        cursor.execute("create schema new")

    error = overtaking(connection, others, create, create)
    assert isinstance(error, PostgresUnavailable)
    assert "another session created the same object at the same time" in str(error)


def test_of_two_registrations_at_the_same_time_the_second_is_checked_against_the_first(connection, others):
    pipeline = Pipeline(name="p", topics=("t",), value=Json(COLUMNS), sink=Append("public.t"))
    other = replace(pipeline, sink=Append("public.other"))
    error = overtaking(
        connection,
        others,
        lambda cursor: Ledger(cursor.connection).registry.register(pipeline),
        lambda cursor: Ledger(cursor.connection).registry.register(other),
    )
    assert isinstance(error, IdentityChanged)


def test_two_pipelines_write_their_first_changes_at_the_same_time(connection, others):
    """Each would lock the other's changes out to create their index: a deadlock."""
    sink = Upsert("public.t", key=("id",))
    members = [
        Batches(each, Pipeline(name=f"p{number}", topics=(f"t{number}",), value=Json(COLUMNS), sink=sink))
        for number, each in enumerate((connection, others))
    ]
    with transaction(connection) as cursor:
        writer_of(sink).prepare(cursor, members[0].columns)
    inserted = Barrier(2)
    index = ChangeIndex(writer_of(sink).lineage_table, sink.key)

    def first_changes(each: Batches) -> Callable[[], int]:
        def insert() -> int:
            with transaction(each.connection) as cursor:
                statement = f"insert into t_change select {id(each) % 1000}, 'a', false, 't', 0, 0, now(), 1"

                def write() -> int:
                    cursor.execute(statement)
                    inserted.wait(20)
                    return int(cursor.rowcount)

                return index.insert(cursor, write)

        return insert

    assert together(*map(first_changes, members)) == [1, 1]
    with transaction(connection) as cursor:
        cursor.execute("select count(*) from pg_index where indrelid = 't_change'::regclass")
        assert cursor.fetchone()[0] == 2
