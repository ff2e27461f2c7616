"""Steps with each kind of sink, and what the target must then hold."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from exactbatch import (
    Aggregate,
    Append,
    Count,
    Json,
    Max,
    Min,
    Pipeline,
    Route,
    Sum,
    Upsert,
    Window,
)
from exactbatch.audit.run_audit import audit
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.reference import LogRecord, Row, appended, by_hour, decode, is_rejected, last, latest, read_log
from support.topics import Topic

PARTITIONS: Final = 3
VALUE: Final = Json("id int, carrier text, at timestamptz, delay int, version int")
COLUMNS: Final = "id, carrier, at, delay, version"
NOON: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class SinkKind:
    """A sink, what its target holds by key, and what it should hold."""

    sink: Callable[[str], Any]
    query: str
    key: int
    expected: Callable[[list[LogRecord]], dict[Row, Row]]
    changes: dict[str, Any] = field(default_factory=dict)
    # Whether the changes of an id may be in several partitions.
    spread: bool = True
    # Whether a version orders changes, so that a null value, which has none, is a reject.
    versioned: bool = False

    def rejected(self, log: list[LogRecord]) -> list[tuple[int, int]]:
        """Return partition and offset of the records that must be rejects."""
        nulls = [each for each in log if self.versioned and each.value is None]
        return sorted((each.partition, each.offset) for each in [*filter(is_rejected, log), *nulls])


KEYED: Final = {"message_key": Json("id int")}
MEASURES: Final[dict[str, Any]] = {
    "events": Count(),
    "delay": Sum("delay"),
    "best": Min("delay"),
    "worst": Max("delay"),
}


def _latest_of_one_carrier(log: list[LogRecord]) -> dict[Row, Row]:
    return latest(
        [each for each in log if each.value is not None and (e := decode(each)) and e.carrier == "AA"]
    )


def _beside(name: str, suffix: str) -> str:
    """Return the name of another table, with or without quotes."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


KINDS: Final = {
    "append": SinkKind(Append, f"kafka_partition, kafka_offset, {COLUMNS}", 2, appended),
    "upsert": SinkKind(
        lambda name: Upsert(name, key=("id",), version="version"),
        f"id as its_key, {COLUMNS}",
        1,
        latest,
        versioned=True,
    ),
    "together": SinkKind(
        lambda name: [Append(_beside(name, "_raw")), Upsert(name, key=("id",), version="version")],
        f"id as its_key, {COLUMNS}",
        1,
        latest,
        versioned=True,
    ),
    "route": SinkKind(
        lambda name: Route(
            by="carrier",
            to={
                "UA": Upsert(_beside(name, "_ua"), key=("id", "carrier"), version="version"),
                "AA": Upsert(name, key="id", version="version"),
            },
            rest=Append(_beside(name, "_rest")),
            columns={_beside(name, "_rest"): ("id", "at", "delay")},
        ),
        f"id as its_key, {COLUMNS}",
        1,
        _latest_of_one_carrier,
        versioned=True,
    ),
    "upsert by offset": SinkKind(
        lambda name: Upsert(name, key=("id",)), f"id as its_key, {COLUMNS}", 1, last, KEYED, spread=False
    ),
    "upsert_latest": SinkKind(
        lambda name: Upsert(name, key=("id",), history=False),
        f"id as its_key, {COLUMNS}",
        1,
        last,
        KEYED,
        spread=False,
    ),
    "aggregate": SinkKind(
        lambda name: Aggregate(
            name, group_by=("carrier", Window("at", "1 hour", "hour")), aggregates=MEASURES
        ),
        "carrier, hour, events, delay, best, worst",
        2,
        by_hour,
    ),
    "by_batch": SinkKind(
        lambda name: Append(name, layout="by_batch", min_offsets=0),
        f"kafka_partition, kafka_offset, {COLUMNS}",
        2,
        appended,
    ),
    "open_partition": SinkKind(
        lambda name: Append(name, layout="by_batch"),
        f"kafka_partition, kafka_offset, {COLUMNS}",
        2,
        appended,
    ),
    "partition": SinkKind(
        Append, f"kafka_partition, kafka_offset, {COLUMNS}", 2, appended, {"commit": "partition"}
    ),
}


class Play:
    """One scenario with one sink: its topic, its pipeline, and the steps that can be done."""

    def __init__(self, world: BatchRunner, topic: Topic, pipeline: Pipeline, kind: SinkKind) -> None:
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

    def plan_replay(self) -> int:
        """Plan a replay of the middle third of each partition."""
        with transaction(self.world.connection):
            stored = Ledger(self.world.connection).plans.read_stored_offsets(self.pipeline)
        asked = tuple(
            RequestedRange(each.topic, each.partition, each.next_offset // 3, each.next_offset * 2 // 3 + 1)
            for each in stored
            if each.next_offset > 1
        )
        request = ReplayRequest(ranges=asked)
        batch_id = freeze_replay(
            self.world.connection, self.world.log, self.pipeline, request, origin="cli"
        ).batch_id
        assert batch_id is not None
        return batch_id

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
        self.world.process(self.pipeline, self.plan_replay())

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

    def check(self) -> None:
        """The target is what the log makes it, every record is accounted for, and the auditor agrees."""
        log = read_log(self.topic.properties, self.topic.name, PARTITIONS)
        table = find_writer(self.pipeline.traits).tables[-1].identifier.as_string(self.world.connection)
        rows = self.world.rows(f"select {self.kind.query} from {table}")
        found = {row[: self.kind.key]: row[self.kind.key :] for row in rows}
        assert len(found) == len(rows)
        assert found == self.kind.expected(log)
        rejected = self.world.rows('select partition, "offset" from exactbatch.rejected_record order by 1, 2')
        assert rejected == self.kind.rejected(log)
        # Without its values the log does not tell which record is the latest of its key.
        is_latest = not self.pipeline.traits.keeps_every_row
        audits = audit(self.pipeline, self.world.settings, values=is_latest)
        assert audits.is_exact, audits
        assert audits.records == len(log)
        assert self.world.staging() == []

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
