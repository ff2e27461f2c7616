"""A part of the matrix of faults; `make faults` runs all of it."""

from typing import Any

import psycopg2
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg2.extensions import make_dsn

from exactbatch import failpoints
from exactbatch.batch import job as batch_job
from exactbatch.errors import ConfigurationError
from exactbatch.forwarding import forward as forwarding
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.identity import named_id
from exactbatch.ledger import Streams
from support.faults.matrix import FAILPOINTS, SINKS, combinations
from support.faults.run_matrix import NOT_EXACT, page, victims
from support.faults.servers import Kind
from support.faults.victims import NotExact
from support.logins import password_of

CORE = (
    "append: SIGSTOP, SIGCONT at publish.before_commit",
    "upsert: SIGKILL at publish.after_retract, replay",
    "upsert_latest: SIGKILL at publish.after_retract, replay",
    "upsert_latest: SIGKILL at publish.after_insert",
    "upsert_latest: SIGKILL at publish.before_commit",
    "upsert_latest: SIGKILL at publish.after_commit, replay",
    "route: SIGKILL at publish.after_retract, replay",
    "route: SIGKILL at publish.before_commit",
    "append: SIGKILL at launch.before_commit",
    "append: SIGKILL at launch.after_commit",
    "append: answer to COMMIT dropped at Postgres, launch",
    "append: SIGKILL at job.after_stage",
    "append: SIGKILL at publish.after_insert",
    "append: SIGKILL at publish.before_commit",
    "aggregate: SIGKILL at publish.after_commit",
    "upsert: SIGKILL at publish.before_commit, replay",
    "partition: SIGKILL at publish.after_commit, replay",
    "partition: exception at job.before_ranges",
    "partition: SIGKILL at job.after_ranges",
    "partition: SIGKILL at partition.before_batch_commit",
    "partition: SIGKILL at partition.after_commit",
    "aggregate: hold at publish.after_advance",
    "append: SIGKILL at stage.after_rejects",
    "transform: SIGKILL at stage.after_rejects",
    "transform: SIGKILL at stage.after_copy_commit",
    "by_batch: SIGKILL at stage.after_copy_commit",
    "by_batch: answer to COMMIT dropped at Postgres, entry of a split",
    "by_batch: Postgres: immediate stop, start at job.after_close",
    "by_batch: hold at publish.before_commit",
    "by_batch: SIGKILL at publish.after_insert, replay",
    "open_partition: SIGKILL at publish.after_insert",
    "partition: SIGKILL at partition.after_rejects",
    "partition: exception at partition.before_commit",
    "append: stall at Postgres, publish",
    "append: half-open at Kafka, plan",
    "partition: answer to COMMIT dropped at Postgres, accounts of a range",
    "transform: refused at Kafka, read",
    "upsert: Postgres: immediate stop, start at publish.before_commit",
    "forwarded: SIGKILL at forward.after_outbox",
    "forwarded_upsert: SIGKILL at forward.after_outbox, replay",
    "forwarded_upsert: answer to COMMIT dropped at Postgres, outbox",
    "forwarded: SIGKILL at forward.after_produce",
    "forwarded: SIGKILL at forward.after_commit",
    "forwarded: SIGSTOP, SIGCONT at forward.before_commit",
    "forwarded: Postgres: immediate stop, start at forward.after_commit",
    "forwarded: answer to COMMIT dropped at Postgres, attempt of a forwarder",
    "forwarded: answer to COMMIT dropped at Postgres, confirmation of a forwarder",
    "forwarded: half-open at Kafka, commit of a forwarder",
)


@pytest.fixture(scope="module")
def them(spark, request):
    with victims(spark, getattr(request, "param", Kind.PASSWORDS)) as them:
        yield them


@pytest.mark.parametrize("combination", [e for e in combinations() if str(e) in CORE], ids=str)
def test_the_try_after_a_fault_is_exact(them, combination):
    them.run(combination)


others = pytest.mark.parametrize("them", [each for each in Kind if each is not Kind.PASSWORDS], indirect=True)


@pytest.mark.slow
@others
@pytest.mark.parametrize("combination", [e for e in combinations() if str(e) in CORE], ids=str)
def test_the_try_after_a_fault_is_exact_with_other_servers(them, combination):
    them.run(combination)


@pytest.mark.slow
@others
def test_the_other_servers_are_what_they_are_called(them):
    through = them.servers.through(them.stack.postgres_dsn)
    match them.servers.kind:
        case Kind.TOKENS:
            with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
                psycopg2.connect(make_dsn(through.postgres, password=password_of(them.stack.postgres_dsn)))
            with pytest.raises(ConfigurationError, match="supported mechanisms: OAUTHBEARER"):
                KafkaBroker(
                    them.stack.kafka_properties | {"bootstrap.servers": them.kafka.address}
                ).partitions([])
        case Kind.NO_OPTIONS:
            with pytest.raises(psycopg2.OperationalError, match="options are not supported"):
                psycopg2.connect(make_dsn(through.postgres, options="-c geqo=off"))
        case Kind.NO_IDS:
            admin = AdminClient(them.stack.kafka_properties)
            admin.create_topics([NewTopic("known", 1)])["known"].result(30)
            [log] = KafkaBroker(through.kafka).partitions(["known"])
            assert log.topic_id == named_id("known")


def test_the_core_is_part_of_the_matrix():
    assert set(CORE) <= {str(each) for each in combinations()}


def test_a_difference_is_told(them, monkeypatch):
    """Rows of which a publish keeps silent are found, and not by the program itself."""
    chosen = next(each for each in combinations() if str(each) == "append: SIGKILL at publish.after_insert")
    publish = batch_job.publish

    def losing(connection: Any, pipeline: Any, writer: Any, **named: Any) -> Any:
        published = publish(connection, pipeline, writer, **named)
        with connection, connection.cursor() as cursor:
            table = writer.tables[-1].identifier.as_string(connection)
            cursor.execute(f"delete from {table} where ctid in (select ctid from {table} limit 1)")
        return published

    monkeypatch.setattr(batch_job, "publish", losing)
    with pytest.raises(NotExact, match="expected the target to be what the log makes it"):
        them.run(chosen)
    them.mend(chosen)


def test_results_that_a_topic_lacks_are_told(them, monkeypatch):
    """The topic is compared with the log, and not with what the forwarder says."""
    name = "forwarded: SIGKILL at forward.before_commit"
    chosen = next(each for each in combinations() if str(each) == name)
    monkeypatch.setattr(Streams, "read_pending", _without_one(Streams.read_pending))
    monkeypatch.setattr(forwarding._Forwarder, "_check_complete", lambda *_: None)
    with pytest.raises(NotExact, match="a result is missing, or is there twice"):
        them.run(chosen)
    them.mend(chosen)


def _without_one(pending_results: Any) -> Any:
    def losing(*arguments: Any, **named: Any) -> Any:
        found = pending_results(*arguments, **named)
        return found[1:] if len(found) > 1 else found

    return losing


def test_every_failpoint_of_a_batch_is_in_the_matrix():
    """All but those of commands that process no batch, and those at which clusters lose machines."""
    others = {"read.after_records", "transform.after_read"} | {
        name
        for name in failpoints.FAILPOINTS
        if name.startswith(("compact.", "merge.", "prune.", "withdraw."))
    }
    assert failpoints.FAILPOINTS - others == {moment.name for moment in FAILPOINTS}


def test_the_page_tells_what_was_not_exact():
    outcomes = dict.fromkeys(combinations(), "done")
    assert len(outcomes) >= 150
    assert {each.sink for each in outcomes} == set(SINKS)
    assert NOT_EXACT not in page(outcomes)
    outcomes[next(combinations())] = NOT_EXACT
    assert f"**{len(outcomes) - 1} exact**" in page(outcomes)
    assert f"| plan.before_commit | append | **{NOT_EXACT}**: SIGKILL. **done**: " in page(outcomes)
