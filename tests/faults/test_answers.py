"""Whatever Postgres answers to a statement, the error is one of ours, says what happened, and nothing is lost.

A proxy answers one statement at a time with an SQLSTATE. Batches run in this process, without Spark, on the
connections that the driver and its executors have.

What is raised depends on the code only by its meaning, of which tests/unit/test_sqlstates.py looks at all. So
`make test` gives some statements one code each; the long form gives each statement as many of all codes in turn as
EXACTBATCH_ANSWERS says, by itself 4, and 300 are all.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import psycopg2
import psycopg2.errorcodes
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Sum, Upsert
from exactbatch.audit.audit import audit
from exactbatch.batch import direct, partition_commit, staging
from exactbatch.batch import job as batch_job
from exactbatch.batch import uncastable as sift
from exactbatch.batch.job import process_batch
from exactbatch.batch.staging import dump
from exactbatch.errors import ExactbatchError, TargetMismatch, TasksFailed
from exactbatch.errors.sqlstates import LOST, UNTOLD, meaning, refuses
from exactbatch.errors.translation import all_errors_own
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, check_schema
from exactbatch.local import LocalStack
from exactbatch.local.ports import HOST
from exactbatch.operations.compact import compact_changes
from exactbatch.operations.report import load_report
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import AskedRange, ReplayRequest
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.environment import LONG
from support.faults.answers import SAID, Answers, Asked
from support.topics import Topic

CODES: Final = sorted(
    code
    for name, code in vars(psycopg2.errorcodes).items()
    if name.isupper() and isinstance(code, str) and len(code) == 5 and code != "00000"
)
# One of each meaning, and those that the program itself looks for.
SOME: Final = [
    "08006", "0A000", "22003", "22P02", "23503", "23505", "25006", "25P02", "25P03", "28000", "3D000", "3F000",
    "40001", "40P01", "42501", "42703", "42P01", "42P07", "44000", "53100", "53300", "54000", "55000", "55P03",
    "57014", "57P01", "57P03", "57P04", "58030", "72000", "F0000", "HV000", "HV00N", "P0001", "XX000", "02000",
]  # fmt: skip
SINKS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "append": lambda name: {"sink": Append(name)},
    "partition": lambda name: {"sink": Append(name), "commit": "partition", "value": Json("id int, name text")},
    "upsert": lambda name: {"sink": Upsert(name, key=("id",)), "key": Json("id int")},
    "aggregate": lambda name: {"sink": Aggregate(name, by=("name",), measures={"n": Count(), "ids": Sum("id")})},
}  # fmt: skip
# What fails without an error of the batch: it has committed, or has failed already.
WITHOUT_ERROR: Final = (
    "drop table if exists",
    "lock_timeout",
    "rollback",
    "savepoint offenders",
    "begin",
    "commit",
)


class NoSpark:
    """What a batch asks of Spark, beside its executors."""

    class sparkContext:
        """Its context."""

        defaultParallelism = 2


def on_this_process(_spark: Any, tasks: Any, do: Any, *, most: int, what: str) -> list[Any]:
    """As on_executors(), but here, and once: Spark's other tries would meet no error any more."""
    outcomes = []
    for attempt, task in enumerate(tasks):
        try:
            outcomes.append(dump(do(task, attempt)))
        except Exception as error:
            name = f"{type(error).__module__}.{type(error).__name__}"
            raise TasksFailed(f"expected every task to {what} its range, found: {name}: {error}.") from error
    return direct.loaded(outcomes)


def read_once(read_range: Callable[..., Any]) -> Callable[..., Any]:
    """As read_range(), but Kafka is asked once for each range."""
    read: dict[Any, list[Any]] = {}

    def cached(range_: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        if range_ not in read:
            read[range_] = list(read_range(range_, *arguments, **named))
        return iter(read[range_])

    return cached


class KnownIds:
    """As KafkaBroker, for what a batch asks of it; Kafka is asked once."""

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


@dataclass
class Case:
    """A pipeline behind the proxy, beside a connection that is not."""

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
            return Ledger(self.connection).batch(batch_id).status

    def seen(self) -> list[tuple[Any, ...]]:
        """All that a batch changes: where the pipeline stands, its coverage, rows and rejects."""
        sink = self.pipeline.sink
        tables = {sink.table.as_string(self.connection), sink.contributions.table.as_string(self.connection)}
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
        """Do something on a connection of its own behind the proxy, as a command does."""
        with closing(connect(self.settings.postgres, application="exactbatch cli", timeout=10)) as connection:
            check_schema(connection)
            return what(connection)

    def assert_exact(self) -> None:
        found = audit(self.pipeline, self.settings)
        assert found.is_exact, found


def process(case: Case) -> Any:
    batch_id = case.planned()
    return lambda: process_batch(NoSpark, case.pipeline, batch_id, case.settings)  # type: ignore[arg-type]


def process_replay(case: Case) -> Any:
    if not case.batch_id or case.status(case.batch_id) != "planned":
        request = ReplayRequest(ranges=(AskedRange(case.topic.name, 0, 0, 4),))
        batch_id = freeze_replay(case.connection, case.log, case.pipeline, request, origin="cli").batch_id
        assert batch_id is not None
        case.batch_id = batch_id
    return lambda: process_batch(NoSpark, case.pipeline, case.batch_id, case.settings)  # type: ignore[arg-type]


def plan_advance(case: Case) -> Any:
    return lambda: case.through(lambda c: freeze_advance(c, case.log, case.pipeline, origin="cli"))


def plan_replay(case: Case) -> Any:
    request = ReplayRequest(ranges=(AskedRange(case.topic.name, 0, 0, 4),))

    def run(connection: Any) -> None:
        preview_replay(connection, case.log, case.pipeline, request)
        freeze_replay(connection, case.log, case.pipeline, request, origin="cli")

    return lambda: case.through(run)


def look(case: Case) -> Any:
    def run(connection: Any) -> None:
        load_status(connection, case.log, case.pipeline)
        load_report(case.settings.postgres, case.log, case.pipeline, 1)

    return lambda: case.through(run)


def compacting(case: Case) -> Any:
    return lambda: case.through(lambda c: compact_changes(c, case.log, case.pipeline, before=None))


def auditing(case: Case) -> Any:
    return lambda: audit(case.pipeline, case.settings, values=True)


FLOWS: Final[list[tuple[str, Callable[[Case], Any]]]] = [
    ("append", process),
    ("append", process_replay),
    ("append", plan_advance),
    ("append", plan_replay),
    ("append", look),
    ("append", auditing),
    ("partition", process),
    ("upsert", process),
    ("upsert", process_replay),
    ("upsert", compacting),
    ("upsert", auditing),
    ("aggregate", process),
    ("aggregate", process_replay),
    ("aggregate", auditing),
]


# Of these, make test has some, with so many of their statements.
IN_SHORT: Final = (0, 5, 6, 8, 11)
_SHORT: Final = 10


@pytest.fixture
def answers(stack: LocalStack) -> Iterator[Answers]:
    with Answers((HOST, stack.postgres.port)) as answers:
        yield answers


@pytest.fixture
def case(
    answers: Answers,
    settings: Settings,
    database: str,
    connection: Any,
    kafka_log: KafkaBroker,
    make_topic: Callable[..., Topic],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Case:
    monkeypatch.setattr(batch_job, "batch_session", lambda spark, _pipeline: nullcontext(spark))
    monkeypatch.setattr(batch_job, "watched", lambda *_: nullcontext())
    for module in (direct, batch_job):
        monkeypatch.setattr(module, "on_executors", on_this_process)
    for module in (staging, sift, partition_commit):
        monkeypatch.setattr(module, "read_range", read_once(module.read_range))
    for module in (batch_job, partition_commit):
        monkeypatch.setattr(module, "KafkaBroker", lambda _properties: KnownIds(kafka_log))
    topic = make_topic()
    behind = make_dsn(database, port=answers.port, sslmode="disable", gssencmode="disable")
    name = f"public.{topic.name}"
    pipeline = Pipeline(
        name=topic.name,
        topics=(topic.name,),
        max_rejects=100,
        read_timeout=10,
        publish_timeout=10,
        **{"value": Json("id int, name varchar(8)"), **SINKS[request.param](name)},
    )
    with transaction(connection):
        Ledger(connection).register(pipeline)
    case = Case(answers, pipeline, topic, Settings(settings.kafka, behind), connection, kafka_log)
    process(case)()  # targets are there from now on
    return case


def outcome(work: Callable[[], Any]) -> ExactbatchError | None:
    """How it ends for whoever runs a command or a task."""
    try:
        with all_errors_own():
            work()
    except ExactbatchError as error:
        return error
    return None


def check(code: str, error: ExactbatchError, asked: Asked) -> None:
    """The error is what the table says of the code, in words of our own."""
    message = f"{type(error).__name__}: {error}"
    what = f"{code} at {asked}: {message}"
    own_words = type(error).__name__ in ("NotRegistered", "StagedRowsDiffer", "TargetMismatch")
    assert SAID in message or f"SQLSTATE {code}" in message or own_words, what
    assert "psycopg2" not in message, what
    assert "adbc" not in message.lower(), what
    assert "error in exactbatch" not in message, what
    lost = meaning(code) is LOST
    if UNTOLD.what in message:
        assert error.retryable, what  # ADBC has told no SQLSTATE
    elif type(error).__name__ == "StagedRowsDiffer":
        assert code == "42P01", what
    else:
        assert error.retryable == meaning(code).error.retryable, what
        assert (LOST.what in message) == lost, what
        assert meaning(code).what in message or own_words, what
    if isinstance(error, TargetMismatch):
        assert refuses(code), what


def chosen(statements: Sequence[Asked], shift: int) -> Iterator[tuple[int, list[str]]]:
    """The statements that are answered, by number, and the codes that each is answered with."""
    each = min(int(os.environ.get("EXACTBATCH_ANSWERS", "4")), len(CODES))
    for number in range(len(statements)):
        if LONG:
            yield number, [CODES[((shift + number) * each + at) % len(CODES)] for at in range(each)]
        elif number % max(1, len(statements) // _SHORT) == 0:
            yield number, [SOME[(shift + number) % len(SOME)]]


@pytest.mark.parametrize(
    ("case", "flow"),
    FLOWS if LONG else [FLOWS[at] for at in IN_SHORT],
    indirect=["case"],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
@pytest.mark.timeout(36_000 if LONG else 600)
def test_every_answer_to_every_statement_is_an_error_of_ours(case: Case, flow: Callable[[Case], Any]) -> None:
    work = flow(case)
    case.answers.refuse(None)
    work()
    statements = list(case.answers.asked)
    assert len(statements) >= 8
    combinations = failed = 0
    shift = 17 * [each for _, each in FLOWS].index(flow)
    for number, codes in chosen(statements, shift):
        for code in codes:
            work = flow(case)
            before = case.seen()
            case.answers.refuse(number, code)
            error = outcome(work)
            asked = case.answers.refused
            case.answers.refuse(None)
            assert asked is not None, f"statement {number} of {len(statements)} did not come"
            combinations += 1
            if error is None:
                assert any(each in asked.text.lower() for each in WITHOUT_ERROR), f"{code}: {asked}"
                continue
            failed += 1
            check(code, error, asked)
            if case.seen() != before:
                # Committed, and whole: what failed came after it.
                assert flow in (process, process_replay, plan_advance, plan_replay, compacting), asked
                if flow in (process, process_replay) and case.pipeline.commit == "batch":
                    assert case.status(case.batch_id) == "committed", asked
        assert outcome(flow(case)) is None, f"the retry after {statements[number]}"
    case.assert_exact()
    print(f"{combinations} combinations, {failed} errors")  # noqa: T201 - is shown with -s
