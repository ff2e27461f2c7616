"""Batches in this process, without Spark, on connections whose statements a proxy answers."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Sum, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import loaded
from exactbatch.errors import ExactbatchError, TasksFailed
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, check_schema
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from support.faults.answers import Answers
from support.topics import Topic

SINKS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "append": lambda name: {"sink": Append(name)},
    "partition": lambda name: {"sink": Append(name), "commit": "partition", "value": Json("id int, name text")},
    "upsert": lambda name: {"sink": Upsert(name, key=("id",)), "message_key": Json("id int")},
    "aggregate": lambda name: {
        "sink": Aggregate(name, group_by=("name",), aggregates={"n": Count(), "ids": Sum("id")})
    },
}  # fmt: skip


class NoSpark:
    """The part of a Spark session that a batch uses apart from executors."""

    class sparkContext:
        """Its context."""

        defaultParallelism = 2
        applicationId = "local-1"

        @staticmethod
        def setLocalProperty(name: str, value: str) -> None:
            """Take a property of the thread's jobs, of which there are none."""


def on_this_process(_spark: Any, tasks: Any, work: Any, *, limit: int, verb: str, **_: Any) -> list[Any]:
    """Replace on_executors(): run the tasks in this process, once, because further attempts would meet no error."""
    outcomes = []
    for attempt, task in enumerate(tasks):
        try:
            outcomes.append(dump(work([task], attempt)))
        except Exception as error:
            name = f"{type(error).__module__}.{type(error).__name__}"
            raise TasksFailed(f"a task failed to {verb} its range: {name}: {error}.") from error
    return loaded(outcomes)


def read_once(read_range: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap read_range(), so that each range is read from Kafka once."""
    read: dict[Any, list[Any]] = {}

    def cached(range_: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        if range_ not in read:
            read[range_] = list(read_range(range_, *arguments, **named))
        return iter(read[range_])

    return cached


class KnownIds:
    """A KafkaBroker for batches, which asks Kafka once."""

    ids: ClassVar[dict[tuple[str, ...], Any]] = {}

    def __init__(self, log: KafkaBroker) -> None:
        self._log = log

    def topic_ids(self, topics: Any) -> Any:
        """The topics' ids."""
        if (key := tuple(topics)) not in self.ids:
            self.ids[key] = self._log.topic_ids(topics)
        return self.ids[key]

    def cluster(self, topics: Any) -> Any:
        """The topics' ids, and no cluster to compare with."""
        return self.topic_ids(topics), None

    def take_fingerprints(self, _ranges: Any) -> list[Any]:
        """No record: the log stays as it is."""
        return []


@dataclass
class AnsweredBatches:
    """A pipeline behind the proxy, and a connection that bypasses the proxy."""

    answers: Answers
    pipeline: Pipeline
    topic: Topic
    settings: Settings
    connection: Any
    log: KafkaBroker
    produced: int = 0
    batch_id: int = 0

    def produce(self) -> None:
        """Four records, one of which does not decode and one does not fit."""
        numbers = range(self.produced, self.produced + 2)
        values = [json.dumps({"id": n, "name": f"n{n % 2}"}).encode() for n in numbers]
        self.topic.produce(*values, b"bad", b'{"id": 1, "name": "too long a name"}')
        self.produced += 2

    def planned(self) -> int:
        """The batch to process: a new one where the last has committed."""
        if not self.batch_id or self.status(self.batch_id) != "planned":
            self.produce()
            planned = freeze_advance(self.connection, self.log, self.pipeline, origin="cli")
            assert planned is not None
            self.batch_id = planned
        return self.batch_id

    def status(self, batch_id: int) -> str:
        with transaction(self.connection):
            return Ledger(self.connection).batches.read(batch_id).status

    def seen(self) -> list[tuple[Any, ...]]:
        """All that a batch changes: where the pipeline stands, its coverage, rows and rejects."""
        writer = find_writer(self.pipeline.traits)
        tables = {
            table.identifier.as_string(self.connection)
            for table in (writer.tables[-1], writer.lineage_table.table)
        }
        with transaction(self.connection) as cursor:
            seen = []
            for statement in (
                "select topic, partition, next_offset from exactbatch.stored_offset",
                "select count(*), max(batch_id), sum(upper(offsets)) from exactbatch.coverage",
                "select count(*), max(batch_id) from exactbatch.rejected_record",
                "select batch_id, status, records, rows from exactbatch.batch order by 1 desc limit 2",
                *(
                    f"select count(*), md5(string_agg(t::text, ';' order by t::text)) from {name} t"
                    for name in tables
                ),
            ):
                cursor.execute(statement)
                seen += [tuple(each) for each in cursor.fetchall()]
        return seen

    def through(self, what: Callable[[Any], Any]) -> Any:
        """Call `what` with a new connection behind the proxy, as a command does."""
        with closing(connect(self.settings.postgres, application="exactbatch cli", timeout=10)) as connection:
            check_schema(connection)
            return what(connection)

    def assert_exact(self) -> None:
        found = audit(self.pipeline, self.settings)
        assert found.is_exact, found


def process(case: AnsweredBatches) -> Any:
    batch_id = case.planned()
    return lambda: process_batch(DriverEngine(NoSpark), case.pipeline, batch_id, case.settings)  # type: ignore[arg-type]


def process_replay(case: AnsweredBatches) -> Any:
    if not case.batch_id or case.status(case.batch_id) != "planned":
        request = ReplayRequest(ranges=(RequestedRange(case.topic.name, 0, 0, 4),))
        batch_id = freeze_replay(case.connection, case.log, case.pipeline, request, origin="cli").batch_id
        assert batch_id is not None
        case.batch_id = batch_id
    return lambda: process_batch(DriverEngine(NoSpark), case.pipeline, case.batch_id, case.settings)  # type: ignore[arg-type]


def outcome(work: Callable[[], Any]) -> ExactbatchError | None:
    """Return the error that a command or a task would end with, or None."""
    try:
        with translate_all_errors():
            work()
    except ExactbatchError as error:
        return error
    return None
