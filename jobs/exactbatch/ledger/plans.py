"""Freeze plans: stored offsets, and the batches that plans write."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from exactbatch.ledger.definition import Definition
from exactbatch.ledger.row_types import Batch, DagRun, EmptyRun, JoinedTopic, Kind, Origin
from exactbatch.ledger.statements import Store, columns, load_queries, read_row, read_rows
from exactbatch.model import Plan, StoredOffset
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.topic_pattern import TopicPattern

_QUERIES: Final = load_queries("plans")
_STORED_OFFSET: Final = ("topic", "topic_id", "partition", "next_offset", "leader_epoch")
_RANGE: Final = ("topic", "topic_id", "partition", "from_offset", "until_offset", "leader_epoch")


class Plans(Store):
    """The rows of exactbatch.stored_offset, and the planned batches of DAG runs."""

    def read_stored_offsets(self, pipeline: Pipeline | Definition) -> tuple[StoredOffset, ...]:
        """Return where the pipeline stands in each partition, by topic and partition."""
        return tuple(
            StoredOffset(
                topic=row.topic,
                partition=row.partition,
                next_offset=row.next_offset,
                leader_epoch=row.leader_epoch,
                topic_id=row.topic_id,
            )
            for row in _QUERIES.stored_offsets(self._connection, pipeline=pipeline.name)
        )

    def read_move_times(self, pipeline: Pipeline) -> dict[tuple[str, int], datetime]:
        """Return when the stored offset of each (topic, partition) last moved."""
        rows = _QUERIES.stored_offsets(self._connection, pipeline=pipeline.name)
        return {(row.topic, row.partition): row.updated_at for row in rows}

    def lock_planned_advance(self, pipeline: Pipeline) -> None:
        """Wait for ranges of the planned advance that are about to commit, and let no other range commit.

        Stored offsets that are read afterwards stay as they are until this transaction ends.
        """
        list(_QUERIES.lock_planned_advance(self._connection, pipeline=pipeline.name))

    def advance_stored_offsets(self, batch: Batch) -> set[tuple[str, int]]:
        """Move the stored offsets over the batch's ranges; return the partitions that stood where planned."""
        rows = _QUERIES.advance_stored_offsets(
            self._connection, pipeline=batch.pipeline, batch_id=batch.batch_id
        )
        return {(row.topic, row.partition) for row in rows}

    def write_advance(
        self,
        pipeline: Pipeline,
        plan: Plan,
        *,
        origin: Origin,
        run: DagRun | None,
        seconds: float | None = None,
    ) -> int | None:
        """Write a plan: seeds, losses and, unless it is empty, a batch that supersedes an older planned one.

        `seconds` is how long planning took; None if that is not known. Returns the batch_id. For an empty plan,
        records that the run found nothing, and returns None.
        """
        batch_id = self._write_advance(pipeline, plan, origin=origin, run=run, seconds=seconds)
        if plan.joining and isinstance(pipeline.topic_names, TopicPattern):
            _QUERIES.record_joined_topics(
                self._connection,
                pipeline=pipeline.name,
                pattern=pipeline.topic_names.regex,
                start=plan.started,
                batch_id=batch_id,
                dag_id=run and run.dag_id,
                run_id=run and run.run_id,
                topic=[topic for topic, _ in plan.joining],
                topic_id=[topic_id for _, topic_id in plan.joining],
            )
        return batch_id

    def read_joined_topics(self, pipeline: Pipeline, *, limit: int) -> list[JoinedTopic]:
        """Return the topics that joined a pipeline by its pattern, the newest first."""
        rows = _QUERIES.joined_topics(self._connection, pipeline=pipeline.name, limit=limit)
        return read_rows(JoinedTopic, rows)

    def _write_advance(
        self, pipeline: Pipeline, plan: Plan, *, origin: Origin, run: DagRun | None, seconds: float | None
    ) -> int | None:
        if plan.seeds:
            _QUERIES.insert_stored_offsets(
                self._connection, pipeline=pipeline.name, **columns(plan.seeds, *_STORED_OFFSET)
            )
        if plan.losses:
            _QUERIES.record_losses(self._connection, pipeline=pipeline.name, **columns(plan.losses, *_RANGE))
        if plan.is_empty:
            if run is not None:
                _QUERIES.record_empty_run(
                    self._connection,
                    pipeline=pipeline.name,
                    dag_id=run.dag_id,
                    run_id=run.run_id,
                    clear_number=run.clear_number,
                )
            return None
        list(_QUERIES.supersede_planned_advance(self._connection, pipeline=pipeline.name))
        return self._write_batch(pipeline, "advance", plan.ranges, origin=origin, run=run, seconds=seconds)

    def write_replay(
        self,
        pipeline: Pipeline,
        ranges: Sequence[OffsetRange],
        *,
        origin: Origin,
        run: DagRun | None,
        seconds: float | None = None,
    ) -> int:
        """Write a batch that processes these ranges again; return its batch_id. `seconds` as in write_advance()."""
        return self._write_batch(pipeline, "replay", ranges, origin=origin, run=run, seconds=seconds)

    def _write_batch(
        self,
        pipeline: Pipeline,
        kind: Kind,
        ranges: Sequence[OffsetRange],
        *,
        origin: Origin,
        run: DagRun | None,
        seconds: float | None,
    ) -> int:
        if run is not None:
            list(
                _QUERIES.supersede_run(
                    self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
                )
            )
        batch_id = _QUERIES.insert_batch(
            self._connection,
            pipeline=pipeline.name,
            kind=kind,
            origin=origin,
            dag_id=run and run.dag_id,
            run_id=run and run.run_id,
            clear_number=run.clear_number if run else 0,
            run_started_at=run and run.started_at,
            plan_ms=None if seconds is None else round(seconds * 1000),
        )
        _QUERIES.insert_batch_ranges(self._connection, batch_id=batch_id, **columns(ranges, *_RANGE))
        return int(batch_id)

    def read_all_batches(self, pipeline: Pipeline, run: DagRun) -> list[Batch]:
        """Return all batches that were planned for a run of this ID, also for deleted ones, newest first."""
        rows = _QUERIES.batches_of_run(
            self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
        )
        return read_rows(Batch, rows)

    def begin_run(self, pipeline: Pipeline, run: DagRun) -> None:
        """Record that the run was created under the ID of a deleted one, whose plans are not its own."""
        _QUERIES.begin_run(self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id)
        _QUERIES.forget_empty_run(
            self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
        )

    def read_empty_run(self, pipeline: Pipeline, run: DagRun) -> EmptyRun | None:
        """Return when a run found nothing to process; None if it did not, or exactbatch prune has deleted this."""
        row = _QUERIES.empty_run(
            self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
        )
        return None if row is None else read_row(EmptyRun, row)

    def read_batches(self, pipeline: Pipeline, run: DagRun) -> list[Batch]:
        """Return those of read_all_batches() that were planned since the run was created, if that is known."""
        first = _QUERIES.first_generation(
            self._connection, pipeline=pipeline.name, dag_id=run.dag_id, run_id=run.run_id
        )
        return [batch for batch in self.read_all_batches(pipeline, run) if batch.generation >= first]

    def find_batch(self, pipeline: Pipeline, run: DagRun) -> int | None:
        """Return the batch that was planned for this run as it is now, or None."""
        for batch in self.read_all_batches(pipeline, run):
            if (batch.clear_number, batch.run_started_at) == (run.clear_number, run.started_at):
                return batch.batch_id
        return None
