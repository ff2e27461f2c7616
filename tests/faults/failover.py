"""Batches of one pipeline while its primary is lost and a replica takes its place."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from cases import Case
from held import InProcess, acting, held
from replicas import Pair

from conftest import Topic
from exactbatch import Upsert
from exactbatch.advance import plan
from exactbatch.batch_job import process_batch
from exactbatch.errors import BatchLost, ExactbatchError
from exactbatch.kafka_log import KafkaLog
from exactbatch.ledger import Batch, Ledger, connect, transaction
from exactbatch.publish import Published
from exactbatch.report import load_report

PLANNING: Final = ("plan.before_commit", "plan.after_commit")
STAGED: Final = (
    "job.before_stage",
    "stage.before_copy_commit",
    "stage.after_copy_commit",
    "job.after_stage",
    "publish.after_advance",
    "publish.after_insert",
    "publish.before_commit",
    "publish.after_commit",
)
BY_RANGE: Final = (
    "job.before_ranges",
    "partition.before_locks",
    "partition.after_locks",
    "partition.before_commit",
    "partition.after_commit",
    "job.after_ranges",
    "partition.before_batch_commit",
    "partition.after_batch_commit",
)
ANY_TIME: Final = "any time"
_TRIES: Final = 6


@dataclass(frozen=True)
class Promotion:
    """What one promotion took back. `read_again` counts offsets, `lost` batches that were acknowledged before."""

    sink: str
    synchronous: bool
    moment: str
    lost: int
    read_again: int
    ended: str
    seconds: float


class Life:
    """A pipeline on a pair of servers, and what its drivers were told."""

    def __init__(self, spark: Any, pair: Pair, topic: Topic, folder: Path, sink: str) -> None:
        pair.ask(f"create database {topic.name}")
        self.spark, self.pair, self.sink = spark, pair, sink
        self.case = Case(InProcess(spark), topic, pair.dsn(topic.name), folder, sink, pad=20)
        self.pipeline = self.case.pipeline
        self._told: list[Batch] = []
        self._number = 0

    @property
    def moments(self) -> tuple[str, ...]:
        """Where a promotion can meet a batch."""
        return (*PLANNING, *(BY_RANGE if self.pipeline.commit == "partition" else STAGED), ANY_TIME)

    def plan(self) -> Batch | None:
        """What plan_batch does: the batch goes into XCom, by its number and its plan."""
        with closing(connect(self.case.dsn, application="tests")) as connection:
            batch_id = plan(connection, KafkaLog(self.case.settings.kafka), self.pipeline, origin="schedule")
            if batch_id is None:
                return None
            with transaction(connection):
                return Ledger(connection).batch(batch_id)

    def process(self, batch: Batch) -> Published:
        """What process_batch does."""
        published = process_batch(
            self.spark, self.pipeline, batch.batch_id, self.case.settings, batch.plan_id
        )
        self._told.append(published.batch)
        return published

    def retried(self, batch: Batch) -> str:
        """What Airflow's retries do; how they end."""
        for _ in range(_TRIES):
            try:
                return "committed" if self.process(batch).wrote else "was committed"
            except ExactbatchError as error:
                if not error.retryable:
                    return type(error).__name__
        raise AssertionError(f"{batch} does not end")

    def run(self) -> Batch:
        """Plan and process a batch that there must be."""
        batch = self.plan()
        assert batch is not None
        return self.process(batch).batch

    def promoted(self, moment: str, *, synchronous: bool, lost: int = 1, chance: float = 0.0) -> Promotion:
        """Promote a replica while a batch is at a moment, after `lost` batches that it has not received.

        `chance` is after what share of a second, where the moment is any time. Checks everything afterwards.
        """
        began = time.monotonic()
        self._told.clear()
        self.case.produce()
        self.run()
        if not synchronous:
            self.pair.fall_behind()
        for _ in range(0 if synchronous else lost):
            self.case.produce()
            self.run()
        self.case.produce()
        ended = self._overtaken(moment, chance)
        gone = self._gone()
        assert not gone or not synchronous, f"synchronous replication has lost {gone}"
        assert synchronous or len(gone) >= lost
        again = sum(each.records or 0 for each in gone)
        self._check_refused(gone)
        self.case.produce()
        while (batch := self.plan()) is not None:
            assert self.retried(batch) == "committed"
        self.assert_exact()
        return Promotion(self.sink, synchronous, moment, len(gone), again, ended, time.monotonic() - began)

    def assert_exact(self) -> None:
        """By the audit, by sums, and each record by itself: none twice."""
        self.case.assert_exact()
        if self.sink != "aggregate":
            table = self.pipeline.sink.contributions.table_name[1]
            twice = "group by kafka_partition, kafka_offset having count(*) > 1"
            assert self.case.rows(f"select from public.{table} {twice}") == []
            assert self.case.rows(f"select count(*) from public.{table}") == [(self.case.sent,)]
        assert isinstance(self.pipeline.sink, Upsert) or self.case.rows(
            "select sum(rows)::int from exactbatch.batch where status = 'committed'"
        ) == [(self.case.sent,)]

    def _overtaken(self, moment: str, chance: float) -> str:
        """Fail over while a batch is at a moment; how the batch ends."""
        if moment == ANY_TIME:
            batch = self.plan()
            assert batch is not None
            with ThreadPoolExecutor(1) as pool:
                started = pool.submit(self.process, batch)
                time.sleep(chance)
                self.pair.fail_over()
                return _outcome(started.result) or self.retried(batch)
        if moment in PLANNING:
            with held(partial(self._act, self.plan, moment), self._gate(moment)) as planning:
                self.pair.fail_over()
                return _outcome(planning.result)
        batch = self.plan()
        assert batch is not None
        with held(partial(self._act, partial(self.process, batch), moment), self._gate(moment)) as running:
            self.pair.fail_over()
            return _outcome(running.result) or self.retried(batch)

    def _act(self, what: Callable[[], Any], moment: str, action: str) -> Any:
        with acting(self.spark, moment, action):
            return what()

    def _gate(self, moment: str) -> Path:
        self._number += 1
        return self.case.folder / f"{self.pipeline.name}-{self._number}-{moment}"

    def _gone(self) -> list[Batch]:
        """Batches that a driver was told are committed, and that are not."""
        committed = {
            row[0]
            for row in self.case.rows("select plan_id::text from exactbatch.batch where status = 'committed'")
        }
        return [each for each in self._told if str(each.plan_id) not in committed]

    def _check_refused(self, gone: list[Batch]) -> None:
        """Whoever still speaks of a batch that is gone is told so."""
        kafka = KafkaLog(self.case.settings.kafka)
        for each in gone:
            if self.case.rows(f"select from exactbatch.batch where plan_id = '{each.plan_id}'"):
                continue  # planned before the replica fell behind, and committed after
            with pytest.raises(BatchLost, match=f"batch {each.batch_id} .plan {each.plan_id}. is not in"):
                self.process(each)
            with pytest.raises(BatchLost, match="nothing is half done"):
                load_report(self.case.dsn, kafka, self.pipeline, each.batch_id, each.plan_id)


def drawn(chance: random.Random, life: Life) -> tuple[str, float, int]:
    """A moment, when any time is, and how many batches are to be lost."""
    return chance.choice(life.moments), chance.uniform(0.0, 1.0), chance.randrange(0, 3)


def _outcome(result: Callable[[], Any]) -> str:
    """How something ended that nobody needs to try again; else nothing."""
    try:
        found = result()
    except ExactbatchError as error:
        return "" if error.retryable else type(error).__name__
    return "committed" if isinstance(found, Published) and found.wrote else "went on"
