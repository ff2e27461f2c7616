"""A batch that fails each time says so, also to who asks for the status, and holds nothing else up."""

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from exactbatch import Append, Json, Pipeline, failpoints
from exactbatch.cli import status as cli_status
from exactbatch.cli.app import app
from exactbatch.errors import Fenced, PostgresUnavailable, TargetMismatch, TransformFailed
from exactbatch.ledger import ledger as ledger_session
from exactbatch.operations.status import PipelineStatus, load_status
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import connect
from support.batch_runner import BatchRunner
from support.topics import record


@pytest.fixture
def topic(make_topic):
    """Ten good records."""
    topic = make_topic()
    topic.produce(*map(record, range(10)))
    return topic


def status(world: BatchRunner, pipeline: Pipeline) -> PipelineStatus:
    return load_status(world.connection, world.log, pipeline)


def replay_all(world: BatchRunner, pipeline: Pipeline) -> int:
    """Plan a replay of the first ten offsets."""
    request = ReplayRequest(ranges=(RequestedRange(pipeline.topic_names[0], 0, 0, 10),))
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    return batch_id


def test_poisoned_batch_is_seen_in_status_and_blocks_no_replay(world, topic, make_pipeline, monkeypatch):
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    assert status(world, pipeline).failing == ()
    world.execute(f"alter table {pipeline.traits.target} add constraint small check (id < 100)")
    topic.produce(record(10), record(1000))
    poisoned = world.plan(pipeline)
    for _ in range(2):
        message = world.refused(TargetMismatch, pipeline, poisoned)
        assert '"small"' in message
    [failing] = status(world, pipeline).failing
    assert (failing.batch_id, failing.kind, failing.failures) == (poisoned, "advance", 2)
    assert (failing.error, failing.message, failing.retryable) == ("TargetMismatch", message, False)
    assert failing.since < failing.failed_at
    [trouble] = status(world, pipeline).troubles
    assert trouble == (
        f"batch {poisoned} (advance) has failed 2 times since {failing.since:%Y-%m-%d %H:%M:%S}, last at "
        f"{failing.failed_at:%Y-%m-%d %H:%M:%S} UTC, with TargetMismatch: {message} A retry does not "
        f"help: correct the cause, and the next run plans its offsets again. Until then the stored offsets stay "
        f"where they are; replays of other ranges go on. `exactbatch explain TargetMismatch` explains the causes and "
        f"what to do."
    )
    # Other ranges go on.
    assert world.process(pipeline, replay_all(world, pipeline)).wrote
    assert world.is_exact(pipeline)
    # The next run plans the same offsets, and takes over how long it has been so.
    successor = world.plan(pipeline)
    assert status(world, pipeline).failing == (replace(failing, batch_id=successor),)
    with pytest.raises(Fenced):
        world.process(pipeline, poisoned)
    world.refused(TargetMismatch, pipeline, successor)
    [later] = status(world, pipeline).failing
    assert (later.batch_id, later.failures, later.since) == (successor, 3, failing.since)
    assert later.failed_at > failing.failed_at
    assert said(world, pipeline, monkeypatch).count("has failed 3 times since") == 1
    # Mended, nothing is left of it.
    world.execute(f"alter table {pipeline.traits.target} drop constraint small")
    assert world.process(pipeline, successor).batch.records == 2
    assert status(world, pipeline).failing == ()
    assert "failed" not in said(world, pipeline, monkeypatch)
    assert world.is_exact(pipeline)


def said(world: BatchRunner, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `exactbatch status` prints, on one line."""
    monkeypatch.setattr(cli_status, "load_any", lambda _: (pipeline, world.settings))
    result = CliRunner().invoke(app, ["status", "any"])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_records_that_become_gigabytes_are_rejects_and_poison_no_batch(world, make_topic, make_pipeline):
    """Each of 500 kB repeats its note in 1,500 rows: together, they would be more than one block of Arrow can hold."""
    topic = make_topic()
    items = ",".join(f'{{"s": {number}}}' for number in range(1500))
    good, poison = (
        b'{"note": "x", "items": [{"s": 1}]}',
        f'{{"note": "{"x" * 500_000}", "items": [{items}]}}'.encode(),
    )
    topic.produce(good, *[poison] * 4, good)
    value = Json("note text, s int from 'items[].s'")
    pipeline = make_pipeline(topic, value=value, max_rejects=4)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rejected) == (6, 4)
    assert world.is_exact(pipeline)
    [[reason]] = world.rows("select distinct reason from exactbatch.rejected_record")
    assert (
        reason == "the record becomes rows of 750,006,000 bytes, and a record may become at most 268,435,456"
    )


def test_a_transform_that_fails_and_a_replay_that_fails_are_told(world, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    broken = replace(pipeline, transform="select * from records where cast(name as int) > 0")
    batch_id = replay_all(world, pipeline)
    with pytest.raises(TransformFailed):
        world.process(broken, batch_id)
    [failing] = status(world, pipeline).failing
    assert (failing.batch_id, failing.kind, failing.error) == (batch_id, "replay", "TransformFailed")
    assert "once, last at" in status(world, pipeline).troubles[0]
    assert (
        "correct the cause, and plan the replay again. The previous results of its ranges"
        in status(world, pipeline).troubles[0]
    )
    # An advance goes on beside it.
    topic.produce(record(10))
    assert world.run(pipeline).batch.records == 1
    assert world.is_exact(pipeline)


def test_a_failure_that_may_pass_and_one_that_cannot_be_noted(
    world, topic, make_pipeline, monkeypatch, caplog
):
    pipeline = make_pipeline(topic, sink=Append(f'public."{topic.name}"'))
    batch_id = world.plan(pipeline)
    monkeypatch.setitem(failpoints.actions, "job.after_stage", "error")
    with pytest.raises(RuntimeError):
        world.process(pipeline, batch_id)
    [trouble] = status(world, pipeline).troubles
    assert trouble.endswith("with RuntimeError: failpoint job.after_stage A retry may succeed.")

    def unavailable(*arguments: Any, application: str, **named: Any) -> Any:
        if application == "exactbatch failure":
            raise PostgresUnavailable("too many connections")
        return connect(*arguments, application=application, **named)

    monkeypatch.setattr(ledger_session, "connect", unavailable)
    with pytest.raises(RuntimeError, match="job.after_stage"):  # and not what kept it from being noted
        world.process(pipeline, batch_id)
    assert "exactbatch status will not show this failure: too many connections" in caplog.text
    assert status(world, pipeline).failing[0].failures == 1
    monkeypatch.delitem(failpoints.actions, "job.after_stage")
    assert world.process(pipeline, batch_id).wrote
    assert status(world, pipeline).troubles == []
