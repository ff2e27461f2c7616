"""Members of a group that start at the same moment in a new database: none fails because another one was faster."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Aggregate, Append, Json, Pipeline, Together, Upsert, count
from exactbatch.errors import ExactbatchError, IdentityChanged, PostgresUnavailable
from exactbatch.ledger import Ledger, migrate
from exactbatch.postgres.connection import connect, transaction
from exactbatch.postgres.creation import create_schema
from support.databases import execute_alone
from support.environment import LONG
from support.staged_batches import Batches

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
    Aggregate(f"{NAME}_6", group_by=("id",), aggregates={"many": count()}),
    Together((Append(f"{NAME}_7"), Append(f"{NAME}_8"))),
    Together((Append(f"{NAME}_9"), Upsert(f"{NAME}_10", key=("id",)))),
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
    """The first batch of a member, from `exactbatch init` to the commit; returns the rows of two batches."""

    def run() -> tuple[int, int]:
        sink = SINKS[number]
        pipeline = Pipeline(name=f"group.{number}", topics=(f"t{number}",), value=Json(COLUMNS), sink=sink)
        with closing(connect(database, application="tests", timeout=20)) as connection:
            migrate(connection)
            made = Batches(connection, pipeline)
            rows = [(number * 100 + each, "a", *([False] if sink.keeps_deletes else [])) for each in range(3)]
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
