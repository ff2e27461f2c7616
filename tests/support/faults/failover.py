"""Batches of one pipeline while its primary is lost and a replica takes its place."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.errors import BatchLost, ExactbatchError, RetryableError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger
from exactbatch.operations.report import load_report
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks.writers import find_writer
from support.faults.cases import Case
from support.faults.held import InProcess, acting, held
from support.faults.replicas import Pair
from support.topics import Topic

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
REPLAYED: Final = tuple(moment.replace("after_advance", "after_retract") for moment in STAGED)
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
_TIMEOUT: Final = 120.0  # seconds


@dataclass(frozen=True)
class Promotion:
    """The result of one promotion: it lost `lost` committed batches with `read_again` records."""

    sink: str
    synchronous: bool
    kind: str
    moment: str
    lost: int
    read_again: int
    ended: str


class Life:
    """A pipeline on a pair of servers, and the batches that its drivers saw committed."""

    def __init__(self, spark: Any, pair: Pair, topic: Topic, folder: Path, sink: str) -> None:
        pair.ask(f"create database {topic.name}")
        self.spark, self.pair, self.sink = spark, pair, sink
        self.case = Case(InProcess(spark), topic, pair.dsn(topic.name), folder, sink, pad=20)
        self.pipeline = self.case.pipeline
        self._told: list[Batch] = []
        self._number = 0

    def moments(self, kind: str) -> tuple[str, ...]:
        """Return the moments at which a promotion can meet a batch."""
        if kind == "replay":
            return (*PLANNING, *REPLAYED, ANY_TIME)
        return (*PLANNING, *(BY_RANGE if self.pipeline.commit == "partition" else STAGED), ANY_TIME)

    def plan(self, kind: str = "advance") -> Batch | None:
        """Plan, as the task plan_batch does. A replay covers everything."""
        kafka = KafkaBroker(self.case.settings.kafka)
        with closing(connect(self.case.dsn, application="tests")) as connection:
            if kind == "advance":
                batch_id = freeze_advance(connection, kafka, self.pipeline, origin="schedule")
            else:
                with transaction(connection):
                    stored = Ledger(connection).plans.read_stored_offsets(self.pipeline)
                ranges = tuple(
                    RequestedRange(each.topic, each.partition, 0, each.next_offset) for each in stored
                )
                request = ReplayRequest(ranges=ranges)
                batch_id = freeze_replay(connection, kafka, self.pipeline, request, origin="manual").batch_id
            if batch_id is None:
                return None
            with transaction(connection):
                return Ledger(connection).batches.read(batch_id)

    def process(self, batch: Batch) -> Published:
        """Process, as the task process_batch does."""
        number, settings = batch.batch_id, self.case.settings
        published = process_batch(DriverEngine(self.spark), self.pipeline, number, settings, batch.plan_id)
        self._told.append(published.batch)
        return published

    def retried(self, batch: Batch) -> str:
        """Retry, as Airflow does; return how it ended."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            try:
                return "committed" if self.process(batch).wrote else "was committed"
            except ExactbatchError as error:
                if not error.retryable:
                    return type(error).__name__
                time.sleep(0.2)
        raise AssertionError(f"{batch} does not end")

    def run(self) -> Batch:
        """Plan and process a batch that there must be."""
        batch = self.plan()
        assert batch is not None
        return self.process(batch).batch

    @contextmanager
    def working(self) -> Iterator[None]:
        """Produce, plan and process batch after batch meanwhile, whatever fails; end exact."""
        ended = Event()

        def work() -> None:
            while not ended.is_set():
                self.case.produce()
                with suppress(RetryableError):
                    if (batch := self.plan()) is not None:
                        self.retried(batch)

        self._told.clear()
        with ThreadPoolExecutor(1) as pool:
            worker = pool.submit(work)
            try:
                yield
            finally:
                ended.set()
            worker.result(_TIMEOUT)
        self._catch_up()

    def promoted(
        self, moment: str, *, synchronous: bool, kind: str = "advance", lost: int = 1, chance: float = 0.0
    ) -> Promotion:
        """Promote a replica while a batch is at a moment, after `lost` batches that it has not received.

        `chance` is after how many seconds, where the moment is any time. Checks everything afterwards.
        """
        self._told.clear()
        self.case.produce()
        self.run()
        if not synchronous:
            self.pair.fall_behind()
        for _ in range(0 if synchronous else lost):
            self.case.produce()
            self.run()
        self.case.produce()
        ended = self._overtaken(moment, partial(self.plan, kind), chance)
        gone = self.gone()
        assert not gone or not synchronous, f"synchronous replication has lost {gone}"
        assert synchronous or len(gone) >= lost
        again = sum(each.records or 0 for each in gone if each.kind == "advance")
        self._check_refused(gone)
        self.case.produce()
        self._catch_up()
        return Promotion(self.sink, synchronous, kind, moment, len(gone), again, ended)

    def gone(self) -> list[Batch]:
        """Return the batches that a driver saw committed and that are not committed any more."""
        query = "select plan_id::text from exactbatch.batch where status = 'committed'"
        committed = {plan_id for (plan_id,) in self.case.rows(query)}
        return [each for each in self._told if str(each.plan_id) not in committed]

    def assert_exact(self) -> None:
        """By the audit, by sums, and each record by itself: none twice."""
        self.case.assert_exact()
        if self.sink != "aggregate":
            table = find_writer(self.pipeline.traits).lineage_table.table.name[1]
            twice = "group by kafka_partition, kafka_offset having count(*) > 1"
            assert self.case.rows(f"select from public.{table} {twice}") == []
            assert self.case.rows(f"select count(*) from public.{table}") == [(self.case.sent,)]
        # A batch that went back to being committed in part is superseded, and its ranges that are there count.
        assert self.case.rows(
            "select sum(r.records)::int from exactbatch.batch_range r join exactbatch.batch using (batch_id) "
            "where kind = 'advance'"
        ) == [(self.case.sent,)]

    def act(self, what: Callable[[], Any], moment: str, action: str) -> Any:
        """Do something that does an action at a moment."""
        with acting(self.spark, moment, action):
            return what()

    def gate(self, moment: str) -> Path:
        """A file that does not exist yet."""
        self._number += 1
        return self.case.folder / f"{self.pipeline.name}-{self._number}-{moment}"

    def _catch_up(self) -> None:
        """Process everything, as a scheduler eventually does, and check the result."""
        while (batch := self.plan()) is not None:
            assert self.retried(batch) == "committed"
        self.assert_exact()

    def _overtaken(self, moment: str, plan: Callable[[], Batch | None], chance: float) -> str:
        """Fail over while a batch is at a moment; how the batch ends."""
        if moment in PLANNING:
            with held(partial(self.act, plan, moment), self.gate(moment)) as planning:
                self.pair.fail_over()
                return _outcome(planning.result) or "planned again"
        batch = plan()
        assert batch is not None
        if moment == ANY_TIME:
            with ThreadPoolExecutor(1) as pool:
                started = pool.submit(self.process, batch)
                time.sleep(chance)
                self.pair.fail_over()
                return _outcome(started.result) or self.retried(batch)
        with held(partial(self.act, partial(self.process, batch), moment), self.gate(moment)) as running:
            self.pair.fail_over()
            return _outcome(running.result) or self.retried(batch)

    def _check_refused(self, gone: list[Batch]) -> None:
        """Whoever still speaks of a batch that is gone hears so."""
        kafka = KafkaBroker(self.case.settings.kafka)
        for each in gone:
            if self.case.rows(f"select from exactbatch.batch where plan_id = '{each.plan_id}'"):
                continue  # planned before the replica fell behind, and committed after
            with pytest.raises(BatchLost, match=f"batch {each.batch_id} .plan {each.plan_id}. is not in"):
                self.process(each)
            with pytest.raises(BatchLost, match="nothing is half done"):
                load_report(self.case.dsn, kafka, self.pipeline, each.batch_id, each.plan_id)


def _outcome(result: Callable[[], Any]) -> str:
    """Return how a call ended if no retry is needed; otherwise an empty text."""
    try:
        found = result()
    except ExactbatchError as error:
        return "" if error.retryable else type(error).__name__
    return "committed" if isinstance(found, Published) and found.wrote else "went on"
