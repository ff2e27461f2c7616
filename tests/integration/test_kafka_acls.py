"""With the ACLs of docs/security.md a pipeline can do all it does; without one of them an error names it."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from psycopg2.extensions import parse_dsn

from exactbatch import Append, Json, Pipeline, ToTopic, Upsert
from exactbatch.audit.audit_result import AuditReport
from exactbatch.audit.run_audit import audit
from exactbatch.batch.engines import driver_engine
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import loaded
from exactbatch.errors import ConfigurationError
from exactbatch.forwarding.forward import forward_results
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.reader import read_range
from exactbatch.ledger import Batch, DagRun, Ledger, check_schema
from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST, find_port
from exactbatch.offsets import OffsetRange
from exactbatch.operations.report import Report, load_report
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.run import plan_run
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.audited_target import AuditedTarget
from support.forwarded import check_once_in_order, committed
from support.readers import READERS, read_with
from support.roles import ROLES, Deployment
from support.stacks import new_stack
from support.staged_batches import Batches
from support.topics import Topic, await_leaders, record

DOCS: Final = Path(__file__).parents[2] / "docs" / "security.md"
TOPIC: Final = "flights"
READ: Final = "topic", TOPIC, "Read"
DESCRIBE: Final = "topic", TOPIC, "Describe"
CONFIGS: Final = "topic", TOPIC, "DescribeConfigs"
LAG: Final = "group", f"exactbatch.{TOPIC}", "Read"
START: Final = "group", "before", "Describe"
# All that a pipeline needs, and the row of the documentation that says so.
NEEDED: Final = {
    READ: "| each topic of the pipeline | `Read`, which includes `Describe` |",
    CONFIGS: "| each topic of the pipeline | `DescribeConfigs` |",
    LAG: "| the group `exactbatch.<pipeline>` | `Read` |",
    START: '| the group of `start="group:…"` | `Describe` |',
}
Grant = tuple[str, str, str]


@dataclass(frozen=True)
class Guarded:
    """A broker that asks for a password and knows ACLs."""

    stack: LocalStack
    port: int

    @property
    def job(self) -> dict[str, Any]:
        """Client properties of the login "job", which may do what grant() says."""
        return {
            "bootstrap.servers": f"{HOST}:{self.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "job",
            "sasl.password": "pa55word",
        }

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(dict(self.stack.kafka_properties))

    def grant(self, *grants: Grant, denied: Grant | None = None) -> None:
        """Let the job do this and nothing else, and wait until the broker knows."""
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for done in self.admin.delete_acls([everything]).values():
            done.result(30)
        bindings = {acl(each, AclPermissionType.ALLOW) for each in grants}
        bindings |= {acl(denied, AclPermissionType.DENY)} if denied else set()
        if bindings:
            for done in self.admin.create_acls(list(bindings)).values():
                done.result(30)
        deadline = time.monotonic() + 30
        while set(self.admin.describe_acls(everything).result(30)) != bindings:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def acl(grant: Grant, permission: AclPermissionType) -> AclBinding:
    resource, name, operation = grant
    operations = {
        "Read": AclOperation.READ,
        "Describe": AclOperation.DESCRIBE,
        "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
        "Write": AclOperation.WRITE,
    }
    return AclBinding(
        ResourceType[resource.upper()],
        name,
        ResourcePatternType.PREFIXED if name.endswith(".") else ResourcePatternType.LITERAL,
        "User:job",
        "*",
        operations[operation],
        permission,
    )


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    stack = new_stack("guarded")
    try:
        stack.broker.configure({}, None)
        plain = stack.broker.ports
        port = find_port(None, frozenset(plain.values()))
        open_to = f"CLIENT://{HOST}:{plain['client']},JOB://{HOST}:{port}"
        stack.broker.configure(
            {},
            {
                "listeners": f"{open_to},CONTROLLER://{HOST}:{plain['controller']}",
                "advertised.listeners": open_to,
                "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,JOB:SASL_PLAINTEXT",
                "listener.name.job.plain.sasl.jaas.config": (
                    'org.apache.kafka.common.security.plain.PlainLoginModule required user_job="pa55word";'
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # The broker itself and the tests.
                "super.users": "User:exactbatch",
            },
        )
        stack.broker.start()
        yield Guarded(stack, port)
    finally:
        stack.down(delete=True)


@pytest.fixture
def topic(guarded: Guarded) -> Iterator[Topic]:
    """Ten records; a group has committed the first one."""
    guarded.grant(*NEEDED)
    guarded.admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    deadline = time.monotonic() + 30
    while TOPIC not in guarded.admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    topic = Topic(TOPIC, dict(guarded.stack.kafka_properties))
    topic.produce(*map(record, range(10)))
    before = Consumer({**topic.properties, "group.id": "before"})
    before.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
    before.close()
    yield topic
    guarded.admin.delete_topics([TOPIC])[TOPIC].result(30)


@pytest.fixture
def world(
    guarded: Guarded, topic: Topic, connection: Any, database: str, make_pipeline: Callable[..., Pipeline]
) -> AuditedTarget:
    """A pipeline over the records, as the job sees them."""
    return AuditedTarget(
        connection, Settings(guarded.job, database), make_pipeline(topic, start="group:before")
    )


def read(world: AuditedTarget, batch_id: int) -> int:
    """How many records the ranges of a batch have, as its tasks read them, with either reader."""
    ranges = describe_ranges(world, batch_id)
    log = KafkaBroker(world.settings.kafka)
    assert log.topic_ids([TOPIC]) == {each.topic: each.topic_id for each in ranges}
    [count] = {read_ranges(ranges, world.settings.kafka, reader) for reader in READERS}
    return count


def describe_ranges(world: AuditedTarget, batch_id: int) -> Sequence[OffsetRange]:
    with transaction(world.connection):
        return Ledger(world.connection).batches.read_ranges(batch_id)


def read_ranges(ranges: Sequence[OffsetRange], kafka: Mapping[str, Any], reader: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        read_with(patch, reader)
        return sum(
            len(records) for each in ranges for records in read_range(each, kafka, leader_epoch=0, timeout=2)
        )


def refusals(attempt: Callable[[str], Any]) -> ConfigurationError:
    """The error of an attempt with either reader: it is the same."""
    errors = []
    for reader in READERS:
        with pytest.raises(ConfigurationError) as refused:
            attempt(reader)
        errors.append(refused.value)
    first, second = errors
    assert re.sub(r"\d+ms", "… ms", str(first)) == re.sub(r"\d+ms", "… ms", str(second))
    assert vars(first) == vars(second)
    return first


def audit_with(world: AuditedTarget, reader: str) -> AuditReport:
    with pytest.MonkeyPatch.context() as patch:
        read_with(patch, reader)
        return audit(world.pipeline, world.settings)


def plan_replay(world: AuditedTarget) -> int:
    request = ReplayRequest(ranges=(RequestedRange(TOPIC, 0, 2, 5),))
    batch_id = freeze_replay(
        world.connection, KafkaBroker(world.settings.kafka), world.pipeline, request, origin="cli"
    ).batch_id
    assert batch_id is not None
    return batch_id


def show_lag(world: AuditedTarget) -> None:
    KafkaBroker(world.settings.kafka).commit_group(f"exactbatch.{TOPIC}", {(TOPIC, 0): 10})


def test_what_documentation_lists_is_enough_and_no_more_than_that(
    guarded: Guarded, world: AuditedTarget
) -> None:
    for row in NEEDED.values():
        assert row in DOCS.read_text(encoding="utf-8")
    log = KafkaBroker(world.settings.kafka)

    def refusal(missing: Grant, attempt: Callable[[], Any], *, denied: Grant | None = None) -> None:
        """Without this grant the attempt says which one is missing."""
        guarded.grant(*(each for each in NEEDED if each != missing), denied=denied)
        with pytest.raises(ConfigurationError) as refused:
            attempt()
        resource, name, operation = denied or missing
        assert f"deny this client the operation {operation} on {resource} {name!r}, " in str(refused.value)
        assert f"kafka-acls --add --allow-principal … --operation {operation} --{resource} {name}" in str(
            refused.value
        )
        guarded.grant(*NEEDED)

    refusal(START, lambda: world.load())
    refusal(READ, lambda: world.load(), denied=DESCRIBE)
    batch_id = world.load()
    refusal(READ, lambda: log.partitions([TOPIC]), denied=DESCRIBE)
    assert read(world, batch_id) == 10
    ranges = describe_ranges(world, batch_id)
    for missing, allowed, denied in (
        ("Read", (DESCRIBE, CONFIGS, LAG), None),
        ("Read", NEEDED, READ),
        ("Describe", NEEDED, DESCRIBE),
    ):
        guarded.grant(*allowed, denied=denied)
        refused = refusals(partial(read_ranges, ranges, world.settings.kafka))
        assert f"the operation {missing} on topic '{TOPIC}', which reading it" in str(refused)
        assert refused.topic == TOPIC
    guarded.grant(DESCRIBE, CONFIGS, LAG)
    refused = refusals(partial(audit_with, world))
    assert f"the operation Read on topic '{TOPIC}', which reading it" in str(refused)
    refusal(CONFIGS, lambda: plan_replay(world))
    refusal(CONFIGS, lambda: audit(world.pipeline, world.settings))
    assert read(world, plan_replay(world)) == 3
    assert all(audit_with(world, reader).is_exact for reader in READERS)
    refusal(LAG, lambda: show_lag(world))
    refusal(LAG, lambda: show_lag(world), denied=("group", f"exactbatch.{TOPIC}", "Read"))
    show_lag(world)
    topic = Topic(TOPIC, dict(guarded.stack.kafka_properties))
    open_transaction = topic.transaction(b"open", end="stay open")
    guarded.grant(DESCRIBE, CONFIGS, LAG)
    limited = load_status(world.connection, log, world.pipeline)
    [told] = limited.not_known
    assert told.startswith("the producers of open transactions are not known: Kafka's ACLs deny this client")
    assert f"the operation Read on topic '{TOPIC}', which naming" in told
    assert "its producer is not known" in limited.troubles[0]
    guarded.grant(*NEEDED)
    status = load_status(world.connection, log, world.pipeline)
    [partition] = status.partitions
    assert [first for _, first in partition.open_transactions] == [10]
    assert status.not_known == ()
    topic.end_transaction(open_transaction, "abort")


def test_status_without_the_acl_to_read_says_that_it_does_not_know_whether_the_pipeline_is_overdue(
    guarded: Guarded, world: AuditedTarget
) -> None:
    late = replace(world.pipeline, freshness=timedelta(microseconds=1))
    with transaction(world.connection):
        Ledger(world.connection).registry.register(late)
    log = KafkaBroker(world.settings.kafka)
    assert load_status(world.connection, log, late).overdue is True
    guarded.grant(DESCRIBE, CONFIGS, LAG, START)
    status = load_status(world.connection, log, late)
    assert [partition.lag for partition in status.partitions] == [10]
    told = status.as_json()
    assert (told["overdue"], told["freshness_seconds"]) == (None, 1e-6)
    [sentence] = told["not_known"]
    assert sentence in status.troubles
    assert sentence.startswith("whether the pipeline is overdue is not known: Kafka's ACLs deny this client")
    assert f"kafka-acls --add --allow-principal … --operation Read --topic {TOPIC})" in sentence


def test_replay_whose_topic_nobody_may_ask_about_takes_nothing_back(
    guarded: Guarded, world: AuditedTarget
) -> None:
    """Whether Kafka has compacted it is then not known, and what a compacted topic lacks cannot be made again."""
    world.load()
    guarded.grant(READ, LAG, START)
    with pytest.raises(ConfigurationError, match="A replay with available_only does not need it"):
        plan_replay(world)
    request = ReplayRequest(ranges=(RequestedRange(TOPIC, 0, 2, 5),), available_only=True)
    log = KafkaBroker(world.settings.kafka)
    assert freeze_replay(world.connection, log, world.pipeline, request, origin="cli").batch_id is not None


def test_the_reader_needs_no_group(guarded: Guarded, world: AuditedTarget) -> None:
    """librdkafka looks for the coordinator of the group that it was given, and is denied to."""
    batch_id = world.load()
    for denied in (None, ("group", "exactbatch", "Describe")):
        guarded.grant(READ, denied=denied)
        for _ in range(5):
            assert read(world, batch_id) == 10


def test_both_readers_say_that_a_password_is_wrong(guarded: Guarded, world: AuditedTarget) -> None:
    ranges, wrong = (
        describe_ranges(world, world.load()),
        {**guarded.job, "sasl.password": "planted-wr0ng-word"},
    )
    refused = refusals(partial(read_ranges, ranges, wrong))
    assert "Check, in the Kafka connection, sasl.mechanism, sasl.username and sasl.password." in str(refused)
    assert "planted-wr0ng-word" not in str(refused)


def test_a_window_behind_whose_end_is_looked_needs_no_group(guarded: Guarded, world: AuditedTarget) -> None:
    """It ends at a record of long after, and what follows it might be of the window."""
    world.load()
    guarded.grant(READ, CONFIGS, denied=("group", "exactbatch", "Describe"))
    at = datetime(2026, 1, 5, tzinfo=UTC)
    request = ReplayRequest(window=(at, at + timedelta(hours=1)))
    log = KafkaBroker(world.settings.kafka)
    for _ in range(3):
        assert freeze_replay(world.connection, log, world.pipeline, request, origin="cli").batch_id is None


# The whole way of a batch by the documented login, with the documented roles and ACLs and no others


@dataclass(frozen=True)
class Documented:
    """The tasks of the DAG, by the login of the connection, and an audit, by a reader's."""

    spark: Any
    deployment: Deployment
    pipeline: Pipeline

    @property
    def job(self) -> Settings:
        return self.deployment.settings("job")

    @property
    def log(self) -> KafkaBroker:
        return KafkaBroker(self.job.kafka)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        connection = connect(self.job.postgres, application="tests")
        try:
            check_schema(connection)
            yield connection
        finally:
            connection.close()

    def plan(self, request: ReplayRequest | None = None) -> Batch:
        run = DagRun(
            "dag", f"replay {time.monotonic_ns()}" if request else "run", started_at=datetime.now(UTC)
        )
        with self.connected() as connection:
            found = plan_run(
                connection, self.log, self.pipeline, run, request, origin="manual" if request else "schedule"
            )
        assert found.batch is not None
        return found.batch

    def process(self, batch: Batch) -> Batch:
        return process_batch(
            DriverEngine(self.spark), self.pipeline, batch.batch_id, self.job, batch.plan_id
        ).batch

    def report(self, batch: Batch) -> Report:
        """As report_batch does, but that an ACL that is missing is no warning."""
        report = load_report(self.job.postgres, self.log, self.pipeline, batch.batch_id, batch.plan_id)
        with self.connected() as connection, transaction(connection):
            Ledger(connection).batches.announce([batch.plan_id])
        self.log.commit_group(f"exactbatch.{TOPIC}", report.stored)
        return report

    def audit(self) -> bool:
        return audit(self.pipeline, self.deployment.settings("reader")).is_exact

    def execute(self, statement: str) -> None:
        self.deployment.execute(statement)


@pytest.fixture
def documented(spark: Any, guarded: Guarded, topic: Topic, deployment: Deployment) -> Documented:
    """No login may more than docs/security.md and docs/roles.sql say."""
    deployment = replace(deployment, kafka=guarded.job)
    pipeline = Pipeline(
        name=TOPIC,
        topics=(TOPIC,),
        value=Json("id int, name text"),
        sink=Upsert("shop.item", key=("id",)),
        start="group:before",
        max_rejects=1,
    )
    deployment.execute(f"revoke all on database {parse_dsn(deployment.superuser)['dbname']} from public")
    deployment.init(pipeline)
    deployment.execute(ROLES)
    topic.produce(b"bad")
    return Documented(spark, deployment, pipeline)


WINDOW: Final = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)


def test_documented_rights_are_enough_for_whole_way_of_batch(
    guarded: Guarded, documented: Documented
) -> None:
    batch = documented.process(documented.plan())
    assert (batch.records, batch.rows, batch.rejected) == (11, 10, 1)
    assert [documented.report(batch).lag(each) for each in documented.log.partitions([TOPIC])] == [0]
    again = documented.plan(ReplayRequest(window=WINDOW))
    guarded.grant(*(each for each in NEEDED if each != READ), DESCRIBE)
    with pytest.raises(ConfigurationError, match=f"the operation Read on topic '{TOPIC}', which reading it"):
        documented.process(again)
    guarded.grant(*NEEDED)
    assert documented.process(again).rows == 10
    documented.execute("grant usage on schema shop to exactbatch_reader")
    documented.execute("grant select on all tables in schema shop to exactbatch_reader")
    assert documented.audit()


# What the job's role has, the step that needs it, and what the error names. The steps come in the order of a run.
TABLES: Final = {
    "plan": ("pipeline", "stored_offset", "batch", "batch_range", "run_life", "empty_run", "fingerprint"),
    "replay": ("time_boundary", "replay_horizon"),
    "status": ("batch_failure",),
    "rejects": ("rejected_record",),
}
RIGHTS: Final = [
    ("plan", "connect on database {database}", "database {database}"),
    ("plan", "usage on schema exactbatch", "schema exactbatch"),
    *(
        (step, f"select on exactbatch.{name}", f"table {name}")
        for step, names in TABLES.items()
        for name in names
    ),
    ("plan", "update (registered_at) on exactbatch.pipeline", "table pipeline"),
    ("plan", "insert on exactbatch.stored_offset", "table stored_offset"),
    ("plan", "insert on exactbatch.batch", "table batch"),
    ("plan", "insert on exactbatch.batch_range", "table batch_range"),
    ("plan", "delete on exactbatch.empty_run", "table empty_run"),
    ("process", "create on schema shop", "schema shop"),
    # What follows comes up after the target was created.
    ("process", "select on exactbatch.coverage", "table coverage"),
    ("process", "create on schema exactbatch_staging", "schema exactbatch_staging"),
    ("process", "usage on schema exactbatch_staging", "schema exactbatch_staging"),
    ("process", "usage on schema shop", "schema shop"),
    ("process", "temporary on database {database}", "temporary tables in database {database}"),
    ("process", "update (next_offset) on exactbatch.stored_offset", "table stored_offset"),
    ("process", "insert on exactbatch.rejected_record", "table rejected_record"),
    ("process", "insert on exactbatch.fingerprint", "table fingerprint"),
    ("process", "delete on exactbatch.fingerprint", "table fingerprint"),
    ("process", "insert on exactbatch.coverage", "table coverage"),
    ("process", "update (records) on exactbatch.batch_range", "table batch_range"),
    ("process", "update (rows) on exactbatch.batch", "table batch"),
    ("process", "update (stages) on exactbatch.batch", "table batch"),
    ("process", "update (application_id) on exactbatch.batch", "table batch"),
    ("report", "update (announced_at) on exactbatch.batch", "table batch"),
    ("replay", "insert on exactbatch.time_boundary", "table time_boundary"),
    ("replay", "delete on exactbatch.coverage", "table coverage"),
    ("replay", "delete on exactbatch.rejected_record", "table rejected_record"),
    ("nothing", "insert on exactbatch.empty_run", "table empty_run"),
    ("nothing", "update (planned_at) on exactbatch.empty_run", "table empty_run"),
    ("run again", "insert on exactbatch.run_life", "table run_life"),
]


def here(_spark: Any, tasks: Any, do: Callable[..., Any], **_: Any) -> list[Any]:
    """The tasks of a batch, in this process: Spark would take a second for each."""
    return loaded([dump(do([task], number)) for number, task in enumerate(tasks)])


@pytest.mark.slow
def test_each_right_that_is_missing_is_named(
    documented: Documented, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_engine, "on_executors", here)
    database = parse_dsn(documented.deployment.superuser)["dbname"]
    state: dict[str, Batch] = {}

    def plan() -> None:
        state["batch"] = documented.plan()

    def nothing() -> None:
        run = DagRun("dag", "nothing", started_at=datetime.now(UTC))
        with documented.connected() as connection:
            planned = plan_run(connection, documented.log, documented.pipeline, run, None, origin="schedule")
        assert planned.batch is None

    def process() -> None:
        state["batch"] = documented.process(state["batch"])

    def replayed() -> None:
        documented.process(documented.plan(ReplayRequest(window=WINDOW)))

    def status() -> None:
        with documented.connected() as connection:
            load_status(connection, documented.log, documented.pipeline)

    def rejects() -> None:
        with documented.connected() as connection, transaction(connection):
            Ledger(connection).rejects.read(documented.pipeline)

    steps = {
        "plan": plan,
        "process": process,
        "report": lambda: documented.report(state["batch"]),
        "replay": replayed,
        "status": status,
        "rejects": rejects,
        "nothing": nothing,
        "run again": plan,
    }
    for step, do in steps.items():
        if step == "run again":
            topic.produce(record(11))
        for which, right, named in RIGHTS:
            if which == step:
                right, named = (each.format(database=database) for each in (right, named))
                documented.execute(f"revoke {right} from exactbatch_job")
                with pytest.raises(ConfigurationError) as refused:
                    do()
                said = str(refused.value).replace('"', "")
                assert "a privilege is missing: " in said, right
                assert f" {named}" in said, right
                documented.execute(f"grant {right} to exactbatch_job")
        do()


RESULTS: Final = "late"
OF_RESULTS: Final = (
    ("topic", RESULTS, "Write"),
    ("topic", RESULTS, "Read"),
    ("transactional_id", f"exactbatch.p.{RESULTS}.", "Write"),
)


def test_forwarding_needs_the_acls_of_the_documentation(guarded, connection, database):
    """Without DescribeConfigs only the size of messages is not checked in advance."""
    guarded.grant(*OF_RESULTS)
    guarded.admin.create_topics([NewTopic(RESULTS, 1, 1)])[RESULTS].result(30)
    await_leaders(guarded.admin, RESULTS, 1)
    forward = ToTopic(RESULTS, keyed_by=("id",))
    pipeline = Pipeline(
        name="p", topics=("t",), value=Json("id int"), sink=Append("public.p"), forward=forward
    )
    batches, settings = Batches(connection, pipeline), Settings(guarded.job, database)
    batches.run((1,))
    assert forward_results(connection, settings, pipeline).sent == 1
    for number, missing in enumerate(OF_RESULTS, 2):
        batches.run((number,))
        guarded.grant(*(each for each in OF_RESULTS if each != missing))
        resource, name, operation = missing
        named = f"the operation {operation} on {resource.replace('_', '-')} '{name}"
        with pytest.raises(ConfigurationError, match=re.escape(named)):
            forward_results(connection, settings, pipeline)
        guarded.grant(*OF_RESULTS)
        assert forward_results(connection, settings, pipeline).sent == 1
    check_once_in_order(committed(guarded.stack.kafka_properties, RESULTS), 4)
