"""Rows are inserted while others are still staged: nobody waits for them, and nobody sees them before the commit."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from exactbatch import Json, Pipeline
from exactbatch.batch import job as batch_job
from exactbatch.batch.engines import driver_engine
from exactbatch.batch.publishing import insert_rows
from exactbatch.batch.publishing import publish as publish_module
from exactbatch.batch.publishing.early_inserts import EarlyInserts
from exactbatch.batch.staging import direct, stager
from exactbatch.batch.staging.staged_lineage import records_with_rows
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.errors import (
    Fenced,
    PostgresUnavailable,
    StagedRowsDiffer,
    TooManyRejects,
    TransformRefused,
)
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import transaction
from support.batch_runner import LINEAGE, BatchRunner, MakePipeline, MakeTopic
from support.faults.held import Held, held
from support.faults.worker_failpoints import Acting
from support.held_tasks import HeldPartition
from support.topics import record
from support.waiting import wait_for

LATE = 2  # the partition whose task waits
PUBLISHER = "application_name = 'exactbatch publish' and datname = current_database()"


BOTH = pytest.mark.parametrize("transformed", [False, True], ids=["direct", "transformed"])


def waiting_for(gate: Path) -> Callable[[DataFrame], DataFrame]:
    """A transform that changes nothing; in the task of the last partition it waits, as HeldPartition does."""

    def same(name, partition):
        if partition == LATE and not gate.exists():
            Path(f"{gate}.held").touch()
            while not gate.exists():
                time.sleep(0.05)
        return name

    return lambda records: records.withColumn("name", F.udf(same, "string")("name", "kafka_partition"))


class Scene:
    """Batches over three partitions, each staged into a table of its own; the task of the last one can wait."""

    def __init__(
        self, world: BatchRunner, topic: Any, pipeline: Pipeline, patch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        self.world, self.topic, self.pipeline, self._patch, self._folder = (
            world,
            topic,
            pipeline,
            patch,
            folder,
        )
        self.inserted = 0  # parts
        self.opened: list[EarlyInserts] = []
        # A transform's function is the same in all batches, and so is what it waits for.
        self._gate = folder / "gate" if pipeline.is_transformed else None
        patch.setattr(stager, "IN_PARTS_FROM", 1)
        patch.setattr(insert_rows, "failpoint", self._count)
        patch.setattr(batch_job, "EarlyInserts", self._open)

    def produce(self, *bad: int, count: int = 4) -> None:
        """Append records to each partition, and one more to some that the target cannot hold."""
        for partition in range(3):
            self.topic.produce(*(record(number, "abc") for number in range(count)), partition=partition)
        for partition in bad:
            self.topic.produce(record(99, "too long"), partition=partition)

    @contextmanager
    def staging(self, batch_id: int | None = None, *, parts: int = 2) -> Iterator[Held]:
        """Process a batch, so many parts of which are inserted while its last one is not staged."""
        batch_id = batch_id or self.world.plan(self.pipeline)
        gate = self._gate or self._folder / f"gate-{batch_id}-{len(self.opened)}"
        before = self.inserted
        with self._patch.context() as patch:
            patch.setattr(direct, "stage", HeldPartition(direct.stage, LATE, gate))
            with held(lambda _: self.world.process(self.pipeline, batch_id), gate) as batch:
                wait_for(lambda: self.inserted == before + parts, "parts")
                yield batch

    def locks(self) -> set[tuple[str, str]]:
        """Return the tables that the open transaction of the publisher locks against more than DDL, and how."""
        return set(
            self.world.rows(
                "select l.relation::regclass::text, l.mode from pg_locks l join pg_stat_activity a using (pid) "
                f"where {PUBLISHER} and l.granted and l.locktype = 'relation' and l.mode <> 'AccessShareLock'"
            )
        )

    def count(self) -> int:
        """Return how many rows of the target others see."""
        return len(self.world.target(self.pipeline, "1"))

    def _count(self, name: str) -> None:
        assert name == "publish.after_part"
        self.inserted += 1

    def _open(self, *arguments: Any, **named: Any) -> EarlyInserts:
        self.opened.append(EarlyInserts(*arguments, **named))
        return self.opened[-1]


@pytest.fixture
def scene(
    world: BatchRunner,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Callable[..., Scene]:
    def make(*, transformed: bool = False, **changes: Any) -> Scene:
        topic = make_topic(3)
        value = Json("id int, name varchar(3)")
        if transformed:
            changes["transform"] = waiting_for(tmp_path / "gate")
        pipeline = make_pipeline(topic, **{"value": value, **changes})
        world.execute(f"create table {pipeline.sink.target} (id int, name varchar(3), {LINEAGE})")
        return Scene(world, topic, pipeline, monkeypatch, tmp_path)

    return make


def test_nobody_waits_for_rows_that_are_inserted_while_others_are_staged(scene, make_topic, make_pipeline):
    scene = scene()
    world, pipeline = scene.world, scene.pipeline
    scene.produce()
    assert world.run(pipeline).batch.rows == 12
    scene.produce()
    other_topic = make_topic()
    other_topic.produce(record(7))
    other = make_pipeline(other_topic, sink=pipeline.sink, value=pipeline.value)
    with scene.staging() as batch:
        assert scene.count() == 12
        # The row of bound_transaction is of the transaction alone.
        assert {lock for lock in scene.locks() if not lock[0].startswith("exactbatch.bound_transaction")} == {
            (pipeline.name, "RowExclusiveLock")
        }
        # A batch of another pipeline, and a replay of this one.
        assert world.run(other).wrote
        request = ReplayRequest(batch_ids=(1,))
        replayed = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
        assert replayed is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(direct, "stage", direct.stage.work)
            assert world.process(pipeline, replayed).wrote
        assert batch.result().batch.rows == 12
    assert scene.count() == 25
    assert world.is_exact(pipeline)
    assert world.staging() == []


@BOTH
def test_pipeline_is_locked_when_all_rows_are_inserted(scene, monkeypatch, transformed):
    scene = scene(transformed=transformed)
    scene.produce()
    seen: list[tuple[str, int, bool]] = []

    def look(name: str) -> None:
        is_locked = ("exactbatch.pipeline", "RowShareLock") in scene.locks()
        seen.append((name, scene.inserted, is_locked))

    monkeypatch.setattr(publish_module, "failpoint", look)
    with scene.staging() as batch:
        assert batch.result().wrote
    assert seen[:4] == [
        ("publish.before_lock", 3, False),
        ("publish.after_advance", 3, True),
        ("publish.after_insert", 3, True),
        ("publish.before_commit", 3, True),
    ]


@BOTH
def test_batch_superseded_while_it_inserts_writes_nothing(scene, transformed):
    scene = scene(transformed=transformed)
    scene.produce()
    with scene.staging() as batch:
        later = scene.world.plan(scene.pipeline)
        with pytest.raises(Fenced, match="was superseded"):
            batch.result()
    assert scene.count() == 0
    assert scene.world.staging() == []
    assert scene.world.process(scene.pipeline, later).batch.rows == 12
    assert scene.world.is_exact(scene.pipeline)


def test_of_two_launches_that_insert_one_commits_and_other_takes_its_rows_back(scene):
    scene = scene()
    scene.produce()
    batch_id = scene.world.plan(scene.pipeline)
    with scene.staging(batch_id) as first:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(direct, "stage", direct.stage.work)
            assert scene.world.process(scene.pipeline, batch_id).wrote
        assert not first.result().wrote
    assert scene.count() == 12
    assert scene.world.is_exact(scene.pipeline)


@pytest.mark.parametrize("bad", [(0,), (LATE,), (0, LATE)])
@BOTH
def test_records_that_target_cannot_hold_are_rejected_whenever_they_are_staged(scene, bad, transformed):
    scene = scene(transformed=transformed, max_rejects=2)
    scene.produce(*bad)
    with scene.staging(parts=1 if 0 in bad else 2) as batch:
        assert scene.count() == 0
        published = batch.result().batch
    assert (published.records, published.rows, published.rejected) == (12 + len(bad), 12, len(bad))
    assert scene.world.is_exact(scene.pipeline)


@pytest.mark.parametrize("partition", [0, LATE])
def test_a_row_that_the_target_refuses_is_rejected_whenever_it_is_staged(scene, partition):
    scene = scene(max_rejects=1)
    scene.produce()
    scene.world.run(scene.pipeline)
    scene.world.execute(f"alter table {scene.pipeline.sink.target} add check (id <> 99)")
    scene.produce()
    scene.topic.produce(record(99, "abc"), partition=partition)
    published = scene.world.run(scene.pipeline).batch
    assert scene.opened[-1] is not scene.opened[0]
    assert (published.records, published.rows, published.rejected) == (13, 12, 1)
    assert scene.count() == 24
    assert scene.world.is_exact(scene.pipeline)


@pytest.mark.parametrize(
    ("record_", "transformed"),
    [
        pytest.param(record(99, "too long"), False, id="uncastable"),
        pytest.param(record(99, "too long"), True, id="uncastable, transformed"),
        # The transform would get no record of this part, and so not wait.
        pytest.param(b"no JSON", False, id="undecodable"),
    ],
)
def test_bad_record_of_last_part_fails_batch_and_its_retry_inserts_nothing_early(scene, record_, transformed):
    scene = scene(transformed=transformed)
    scene.produce()
    scene.topic.produce(record_, partition=LATE)
    batch_id = scene.world.plan(scene.pipeline)
    with scene.staging(batch_id) as batch, pytest.raises(TooManyRejects, match="1 or more of the 13 records"):
        batch.result()
    assert scene.count() == 0
    assert scene.world.staging() == []
    assert scene.inserted == 2
    with pytest.raises(TooManyRejects):
        scene.world.process(scene.pipeline, batch_id)
    assert scene.inserted == 2
    tolerant = replace(scene.pipeline, max_rejects=1)
    assert scene.world.process(tolerant, batch_id).batch.rows == 12
    assert scene.world.is_exact(tolerant)


@pytest.mark.parametrize(
    ("change", "retried"),
    [
        ("alter table {} add constraint positive check (id >= 0)", True),
        ("create function ignore() returns trigger language plpgsql as 'begin return null; end'; "
         "create trigger ignore before insert on {} for each row execute function ignore()", True),
        ("truncate {}", False),
        ("create index on {} (id)", False),
    ],
)  # fmt: skip
def test_a_session_that_changes_the_target_gets_its_lock_while_tasks_stage(scene, change, retried):
    scene = scene()
    scene.produce()
    batch_id = scene.world.plan(scene.pipeline)
    with scene.staging(batch_id) as batch:
        scene.world.execute(change.format(scene.pipeline.sink.target))
        if retried:
            with pytest.raises(StagedRowsDiffer, match="was changed while the batch ran"):
                batch.result()
            assert scene.count() == 0
        else:
            assert batch.result().batch.rows == 12
    if retried:
        scene.world.execute(f"drop trigger if exists ignore on {scene.pipeline.sink.target}")
        assert scene.world.process(scene.pipeline, batch_id).wrote
    assert scene.world.is_exact(scene.pipeline)


def test_rows_of_target_that_is_locked_by_others_are_inserted_at_the_end(scene):
    scene = scene()
    scene.produce()
    with closing(psycopg2.connect(scene.world.settings.postgres)) as other, other.cursor() as cursor:
        cursor.execute(f"lock table {scene.pipeline.sink.target} in share mode")

        def unlock(name: str) -> None:
            if name == "job.after_stage":
                assert scene.inserted == 0
                other.rollback()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_job, "failpoint", unlock)
            assert scene.world.run(scene.pipeline).batch.rows == 12
    assert scene.world.is_exact(scene.pipeline)


def test_deadlock_with_a_session_that_locks_pipeline_and_target_is_retryable(scene, monkeypatch):
    """The batch has inserted and waits for the pipeline; the other session has locked it and waits for the target."""
    scene = scene()
    scene.produce()
    batch_id = scene.world.plan(scene.pipeline)
    (target, name) = (scene.pipeline.sink.target, scene.pipeline.name)
    with closing(psycopg2.connect(scene.world.settings.postgres)) as other, other.cursor() as cursor:
        cursor.execute("set deadlock_timeout = '1h'")  # so that it is the batch that looks for a deadlock
        cursor.execute("select from exactbatch.pipeline where name = %s for update", (name,))
        lock = threading.Thread(
            target=cursor.execute, args=(f"lock table {target} in access exclusive mode",)
        )

        def at(moment: str) -> None:
            if moment == "publish.before_lock":
                lock.start()
                wait_for(lambda: scene.world.rows("select from pg_locks where not granted"))

        monkeypatch.setattr(publish_module, "failpoint", at)
        with pytest.raises(PostgresUnavailable, match="to resolve a deadlock with another session") as caught:
            scene.world.process(scene.pipeline, batch_id)
        assert caught.value.sqlstate == "40P01"
        lock.join()
    monkeypatch.undo()
    assert scene.count() == 0
    assert scene.world.process(scene.pipeline, batch_id).batch.rows == 12
    assert scene.world.is_exact(scene.pipeline)


def test_a_transaction_that_waits_for_tasks_is_not_ended_as_idle(scene, monkeypatch):
    """Neither while the last task stages, nor while Kafka is asked at the end."""
    scene = scene(publish_timeout=1.0)
    scene.produce()
    topic_ids = KafkaBroker.topic_ids

    def slow(self: KafkaBroker, topics: Any) -> Any:
        time.sleep(2.5)
        return topic_ids(self, topics)

    monkeypatch.setattr(KafkaBroker, "topic_ids", slow)
    with scene.staging() as batch:
        time.sleep(2.5)
        assert batch.result().batch.rows == 12
    assert scene.inserted == 3


def test_connection_that_ends_while_tasks_stage_fails_batch_and_retry_is_exact(scene):
    scene = scene()
    scene.produce()
    batch_id = scene.world.plan(scene.pipeline)
    with scene.staging(batch_id) as batch:
        scene.world.rows(f"select pg_terminate_backend(pid, 60000) from pg_stat_activity where {PUBLISHER}")
        with pytest.raises(PostgresUnavailable):
            batch.result()
    assert scene.count() == 0
    assert scene.world.staging() == []
    assert scene.world.process(scene.pipeline, batch_id).batch.rows == 12
    assert scene.world.is_exact(scene.pipeline)


@BOTH
def test_rows_of_a_transaction_that_has_ended_do_not_count(scene, transformed):
    scene = scene(transformed=transformed)
    scene.produce()
    batch_id = scene.world.plan(scene.pipeline)

    def roll_back(name: str) -> None:
        if name == "job.after_stage":
            scene.opened[-1].connection.rollback()

    with scene.staging(batch_id) as batch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_job, "failpoint", roll_back)
        with pytest.raises(
            StagedRowsDiffer, match=r"\b(8|12) rows were inserted while others were staged has ended"
        ):
            batch.result()
    assert scene.count() == 0


def test_rows_of_an_attempt_that_spark_has_replaced_in_the_end_do_not_count(scene, monkeypatch):
    scene = scene()
    scene.produce()
    on_executors = driver_engine.on_executors

    def replacing(*arguments: Any, **named: Any) -> Any:
        return [replace(each, attempt=each.attempt + 1000) for each in on_executors(*arguments, **named)]

    monkeypatch.setattr(driver_engine, "on_executors", replacing)
    with (
        scene.staging() as batch,
        pytest.raises(StagedRowsDiffer, match="later reported a different attempt"),
    ):
        batch.result()
    assert scene.count() == 0


def test_rows_of_a_task_attempt_that_died_after_its_copy_do_not_count(scene, monkeypatch, tmp_path):
    """Spark has not accepted it, and tries the task again, which stages into the same table."""
    scene = scene()
    scene.produce()
    killed = tmp_path / "killed"
    work = Acting(direct.stage, "stage.after_copy_commit", f"kill:{killed}", tmp_path / "came")
    monkeypatch.setattr(direct, "stage", work)
    assert scene.world.run(scene.pipeline).batch.rows == 12
    assert killed.exists()
    assert scene.count() == 12
    assert scene.world.is_exact(scene.pipeline)


def test_staged_rows_of_a_part_that_are_gone_fail_the_batch(scene):
    scene = scene()
    scene.produce()

    def lose_rows(name: str) -> None:
        if name == "job.after_stage":
            for table in scene.world.staging():
                if "rows" in table:  # the launch has locked its table of rejects
                    scene.world.execute(f'truncate exactbatch_staging."{table}"')

    def lose_tables(name: str) -> None:
        if name == "job.after_stage":
            for table in scene.world.staging():
                if "rows" in table:
                    scene.world.execute(f'drop table exactbatch_staging."{table}"')

    for lose, said in (
        (lose_rows, "expected the 4 rows that the task reported, found 0"),
        (lose_tables, "no longer"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_job, "failpoint", lose)
            patch.setattr(direct.DirectStager, "stage", _all_at_the_end(direct.DirectStager.stage))
            assert said in scene.world.refused(StagedRowsDiffer, scene.pipeline)


def _all_at_the_end(stage: Any) -> Any:
    def run(self: Any, _finished: Any = None) -> Any:
        return stage(self)

    return run


def test_rows_of_a_transform_in_parts_count_by_record(scene):
    """Where they do not come in the order of the log."""
    scene = scene()
    scene.produce()
    batch_id = scene.world.plan(scene.pipeline)
    tables, connection = StagingTables(batch_id, 7), scene.world.connection
    with transaction(connection) as cursor:
        create_rejects(cursor, tables)
        for part, offsets in ((0, (0, 1, 1)), (1, (2,))):
            create_rows(cursor, tables.of_part(part), ())
            cursor.executemany(
                f'insert into exactbatch_staging."{tables.of_part(part).rows}" '
                f"(task_attempt, kafka_topic, kafka_partition, kafka_offset) values ({part + 5}, %s, %s, %s)",
                [(scene.topic.name, part, offset) for offset in offsets],
            )
    ranges = Ledger(connection).ranges(batch_id)
    pieces = tuple(Staged(range_, range_.partition + 5, 4, 4, 0, 0) for range_ in ranges[:2])
    staged = StagedBatch(pieces, {5: 3, 6: 1}, {}, part_of={5: 0, 6: 1})
    assert records_with_rows(connection, tables, staged) == 3
    scene.world.execute(f'update exactbatch_staging."{tables.of_part(1).rows}" set kafka_offset = 99')
    with pytest.raises(
        TransformRefused, match=r"lineage \S+ partition 1 offset 99, which is not in the batch"
    ):
        records_with_rows(connection, tables, staged)
