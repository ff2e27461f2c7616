"""Merge small partitions of a target that is partitioned by batch, while batches go on."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from exactbatch.errors import ConfigurationError, PostgresUnavailable
from exactbatch.failpoints import failpoint
from exactbatch.ledger import Ledger, target_transaction
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks.capabilities import MergeGroup, Merger, MergesPartitions
from exactbatch.sinks.tables.code_of_others import refuse_code_of_others
from exactbatch.sinks.writers import find_writer

# Seconds that a merge which has copied its rows waits for batches to publish. A replay may wait for its locks.
_WAIT: Final = 5.0
_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class MergedPartition:
    """A partition for the batch IDs [lower, upper) that took the place of several; `rows` is None in a preview."""

    lower: int
    upper: int
    partitions: tuple[str, ...]
    bytes: int
    rows: int | None = None


def preview_merge(connection: Connection, pipeline: Pipeline, *, max_bytes: int) -> list[MergedPartition]:
    """Return what merge_partitions() would do. Writes nothing. Raises what it raises."""
    merger = _find_merger(pipeline)
    return [_merged(group) for group in _groups(connection, pipeline, merger, max_bytes)]


def merge_partitions(
    connection: Connection,
    pipeline: Pipeline,
    *,
    max_bytes: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[MergedPartition]:
    """Merge neighbouring partitions into ones of at most `max_bytes` bytes, each in a transaction; return the new ones.

    Partitions that change meanwhile are left for the next merge. `progress` receives how many bytes are
    merged, and how many there are to merge.

    Raises ConfigurationError if the target is not partitioned by batch, or if functions of others would get the rights
    of this login (see refuse_code_of_others()), TargetMismatch if it cannot be merged, and
    PostgresUnavailable, retryable, if others use it. What is merged then remains merged.
    """
    merger = _find_merger(pipeline)
    groups = _groups(connection, pipeline, merger, max_bytes)
    merged = []
    done, total = 0, sum(group.bytes for group in groups)
    for group in groups:
        progress(done, total)
        rows = _merge(connection, pipeline, merger, group)
        if rows is not None:
            merged.append(_merged(group, rows))
        done += group.bytes
    progress(total, total)
    return merged


def _merge(connection: Connection, pipeline: Pipeline, merger: Merger, group: MergeGroup) -> int | None:
    ledger = Ledger(connection)
    with target_transaction(connection, pipeline) as cursor:
        refuse_code_of_others(cursor, find_writer(pipeline.traits).tables, writes=True)
        rows = merger.copy(cursor, group)
        if rows is None:
            return None
        failpoint("merge.after_copy")
        # Publish locks the pipeline first, then the target: so no publish waits for this, and this for none.
        deadline = time.monotonic() + _WAIT
        while not ledger.registry.try_lock_sharing(pipeline):
            if time.monotonic() > deadline:
                raise PostgresUnavailable(
                    f"pipeline {pipeline.name!r}, or one with the same target, was publishing for {_WAIT:g} s, so the "
                    f"partitions {group.lower} to {group.upper} were not merged. They remain as they are. Try again."
                )
            time.sleep(_PAUSE)
        merger.exchange(cursor, group)
        failpoint("merge.before_commit")
    failpoint("merge.after_commit")
    return rows


def _groups(connection: Connection, pipeline: Pipeline, merger: Merger, max_bytes: int) -> list[MergeGroup]:
    ledger = Ledger(connection)
    with transaction(connection) as cursor:
        ledger.registry.check(pipeline)
        if not find_writer(pipeline.traits).tables[-1].exists(cursor):
            return []
        planned, below = ledger.registry.read_planned_batches(pipeline)
        return merger.groups(cursor, planned=planned, below=below, max_bytes=max_bytes)


def _find_merger(pipeline: Pipeline) -> Merger:
    writer = find_writer(pipeline.traits)
    if not isinstance(writer, MergesPartitions):
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: its target {pipeline.traits.target} is not partitioned by batch "
            f"(layout='by_batch'). There is nothing to merge."
        )
    return writer.merger


def _merged(group: MergeGroup, rows: int | None = None) -> MergedPartition:
    return MergedPartition(group.lower, group.upper, group.partitions, group.bytes, rows)
