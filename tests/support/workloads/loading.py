"""Loads the events of a workload in each mode of an Upsert, in random batches with replays in between."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from exactbatch import Append, Debezium, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.replays import Replays, ranges
from support.topics import Topic
from support.workloads.events import Event
from support.workloads.source import COLUMNS, Row


@dataclass(frozen=True)
class Mode:
    """One way to load: by offset or by version, with or without a history, alone or together with an Append.

    With `keys_move`, the number of partitions grows between two events, so that a key is in two partitions.
    """

    is_versioned: bool
    history: bool
    together: bool = False
    partitions: int = 1
    keys_move: bool = False

    def __str__(self) -> str:
        return "-".join(
            (
                "version" if self.is_versioned else "offset",
                "history" if self.history else "latest",
                *(["together"] if self.together else []),
                f"{self.partitions}p",
                *(["moved"] if self.keys_move else []),
            )
        )

    @property
    def keeps_unavailable(self) -> bool:
        """True if a row keeps a long value that its update leaves out; otherwise the update is a reject."""
        return self.history and not self.together

    def pipeline(self, make_pipeline: MakePipeline, topic: Topic, connector: str) -> Pipeline:
        """Register the pipeline of this mode."""
        truncate: Any = "apply" if self.is_versioned and self.keeps_unavailable else "reject"
        value = Debezium(COLUMNS, version=connector if self.is_versioned else None, truncate=truncate)
        version = tuple(each.name for each in value.columns[len(value.fields) :]) or None
        sink: Any = Upsert(f'public."{topic.name}"', key=("id",), version=version, history=self.history)
        if self.together:
            sink = [Append(f'public."{topic.name}_raw"'), sink]
        return make_pipeline(topic, value=value, sink=sink)


OFFSETS: Final = (
    Mode(is_versioned=False, history=True),
    Mode(is_versioned=False, history=True, together=True, partitions=3),
    Mode(is_versioned=False, history=False, partitions=3),
)
VERSIONS: Final = (
    Mode(is_versioned=True, history=True),
    Mode(is_versioned=True, history=True, partitions=3, keys_move=True),
    Mode(is_versioned=True, history=True, together=True, partitions=3),
    Mode(is_versioned=True, history=False),
    Mode(is_versioned=True, history=False, partitions=3, keys_move=True),
)


@dataclass
class Loader:
    """Loads events into a table of its own for each mode."""

    world: BatchRunner
    make_topic: MakeTopic
    make_pipeline: MakePipeline

    def load(
        self,
        mode: Mode,
        events: Sequence[Event],
        chance: random.Random,
        *,
        batches: int = 3,
        connector: str = "postgres",
    ) -> list[Row]:
        """Load events and return the rows of the target, which the audit has found exact."""
        topic = self.make_topic(mode.partitions)
        pipeline = mode.pipeline(self.make_pipeline, topic, connector)
        has_schema = chance.random() < 0.5
        moved_from = _between_repeats(events) if mode.keys_move else 0
        records = [
            (*event.record(has_schema=has_schema), event.partition(mode.partitions - (at < moved_from)))
            for at, event in enumerate(events)
        ]
        written = [0] * mode.partitions
        for start, stop in _cuts(len(events), batches, chance):
            topic.produce_records(records[start:stop])
            for *_, partition in records[start:stop]:
                written[partition] += 1
            self.world.run(pipeline)
            if chance.random() < 0.4:
                self._replay(pipeline, topic, written, chance)
        report = audit(pipeline, self.world.settings, values=True)
        assert report.is_exact, report
        rows: list[Any] = self.world.rows(f'select id, note, body from public."{topic.name}" order by id')
        return rows

    def _replay(self, pipeline: Pipeline, topic: Topic, written: list[int], chance: random.Random) -> None:
        partition = chance.choice([at for at, count in enumerate(written) if count])
        start = chance.randrange(written[partition])
        until = chance.randrange(start, written[partition]) + 1
        Replays(self.world).run(pipeline, ranges((start, until), partition=partition, topic=topic))


def _between_repeats(events: Sequence[Event]) -> int:
    """Return an index from the middle on that no run of repeated events goes over: a change that is repeated in another
    partition looks like a position that went back (docs/debezium.md)."""
    last = {_change(event): at for at, event in enumerate(events)}
    reach = 0
    for at, event in enumerate(events):
        if at >= len(events) // 2 and reach < at:
            return at
        reach = max(reach, last[_change(event)])
    raise AssertionError("repeated runs leave no place between them")


def _change(event: Event) -> tuple[Any, ...]:
    return event.key, event.operation, *(str(event.source.get(name)) for name in ("lsn", "file", "pos"))


def _cuts(count: int, parts: int, chance: random.Random) -> list[tuple[int, int]]:
    """Cut `count` events into at most `parts` batches."""
    bounds = sorted({0, count, *(chance.randrange(1, count) for _ in range(parts - 1))})
    return list(pairwise(bounds))
