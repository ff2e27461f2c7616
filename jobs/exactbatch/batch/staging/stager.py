"""The interface that stages a batch, with or without a transform, and the tasks into which a batch is cut."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from exactbatch.batch.rows.copy import PostgresAccess
from exactbatch.batch.rows.decode import Changes
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.batch.staging.task import StagedBatch, StageTask
from exactbatch.columns import Column
from exactbatch.formats.registry.registry_properties import with_registry
from exactbatch.formats.upsert_changes import epoch_starts
from exactbatch.offsets import OffsetRange, split_ranges
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.sinks.sink import SinkTraits

# Offsets: a split of a range that is smaller than this is not worth a separate task.
_SMALLEST_SPLIT: Final = 100_000
# Offsets: what a transform gets is cut into splits of about this size, but into several splits if it is less.
_TRANSFORMED_SPLIT: Final = 200_000
_FEWEST_TRANSFORMED: Final = 8


class Stager(Protocol):
    """Stages the ranges of a batch on executors. `columns` are the columns of a row without its lineage."""

    columns: tuple[Column, ...]

    def stage(self) -> StagedBatch:
        """Stage every range; return what the task attempts did that Spark accepted. Raises any ExactbatchError."""
        ...


def stage_tasks(
    pipeline: Pipeline,
    traits: SinkTraits,
    ranges: Sequence[OffsetRange],
    epochs: Mapping[tuple[str, int], int | None],
    tables: StagingTables,
    settings: Settings,
    parallelism: int,
    cluster_id: str | None = None,
) -> list[StageTask]:
    """Return one task for each range, or for each split of a large one.

    `traits` are the traits of the writer, with the epochs of positions. `epochs` maps (topic, partition) to the leader
    epoch up to which its log was processed. The input of a transform is cut in the same way on any cluster.
    """
    offsets = sum(map(len, ranges))
    transformed = max(_FEWEST_TRANSFORMED, offsets // _TRANSFORMED_SPLIT)
    parts = transformed if pipeline.is_transformed else parallelism
    starts = {(range_.topic, range_.partition, range_.from_offset) for range_ in ranges}
    value, key = (
        with_registry(pipeline.value, settings.kafka),
        with_registry(pipeline.message_key, settings.kafka),
    )
    postgres = PostgresAccess(
        settings.postgres, pipeline.tuning.lock_seconds, pipeline.tuning.statement_seconds
    )
    return [
        StageTask(
            range=split,
            # The epoch is known at the start of a range only: a later split may begin in a newer one.
            leader_epoch=epochs.get(split.topic_partition)
            if (split.topic, split.partition, split.from_offset) in starts
            else None,
            tables=tables,
            kafka=settings.kafka,
            postgres=postgres,
            value=value,
            columns=traits.staged_columns(pipeline.value.columns),
            changes=Changes(
                _decoded_key(pipeline),
                key,
                traits.keeps_unavailable,
                epoch_starts(traits.epochs, split.topic_partition) if traits.epochs else None,
            )
            if traits.keeps_deletes
            else None,
            # If max_rejects is a share, the most that there can be: a range has no more records than offsets.
            max_rejects=pipeline.rejects_allowed(offsets),
            read_timeout=pipeline.tuning.read_seconds,
            cluster_id=cluster_id,
            slot_offsets=offsets // parallelism,
            replace_unstorable=pipeline.replace_unstorable,
        )
        for split in split_ranges(
            ranges, parts=min(parts, pipeline.tuning.max_connections), smallest=_SMALLEST_SPLIT
        )
    ]


def _decoded_key(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the columns of the sink's key that decoding yields; a transform may add the others."""
    decoded = {column.name for column in pipeline.value.columns}
    return tuple(name for name in pipeline.traits.key_columns if name in decoded)
