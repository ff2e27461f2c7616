"""Pipelines whose target is partitioned by batch, and what partitions it has."""

from typing import Any

from exactbatch import Append, Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.by_batch.partitions import read_partitions
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner


def by_batch(name: str, smallest: int = 0, **options: Any) -> Append:
    """Return a sink; each batch has a partition to itself unless `smallest` says otherwise."""
    return Append(f'public."{name}"', layout="by_batch", min_offsets=smallest, **options)


def bounds(world: BatchRunner, pipeline: Pipeline) -> list[tuple[int | None, int | None]]:
    """Return the bounds of the partitions of a target."""
    with transaction(world.connection) as cursor:
        found = read_partitions(cursor, find_writer(pipeline.traits).tables[-1])
    return [(each.lower, each.upper) for each in found]


def owners(world: BatchRunner, name: str) -> set[str]:
    """Return the roles that own partitions of a table."""
    return {
        owner
        for (owner,) in world.rows(
            "select pg_get_userbyid(c.relowner)::text from pg_class c join pg_inherits i on i.inhrelid = c.oid "
            "where i.inhparent = %s::regclass", f'"{name}"'
        )
    }  # fmt: skip


def plan_replay(world: BatchRunner, pipeline: Pipeline, **request: Any) -> int:
    """Plan a replay; return its batch ID."""
    asked = ReplayRequest(**request)
    batch_id = freeze_replay(world.connection, world.log, pipeline, asked, origin="cli").batch_id
    assert batch_id is not None
    return batch_id


def exact(world: BatchRunner, pipeline: Pipeline) -> bool:
    """True if an audit with values finds no difference."""
    report = audit(pipeline, world.settings, values=True)
    return bool(report.partitions) and report.is_exact
