"""A database that goes back in time: a replica that lagged is promoted, or a copy is restored.

Results and offsets go back together, and nobody mistakes a batch for a lost one that had its number.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.batch.by_partition import partition_commit
from exactbatch.batch.by_partition.partition_commit import commit_range
from exactbatch.batch.by_partition.range_copy import RangeTask
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.fences import read_sink_facts
from exactbatch.errors import BatchLost, OffsetsLost, PostgresUnavailable
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, DagRun, Ledger, migrate
from exactbatch.ledger.schema import migrations
from exactbatch.operations.report import load_report
from exactbatch.planning.request import ReplayRequest
from exactbatch.planning.run import plan_run
from exactbatch.postgres import dsn as connection_strings
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from support.environment import HOME, LONG
from support.faults.failover import ANY_TIME, BY_RANGE, PLANNING, STAGED, Life
from support.faults.held import held
from support.faults.replicas import Pair
from support.waiting import wait_for

BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
SYNCHRONOUS: Final = {True: "synchronous", False: "behind"}
FEW: Final = [
    ("append", "publish.after_commit", True),
    ("upsert", "publish.before_commit", False),
    ("aggregate", "plan.after_commit", False),
    ("partition", "job.after_ranges", False),
]
ALL: Final = [
    (sink, moment, synchronous)
    for sink in ("append", "upsert", "aggregate", "transform", "partition")
    for moment in (*PLANNING, *(BY_RANGE if sink == "partition" else STAGED), ANY_TIME)
    for synchronous in SYNCHRONOUS
]

MakeLife = Callable[[str], Life]


@pytest.fixture(scope="module")
def pair():
    """Two servers of this module alone."""
    pair = Pair(HOME, f"pair-{os.getpid()}")
    try:
        yield pair
    finally:
        pair.close()


@pytest.fixture
def make_life(spark, pair, make_topic, tmp_path):
    """A pipeline with a sink by its name, in a database of its own on the pair."""
    made: list[Life] = []

    def make(sink: str) -> Life:
        made.append(Life(spark, pair, make_topic(2), tmp_path, sink))
        return made[-1]

    yield make
    pair.detach()
    for life in made:
        pair.ask(f"drop database {life.pipeline.name} with (force)")


@pytest.mark.slow
@pytest.mark.parametrize(("sink", "moment", "synchronous"), ALL if LONG else FEW)
def test_a_promotion_takes_results_and_offsets_back_together(pair, make_life, sink, moment, synchronous):
    life = make_life(sink)
    pair.attach(synchronous=synchronous)
    found = life.promoted(moment, synchronous=synchronous, chance=0.3)
    assert (found.lost > 0) == (not synchronous)


@dataclass(frozen=True)
class Given:
    """Stands for the connections of Airflow."""

    given: Settings
    kafka: str = "kafka_default"
    postgres: str = "postgres_default"
    spark: str = "spark_default"
    spark_history_url: str | None = None

    def settings(self) -> Settings:
        return self.given


def launch(life: Life, batch: Batch) -> None:
    """What Airflow does when process_batch is tried again or cleared, up to the start of Spark."""
    operator = ProcessBatchOperator(
        task_id="process_batch",
        connections=Given(life.case.settings),  # type: ignore[arg-type]
        pipeline="pipelines.flights:flights",
        batches=f'["{batch.pipeline}:{batch.batch_id}:{batch.plan_id}"]',
    )
    operator.execute({"ti": SimpleNamespace(dag_id=batch.dag_id, run_id=batch.run_id)})


def planned(life: Life, run: DagRun, request: ReplayRequest | None = None) -> Batch | None:
    """What plan_batch does for a DAG run."""
    with closing(connect(life.case.dsn, application="tests")) as connection:
        log = KafkaBroker(life.case.settings.kafka)
        return plan_run(connection, log, life.pipeline, run, request, origin="schedule").batch


def reported(life: Life, batch: Batch) -> dict[str, Any]:
    """What report_batch does: what the asset event carries, after the consumer group was set."""
    kafka = KafkaBroker(life.case.settings.kafka)
    report = load_report(life.case.dsn, kafka, life.pipeline, batch.batch_id, batch.plan_id)
    kafka.commit_group(f"exactbatch.{life.pipeline.name}", report.stored)
    return report.as_json()


def group_offset(life: Life) -> int:
    """The sum of what the advisory consumer group has."""
    offsets = KafkaBroker(life.case.settings.kafka).group_offsets(
        f"exactbatch.{life.pipeline.name}", life.pipeline.topics
    )
    return sum(offsets.values())


def test_restore_next_to_airflow_and_kafka_not_restored(pair, make_life, tmp_path):
    from exactbatch.airflow.versions import AirflowFailException

    life = make_life("append")
    runs = [DagRun("dag", f"scheduled__{n}", 0, BEGAN.replace(hour=n)) for n in range(8)]
    batches = []
    for run in runs[:2]:
        batches.append(planned(life, run))
        life.process(batches[-1])
        life.case.produce()
    reported(life, batches[-1])
    with pair.copied(tmp_path):
        for run in runs[2:4]:
            batches.append(planned(life, run))
            life.process(batches[-1])
            event = reported(life, batches[-1])
            life.case.produce()
    lost = batches[2]
    assert event["plan_id"] == str(batches[3].plan_id)

    # The consumer group is ahead of the stored offsets, until the next report sets it back.
    assert group_offset(life) == 160
    reported(life, batches[1])
    assert group_offset(life) == 80

    # Before anybody has planned again, and after another batch has got the number.
    with pytest.raises(BatchLost, match=f"batch {lost.batch_id} .plan {lost.plan_id}. is not in the ledger"):
        life.process(lost)
    anew = planned(life, runs[4])
    assert anew is not None
    assert (anew.batch_id, anew.plan_id == lost.plan_id) == (lost.batch_id, False)
    for speak in (life.process, lambda batch: reported(life, batch)):
        with pytest.raises(
            BatchLost, match=f"its number belongs to plan {anew.plan_id}.*nothing is half done"
        ):
            speak(lost)
    with pytest.raises(AirflowFailException, match="BatchLost: batch"):
        launch(life, lost)
    assert life.case.rows("select count(*) from exactbatch.batch_failure") == [(0,)]
    life.process(anew)
    with pytest.raises(AirflowFailException, match="BatchLost: batch"):
        launch(life, lost)  # and not "was committed at …: nothing was launched"
    assert reported(life, anew)["plan_id"] == str(anew.plan_id)
    assert group_offset(life) == life.case.sent == 200

    # What Airflow believes committed: clearing process_batch alone ends at once, clearing the run plans anew.
    life.case.produce()
    again = planned(life, replace(runs[2], clear_number=1))
    assert again is not None
    assert (again.kind, again.origin) == ("advance", "schedule")
    assert planned(life, replace(runs[2], clear_number=1)) == again
    life.process(again)
    assert planned(life, replace(runs[3], clear_number=1)) is None  # nothing new
    # A run from before still has its batch: it processes the exact ranges again.
    whole = planned(life, replace(runs[1], clear_number=1))
    assert whole is not None
    assert whole.kind == "replay"
    life.process(whole)
    life.case.assert_audited()
    assert life.case.rows(f"select count(*), sum(id) from {life.pipeline.name}") == [
        (life.case.sent, life.case.sent // 40 * sum(range(40)))
    ]


def range_task(life: Life, batch: Batch, until: int) -> RangeTask:
    """What a driver gave an executor for partition 0, which it has planned up to an offset."""
    with closing(connect(life.case.dsn, application="tests")) as connection:
        with transaction(connection):
            (range_,) = (
                each for each in Ledger(connection).batches.read_ranges(batch.batch_id) if each.partition == 0
            )
        with transaction(connection) as cursor:
            find_writer(life.pipeline.traits).prepare(cursor, life.pipeline.value.columns)
        with transaction(connection) as cursor:
            seen = read_sink_facts(cursor, find_writer(life.pipeline.traits))
    range_ = replace(range_, until_offset=until)
    settings = life.case.settings
    return RangeTask(
        range_, None, batch.batch_id, batch.plan_id, life.pipeline, settings.kafka, settings.postgres, seen
    )


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_executor_of_lost_batch_commits_nothing_over_one_that_has_its_number(make_life, monkeypatch, moment):
    """Its range begins where the other's does, and ends earlier: the rest would never be read."""
    life = make_life("partition")
    batch = life.plan()
    assert batch is not None
    lost = replace(batch, plan_id=UUID(int=1))
    task = range_task(life, lost, until=10)
    if moment == "meanwhile":
        monkeypatch.setattr(partition_commit, "_is_committed", lambda *_: False)
    error = commit_range(task, 1)
    assert isinstance(error, BatchLost)
    assert f"batch {batch.batch_id} (plan {lost.plan_id}) is not in the ledger" in str(error)
    assert f"its number belongs to plan {batch.plan_id}" in str(error)
    life.case.assert_nothing_written(batch.batch_id)
    with pytest.raises(BatchLost), closing(connect(life.case.dsn, application="tests")) as connection:
        partition_commit.commit_batch(connection, life.pipeline, lost.batch_id, lost.plan_id)
    life.process(batch)
    life.assert_exact()


def test_driver_whose_batch_is_lost_under_it_notes_no_failure_of_another_batch(make_life):
    life = make_life("append")
    batch = life.plan()
    assert batch is not None
    execute(life.case.dsn, f"update exactbatch.batch set plan_id = default where batch_id = {batch.batch_id}")
    with pytest.raises(BatchLost):
        life.process(batch)
    with closing(connect(life.case.dsn, application="tests")) as connection, transaction(connection):
        Ledger(connection).batches.record_failure(batch, RuntimeError("of the batch that is lost"))
    assert life.case.rows("select count(*) from exactbatch.batch_failure") == [(0,)]


def execute(dsn: str, statement: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.slow
def test_what_must_be_read_again_and_was_removed_is_an_error(pair, make_life, tmp_path, admin):
    from confluent_kafka import TopicPartition

    life = make_life("append")
    life.run()
    with pair.copied(tmp_path):
        life.case.produce()
        life.run()
        gone = [TopicPartition(life.pipeline.name, partition, 30) for partition in (0, 1)]
        for future in admin.delete_records(gone).values():
            future.result(30)
    with pytest.raises(OffsetsLost):
        life.plan()


@pytest.mark.slow
def test_old_primary_that_still_takes_writes_loses_what_it_was_told(pair, make_life):
    """Nothing of ours can fence it. What it committed is lost with it, and read again."""
    life = make_life("append")
    life.run()
    pair.attach(synchronous=False)
    life.case.produce()
    batch = life.plan()
    assert batch is not None
    pair.fall_behind()
    process = life.process
    with held(
        lambda action: life.act(lambda: process(batch), "publish.before_commit", action), life.gate("split")
    ) as running:
        old = pair.primary
        pair.promote()
        assert running.result().wrote
    old.kill()
    # It was planned before the replica fell behind: the same plan is there, and is processed once more.
    assert process(batch).wrote
    life.case.produce()
    assert life.retried(life.plan()) == "committed"  # type: ignore[arg-type]
    life.assert_exact()


@pytest.mark.slow
def test_standby_that_has_not_received_batch_is_worth_another_try(pair, make_life):
    life = make_life("partition")
    pair.attach(synchronous=False)
    pair.fall_behind()
    batch = life.plan()
    assert batch is not None
    standby = make_dsn(life.case.dsn, host="127.0.0.1", port=pair.replica.port, target_session_attrs="any")
    with pytest.raises(PostgresUnavailable, match=f"batch {batch.batch_id} is not in .* is a standby"):
        process_batch(
            DriverEngine(life.spark),
            life.pipeline,
            batch.batch_id,
            Settings(life.case.settings.kafka, standby),
            batch.plan_id,
        )
    with pytest.raises(PostgresUnavailable, match="the server is a standby, which may not have received"):
        commit_range(replace(range_task(life, batch, until=10), postgres=standby), 1)
    life.process(batch)
    life.assert_exact()


@contextmanager
def silent_host() -> Iterator[int]:
    """The port of a host that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.slow
def test_list_of_hosts_finds_primary_behind_dead_silent_and_standby_ones(pair, make_life, monkeypatch):
    monkeypatch.setattr(connection_strings, "CONNECT_TIMEOUT", 2)
    life = make_life("append")
    pair.attach(synchronous=False)
    with silent_host() as silent:
        dsn = make_dsn(
            life.case.dsn,
            host=",".join(["127.0.0.1"] * 4),
            port=f"1,{silent},{pair.replica.port},{pair.primary.port}",
        )
        with closing(connect(dsn, application="tests")) as connection:
            assert connection.info.port == pair.primary.port
        for read_only in (False, True):  # the second is the auditor's
            with (
                connect_arrow(dsn, application="tests", read_only=read_only) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("select inet_server_port()")
                assert cursor.fetchall() == [(pair.primary.port,)]


# What each migration changes: its table, and whether it has done so.
MIGRATED = {
    6: ("batch", "exists (select from pg_attribute where attname = 'plan_id')"),
    7: ("coverage", "exists (select from pg_class where relname = 'coverage' and relreplident = 'f')"),
    8: (
        "pipeline",
        "exists (select from pg_attribute "
        "where attrelid = to_regclass('exactbatch.pipeline') and attname = 'version')",
    ),
    9: ("batch", "exists (select from pg_attribute where attname = 'announced_at')"),
}


@pytest.mark.slow
@pytest.mark.parametrize("newest", MIGRATED)
def test_migration_killed_in_middle_leaves_ledger_as_it_was(pair, tmp_path, newest):
    """By a lock that it waits for, and a server that dies meanwhile."""
    table, done = MIGRATED[newest]
    for version, text in migrations()[: newest - 1]:
        (tmp_path / f"{version:04d}_old.sql").write_text(text)
    pair.ask("create database migrated")
    dsn = pair.dsn("migrated")
    with closing(connect(dsn, application="tests")) as connection:
        assert migrate(connection, tmp_path)[-1] == newest - 1
        with transaction(connection) as cursor:
            cursor.execute(
                "insert into exactbatch.pipeline (name, target, sink, lineage) "
                "values ('p', 't', 'append', 'record')"
            )
            cursor.execute(
                "insert into exactbatch.batch (pipeline, kind, origin) values ('p', 'replay', 'cli'), "
                "('p', 'replay', 'cli')"
            )
    blocker = psycopg2.connect(dsn)
    blocker.cursor().execute(f"lock table exactbatch.{table} in access share mode")
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with closing(connect(dsn, application="tests")) as connection:
                migrate(connection)
        except BaseException as error:
            failed.append(error)

    migrating = threading.Thread(target=run)
    migrating.start()
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    wait_for(lambda: pair.ask(waiting) == 1)
    pair.primary.kill()
    migrating.join(30)
    blocker.close()
    assert [type(each) for each in failed] == [PostgresUnavailable]
    pair.primary.start()
    with closing(connect(dsn, application="tests")) as connection:
        with transaction(connection) as cursor:
            cursor.execute("select max(version) from exactbatch.schema_version")
            assert cursor.fetchone() == (newest - 1,)
            cursor.execute(f"select {done}")
            assert cursor.fetchone() == (False,)
        assert migrate(connection)[0] == newest
        with transaction(connection) as cursor:
            cursor.execute(f"select {done}, count(distinct plan_id) from exactbatch.batch")
            assert cursor.fetchone() == (True, 2)
    pair.ask("drop database migrated with (force)")
