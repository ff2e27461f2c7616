"""Read batches and their ranges, mark them committed or superseded, and record failures."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, cast
from uuid import UUID

from exactbatch.errors import BatchLost, ExactbatchError, PostgresUnavailable, TargetMismatch
from exactbatch.ledger.row_types import (
    Batch,
    BatchFailure,
    BatchStatus,
    Failing,
    FirstRanges,
    Kind,
    PartlyCommitted,
)
from exactbatch.ledger.statements import Store, columns, load_queries, read_row, read_rows
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline

_QUERIES: Final = load_queries("batches")


class Batches(Store):
    """The rows of exactbatch.batch, batch_range and batch_failure."""

    def read(
        self, batch_id: int, plan_id: UUID | None = None, *, lock: Literal["change", "share"] | None = None
    ) -> Batch:
        """Return a batch; with `lock`, locked until the transaction ends: to change it (take the pipeline's lock
        first), or so that others cannot.

        With `plan_id`, it must be the batch of this plan. Raises BatchLost if the ledger does not have the batch,
        and PostgresUnavailable if the server is a standby, which may not have received it yet.
        """
        queries = {None: _QUERIES.get_batch, "change": _QUERIES.lock_batch, "share": _QUERIES.share_batch}
        row = queries[lock](self._connection, batch_id=batch_id)
        if row is None or plan_id not in (None, row.plan_id):
            self._check_primary(batch_id)
            database = self._connection.info.dbname
            if plan_id is not None:
                raise _batch_lost(batch_id, plan_id, row and row.plan_id, database)
            raise BatchLost(
                f"batch {batch_id} is not in the ledger of database {database!r}. Check the number and the "
                f"connection string. If the database was restored or failed over since the batch was planned, the "
                f"next run plans from the stored offsets.",
                batch_id=batch_id,
            )
        return read_row(Batch, row)

    def read_several(self, batch_ids: Sequence[int]) -> list[Batch]:
        """Return batches in the order of the IDs, with one statement for all. Raises what read() raises."""
        rows = _QUERIES.get_batches(self._connection, batch_ids=list(batch_ids))
        found = {batch.batch_id: batch for batch in read_rows(Batch, rows)}
        return [found[batch_id] if batch_id in found else self.read(batch_id) for batch_id in batch_ids]

    def _check_primary(self, batch_id: int) -> None:
        if _QUERIES.is_standby(self._connection):
            raise PostgresUnavailable(
                f"batch {batch_id} is not in the ledger of {self._connection.info.host}, which is a standby: it "
                f"may not have received the batch yet. Let the connection string name the primary "
                f"(target_session_attrs=read-write).",
                batch_id=batch_id,
            )

    def read_page(
        self,
        pipeline: str,
        *,
        kind: Kind | None = None,
        status: BatchStatus | None = None,
        before: int | None = None,
        limit: int,
    ) -> list[Batch]:
        """Return the newest batches of a pipeline with an ID below `before`, of a kind and in a status, newest first.

        None for `kind`, `status` or `before` stands for any.
        """
        rows = _QUERIES.page_of_batches(
            self._connection, pipeline=pipeline, kind=kind, status=status, before=before, limit=limit
        )
        return read_rows(Batch, rows)

    def read_first_ranges(self, batches: Sequence[Batch], *, limit: int) -> dict[int, FirstRanges]:
        """Return the number of ranges of batches and the first of each, by batch ID; none for a folded batch."""
        ids = [batch.batch_id for batch in batches]
        counts, shown = {}, defaultdict(list)
        for row in _QUERIES.first_ranges(self._connection, batch_ids=ids, limit=limit):
            counts[row.batch_id] = row.ranges
            shown[row.batch_id].append(OffsetRange(*row[2:]))
        return {batch_id: FirstRanges(count, tuple(shown[batch_id])) for batch_id, count in counts.items()}

    def read_failures(self, batches: Sequence[Batch]) -> dict[int, BatchFailure]:
        """Return the failures of batches, by batch ID."""
        ids = [batch.batch_id for batch in batches]
        rows = _QUERIES.failures_of_batches(self._connection, batch_ids=ids)
        return {failure.batch_id: failure for failure in read_rows(BatchFailure, rows)}

    def find_unfinished_replays(self, pipeline: Pipeline, *, age: float, limit: int) -> list[Batch]:
        """Return the newest replays that have not committed `age` seconds after they were planned, newest first."""
        rows = _QUERIES.unfinished_replays(self._connection, pipeline=pipeline.name, age=age, limit=limit)
        return read_rows(Batch, rows)

    def find_finished(self, pipeline: Pipeline, plan_ids: Iterable[UUID]) -> list[Batch]:
        """Return the batches of these plans that are committed or superseded, oldest first."""
        ids = list(map(str, plan_ids))
        return read_rows(
            Batch, _QUERIES.batches_of_plans(self._connection, pipeline=pipeline.name, plan_ids=ids)
        )

    def find_unannounced(self, pipeline: Pipeline, *, age: float, limit: int) -> list[Batch]:
        """Return the oldest batches of DAG runs with results that no asset event has announced, oldest first.

        They have had their results for `age` seconds, so their own reports are probably not in progress. These are
        committed batches, and superseded ones with some committed ranges (commit="partition").
        """
        rows = _QUERIES.unannounced(self._connection, pipeline=pipeline.name, age=age, limit=limit)
        return read_rows(Batch, rows)

    def find_unannounced_plans(self, plan_ids: Iterable[UUID]) -> list[Batch]:
        """Return the batches of these plans with results that no asset event has announced, oldest first."""
        ids = list(map(str, plan_ids))
        return read_rows(Batch, _QUERIES.unannounced_of_plans(self._connection, plan_ids=ids))

    def announce(self, plan_ids: Iterable[UUID]) -> list[Batch]:
        """Record that an asset event has announced the batches of these plans.

        Return those that none had announced before.
        """
        return read_rows(Batch, _QUERIES.announce(self._connection, plan_ids=list(map(str, plan_ids))))

    def read_ranges(self, batch_id: int) -> tuple[OffsetRange, ...]:
        """Return the ranges of a batch, by topic, partition and offset."""
        return tuple(read_rows(OffsetRange, _QUERIES.batch_ranges(self._connection, batch_id=batch_id)))

    def read_ranges_with_records(self, batch_id: int) -> list[tuple[OffsetRange, int | None]]:
        """Return the ranges of a batch, each with the number of its records (None before the commit)."""
        rows = _QUERIES.batch_ranges_with_records(self._connection, batch_id=batch_id)
        return [(OffsetRange(*row[:-1]), row.records) for row in rows]

    def read_committed_ranges(self, batch_ids: Sequence[int]) -> dict[int, tuple[OffsetRange, ...]]:
        """Return the committed ranges of each batch, by ID: all or none, or some of them with commit="partition"."""
        found: dict[int, list[OffsetRange]] = {batch_id: [] for batch_id in batch_ids}
        for batch_id, *range_ in _QUERIES.committed_ranges(self._connection, batch_ids=list(batch_ids)):
            found[batch_id].append(OffsetRange(*range_))
        return {batch_id: tuple(ranges) for batch_id, ranges in found.items()}

    def read_uncommitted_ranges(self, batch_id: int) -> tuple[OffsetRange, ...]:
        """Return the ranges of a batch that are not committed."""
        committed = set(self.read_committed_ranges([batch_id])[batch_id])
        return tuple(range_ for range_ in self.read_ranges(batch_id) if range_ not in committed)

    def find_partly_committed(self, batches: Sequence[Batch]) -> tuple[PartlyCommitted, ...]:
        """Return the batches that are not committed although some of their ranges are."""
        ids = [batch.batch_id for batch in batches]
        rows = _QUERIES.partly_committed(self._connection, batch_ids=ids)
        return tuple(read_rows(PartlyCommitted, rows))

    def find_successor(self, batch: Batch) -> int | None:
        """Return the newest batch that took the place of this one."""
        return cast("int | None", _QUERIES.successor_of_batch(self._connection, batch_id=batch.batch_id))

    def supersede_replay(self, batch: Batch) -> None:
        """Mark a replay superseded, which later ones have overtaken, or which is withdrawn: it can no longer commit."""
        _QUERIES.supersede_replay(self._connection, batch_id=batch.batch_id)

    def mark_committed(
        self,
        batch: Batch,
        *,
        rows: int,
        rejected: int,
        tombstones: int,
        dropped: int = 0,
        replaced: int = 0,
        records: Iterable[tuple[OffsetRange, int]],
        stages: Mapping[str, int] = {},
    ) -> None:
        """Mark a batch committed; `records` has the number of records that were read from each of its ranges.

        `stages` has the milliseconds of each stage of the launch. Raises TargetMismatch if the row was not updated.
        """
        counts = list(records)
        _QUERIES.count_ranges(
            self._connection,
            batch_id=batch.batch_id,
            records=[count for _, count in counts],
            **columns([range_ for range_, _ in counts], "topic", "partition", "from_offset"),
        )
        committed = _QUERIES.commit_batch(
            self._connection,
            batch_id=batch.batch_id,
            records=sum(count for _, count in counts),
            rows=rows,
            rejected=rejected,
            tombstones=tombstones,
            dropped=dropped,
            replaced=replaced,
            stages=json.dumps(dict(stages)),
        )
        if committed != 1:
            raise TargetMismatch(
                f"batch {batch.batch_id}: its row in exactbatch.batch could not be marked committed, because a "
                f"trigger, a rule or a policy of the table prevents it. Nothing was written. "
                f"Drop that trigger, rule or policy.",
                batch_id=batch.batch_id,
            )

    def mark_committed_by_ranges(self, batch: Batch, stages: Mapping[str, int]) -> None:
        """Mark a batch committed whose ranges all are, with the sums of their counts and the launch's milliseconds."""
        _QUERIES.mark_committed_by_ranges(
            self._connection, batch_id=batch.batch_id, stages=json.dumps(dict(stages))
        )

    def note_launch(self, batch: Batch, application_id: str | None) -> None:
        """Record that a launch of a planned batch begins, and the ID of its Spark application.

        Does nothing while another launch publishes the batch, and once it is not planned any more.
        """
        _QUERIES.note_launch(
            self._connection, batch_id=batch.batch_id, plan_id=batch.plan_id, application_id=application_id
        )

    def record_failure(self, batch: Batch, error: Exception) -> None:
        """Record that the processing of a batch has failed."""
        _QUERIES.record_failure(
            self._connection,
            batch_id=batch.batch_id,
            plan_id=batch.plan_id,
            error=type(error).__name__,
            message=str(error).replace("\0", "\\0"),
            retryable=not isinstance(error, ExactbatchError) or error.retryable,
        )

    def find_failing(self, pipeline: Pipeline, batches: Sequence[Batch]) -> tuple[Failing, ...]:
        """Return the planned advance, if it fails, and the failing replays among the batches."""
        ids = [batch.batch_id for batch in batches]
        rows = _QUERIES.failures(self._connection, pipeline=pipeline.name, batch_ids=ids)
        return tuple(read_rows(Failing, rows))

    def find_folded(self, pipeline: Pipeline, batch_ids: Iterable[int]) -> set[int]:
        """Return the batches that belong to the pipeline and are folded."""
        rows = _QUERIES.folded_batches(self._connection, pipeline=pipeline.name, batch_ids=sorted(batch_ids))
        return {row.batch_id for row in rows}

    def mark_partly(self, batch_ids: Iterable[int]) -> None:
        """Record that the results of folded batches stand for a part of their offsets only: a replay retracts some."""
        _QUERIES.mark_partly(self._connection, batch_ids=sorted(batch_ids))


def _batch_lost(batch_id: int, plan_id: UUID, other_plan: UUID | None, database: str) -> BatchLost:
    """Return the error for a batch that a ledger does not have; `other_plan` is the plan that has its number."""
    other = f", where its number belongs to plan {other_plan}" if other_plan else ""
    return BatchLost(
        f"batch {batch_id} (plan {plan_id}) is not in the ledger of database {database!r}{other}: the database "
        f"was restored, or failed over to a replica that had not received the batch. Its results and offsets went "
        f"back together; nothing is half done. Clear plan_batch, or wait for the next scheduled run: it plans "
        f"from the stored offsets.",
        batch_id=batch_id,
    )
