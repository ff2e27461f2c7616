"""Replays whose driver is killed, at named moments and at random ones: the end state is always the same.

`make test-long` does it 20 times.
"""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exactbatch import Json, Pipeline, Upsert
from exactbatch.audit.audit import audit
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from support.environment import LONG, draw_seed
from support.faults.drivers import World, load
from support.topics import Topic

pytestmark = pytest.mark.timeout(900)

ROUNDS = 20 if LONG else 1
# Between any two durable steps of a replay, and just after the last one.
MOMENTS = (
    "publish.after_take_back=kill",
    "publish.after_commit=kill",
    "publish.before_commit=kill",
    "stage.before_copy_commit=kill",
    "publish.after_insert=kill",
)
UPSERT_MOMENTS = ("publish.before_commit", "publish.after_take_back", "publish.after_commit")


@pytest.fixture
def world(spark: Any, connection: Any, settings: Settings, tmp_path: Path) -> Iterator[World]:
    """Drivers over the test's broker and database; none of them outlives the test."""
    world = World(spark, connection, settings, tmp_path)
    yield world
    for each in world.drivers:
        each.close()


def test_the_same_replay_again_and_again_with_its_driver_killed_each_time(
    world: World, make_topic: Callable[..., Topic], make_pipeline: Callable[..., Pipeline]
) -> None:
    seed = draw_seed()
    chance = random.Random(seed)
    topic = make_topic(2)
    load(topic)
    pipeline = make_pipeline(topic, value=Json("id int"), max_rejects=2)
    first = world.plan(pipeline)
    world.retry(pipeline, first)
    expected = _state(world, pipeline, {first})
    request = ReplayRequest(
        ranges=(RequestedRange(topic.name, 0, 5, 21), RequestedRange(topic.name, 1, 0, 8)),
    )
    # A driver that is left alone tells how long a random moment may take to come.
    batch_id, began = _plan(world, pipeline, request), time.monotonic()
    assert world.launch(pipeline, batch_id).wait() == 0
    whole = time.monotonic() - began
    for number in range(ROUNDS):
        assert _state(world, pipeline, {first, batch_id}) == expected
        batch_id = _plan(world, pipeline, request)
        if number < len(MOMENTS):
            driver = world.launch(pipeline, batch_id, MOMENTS[number])
        else:
            driver = world.launch(pipeline, batch_id)
            time.sleep(chance.uniform(0, whole))
            driver.signal(signal.SIGKILL)
        driver.wait()
        driver.close()
        committed = world.batch(batch_id).status == "committed"
        if number < len(MOMENTS):
            assert committed == (MOMENTS[number] == "publish.after_commit=kill")
        published = world.retry(pipeline, batch_id)
        assert published.wrote != committed
    assert _state(world, pipeline, {first, batch_id}) == expected
    world.assert_exact(pipeline, rows=30, rejected=2)


@pytest.mark.long
@pytest.mark.parametrize("moment", UPSERT_MOMENTS)
def test_an_upsert_is_the_latest_of_its_changes_whenever_its_driver_is_killed(
    world: World,
    make_topic: Callable[..., Topic],
    make_pipeline: Callable[..., Pipeline],
    moment: str,
) -> None:
    """An advance and then a replay over deletes and updates, each killed at this moment and tried again."""
    topic = make_topic()
    topic.produce(*[json.dumps({"id": n % 7, "name": f"first {n}"}).encode() for n in range(20)])
    topic.produce(None, None, key=b'{"id": 3}')
    topic.produce(*[json.dumps({"id": n, "name": "second"}).encode() for n in (1, 9)])
    pipeline = make_pipeline(
        topic, sink=Upsert(f'public."{topic.name}"', key=("id",)), key=Json("id int"), max_rejects=0
    )
    expected = {n: f"first {max(m for m in range(20) if m % 7 == n)}" for n in range(7) if n != 3}
    expected |= {1: "second", 9: "second"}
    request = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 18, 23),))
    for plan in (lambda: world.plan(pipeline), lambda: _plan(world, pipeline, request)):
        batch_id = plan()
        driver = world.launch(pipeline, batch_id, f"{moment}=kill")
        status = driver.wait()
        driver.close()
        # An advance takes nothing back: it is not killed there.
        assert status == (0 if world.batch(batch_id).kind == "advance" and "take_back" in moment else -9)
        world.retry(pipeline, batch_id)
        table = pipeline.sink.table.as_string(world.connection)
        with transaction(world.connection) as cursor:
            cursor.execute(f"select id, name from {table}")
            assert dict(cursor.fetchall()) == expected
        found = audit(pipeline, world.settings)
        assert found.is_exact, found


def _plan(world: World, pipeline: Pipeline, request: ReplayRequest) -> int:
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    return batch_id


def _state(world: World, pipeline: Pipeline, batches: set[int]) -> tuple[Any, ...]:
    """Rows, rejects, covered offsets and stored offsets, and that only these batches have results."""
    with transaction(world.connection) as cursor:
        ledger = Ledger(world.connection)
        coverage = ledger.coverage(pipeline)
        assert {each.batch_id for each in coverage} <= batches
        cursor.execute(
            'select "offset", value from exactbatch.rejected_record where pipeline = %s order by 1, 2',
            (pipeline.name,),
        )
        rejects = [(row.offset, bytes(row.value)) for row in cursor.fetchall()]
        stored = [(each.partition, each.next_offset) for each in ledger.stored_offsets(pipeline)]
    offsets = sorted(
        (each.partition, offset) for each in coverage for offset in range(each.from_offset, each.until_offset)
    )
    return world.rows(pipeline, "id, kafka_partition, kafka_offset"), rejects, stored, offsets
