"""The ledger beside a model: any order of plans, retries, clears, losses and publishes, compared at every step.

The real ledger and the real transactions in Postgres; the log and the staging by the tasks are played. Two
pipelines of one target, because what one of them takes back must not touch what the other has written.

EXACTBATCH_SEED repeats a round, and EXACTBATCH_MODEL_ROUNDS says how many there are; `make test-long` does 30.
"""

import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from psycopg2 import sql
from psycopg2.extras import execute_values

from exactbatch import Append, Json, Limits, Pipeline, failpoints
from exactbatch.batch.fences import check_publishable, facts_of
from exactbatch.batch.publish import Published, publish
from exactbatch.batch.staging_tables import StagingTables, create_rejects, create_rows, identifier
from exactbatch.batch.task import Staged, StagedBatch
from exactbatch.errors import (
    ExactbatchError,
    Fenced,
    OffsetsLost,
    ReplayRefused,
    StagedRowsDiffer,
)
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, Run
from exactbatch.model import FoundRecord, LogPartition
from exactbatch.offsets import OffsetRange, split
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import Preview, freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.run import RunPlan, plan_run
from exactbatch.postgres.connection import transaction
from support.environment import LONG, draw_seed

ROUNDS = 30 if LONG else 2
# Later examples of a round are mostly variations of an earlier one: many short rounds see more.
EXAMPLES = 10
LENGTH = 50  # steps of an example

TOPIC_IDS = {"a": UUID(int=1), "b": UUID(int=2)}
MOST_PARTITIONS = 3
T0 = datetime(2020, 1, 1, tzinfo=UTC)
MINUTES = 8
NOT_YET = datetime(2100, 1, 1, tzinfo=UTC)

Key = tuple[str, int]  # topic, partition
Ranges = dict[Key, list[tuple[int, int]]]
Loss = Literal["loss"]
LOSS: Loss = "loss"


# ---- the log, and the program of the pipelines


@dataclass(frozen=True)
class Record:
    """One record: its time in minutes, how many rows it gives, and the first program that can decode it."""

    minute: int
    rows: int = 1
    decoded_from: int = 0

    @property
    def at(self) -> datetime:
        return T0 + timedelta(minutes=self.minute)

    def rows_by(self, program: int) -> int | None:
        """How many rows a version of the program makes of it; None for a reject."""
        return None if program < self.decoded_from else self.rows


class FakeLog(KafkaBroker):
    """What the broker would say. An offset without a record is a hole, as markers and compaction leave them."""

    def __init__(self) -> None:
        super().__init__({}, settle=0)
        self.records: dict[Key, list[Record | None]] = {}
        self.earliest: dict[Key, int] = {}
        self.held: dict[Key, int] = {}
        self.meanwhile: Callable[[], None] | None = None

    def add_partition(self, topic: str, records: list[Record | None]) -> None:
        key = topic, sum(each == topic for each, _ in self.records)
        self.records[key], self.earliest[key] = list(records), 0

    def stable(self, key: Key) -> int:
        return self.held.get(key, len(self.records[key]))

    def first_record(self, key: Key, at: datetime = T0 - timedelta(days=1)) -> int | None:
        """The first record at or after a time that can be read."""
        for offset in range(self.earliest[key], self.stable(key)):
            record = self.records[key][offset]
            if record is not None and record.at >= at:
                return offset
        return None

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        answer = tuple(
            LogPartition(
                topic=key[0],
                partition=key[1],
                topic_id=TOPIC_IDS[key[0]],
                leader_epoch=1,
                earliest=self.earliest[key],
                last_stable=self.stable(key),
                high_watermark=len(self.records[key]),
            )
            for key in sorted(self.records)
            if key[0] in topics
        )
        # A broker that takes its time to answer: others commit meanwhile.
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return answer

    def records_at(self, partitions: Sequence[LogPartition], at: datetime) -> dict[Key, FoundRecord]:
        found = {(each.topic, each.partition): None for each in partitions}
        return {
            key: FoundRecord(offset, 0) for key in found if (offset := self.first_record(key, at)) is not None
        }

    def topic_ids(self, topics: Sequence[str]) -> dict[str, UUID]:
        return {topic: TOPIC_IDS[topic] for topic in topics}

    def compacted(self, topics: Sequence[str]) -> set[str]:
        return set()


def written(key: Key, offset: int, program: int, row: int) -> str:
    """The one column of the target: where the row comes from, and which program made it."""
    return f"{key[0]}[{key[1]}] {offset} by {program} row {row}"


# ---- the model


@dataclass(repr=False)
class ModelBatch:
    """What the ledger must say of a batch; `program` is the one whose results were committed."""

    batch_id: int
    kind: str
    origin: str
    ranges: Ranges
    run: Run | None
    generation: int
    status: str = "planned"
    program: int = 0

    def __repr__(self) -> str:
        return f"{self.status} {self.kind} {self.batch_id} of {self.ranges}"

    def offsets(self) -> Iterator[tuple[Key, int]]:
        for key, ranges in self.ranges.items():
            for from_offset, until_offset in ranges:
                for offset in range(from_offset, until_offset):
                    yield key, offset


@dataclass(repr=False)
class ModelRun:
    """A DAG run of one id. Each life, from its creation on, has the batches that were planned in it."""

    run: Run
    origin: Any
    request: ReplayRequest | None
    lives: list[dict[Run, int]] = field(default_factory=lambda: [{}])

    def __repr__(self) -> str:
        return f"{self.run.run_id}, life {len(self.lives)}, clear number {self.run.clear_number}"


@dataclass(repr=False)
class Launch:
    """One launch of a batch, staged; `damaged`: a part of what its tasks reported is not there."""

    plan_id: UUID
    tables: StagingTables
    staged: list[Staged]
    program: int
    damaged: bool

    def __repr__(self) -> str:
        damage = ", damaged" if self.damaged else ""
        return f"launch of batch {self.tables.batch_id} by program {self.program}{damage}"


@dataclass
class Expected:
    """How planning must end: in an error, an earlier plan, nothing, or a new batch."""

    error: type[ExactbatchError] | None = None
    earlier: int | None = None
    kind: str = "replay"
    origin: str = "cli"
    ranges: Ranges = field(default_factory=dict)
    widened: bool = False
    times: dict[Key, dict[datetime, int]] = field(default_factory=dict)
    heads: dict[Key, int] = field(default_factory=dict)
    takes: dict[Key, int] = field(default_factory=dict)


class Model:
    """One pipeline, in dictionaries."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.stored: dict[Key, int] = {}
        self.began: dict[Key, int] = {}
        self.owner: dict[Key, dict[int, int | Loss]] = {}
        self.batches: dict[int, ModelBatch] = {}
        self.times: dict[Key, dict[datetime, int]] = {}
        self.runs: list[ModelRun] = []
        self.launches: list[Launch] = []

    def owners(self, batch: ModelBatch) -> set[int]:
        """The batches whose results stand for some of a batch's offsets."""
        found = {self.owner.get(key, {}).get(offset) for key, offset in batch.offsets()}
        return {each for each in found if isinstance(each, int)}

    def owned(self, batch_ids: set[int]) -> set[tuple[Key, int]]:
        return {
            (key, offset)
            for key, offsets in self.owner.items()
            for offset, owner in offsets.items()
            if owner in batch_ids
        }

    def advance(self, log: FakeLog, origin: str = "cli") -> Expected:
        expected = Expected(kind="advance", origin=origin)
        known = {topic for topic, _ in self.stored}
        for key in sorted(log.records):
            stored, earliest = self.stored.get(key), log.earliest[key]
            if stored is not None and stored < earliest and self.pipeline.on_loss == "fail":
                return Expected(error=OffsetsLost)
            if stored is None and key[0] not in known and self.pipeline.start == "latest":
                expected.heads[key] = log.stable(key)
            else:
                expected.heads[key] = max(stored or 0, earliest)
            expected.takes[key] = log.stable(key) - expected.heads[key]
        return expected

    def seen(self) -> tuple[dict[Key, int], set[int]]:
        """Where the pipeline stands, and the batches that are committed."""
        return dict(self.stored), {
            each.batch_id for each in self.batches.values() if each.status == "committed"
        }

    def replay(
        self,
        log: FakeLog,
        request: ReplayRequest,
        origin: str = "cli",
        seen: tuple[Mapping[Key, int], set[int]] | None = None,
    ) -> Expected:
        """`seen` is what was so before the broker was asked."""
        stored, committed = seen or self.seen()
        expected = Expected(origin=origin)
        asked: set[tuple[Key, int]] = set()
        beyond = False
        if not stored:
            return Expected(error=ReplayRefused)
        if request.window is not None:
            asked, beyond, error = self._window(log, request, stored, expected)
            if error is not None:
                return Expected(error=error)
        elif request.batch_ids:
            for batch_id in request.batch_ids:
                if batch_id not in committed:
                    return Expected(error=ReplayRefused)
                asked |= set(self.batches[batch_id].offsets())
        else:
            for each in request.ranges:
                key = each.topic, each.partition
                offsets = {(key, offset) for offset in range(each.from_offset, each.until_offset)}
                if not offsets or each.until_offset > stored.get(key, 0) or offsets & asked:
                    return Expected(error=ReplayRefused)
                asked |= offsets
        if self.pipeline.sink.lineage == "batch":
            owners = {self.owner.get(key, {}).get(offset) for key, offset in asked}
            whole = self.owned({each for each in owners if isinstance(each, int)})
            expected.widened = not whole <= asked
            asked |= whole
        lost = {(key, offset) for key, offset in asked if offset < log.earliest[key]}
        if lost and not request.available_only:
            return Expected(error=OffsetsLost)
        if self.pipeline.sink.lineage == "batch" and any(
            isinstance(self.owner.get(key, {}).get(offset), int) for key, offset in lost
        ):
            return Expected(error=OffsetsLost)
        expected.ranges = ranges_of(asked - lost)
        if beyond and not expected.ranges:
            return Expected(error=ReplayRefused)
        return expected

    def _window(
        self, log: FakeLog, request: ReplayRequest, stored: Mapping[Key, int], expected: Expected
    ) -> tuple[set[tuple[Key, int]], bool, type[ExactbatchError] | None]:
        """What was processed of a window; whether there is more of it; and the error over its beginning."""
        assert request.window is not None
        asked: set[tuple[Key, int]] = set()
        refused = beyond = False
        processed = {topic for topic, _ in stored}
        for key in sorted(log.records):
            kept = dict(self.times.get(key, {}))
            start_was_kept = request.window[0] in kept
            ends = []
            for at in request.window:
                if at == NOT_YET:
                    ends.append(log.stable(key))
                    continue
                if at in kept:
                    ends.append(kept[at])
                    continue
                first = log.first_record(key, at)
                found = log.stable(key) if first is None else first
                found = max([found, *(offset for time, offset in kept.items() if time < at)])
                found = min([found, *(offset for time, offset in kept.items() if time > at)])
                ends.append(found)
                # Else a record may still come with this time, or retention may have removed the first.
                if first is not None and (log.earliest[key] == 0 or first != log.first_record(key)):
                    kept[at] = found
            expected.times[key] = kept
            head = stored.get(key, 0)
            asked |= {(key, offset) for offset in range(*ends) if offset < head}
            # A partition that a topic has gained is processed from its earliest offset on.
            begins = max(ends[0], stored.get(key, log.earliest[key]))
            beyond |= key[0] in processed and begins < min(ends[1], log.stable(key))
            # Retention may have removed records of the window when the first that is left belongs to it, or
            # none is left; a start that was resolved before is known.
            first_of_it = log.first_record(key, request.window[0])
            refused |= (
                key in stored
                and request.window[0] != NOT_YET
                and not start_was_kept
                and log.earliest[key] > 0
                and first_of_it == log.first_record(key)
                and not request.available_only
            )
        return asked, beyond, OffsetsLost if refused else None

    def run(self, log: FakeLog, mine: ModelRun) -> Expected:
        life = mine.lives[-1]
        if mine.run in life:
            return Expected(earlier=life[mine.run])
        done = [each for each in life.values() if self.batches[each].status == "committed"]
        if done and mine.origin != "backfill":
            available_only = mine.request is not None and mine.request.available_only
            again = ReplayRequest(batch_ids=(max(done),), available_only=available_only)
            return self.replay(log, again, origin="clear")
        if mine.request is not None:
            expected = self.replay(log, mine.request, origin=mine.origin)
            # Each interval of a backfill would process the same batches again.
            refused = mine.origin == "backfill" and expected.widened
            return Expected(error=ReplayRefused) if refused and expected.error is None else expected
        return self.advance(log, origin=mine.origin)

    def publishable(self, batch: ModelBatch) -> str:
        """What is known of a batch before it is launched, and again first of all when it is published."""
        if batch.status != "planned":
            return {"committed": "committed before", "superseded": "Fenced, superseded"}[batch.status]
        if batch.kind == "replay" and any(each > batch.batch_id for each in self.owners(batch)):
            return "Fenced, overtaken"
        return "go on"

    def published(self, batch: ModelBatch, launch: Launch) -> str:
        if (found := self.publishable(batch)) != "go on":
            return found
        if batch.kind == "advance":
            if any(self.stored[key] != ranges[0][0] for key, ranges in batch.ranges.items()):
                return "Fenced, stored offset moved"
        elif self.pipeline.sink.lineage == "batch" and self.owned(self.owners(batch)) - set(batch.offsets()):
            return "Fenced, widening"
        return "staged rows differ" if launch.damaged else "committed"

    def commit(self, batch: ModelBatch, program: int) -> None:
        batch.status, batch.program = "committed", program
        for key, offset in batch.offsets():
            self.owner.setdefault(key, {})[offset] = batch.batch_id
        if batch.kind == "advance":
            self.stored.update({key: ranges[0][1] for key, ranges in batch.ranges.items()})


def ranges_of(offsets: set[tuple[Key, int]]) -> Ranges:
    """Offsets as ranges that do not touch."""
    ranges: Ranges = {}
    for key, offset in sorted(offsets):
        found = ranges.setdefault(key, [])
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return ranges


def check_takes(expected: Expected, found: Ranges, limits: Limits) -> None:
    """An advance goes on where the pipeline stands, keeps its limits, and treats the partitions alike."""
    most = limits.max_records_per_partition
    gives = {key: take if most is None else min(take, most) for key, take in expected.takes.items()}
    takes = dict.fromkeys(gives, 0)
    for key, ranges in found.items():
        ((from_offset, until_offset),) = ranges
        assert from_offset == expected.heads[key]
        takes[key] = until_offset - from_offset
    total = sum(gives.values())
    assert sum(takes.values()) == (total if limits.max_records is None else min(total, limits.max_records))
    for key, take in takes.items():
        assert take == gives[key] or max(takes.values()) - 1 <= take < gives[key]


# ---- the machine

# How often each of these happens. They are one rule of Hypothesis, because of several it would switch off
# some in each example, and most of what can go wrong here needs all of them.
WEIGHTS = {
    "records": 2,
    "new records are processed": 4,
    "late records": 2,
    "transaction": 1,
    "partition": 1,
    "retention": 1,
    "loss during a batch": 1,
    "advance": 4,
    "replay of ranges": 3,
    "replay of window": 4,
    "replay of batches": 2,
    "two replays at once": 2,
    "run": 3,
    "retry": 1,
    "clear": 4,
    "create again": 2,
    "stage": 4,
    "publish": 5,
    "process": 4,
}
STEPS = st.sampled_from([what for what, weight in WEIGHTS.items() for _ in range(weight)])


def records(first: int, last: int) -> st.SearchStrategy[list[Record | None]]:
    """Records with times of these minutes, in any order, and holes."""
    record = st.builds(
        Record,
        minute=st.integers(first, last),
        rows=st.sampled_from((1, 1, 2, 0)),
        decoded_from=st.sampled_from((0, 0, 0, 1, 2)),
    )
    return st.lists(st.one_of(record, record, record, st.none()), min_size=1, max_size=6)


NO_LIMITS = Limits()
LIMITS = st.just(NO_LIMITS) | st.builds(
    Limits,
    max_records=st.none() | st.integers(1, 8),
    max_records_per_partition=st.none() | st.integers(1, 4),
)
TIMES = st.sampled_from([T0 + timedelta(minutes=each) for each in range(-1, MINUTES + 1)] + [NOT_YET])
WINDOWS = st.lists(TIMES, min_size=2, max_size=2, unique=True).map(lambda times: tuple(sorted(times)))
PLAN_CRASHES = st.sampled_from((*(None,) * 10, "plan.before_commit", "plan.after_commit"))
PUBLISH_CRASHES = st.sampled_from(
    (
        *(None,) * 20,
        "publish.after_advance",
        "publish.after_take_back",
        "publish.after_insert",
        "publish.before_commit",
        "publish.after_commit",
    )
)


class Crash(Exception):
    """What a failpoint raised."""


@contextmanager
def failing(point: str | None) -> Iterator[None]:
    """Let a failpoint raise an error, as if the program ended there."""
    if point is not None:
        failpoints.actions[point] = "error"
    try:
        yield
    except RuntimeError as error:
        if point is None:
            raise
        raise Crash(point) from error
    finally:
        failpoints.actions.pop(point or "", None)


def outcome_of(call: Callable[[], Any], crash: str | None = None) -> Any:
    """What a call returns, or the error of ours that it raises."""
    try:
        with failing(crash):
            return call()
    except (ExactbatchError, Crash) as error:
        return error


class LedgerMachine(RuleBasedStateMachine):
    """Two pipelines of one target, their log, and the model of both."""

    def __init__(self, connection: Any, lineage: Literal["record", "batch"], tally: Counter[str]) -> None:
        super().__init__()
        self.connection, self.lineage, self.tally = connection, lineage, tally
        self.log = FakeLog()
        self.models: list[Model] = []
        self.keeps_all = False
        self.attempts = 0
        self.clock = 0

    @initialize(
        starts=st.tuples(*[st.sampled_from(("earliest", "latest"))] * 2),
        on_loss=st.tuples(*[st.sampled_from(("fail", "record"))] * 2),
        keeps_all=st.booleans(),
        logs=st.lists(records(0, MINUTES - 1), min_size=2, max_size=3),
        first=st.booleans(),
    )
    def begin(
        self,
        starts: Any,
        on_loss: Any,
        keeps_all: bool,
        logs: Sequence[list[Record | None]],
        first: bool,
    ) -> None:
        """`keeps_all`: nothing is removed from the log; `first`: both pipelines process what there is."""
        self.keeps_all = keeps_all
        for topic, log in zip(["a", "b", "a"], logs, strict=False):
            self.log.add_partition(topic, log)
        sink = Append("public.target", lineage=self.lineage)
        with transaction(self.connection) as cursor:
            # The same numbers in each example, so that one that fails is told as it was found.
            cursor.execute("truncate exactbatch.pipeline restart identity cascade")
            cursor.execute("drop table if exists public.target")
            for name, start, loss in zip(("one", "two"), starts, on_loss, strict=True):
                pipeline = Pipeline(
                    name=name,
                    topics=tuple(TOPIC_IDS),
                    value=Json("name text"),
                    sink=sink,
                    start=start,
                    on_loss=loss,
                )
                Ledger(self.connection).register(pipeline, share_topics=True)
                self.models.append(Model(pipeline))
            sink.prepare(cursor, pipeline.value.columns)
            self.seen = facts_of(cursor, sink)
        for model in self.models if first else ():
            self._process_what_is_new(model, program=0)

    def teardown(self) -> None:
        for model in self.models:
            for launch in model.launches:
                self._drop(launch)

    def did(self, *what: str) -> None:
        self.tally[": ".join(what)] += 1

    @rule(what=STEPS, who=st.integers(0, 1), data=st.data())
    def step(self, what: str, who: int, data: st.DataObject) -> None:
        model = self.models[who]
        if what in ("records", "late records", "transaction", "partition", "retention"):
            self._move_log(what, data)
        elif what == "new records are processed":
            self.log.records[data.draw(self._keys(), label="partition")] += data.draw(
                records(0, MINUTES - 1), label="records"
            )
            self._process_what_is_new(model, data.draw(st.integers(0, 2), label="program"))
        elif what == "advance":
            limits = data.draw(LIMITS, label="limits")
            crash = self._draw_crash(model, data)
            self._advance(model, limits, crash)
        elif what.startswith("replay"):
            self._replay(what, model, data)
        elif what == "two replays at once":
            self._two_replays(model, data)
        elif what == "loss during a batch":
            self._loss_during_batch(model, data)
        elif what in ("stage", "publish", "process"):
            self._launch(what, model, data)
        else:
            self._dag_run(what, model, data)

    # -- the log moves

    def _keys(self) -> st.SearchStrategy[Key]:
        return st.sampled_from(sorted(self.log.records))

    def _move_log(self, what: str, data: st.DataObject) -> None:
        self.did("log", what)
        key = data.draw(self._keys(), label="partition")
        if what == "records":
            self.log.records[key] += data.draw(records(0, MINUTES - 1), label="records")
        elif what == "late records":
            self.log.records[key] += data.draw(records(0, 1), label="records")
        elif what == "transaction" and self.log.held.pop(key, None) is None:
            self.log.held[key] = len(self.log.records[key])  # nothing from here on can be read until it ends
        elif what == "partition" and sum(topic == key[0] for topic, _ in self.log.records) < MOST_PARTITIONS:
            self.log.add_partition(key[0], data.draw(records(0, MINUTES - 1), label="records"))
        elif what == "retention" and not self.keeps_all:
            some = st.integers(self.log.earliest[key], self.log.stable(key))
            self.log.earliest[key] = data.draw(some, label="earliest")

    # -- plans

    def _draw_crash(self, model: Model, data: st.DataObject) -> str | None:
        """Where the planner ends; or else, now and then, a batch is published while the broker is asked."""
        crash = data.draw(PLAN_CRASHES, label="crash")
        waiting = [each for each in model.launches if model.batches[each.tables.batch_id].status == "planned"]
        if crash is None and waiting and data.draw(st.booleans(), label="meanwhile"):
            launch = data.draw(st.sampled_from(waiting), label="published meanwhile")
            self.log.meanwhile = lambda: self._publish(model, launch)
        return crash

    def _advance(self, model: Model, limits: Limits, crash: str | None = None) -> None:
        pipeline = replace(model.pipeline, limits=limits)
        found = outcome_of(lambda: freeze_advance(self.connection, self.log, pipeline, origin="cli"), crash)
        self._planned("advance", model, found, model.advance(self.log), crash, limits=limits)

    def _process_what_is_new(self, model: Model, program: int) -> None:
        """What happens on every ordinary day."""
        batches = len(model.batches)
        self._advance(model, NO_LIMITS)
        if len(model.batches) > batches:
            launch = self._stage(model, model.batches[max(model.batches)], program)
            assert launch is not None
            self._publish(model, launch)

    def _replay(self, what: str, model: Model, data: st.DataObject) -> None:
        if what == "replay of ranges":
            request = self._draw_ranges(model, data)
        elif what == "replay of window":
            request = ReplayRequest(window=data.draw(WINDOWS, label="window"))
        elif any(each.batches for each in self.models):
            request = self._draw_batches(model, data)
        else:
            return
        request = replace(request, available_only=data.draw(st.booleans(), label="available_only"))
        self._preview(model, request)
        crash = self._draw_crash(model, data)
        seen = model.seen()
        found = outcome_of(
            lambda: freeze_replay(self.connection, self.log, model.pipeline, request, origin="cli").batch_id,
            crash,
        )
        self._planned(what, model, found, model.replay(self.log, request, seen=seen), crash)

    def _loss_during_batch(self, model: Model, data: st.DataObject) -> None:
        """What its tasks have read is removed, all of it: no later plan has anything to supersede it with."""
        self._move_log("records", data)
        self._advance(model, NO_LIMITS)
        waiting = [each for each in model.batches.values() if each.status == "planned"]
        launch = self._stage(model, waiting[-1], program=0) if waiting else None
        if not self.keeps_all:
            self.log.earliest = {each: self.log.stable(each) for each in self.log.earliest}
        self._advance(model, NO_LIMITS)
        if launch is not None:
            self._publish(model, launch)

    def _two_replays(self, model: Model, data: st.DataObject) -> None:
        """Both are planned before either is published, in any order."""
        before = set(model.batches)
        for _ in range(2):
            self._replay("replay of ranges", model, data)
        launches = []
        for batch_id in sorted(set(model.batches) - before):
            launches.append(self._stage(model, model.batches[batch_id], program=batch_id % 3))
        if data.draw(st.booleans(), label="newer first"):
            launches.reverse()
        for each in launches:
            if each is not None:
                self._publish(model, each)

    def _draw_batches(self, model: Model, data: st.DataObject) -> ReplayRequest:
        """Mostly what can be replayed; now and then a batch that is planned, superseded, or another pipeline's."""
        committed = [each.batch_id for each in model.batches.values() if each.status == "committed"]
        every = sorted(batch_id for each in self.models for batch_id in each.batches)
        some = committed if committed and data.draw(st.integers(0, 4), label="committed") else every
        asked = data.draw(st.lists(st.sampled_from(some), min_size=1, max_size=2), label="batches")
        return ReplayRequest(batch_ids=tuple(asked))

    def _draw_ranges(self, model: Model, data: st.DataObject) -> ReplayRequest:
        ranges = []
        keys = st.sampled_from(sorted(model.stored)) if model.stored else self._keys()
        for _ in range(data.draw(st.sampled_from((1, 1, 1, 2, 3)), label="ranges")):
            key = data.draw(keys, label="partition")
            head, earliest = model.stored.get(key, 0), self.log.earliest[key]
            low = earliest if earliest < head and data.draw(st.integers(0, 3), label="held") else 0
            from_offset = data.draw(st.integers(low, max(low, head - 1)), label="from")
            # Now and then it is empty, or ends past the stored offset: both are refused.
            odd = from_offset >= head or data.draw(st.integers(0, 9), label="odd") == 9
            until = st.sampled_from((from_offset, head + 1)) if odd else st.integers(from_offset + 1, head)
            until_offset = data.draw(until, label="until")
            ranges.append(RequestedRange(*key, from_offset, until_offset))
        return ReplayRequest(ranges=tuple(ranges))

    def _preview(self, model: Model, request: ReplayRequest) -> None:
        """It tells what the plan does a moment later; that it writes nothing is seen at the end of the step."""
        found = outcome_of(lambda: preview_replay(self.connection, self.log, model.pipeline, request))
        expected = model.replay(self.log, request)
        if expected.error is not None:
            assert isinstance(found, expected.error), found
        else:
            assert isinstance(found, Preview), found
            assert as_ranges(found.plan.ranges) == expected.ranges
            offsets = {
                (key, offset)
                for key, ranges in expected.ranges.items()
                for each in ranges
                for offset in range(*each)
            }
            results = [rows for _, rows in self._results(model, offsets)]
            assert found.rows == sum(len(rows) for rows in results if rows is not None)
            assert sum(each.rejects for each in found.taken_back) == results.count(None)

    # -- DAG runs

    def _dag_run(self, what: str, model: Model, data: st.DataObject) -> None:
        """A run plans: a new one, or one that Airflow tries again, a user clears, or deletes and creates again."""
        runs = model.runs
        if what == "run" or not runs:
            what = "run"
            mine = ModelRun(Run("dag", f"run {len(model.runs) + 1}", 0, self._now()), "schedule", None)
            model.runs.append(mine)
        else:
            mine = data.draw(st.sampled_from(runs), label="run")
        if what == "clear":
            # Cleared in mid-run, only the number changes; it rises without a plan when other tasks are cleared.
            ended = data.draw(st.booleans(), label="had ended")
            number = mine.run.clear_number + data.draw(st.integers(1, 2), label="clears")
            started_at = self._now() if ended else mine.run.started_at
            mine.run = replace(mine.run, clear_number=number, started_at=started_at)
        elif what == "create again":
            mine.run = replace(mine.run, clear_number=0, started_at=self._now())
            mine.lives.append({})
        if what != "retry":
            self._draw_wish(model, mine, data)
        self._plan_run(what, model, mine, data.draw(PLAN_CRASHES, label="crash"))

    def _now(self) -> datetime:
        self.clock += 1
        return T0 + timedelta(seconds=self.clock)

    def _draw_wish(self, model: Model, mine: ModelRun, data: st.DataObject) -> None:
        """What a run asks for: to move forward, or a replay."""
        wish = data.draw(st.sampled_from(("forward", "backfill", "ranges", "window")), label="wish")
        mine.origin = {"forward": "schedule", "backfill": "backfill"}.get(wish, "manual")
        mine.request = None
        if wish == "ranges":
            mine.request = self._draw_ranges(model, data)
        elif wish != "forward":
            mine.request = ReplayRequest(window=data.draw(WINDOWS, label="window"))
        if mine.request is not None:
            only = data.draw(st.booleans(), label="available_only")
            mine.request = replace(mine.request, available_only=only)

    def _plan_run(self, name: str, model: Model, mine: ModelRun, crash: str | None) -> None:
        found = outcome_of(
            lambda: plan_run(
                self.connection, self.log, model.pipeline, mine.run, mine.request, origin=mine.origin
            ),
            crash,
        )
        if isinstance(found, RunPlan):
            found = found.batch and found.batch.batch_id
        self._planned(name, model, found, model.run(self.log, mine), crash, mine=mine)

    def _planned(
        self,
        name: str,
        model: Model,
        found: Any,
        expected: Expected,
        crash: str | None,
        *,
        limits: Limits = NO_LIMITS,
        mine: ModelRun | None = None,
    ) -> None:
        """Compare how planning ended with what was expected, and let the model follow."""
        self.log.meanwhile = None
        if expected.error is not None:
            assert isinstance(found, expected.error), f"expected {expected.error}, found {found!r}"
            self.did(name, expected.error.__name__)
            return
        if expected.earlier is not None:
            assert found == expected.earlier, f"expected batch {expected.earlier}, found {found!r}"
            self.did(name, "kept its plan")
            return
        is_empty = not (expected.ranges or any(expected.takes.values()))
        if isinstance(found, Crash):
            self.did(name, "crashed")
            if crash == "plan.before_commit":
                return
        else:
            assert found is None or isinstance(found, int), f"expected a plan, found {found!r}"
            assert (found is None) == is_empty
        self._follow(model, expected)
        with transaction(self.connection):
            ledger = Ledger(self.connection)
            (new,) = ledger.batches(model.pipeline, limit=1) if not is_empty else (None,)
            ranges = as_ranges(ledger.ranges(new.batch_id)) if new is not None else {}
        if new is None:
            self.did(name, "nothing to process")
            return
        assert isinstance(found, Crash) or new.batch_id == found
        assert new.batch_id > max((0, *model.batches))
        if expected.kind == "advance":
            check_takes(expected, ranges, limits)
        else:
            assert ranges == expected.ranges
        self._follow_batch(model, new.batch_id, ranges, expected, mine)
        self.did(name, f"planned {expected.kind}" + (" of a clear" if expected.origin == "clear" else ""))

    def _follow(self, model: Model, expected: Expected) -> None:
        """What planning stores although there is nothing to process: seeds, losses, and resolved times."""
        for key, head in expected.heads.items():
            model.began.setdefault(key, head)
            for offset in range(model.stored.get(key, head), head):
                model.owner.setdefault(key, {})[offset] = LOSS
                self.did("offsets lost")
            model.stored[key] = head
        model.times.update(expected.times)

    def _follow_batch(
        self, model: Model, batch_id: int, ranges: Ranges, expected: Expected, mine: ModelRun | None
    ) -> None:
        generation = 0
        for each in model.batches.values():
            same_run = mine is not None and each.run is not None and each.run.run_id == mine.run.run_id
            generation += same_run
            newer_advance = each.kind == expected.kind == "advance"
            if each.status == "planned" and (same_run or newer_advance):
                each.status = "superseded"
                self.did("superseded", each.kind)
        run = mine.run if mine is not None else None
        model.batches[batch_id] = ModelBatch(
            batch_id, expected.kind, expected.origin, ranges, run, generation
        )
        if mine is not None:
            mine.lives[-1][mine.run] = batch_id

    # -- launches

    def _launch(self, what: str, model: Model, data: st.DataObject) -> None:
        """Stage a batch, publish what was staged, or both at once. Any launch may overtake any other."""
        if not (model.launches if what == "publish" else model.batches):
            return
        if what == "publish":
            crash = data.draw(PUBLISH_CRASHES, label="crash")
            self._publish(model, data.draw(st.sampled_from(model.launches), label="launch"), crash)
            return
        launch = self._stage(
            model,
            self._draw_batch(model, data),
            program=data.draw(st.integers(0, 2), label="program"),
            noise=data.draw(st.booleans(), label="failed attempts"),
            damaged=data.draw(st.integers(0, 5), label="damaged") == 5,
        )
        if what == "process" and launch is not None:
            crash = data.draw(PUBLISH_CRASHES, label="crash")
            self._publish(model, launch, crash)
            if crash is not None or data.draw(st.booleans(), label="twice"):
                self._publish(model, launch)

    def _draw_batch(self, model: Model, data: st.DataObject) -> ModelBatch:
        """Mostly one that waits for it."""
        planned = [each for each in model.batches.values() if each.status == "planned"]
        some = (
            planned
            if planned and data.draw(st.integers(0, 5), label="planned")
            else list(model.batches.values())
        )
        return data.draw(st.sampled_from(some), label="batch")

    def _stage(
        self, model: Model, batch: ModelBatch, program: int, *, noise: bool = False, damaged: bool = False
    ) -> Launch | None:
        """What _load() and the tasks of a batch job do."""
        with transaction(self.connection):
            ledger = Ledger(self.connection)
            real = ledger.batch(batch.batch_id)
            found = outcome_of(lambda: check_publishable(ledger, model.pipeline, real))
            ranges = ledger.ranges(batch.batch_id)
        expected = model.publishable(batch)
        if expected != "go on":
            assert found is True if expected == "committed before" else isinstance(found, Fenced)
            self.did("launch", expected)
            return None
        assert found is False
        if any(each.from_offset < self.log.earliest[each.topic, each.partition] for each in ranges):
            self.did("launch", "OffsetsLost")  # the tasks cannot read them any more
            return None
        tables = StagingTables(batch.batch_id, secrets.randbits(62))
        staged: list[Staged] = []
        with transaction(self.connection) as cursor:
            create_rejects(cursor, tables)
            create_rows(cursor, tables, model.pipeline.value.columns)
            for piece in split(ranges, parts=3, smallest=2):
                if noise:
                    # An attempt that Spark did not accept, of another program so that it would be seen.
                    self._stage_piece(cursor, tables, piece, program + 1)
                staged.append(self._stage_piece(cursor, tables, piece, program))
            rows, rejects = (sum(getattr(e, name) for e in staged) for name in ("rows", "rejects"))
            if damaged and rows + rejects:
                table = identifier(tables.rows if rows else tables.rejects)
                delete = (
                    "delete from {0} where ctid = (select max(ctid) from {0} where task_attempt = any(%s))"
                )
                cursor.execute(sql.SQL(delete).format(table), ([each.attempt for each in staged],))
        launch = Launch(real.plan_id, tables, staged, program, damaged and rows + rejects > 0)
        model.launches.append(launch)
        if len(model.launches) > 4:
            self._drop(model.launches.pop(0))
        self.did("launch", "staged")
        return launch

    def _stage_piece(self, cursor: Any, tables: StagingTables, piece: OffsetRange, program: int) -> Staged:
        self.attempts += 1
        key = piece.topic, piece.partition
        rows: list[tuple[Any, ...]] = []
        rejects: list[tuple[Any, ...]] = []
        records = tombstones = 0
        for offset in range(piece.from_offset, piece.until_offset):
            record = self.log.records[key][offset]
            if record is None:
                continue
            records += 1
            count = record.rows_by(program)
            if count is None:
                reason = f"not for program {program}"
                rejects.append((*key, offset, None, b"bad", "[]", reason, self.attempts))
                continue
            tombstones += count == 0
            for row in range(count):
                value = written(key, offset, program, row)
                rows.append((self.attempts, key[1], offset, record.at, key[0], value))
        for table, values in ((tables.rows, rows), (tables.rejects, rejects)):
            if values:
                statement = sql.SQL("insert into {} values %s").format(identifier(table))
                execute_values(cursor, statement.as_string(cursor), values)
        return Staged(piece, self.attempts, records, len(rows), len(rejects), tombstones)

    def _drop(self, launch: Launch) -> None:
        with transaction(self.connection) as cursor:
            tables = [identifier(each) for each in (launch.tables.rows, launch.tables.rejects)]
            cursor.execute(sql.SQL("drop table {}, {}").format(*tables))

    def _publish(self, model: Model, launch: Launch, crash: str | None = None) -> None:
        batch = model.batches[launch.tables.batch_id]
        expected = model.published(batch, launch)
        found = outcome_of(
            lambda: publish(
                self.connection,
                model.pipeline,
                plan_id=launch.plan_id,
                tables=launch.tables,
                columns=model.pipeline.value.columns,
                staged=StagedBatch.of(launch.staged),
                topic_ids=self.log.topic_ids(sorted({topic for topic, _ in batch.ranges})),
                seen=self.seen,
            ),
            crash,
        )
        before_staged = "publish.after_advance" if batch.kind == "advance" else "publish.after_take_back"
        if isinstance(found, Crash) and (
            expected == "committed" or (expected == "staged rows differ" and crash == before_staged)
        ):
            self.did("publish", "crashed")
            if crash == "publish.after_commit":
                model.commit(batch, launch.program)
            return
        self.did("publish", expected, batch.kind if expected == "committed" else "")
        if expected.startswith("Fenced"):
            assert isinstance(found, Fenced), f"expected {expected}, found {found!r}"
            assert "None" not in str(found)  # it names the batch that took this one's place
        elif expected == "staged rows differ":
            assert isinstance(found, StagedRowsDiffer), found
        else:
            assert isinstance(found, Published), found
            assert found.wrote == (expected == "committed")
            if found.wrote:
                model.commit(batch, launch.program)

    # -- compared after every step

    def _results(
        self, model: Model, offsets: set[tuple[Key, int]]
    ) -> Iterator[tuple[tuple[Key, int, int], list[str] | None]]:
        """What the batches made of the records at these offsets: rows, or None for a reject."""
        for key, offset in offsets:
            batch_id = model.owner.get(key, {}).get(offset)
            record = self.log.records[key][offset]
            if record is None or not isinstance(batch_id, int):
                continue
            program = model.batches[batch_id].program
            count = record.rows_by(program)
            rows = None if count is None else [written(key, offset, program, n) for n in range(count)]
            yield (key, offset, batch_id), rows

    @invariant()
    def ledger_and_target_are_those_of_the_model(self) -> None:
        self.did("steps")
        with transaction(self.connection) as cursor:
            self._compare_coverage(cursor)
            self._compare_batches(cursor)
            self._compare_times(cursor)
            self._compare_target(cursor)
            for model in self.models:
                # What the auditor takes for history, which is no gap.
                assert Ledger(self.connection).first_advanced(model.pipeline) == {
                    (TOPIC_IDS[key[0]], key[1]): began
                    for key, began in model.began.items()
                    if model.stored[key] > began
                }

    def _compare_coverage(self, cursor: Any) -> None:
        found: dict[tuple[Any, ...], dict[int, int | Loss]] = {}
        for pipeline, topic, partition, topic_id, from_offset, until_offset, batch_id in rows_of(
            cursor,
            "select pipeline, topic, partition, topic_id, lower(offsets), upper(offsets), batch_id "
            "from exactbatch.coverage",
        ):
            offsets = found.setdefault((pipeline, topic, partition, topic_id), {})
            for offset in range(from_offset, until_offset):
                assert offset not in offsets, f"{pipeline}, {topic}[{partition}]: {offset} is covered twice"
                offsets[offset] = LOSS if batch_id is None else batch_id
        assert found == {
            (model.pipeline.name, *key, TOPIC_IDS[key[0]]): offsets
            for model in self.models
            for key, offsets in model.owner.items()
            if offsets
        }
        stored = {
            tuple(where): next_offset
            for *where, next_offset in rows_of(
                cursor,
                "select pipeline, topic, partition, topic_id, next_offset from exactbatch.stored_offset",
            )
        }
        assert stored == {
            (model.pipeline.name, *key, TOPIC_IDS[key[0]]): next_offset
            for model in self.models
            for key, next_offset in model.stored.items()
        }
        # Whatever the model makes of the batches: there is no gap, and nothing beyond the stored offset.
        for model in self.models:
            for key, began in model.began.items():
                where = (model.pipeline.name, *key, TOPIC_IDS[key[0]])
                offsets = found.get(where, {})
                assert [each for each in range(began, stored[where]) if each not in offsets] == []
                assert max(offsets, default=-1) < stored[where]

    def _compare_batches(self, cursor: Any) -> None:
        found = rows_of(
            cursor,
            "select batch_id, pipeline, kind, origin, status, run_id, generation, clear_number, "
            "run_started_at, records, rows, rejected, tombstones from exactbatch.batch order by 1",
        )
        found_ranges = rows_of(
            cursor,
            "select batch_id, topic, partition, from_offset, until_offset, topic_id, records "
            "from exactbatch.batch_range order by 1, 2, 3, 4",
        )
        batches: list[tuple[Any, ...]] = []
        ranges: list[tuple[Any, ...]] = []
        for model in self.models:
            for each in model.batches.values():
                results: list[int | None] = []
                for key, spans in each.ranges.items():
                    for span in spans:
                        read = [
                            record for record in self.log.records[key][slice(*span)] if record is not None
                        ]
                        results += [record.rows_by(each.program) for record in read]
                        count = len(read) if each.status == "committed" else None
                        ranges.append((each.batch_id, *key, *span, TOPIC_IDS[key[0]], count))
                counts: tuple[int | None, ...] = (None,) * 4
                if each.status == "committed":
                    counts = len(results), sum(n or 0 for n in results), results.count(None), results.count(0)
                about: tuple[Any, ...] = (None, 0, 0, None)
                if each.run is not None:
                    about = each.run.run_id, each.generation, each.run.clear_number, each.run.started_at
                what = each.kind, each.origin, each.status
                batches.append((each.batch_id, model.pipeline.name, *what, *about, *counts))
        assert found == sorted(batches)
        assert found_ranges == sorted(ranges)

    def _compare_times(self, cursor: Any) -> None:
        found: dict[tuple[str, str, int], dict[datetime, int]] = {}
        for *where, at, offset in rows_of(
            cursor,
            'select pipeline, topic, partition, boundary, "offset" from exactbatch.time_boundary order by 4',
        ):
            found.setdefault(tuple(where), {})[at] = offset
        for each in found.values():
            assert list(each.values()) == sorted(each.values()), "neighbouring intervals overlap"
        assert found == {
            (model.pipeline.name, *key): times
            for model in self.models
            for key, times in model.times.items()
            if times
        }

    def _compare_target(self, cursor: Any) -> None:
        rows: list[tuple[Any, ...]] = []
        rejects: list[tuple[Any, ...]] = []
        for model in self.models:
            every = {(key, offset) for key, offsets in model.owner.items() for offset in offsets}
            for (key, offset, batch_id), values in self._results(model, every):
                if values is None:
                    reject = model.pipeline.name, *key, offset, batch_id, TOPIC_IDS[key[0]]
                    rejects.append(reject)
                    continue
                record = self.log.records[key][offset]
                assert record is not None
                where = (*key, offset, record.at) if self.lineage == "record" else ()
                rows += [(value, batch_id, *where) for value in values]
        lineage = ", kafka_topic, kafka_partition, kafka_offset, kafka_timestamp"
        found = rows_of(
            cursor, f"select name, batch_id{lineage * (self.lineage == 'record')} from public.target"
        )
        assert sorted(found) == sorted(rows)
        found = rows_of(
            cursor,
            'select pipeline, topic, partition, "offset", batch_id, topic_id from exactbatch.rejected_record',
        )
        assert sorted(found) == sorted(rejects)


def rows_of(cursor: Any, query: str) -> list[tuple[Any, ...]]:
    cursor.execute(query)
    return list(map(tuple, cursor.fetchall()))


def as_ranges(ranges: Sequence[OffsetRange]) -> Ranges:
    found: Ranges = {}
    for each in ranges:
        found.setdefault((each.topic, each.partition), []).append((each.from_offset, each.until_offset))
    return found


# What has to have happened in a run for it to say anything.
OUTCOMES = (
    "advance: planned advance",
    "advance: nothing to process",
    "advance: OffsetsLost",
    "advance: crashed",
    "offsets lost",
    "replay of ranges: planned replay",
    "replay of ranges: ReplayRefused",
    "replay of ranges: OffsetsLost",
    "replay of batches: planned replay",
    "replay of batches: ReplayRefused",
    "replay of batches: OffsetsLost",
    "replay of window: planned replay",
    "replay of window: nothing to process",
    "replay of window: OffsetsLost",
    "run: planned advance",
    "run: planned replay",
    "retry: kept its plan",
    "clear: planned replay",
    "clear: planned replay of a clear",
    "create again: planned replay",
    "superseded: advance",
    "superseded: replay",
    "launch: staged",
    "launch: OffsetsLost",
    "publish: committed: advance",
    "publish: committed: replay",
    "publish: committed before: ",
    "publish: staged rows differ: ",
    "publish: crashed",
    "publish: Fenced, superseded: ",
    "publish: Fenced, overtaken: ",
    "publish: Fenced, stored offset moved: ",
)


@pytest.mark.timeout(1200)  # an example that fails is made smaller first
@pytest.mark.parametrize("lineage", ["record", "batch"])
def test_the_ledger_is_its_model_after_every_step(
    connection: Any, lineage: Literal["record", "batch"]
) -> None:
    number = draw_seed()
    rounds = int(os.environ.get("EXACTBATCH_MODEL_ROUNDS") or ROUNDS)
    with transaction(connection) as cursor:
        cursor.execute("set synchronous_commit = off")  # thousands of commits, and none has to survive
    tally: Counter[str] = Counter()
    missing = [*OUTCOMES, *(["publish: Fenced, widening: "] if lineage == "batch" else [])]
    for each in range(number, number + 3 * rounds):
        missing = [what for what in missing if not tally[what]]
        if each >= number + rounds and (not missing or rounds < ROUNDS):
            break  # more rounds only for what chance has left out so far
        print(f"EXACTBATCH_SEED={each}")  # noqa: T201 - the last one is shown when the test fails

        def machine() -> LedgerMachine:
            return LedgerMachine(connection, lineage, tally)

        run_state_machine_as_test(
            seed(each)(machine),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=LENGTH,
                deadline=None,
                database=None,  # the seed alone says what is tried
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    for what, count in sorted(tally.items()):
        print(f"{count:7} {what}")  # noqa: T201
    assert rounds < ROUNDS or [what for what in missing if not tally[what]] == []
