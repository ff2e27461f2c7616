"""The interface that stages a batch, with or without a transform, and the tasks into which a batch is cut."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from exactbatch.batch.rows.arrow_copy import PostgresAccess
from exactbatch.batch.rows.decode import Changes
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.batch.staging.task import StagedBatch, StageTask
from exactbatch.columns import Column
from exactbatch.formats import epoch_starts, with_registry
from exactbatch.offsets import OffsetRange, split
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings

# Offsets: a piece of a range that is smaller than this is not worth a separate task.
_SMALLEST_PIECE: Final = 100_000
# Offsets: rows of smaller batches are not worth several staging tables.
IN_PARTS_FROM: Final = 200_000
# Rows of a Spark task can be inserted while later ones stage: several tasks for each slot, one after the other. Each
# costs 0.05 s of CPU time, of Kafka and Postgres in particular.
_TASKS_OF_A_SLOT: Final = 4
# Offsets: what a transform gets is cut into pieces of about this size, but into several pieces if it is less.
_TRANSFORMED_PIECE: Final = 200_000
_FEWEST_TRANSFORMED: Final = 8


class Stager(Protocol):
    """Stages the ranges of a batch on executors. `columns` are those of a row without its lineage."""

    columns: tuple[Column, ...]

    def can_split(self) -> bool:
        """True if the rows of each Spark task can be in a separate staging table, and are worth it. Raises the errors
        of stage()."""
        ...

    def split_tables(self) -> list[StagingTables]:
        """Let each Spark task stage its rows into a separate table, if can_split(); return these tables.

        The rows of a task can then be inserted without reading those of the others.
        """
        ...

    def stage(self, finished: Callable[[StagedBatch], None] | None = None) -> StagedBatch:
        """Stage every range; return what the task attempts did that Spark accepted.

        After split_tables(), `finished` is called several times a second meanwhile, with what Spark has accepted since
        the last call. Raises any ExactbatchError, and whatever `finished` raises.
        """
        ...


def is_worth_parts(tasks: Sequence[StageTask]) -> bool:
    """True if the rows of these tasks are worth several staging tables."""
    return sum(len(task.range) for task in tasks) >= IN_PARTS_FROM


def stage_tasks(
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    epochs: Mapping[tuple[str, int], int | None],
    tables: StagingTables,
    settings: Settings,
    parallelism: int,
    cluster_id: str | None = None,
) -> list[StageTask]:
    """Return one task for each range, or for each piece of a large one.

    `epochs` maps (topic, partition) to the leader epoch up to which its log was processed. The input of a
    transform is cut in the same way on any cluster.
    """
    offsets = sum(map(len, ranges))
    if pipeline.is_transformed:
        parts = max(_FEWEST_TRANSFORMED, offsets // _TRANSFORMED_PIECE)
    else:
        parts = parallelism * (_TASKS_OF_A_SLOT if pipeline.sink.inserts_in_parts else 1)
    starts = {(range_.topic, range_.partition, range_.from_offset) for range_ in ranges}
    value, key = with_registry(pipeline.value, settings.kafka), with_registry(pipeline.key, settings.kafka)
    postgres = PostgresAccess(settings.postgres, pipeline.publish_timeout, pipeline.statement_timeout)
    return [
        StageTask(
            range=piece,
            # The epoch is known at the start of a range only: a later piece may begin in a newer one.
            leader_epoch=epochs.get(piece.topic_partition)
            if (piece.topic, piece.partition, piece.from_offset) in starts
            else None,
            tables=tables,
            kafka=settings.kafka,
            postgres=postgres,
            value=value,
            columns=pipeline.sink.staged_columns(pipeline.value.columns),
            changes=Changes(
                _decoded_key(pipeline),
                key,
                pipeline.sink.keeps_unchanged,
                epoch_starts(pipeline.sink.epochs, piece.topic_partition) if pipeline.sink.epochs else None,
            )
            if pipeline.sink.keeps_deletes
            else None,
            # If max_rejects is a share, the most that there can be: a range has no more records than offsets.
            max_rejects=pipeline.rejects_allowed(offsets),
            read_timeout=pipeline.read_timeout,
            cluster_id=cluster_id,
            slot_offsets=offsets // parallelism,
            replace_unstorable=pipeline.replace_unstorable,
        )
        for piece in split(ranges, parts=min(parts, pipeline.max_connections), smallest=_SMALLEST_PIECE)
    ]


def _decoded_key(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the columns of the sink's key that decoding yields; a transform may add the others."""
    decoded = {column.name for column in pipeline.value.columns}
    return tuple(name for name in pipeline.sink.key_columns if name in decoded)
