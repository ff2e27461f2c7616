"""Topics with hundreds of partitions: few Spark tasks and connections, and exact all the same."""

import logging
import time
from itertools import pairwise
from typing import Any, Final

import pytest

from exactbatch import Json, Pipeline, Tuning, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.batch.staging import shares
from exactbatch.batch.staging.task import StagedBatch
from support.environment import LONG
from support.topics import record

log = logging.getLogger(__name__)
PARTITIONS: Final = 1000 if LONG else 60
WAYS: Final[dict[str, Any]] = {
    "append": {},
    "upsert": {"sink": lambda name: Upsert(name, key=("id",))},
    "partition": {"commit": "partition"},
    "transform": {"transform": "select /*+ repartition(40) */ * from records"},
}


@pytest.fixture(scope="module")
def loaded():
    """Filled by the first test, for all of them."""
    return {}


@pytest.fixture
def topic(loaded, make_topic):
    """One record in every second partition, and 200 in one of them."""
    if not loaded:
        topic = loaded["topic"] = make_topic(PARTITIONS)
        for partition in range(0, PARTITIONS, 2):
            topic._producer.produce(topic.name, record(partition), partition=partition)
        for number in range(200):
            topic._producer.produce(topic.name, record(10_000 + number), partition=6)
        assert topic._producer.flush(60) == 0
    return loaded["topic"]


@pytest.mark.parametrize("way", WAYS if LONG else ("upsert", "transform"))
def test_many_partitions_share_few_tasks(world, topic, make_pipeline, way, monkeypatch):
    changes = {"name": f"{topic.name}-{way}", "tuning": Tuning(max_connections=5), **WAYS[way]}
    if "sink" in changes:
        changes["sink"] = changes["sink"](f'public."{topic.name}-{way}"')
    pipeline = make_pipeline(topic, value=Json("id int, name text"), **changes)
    staged: list[StagedBatch] = []
    publish = batch_job.publish

    def watched(*arguments: Any, **named: Any) -> Any:
        staged.append(named["staged"])
        return publish(*arguments, **named)

    monkeypatch.setattr(batch_job, "publish", watched)
    context, groups = world.spark.sparkContext, []
    set_group, tracker = context.setJobGroup, context.statusTracker()

    def grouped(group: str, description: str) -> None:
        groups.append(group)
        set_group(group, description)

    monkeypatch.setattr(context, "setJobGroup", grouped)
    times = [time.monotonic()]
    batch_id = world.plan(pipeline)
    times.append(time.monotonic())
    batch = world.process(pipeline, batch_id).batch
    times.append(time.monotonic())
    found = audit(pipeline, world.settings)
    times.append(time.monotonic())
    seconds = [round(end - start, 1) for start, end in pairwise(times)]
    log.info("%s, %d partitions: plan, batch and audit took %s s", way, PARTITIONS, seconds)
    assert (batch.records, batch.rows) == (PARTITIONS // 2 + 200,) * 2
    assert len(found.partitions) == PARTITIONS
    assert found.is_exact
    assert found.rows == batch.rows
    if way != "partition":
        assert len(staged[0].splits) == PARTITIONS // 2
        assert len(staged[0].rows) <= 5
    if way == "transform":
        return  # Spark's own stages before the last one have no connection
    tasks = [
        tracker.getStageInfo(stage).numTasks
        for job in tracker.getJobIdsForGroup(groups[0])
        for stage in tracker.getJobInfo(job).stageIds
    ]
    assert tasks == [min(5, 4 * context.defaultParallelism)]


def test_the_largest_ranges_are_spread_over_the_tasks(world, make_topic, make_pipeline, monkeypatch):
    topic = make_topic(6)
    for partition, count in enumerate((1, 90, 2, 80, 3, 70)):
        topic.produce(*map(record, range(count)), partition=partition)
    pipeline: Pipeline = make_pipeline(topic, tuning=Tuning(max_connections=3))
    staged: list[StagedBatch] = []
    publish = batch_job.publish
    monkeypatch.setattr(shares, "_WORTH_A_TASK", 1)
    monkeypatch.setattr(
        batch_job, "publish", lambda *a, **named: (staged.append(named["staged"]), publish(*a, **named))[1]
    )
    world.run(pipeline)
    assert sorted(staged[0].rows.values()) == [76, 80, 90]
    assert world.is_exact(pipeline)
