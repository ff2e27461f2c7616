"""What docs/failover.md says: a dump has ledger and targets of one moment, and goes on from there."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Json, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import BatchLost
from exactbatch.ledger import Ledger
from exactbatch.local.postgres import executables
from exactbatch.postgres.connection import connect, transaction
from support.batch_runner import BatchRunner
from support.databases import execute_alone
from support.replays import Replays, ranges
from support.topics import record

# As on the page: staging tables come and go while the dump runs, and nobody needs them.
DUMP = ("--format=custom", "--exclude-table=exactbatch_staging.*")


def client(name: str, *arguments: str) -> None:
    """Run a client of Postgres."""
    done = subprocess.run([executables() / name, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def restored(world: BatchRunner, database: str, tmp_path: Path) -> Iterator[Callable[[], BatchRunner]]:
    """A function that restores the dump `tmp_path/dump` into a database of its own, and returns a runner in it."""
    dsn = make_dsn(database, dbname=f"restored_{world.connection.info.dbname}")
    connections: list[Any] = []

    def restore() -> BatchRunner:
        execute_alone(database, f"create database restored_{world.connection.info.dbname}")
        client("pg_restore", "--exit-on-error", f"--dbname={dsn}", str(tmp_path / "dump"))
        connections.append(connect(dsn, application="tests", timeout=10))
        return BatchRunner(world.spark, connections[0], replace(world.settings, postgres=dsn))

    yield restore
    for each in connections:
        each.close()
    execute_alone(database, f"drop database if exists restored_{world.connection.info.dbname} with (force)")


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_restored_dump_goes_on_from_its_moment(
    world, restored, database, make_topic, make_pipeline, tmp_path, kind
):
    topic = make_topic()
    upsert = {"sink": Upsert(f'public."{topic.name}"', key=("id",)), "message_key": Json("id int")}
    pipeline = make_pipeline(topic, max_rejects=1, **(upsert if kind == "upsert" else {}))
    topic.produce(*map(record, range(5)), b"no JSON")
    world.run(pipeline)
    topic.produce(*map(record, range(5, 8)))
    planned = world.plan(pipeline)
    # A batch is at work: its staging table is neither dumped nor waited for.
    world.execute("create unlogged table exactbatch_staging.rows_1_1 (id int)")
    other = psycopg2.connect(database)
    with other, other.cursor() as cursor:
        cursor.execute("lock table exactbatch_staging.rows_1_1 in access exclusive mode")
        client("pg_dump", *DUMP, f"--file={tmp_path / 'dump'}", f"--dbname={database}")
    other.close()
    world.process(pipeline, planned)
    topic.produce(*map(record, range(8, 10)))
    lost = world.plan(pipeline)
    with transaction(world.connection):
        lost_plan = Ledger(world.connection).batches.read(lost).plan_id
    world.process(pipeline, lost)

    then = restored()
    assert then.rows("select count(*) from pg_tables where schemaname = 'exactbatch_staging'") == [(0,)]
    assert then.rows(f'select count(*) from public."{topic.name}"') == [(5,)]
    assert audit(pipeline, then.settings, values=True).is_exact
    with transaction(then.connection), pytest.raises(BatchLost):
        Ledger(then.connection).batches.read(lost, lost_plan)
    then.process(pipeline, planned)  # planned before the dump
    then.run(pipeline)
    assert then.rows(f'select id from public."{topic.name}" order by 1') == [(each,) for each in range(10)]
    assert audit(pipeline, then.settings, values=True).is_exact


def test_a_target_that_was_restored_alone_is_found_and_mended_by_a_replay(
    world, database, make_topic, make_pipeline, tmp_path
):
    topic = make_topic()
    pipeline: Pipeline = make_pipeline(topic)
    topic.produce(*map(record, range(5)))
    world.run(pipeline)
    table = f'public."{topic.name}"'
    client("pg_dump", *DUMP, f"--table={table}", f"--file={tmp_path / 'dump'}", f"--dbname={database}")
    topic.produce(*map(record, range(5, 8)))
    world.run(pipeline)
    world.execute(f"drop table {table}")
    client("pg_restore", "--exit-on-error", f"--dbname={database}", str(tmp_path / "dump"))
    findings = audit(pipeline, world.settings).findings
    assert (findings["missing"], findings["miscounted"]) == (3, 1)
    Replays(world).run(pipeline, ranges((5, 8), topic=topic))
    assert world.rows(f"select count(*) from {table}") == [(8,)]
    assert audit(pipeline, world.settings, values=True).is_exact
