"""Older brokers, from 2.8 on: what is read, processed, replayed and audited is exact, and each refusal is the same."""

from collections.abc import Iterator

import pytest

from exactbatch import Pipeline
from exactbatch.audit.audit import audit
from exactbatch.local import LocalStack
from exactbatch.operations.doctor.servers import check_kafka
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.kafka_versions import RELEASES, released_stack
from support.replays import Replays, ranges
from support.topics import record

# `make test` has one release, and one test of it.
SHORT = "2.8.2"


@pytest.fixture(
    scope="session",
    params=[name if name == SHORT else pytest.param(name, marks=pytest.mark.slow) for name in RELEASES],
)
def stack(request: pytest.FixtureRequest) -> Iterator[LocalStack]:
    """A stack of this module whose broker is of another release, and what the fixtures of all tests use."""
    with released_stack(RELEASES[request.param]) as stack:
        stack.up()
        yield stack


def is_exact(world: BatchRunner, pipeline: Pipeline) -> bool:
    report = audit(pipeline, world.settings, values=True)
    return bool(report.partitions) and report.is_exact


def test_a_batch_its_replay_and_the_audit_are_exact(
    world: BatchRunner, replays: Replays, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(2)
    topic.produce(*map(record, range(10)))
    topic.produce(*map(record, range(10, 14)), partition=1)
    pipeline = make_pipeline(topic)
    assert world.run(pipeline).batch.rows == 14
    assert replays.run(pipeline, ranges((2, 5), topic=topic)).batch.rows == 3
    assert sorted(world.target(pipeline, "id")) == [(number,) for number in range(14)]
    assert is_exact(world, pipeline)
    _, cluster_id = world.log.cluster([topic.name])
    [finding] = check_kafka(world.settings)
    assert (finding.level, finding.found) == ("ok", f"cluster {cluster_id} with 1 brokers")
