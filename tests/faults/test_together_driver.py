"""A driver that is killed while it publishes into two targets: both have the batch, or neither has."""

import signal

import pytest

from exactbatch import Append, Json, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer

pytestmark = pytest.mark.slow


@pytest.fixture
def pipeline(make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(b'{"id": 1, "name": "a"}', b'{"id": 2, "name": "b"}', b'{"id": 1, "name": "c"}')
    sink = [Append(f'public."{topic.name}_raw"'), Upsert(f'public."{topic.name}"', key=("id",))]
    return make_pipeline(topic, sink=sink, value=Json("id int, name text"))


def counts(world, pipeline) -> list[int]:
    """The rows of the Append, of the changes and of the Upsert."""
    found = []
    with transaction(world.connection) as cursor:
        for table in find_writer(pipeline.traits).tables:
            if not table.exists(cursor):
                found.append(0)
                continue
            cursor.execute(f"select count(*) from {table.identifier.as_string(cursor)}")
            found.append(cursor.fetchone()[0])
    return found


@pytest.mark.parametrize("moment", ["publish.after_insert", "publish.before_commit", "publish.after_commit"])
def test_a_batch_is_in_both_targets_or_in_neither(world, pipeline, moment):
    batch_id = world.plan(pipeline)
    driver = world.launch(pipeline, batch_id, f"{moment}=kill")
    assert driver.wait() == -signal.SIGKILL, driver.output
    assert counts(world, pipeline) == ([3, 3, 2] if moment == "publish.after_commit" else [0, 0, 0])
    world.retry(pipeline, batch_id)
    assert counts(world, pipeline) == [3, 3, 2]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_a_replay_is_retracted_from_both_targets_or_from_neither(world, pipeline):
    batch_id = world.plan(pipeline)
    world.retry(pipeline, batch_id)
    request = ReplayRequest(batch_ids=(batch_id,))
    replay = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert replay is not None
    driver = world.launch(pipeline, replay, "publish.after_retract=kill")
    assert driver.wait() == -signal.SIGKILL, driver.output
    assert counts(world, pipeline) == [3, 3, 2]
    with transaction(world.connection):
        assert Ledger(world.connection).batches.read(replay).status == "planned"
    world.retry(pipeline, replay)
    assert counts(world, pipeline) == [3, 3, 2]
    assert audit(pipeline, world.settings, values=True).is_exact
