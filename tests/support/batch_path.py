"""The whole path of a pipeline, over whatever connections its settings have."""

from exactbatch import Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from support.batch_runner import BatchRunner


def check_path(world: BatchRunner, pipeline: Pipeline, topic: str) -> None:
    """Plan, batch, replay, audit and the group for lag tools, with the properties of `world` alone.

    The topic has ten records with the IDs 0 to 9, six in partition 0 and four in partition 1.
    """
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows) == (10, 10)
    request = ReplayRequest(ranges=(RequestedRange(topic, 0, 2, 5),))
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    assert world.process(pipeline, batch_id).batch.rows == 3
    assert sorted(row[0] for row in world.target(pipeline, "id")) == list(range(10))
    results = audit(pipeline, world.settings)
    assert results.is_exact
    assert len(results.partitions) == 2
    stored = {(topic, partition): end for partition, end in ((0, 6), (1, 4))}
    world.log.commit_group(f"exactbatch.{pipeline.name}", stored)
    assert world.log.group_offsets(f"exactbatch.{pipeline.name}", [topic]) == stored
