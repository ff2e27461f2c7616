"""Every sink under every scenario: the target is what a plain program makes of the log.

A scenario is a list of steps, as data. Publish runs in a process of its own, which SIGKILL ends at the steps
that say so. `make test-long` kills at every moment, `make test` at each fourth.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from test_batch import MakePipeline, MakeTopic, World, world

from exactbatch import (
    Aggregate,
    Append,
    Count,
    Json,
    Max,
    Min,
    Pipeline,
    Sum,
    Upsert,
    Window,
    failpoints,
)
from exactbatch.audit.audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.errors import TasksFailed
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import AskedRange, ReplayRequest
from exactbatch.postgres.connection import connect, transaction
from support.environment import LONG
from support.reference import LogRecord, Row, appended, by_hour, is_rejected, last, latest, read_log
from support.topics import Topic

__all__ = ["world"]

# Moments at which a Python worker of Spark dies.
ON_EXECUTORS: Final = (
    "stage.before_copy_commit",
    "stage.after_copy_commit",
    "partition.before_locks",
    "partition.after_locks",
    "partition.before_commit",
    "partition.after_commit",
)
PUBLISHING: Final = ("publish.after_insert", "publish.before_commit", "publish.after_commit")
STAGING: Final = ("stage.before_copy_commit", "stage.after_copy_commit", "job.after_stage")
ADVANCE: Final = (*STAGING, "publish.after_advance", *PUBLISHING)
REPLAY: Final = (*STAGING, "publish.after_take_back", *PUBLISHING)
RANGES: Final = (
    "job.before_ranges",
    *ON_EXECUTORS[2:],
    "job.after_ranges",
    "partition.before_batch_commit",
    "partition.after_batch_commit",
)
# Moments after which the batch is committed, or will be without another try.
COMMITTED: Final = ("publish.after_commit", "partition.after_commit", "partition.after_batch_commit")
PARTITIONS: Final = 3
VALUE: Final = Json("id int, carrier text, at timestamptz, delay int, version int")
COLUMNS: Final = "id, carrier, at, delay, version"
NOON: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Kind:
    """A sink, what its target holds by key, and what it should hold."""

    sink: Callable[[str], Any]
    query: str
    key: int
    expected: Callable[[list[LogRecord]], dict[Row, Row]]
    changes: dict[str, Any] = field(default_factory=dict)
    # Whether the changes of an id may be in several partitions.
    spread: bool = True


KEYED: Final = {"key": Json("id int")}
MEASURES: Final = {"events": Count(), "delay": Sum("delay"), "best": Min("delay"), "worst": Max("delay")}
KINDS: Final = {
    "append": Kind(Append, f"kafka_partition, kafka_offset, {COLUMNS}", 2, appended),
    "upsert": Kind(
        lambda name: Upsert(name, key=("id",), version="version"),
        f"id as its_key, {COLUMNS}",
        1,
        latest,
        KEYED,
    ),
    "upsert by offset": Kind(
        lambda name: Upsert(name, key=("id",)), f"id as its_key, {COLUMNS}", 1, last, KEYED, spread=False
    ),
    "aggregate": Kind(
        lambda name: Aggregate(name, by=("carrier", Window("at", "1 hour", "hour")), measures=MEASURES),
        "carrier, hour, events, delay, best, worst",
        2,
        by_hour,
    ),
    "partition": Kind(
        Append, f"kafka_partition, kafka_offset, {COLUMNS}", 2, appended, {"commit": "partition"}
    ),
}


class Killed(Exception):
    """The process that published was killed."""


@contextmanager
def dying_at(moment: str, world: World) -> Iterator[None]:
    """SIGKILL, at this moment, the Python worker that comes to it, or the process that publishes.

    Publishing is done in a fork for that, with a connection of its own. An error stands for the death of the
    driver while it does neither.
    """
    executors = world.spark.sparkContext.environment
    with pytest.MonkeyPatch.context() as patch:
        if moment.startswith("job."):
            patch.setitem(failpoints._ACTIONS, moment, "error")
        elif moment in ON_EXECUTORS:
            patch.setitem(executors, "EXACTBATCH_FAILPOINTS", f"{moment}=kill")
        else:
            for name in ("publish", "commit_batch"):
                patch.setattr(batch_job, name, _forked(getattr(batch_job, name), moment, world))
        yield


def _forked(function: Callable[..., Any], moment: str, world: World) -> Callable[..., Any]:
    def run(_connection: Any, *arguments: Any, **named: Any) -> Any:
        child = os.fork()
        if child == 0:
            try:
                failpoints._ACTIONS[moment] = "kill"
                function(connect(world.settings.postgres, application="killed"), *arguments, **named)
            finally:
                os._exit(1)  # it has outlived the moment, or never came to it
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{moment} did not come"
        assert os.WTERMSIG(status) == signal.SIGKILL
        raise Killed(moment)

    return run


class Play:
    """One scenario with one sink: its topic, its pipeline, and the steps that can be done."""

    def __init__(self, world: World, topic: Topic, pipeline: Pipeline, kind: Kind) -> None:
        self.world, self.topic, self.pipeline, self.kind = world, topic, pipeline, kind
        self._number, self._middle = 0, datetime.now(UTC)

    # Steps that write to the log

    def produce(self, count: int = 30) -> None:
        """Events of a few ids, each id in one partition, versions rising."""
        for _ in range(count):
            self._send(self._number % 7)

    def late(self) -> None:
        """Events of long ago."""
        for number in range(5):
            self._send(number, at=NOON - timedelta(days=3, minutes=number))

    def out_of_order(self) -> None:
        """Changes of the same ids over all partitions, older versions last."""
        for version in (900, 700, 800):
            for number in range(4):
                shift = version // 100 if self.kind.spread else 0
                self._send(number, version=version + number, partition=(shift + number) % PARTITIONS)

    def repeated(self) -> None:
        """The same record three times, as a producer that retries sends it."""
        for _ in range(3):
            self._send(3, at=NOON, version=500, delay=7)

    def tombstones(self) -> None:
        """Null values for two ids, and one of them comes back."""
        for number in (1, 2):
            key = json.dumps({"id": number}).encode()
            self.topic.produce(None, key=key, partition=number % PARTITIONS)
        self._send(2)

    def bad(self) -> None:
        """Records that are no events."""
        self.topic.produce(b"", b"{", b'{"id": "x"}', b"\xff\xfe", b'{"id": 1.5}', partition=1)
        self._send(5)

    def mark(self) -> None:
        """Remember the time: what comes now belongs to the next interval."""
        time.sleep(0.01)
        self._middle = datetime.now(UTC)
        time.sleep(0.01)

    # Steps that process it

    def advance(self) -> None:
        """The next batch."""
        self.world.run(self.pipeline)

    def retry(self) -> None:
        """A batch that is processed again after it has committed."""
        batch_id = self.world.plan(self.pipeline)
        assert self.world.process(self.pipeline, batch_id).wrote
        assert not self.world.process(self.pipeline, batch_id).wrote

    def replay(self) -> None:
        """The middle of each partition once more."""
        self.world.process(self.pipeline, self._plan_replay())

    def backfill(self) -> None:
        """Two windows of time that touch, as neighbouring intervals of a backfill, the later one first."""
        middle = self._middle
        for start, end in ((middle, middle + timedelta(days=1)), (middle - timedelta(days=1), middle)):
            request = ReplayRequest(window=(start, end))
            batch_id = freeze_replay(
                self.world.connection, self.world.log, self.pipeline, request, origin="backfill"
            ).batch_id
            if batch_id is not None:
                self.world.process(self.pipeline, batch_id)

    def killed_advance(self, moment: str) -> None:
        """The next batch, killed once and tried again."""
        self._killed(self.world.plan(self.pipeline), moment)

    def killed_replay(self, moment: str) -> None:
        """A replay that is killed once and tried again."""
        self._killed(self._plan_replay(), moment)

    def check(self) -> None:
        """The target is what the log makes it, every record is accounted for, and the auditor agrees."""
        log = read_log(self.topic.properties, self.topic.name, PARTITIONS)
        table = self.pipeline.sink.table.as_string(self.world.connection)
        rows = self.world.rows(f"select {self.kind.query} from {table}")
        found = {row[: self.kind.key]: row[self.kind.key :] for row in rows}
        assert len(found) == len(rows)
        assert found == self.kind.expected(log)
        rejected = self.world.rows('select partition, "offset" from exactbatch.rejected_record order by 1, 2')
        assert rejected == [(each.partition, each.offset) for each in log if is_rejected(each)]
        audits = audit(self.pipeline, self.world.settings)
        assert audits.is_exact, audits
        assert audits.records == len(log)
        assert self.world.staging() == []

    def _plan_replay(self) -> int:
        with transaction(self.world.connection):
            stored = Ledger(self.world.connection).stored_offsets(self.pipeline)
        asked = tuple(
            AskedRange(each.topic, each.partition, each.next_offset // 3, each.next_offset * 2 // 3 + 1)
            for each in stored
            if each.next_offset > 1
        )
        request = ReplayRequest(ranges=asked)
        batch_id = freeze_replay(
            self.world.connection, self.world.log, self.pipeline, request, origin="cli"
        ).batch_id
        assert batch_id is not None
        return batch_id

    def _killed(self, batch_id: int, moment: str) -> None:
        with dying_at(moment, self.world):
            if moment == "partition.after_commit":
                # Spark tries the task again, which finds its range committed.
                self.world.process(self.pipeline, batch_id)
            else:
                with pytest.raises((Killed, TasksFailed, RuntimeError)):
                    self.world.process(self.pipeline, batch_id)
        published = self.world.process(self.pipeline, batch_id)
        assert published.batch.status == "committed"
        assert published.wrote is (moment not in COMMITTED)

    def _send(self, number: int, **given: Any) -> None:
        self._number += 1
        event = {
            "id": number,
            "carrier": ("AA", "UA", None)[number % 3],
            "at": given.get("at", NOON + timedelta(minutes=13 * self._number)).isoformat(),
            "delay": given.get("delay", None if self._number % 5 == 0 else self._number * 7 % 100 - 30),
            "version": given.get("version", self._number),
        }
        self.topic.produce(
            json.dumps(event).encode(),
            key=json.dumps({"id": number}).encode(),
            partition=given.get("partition", number % PARTITIONS),
        )


# What the log has beside events, and then how it is processed.
SCENARIOS: Final = {
    "plain": ("produce", "advance", "produce", "advance"),
    "retry": ("produce", "retry", "produce", "retry"),
    "replay": ("produce", "advance", "produce", "advance", "replay", "replay"),
    "backfill": ("produce", "advance", "mark", "produce", "advance", "backfill"),
    "late events": ("produce", "advance", "late", "advance", "replay"),
    "out of order": ("produce", "advance", "out_of_order", "advance", "replay"),
    "repeated by a producer": ("repeated", "advance", "repeated", "produce", "advance", "replay"),
    "tombstones": ("produce", "advance", "tombstones", "advance", "replay"),
    "bad records": ("produce", "bad", "advance", "bad", "advance", "replay"),
}
EVERYTHING: Final = ("produce", "late", "out_of_order", "repeated", "tombstones", "bad")


@pytest.fixture
def play(world: World, make_topic: MakeTopic, make_pipeline: MakePipeline) -> Callable[[str], Play]:
    def make(kind: str) -> Play:
        topic = make_topic(PARTITIONS)
        sink = KINDS[kind].sink(f'public."{topic.name}"')
        changes = {"value": VALUE, "max_rejects": 100, **KINDS[kind].changes}
        return Play(world, topic, make_pipeline(topic, sink=sink, **changes), KINDS[kind])

    return make


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_what_the_log_makes_it(play: Callable[[str], Play], kind: str, scenario: str) -> None:
    played = play(kind)
    for step in SCENARIOS[scenario]:
        getattr(played, step)()
    played.check()


def _kills() -> Iterator[Any]:
    for kind in KINDS:
        for moment in RANGES if kind == "partition" else ADVANCE:
            yield pytest.param(kind, "killed_advance", moment, id=f"{kind}-advance-{moment}")
        for moment in REPLAY:
            yield pytest.param(kind, "killed_replay", moment, id=f"{kind}-replay-{moment}")


@pytest.mark.parametrize(("kind", "step", "moment"), list(_kills())[:: 1 if LONG else 7])
def test_it_is_so_wherever_a_process_is_killed(
    play: Callable[[str], Play], kind: str, step: str, moment: str
) -> None:
    played = play(kind)
    played.produce()
    played.advance()
    for each in EVERYTHING:
        getattr(played, each)()
    if step == "killed_replay":
        played.advance()
    getattr(played, step)(moment)
    played.check()
    played.replay()
    played.check()
