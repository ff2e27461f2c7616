"""Stage decoded records as they are: each task reads, decodes and copies its range in one pass, outside the
JVM."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from exactbatch.batch.staging.engine import Executors
from exactbatch.batch.staging.shares import distribute, spark_tasks_for
from exactbatch.batch.staging.stage import stage
from exactbatch.batch.staging.stager import is_worth_parts
from exactbatch.batch.staging.staging_tables import StagingTables
from exactbatch.batch.staging.task import Staged, StagedBatch, StageTask
from exactbatch.columns import Column
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline


class DirectStager:
    """The Stager of a pipeline without a transform."""

    def __init__(self, executors: Executors, pipeline: Pipeline, tasks: Sequence[StageTask]) -> None:
        self._executors, self._tasks = executors, tasks
        self._limit = spark_tasks_for(tasks, pipeline.max_connections, executors.parallelism)
        self._part_of: dict[OffsetRange, int] = {}
        self.columns: tuple[Column, ...] = pipeline.value.columns

    def stage_into(self, tables: StagingTables) -> None:
        """Let all tasks stage into these tables, from now on."""
        self._tasks = [replace(task, tables=tables) for task in self._tasks]

    def can_split(self) -> bool:
        """See Stager."""
        return is_worth_parts(self._tasks)

    def split_tables(self) -> list[StagingTables]:
        """See Stager."""
        tables = self._tasks[0].tables
        bins = distribute(self._tasks, self._limit)
        self._part_of = {task.range: part for part, bin_ in enumerate(bins) for task in bin_}
        self._tasks = [
            replace(task, tables=tables.of_part(self._part_of[task.range])) for task in self._tasks
        ]
        return [tables.of_part(part) for part in range(len(bins))]

    def stage(self, finished: Callable[[StagedBatch], None] | None = None) -> StagedBatch:
        """See Stager. Raises TasksFailed, the terminal error of a task, and whatever `finished` raises."""
        reported = None if finished is None else lambda pieces: finished(self._batch(pieces))
        return self._batch(
            self._executors.run(self._tasks, stage, limit=self._limit, verb="stage", finished=reported)
        )

    def _batch(self, pieces: Iterable[Staged]) -> StagedBatch:
        pieces = list(pieces)
        parts = {piece.attempt: self._part_of[piece.range] for piece in pieces} if self._part_of else {}
        return StagedBatch.of(pieces, parts)
