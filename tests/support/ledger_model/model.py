"""The model of a pipeline's ledger: what each plan, launch and publish must do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from exactbatch import Limits, Pipeline
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.batch.staging.task import Staged
from exactbatch.errors import (
    ExactbatchError,
    OffsetsLost,
    ReplayRefused,
)
from exactbatch.ledger import DagRun
from exactbatch.planning.request import ReplayRequest
from support.ledger_model.log import (
    NOT_YET,
    FakeLog,
    Key,
    Ranges,
)

Loss = Literal["loss"]
LOSS: Loss = "loss"


@dataclass(repr=False)
class ModelBatch:
    """A batch as the ledger must have it; `program` is the version whose results were committed."""

    batch_id: int
    kind: str
    origin: str
    ranges: Ranges
    run: DagRun | None
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
    """A DAG run of one id. Each life, from its creation on, has the batches that were planned in it.

    `empty` is the clear number at which it last found nothing new.
    """

    run: DagRun
    origin: Any
    request: ReplayRequest | None
    lives: list[dict[DagRun, int]] = field(default_factory=lambda: [{}])
    empty: int | None = None

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
    """The required result of planning: an error, an earlier plan, nothing, or a new batch."""

    error: type[ExactbatchError] | None = None
    earlier: int | None = None
    kind: str = "replay"
    origin: str = "cli"
    ranges: Ranges = field(default_factory=dict)
    widened: bool = False
    times: dict[Key, dict[datetime, int]] = field(default_factory=dict)
    began: dict[Key, int | None] = field(default_factory=dict)
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
            # A partition that a topic has gained is processed from its first offset on.
            stored, earliest = self.stored.get(key, 0 if key[0] in known else None), log.earliest[key]
            if stored is not None and stored < earliest and self.pipeline.on_loss == "fail":
                return Expected(error=OffsetsLost)
            expected.began[key] = stored
            if stored is None and self.pipeline.start == "latest":
                expected.heads[key] = log.stable(key)
            else:
                expected.heads[key] = max(stored or 0, earliest)
            expected.takes[key] = log.stable(key) - expected.heads[key]
        return expected

    def seen(self) -> tuple[dict[Key, int], set[int]]:
        """Return the stored offsets and the committed batches."""
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
        if self.pipeline.traits.lineage == "batch":
            owners = {self.owner.get(key, {}).get(offset) for key, offset in asked}
            whole = self.owned({each for each in owners if isinstance(each, int)})
            expected.widened = not whole <= asked
            asked |= whole
        lost = {(key, offset) for key, offset in asked if offset < log.earliest[key]}
        if lost and not request.available_only:
            return Expected(error=OffsetsLost)
        if self.pipeline.traits.lineage == "batch" and any(
            isinstance(self.owner.get(key, {}).get(offset), int) for key, offset in lost
        ):
            return Expected(error=OffsetsLost)
        expected.ranges = describe_ranges(asked - lost)
        if beyond and not expected.ranges:
            return Expected(error=ReplayRefused)
        return expected

    def _window(
        self, log: FakeLog, request: ReplayRequest, stored: Mapping[Key, int], expected: Expected
    ) -> tuple[set[tuple[Key, int]], bool, type[ExactbatchError] | None]:
        """Return the processed part of a window, whether there is more of it, and the error over its beginning."""
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
        if mine.empty is not None and max((each.clear_number for each in life), default=-1) < mine.empty < (
            mine.run.clear_number
        ):
            return (
                Expected()
            )  # the run was cleared after it had found nothing: what has come since is not its own
        return self.advance(log, origin=mine.origin)

    def publishable(self, batch: ModelBatch) -> str:
        """Return the state of a batch, which is checked before it is launched and again when it is published."""
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
        elif self.pipeline.traits.lineage == "batch" and self.owned(self.owners(batch)) - set(
            batch.offsets()
        ):
            return "Fenced, widening"
        return "staged rows differ" if launch.damaged else "committed"

    def commit(self, batch: ModelBatch, program: int) -> None:
        batch.status, batch.program = "committed", program
        for key, offset in batch.offsets():
            self.owner.setdefault(key, {})[offset] = batch.batch_id
        if batch.kind == "advance":
            self.stored.update({key: ranges[0][1] for key, ranges in batch.ranges.items()})


def describe_ranges(offsets: set[tuple[Key, int]]) -> Ranges:
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
    most = limits.max_offsets_per_partition
    gives = {key: take if most is None else min(take, most) for key, take in expected.takes.items()}
    takes = dict.fromkeys(gives, 0)
    for key, ranges in found.items():
        ((from_offset, until_offset),) = ranges
        assert from_offset == expected.heads[key]
        takes[key] = until_offset - from_offset
    total = sum(gives.values())
    assert sum(takes.values()) == (total if limits.max_offsets is None else min(total, limits.max_offsets))
    for key, take in takes.items():
        assert take == gives[key] or max(takes.values()) - 1 <= take < gives[key]
