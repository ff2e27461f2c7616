"""Read what is shown of many pipelines at once, and the newest batches and rejects of one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from exactbatch.ledger.batches import Batches
from exactbatch.ledger.definition import Definition
from exactbatch.ledger.row_types import Batch, BatchFailure, StoredReject
from exactbatch.ledger.statements import Store, load_queries, read_row, read_rows
from exactbatch.offsets import TopicPartition

_QUERIES: Final = load_queries("overview_rows")
# A pipeline may have millions of rejects: their reasons are counted among this number.
_SAMPLE: Final = 10_000


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where a pipeline stands in one partition, and where it began; `horizon` is None without a replay horizon."""

    pipeline: str
    topic: str
    topic_id: UUID
    partition: int
    first_offset: int
    next_offset: int
    updated_at: datetime
    horizon: int | None

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """A batch with its latest failure, if any; `ranges` and `offsets` are None where they were not asked for."""

    batch: Batch
    failure: BatchFailure | None
    ranges: int | None = None
    offsets: int | None = None


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Rejects whose reasons differ in quoted text and numbers only; `records` of `sampled` rejects."""

    kind: str
    records: int
    example: str
    newest_batch_id: int
    sampled: int


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A rejected record; key, value and headers may be cut, the two lengths are from before the cut."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    reason: str
    batch_id: int
    headers: str
    key: bytes | None
    key_bytes: int | None
    value: bytes | None
    value_bytes: int | None


class OverviewRows(Store):
    """Statements over many pipelines; none of them locks or writes."""

    def definitions(self, pipelines: Sequence[str]) -> dict[str, Definition]:
        """Return the registrations of those pipelines that are registered, by name."""
        rows = _QUERIES.definitions(self._connection, pipelines=list(pipelines))
        return {row.name: read_row(Definition, row) for row in rows}

    def registration_times(self, pipelines: Sequence[str]) -> dict[str, datetime]:
        """Return when those pipelines that are registered were registered, by name."""
        rows = _QUERIES.registration_times(self._connection, pipelines=list(pipelines))
        return {row.name: row.registered_at for row in rows}

    def positions(self, pipelines: Sequence[str]) -> list[PartitionPosition]:
        """Return the stored offsets of pipelines, by name, topic and partition."""
        return read_rows(PartitionPosition, _QUERIES.positions(self._connection, pipelines=list(pipelines)))

    def newest_batches(self, pipelines: Sequence[str], *, limit: int) -> list[ListedBatch]:
        """Return the newest batches of each pipeline, up to `limit` of each, newest first."""
        return self._listed(_QUERIES.newest_batches(self._connection, pipelines=list(pipelines), limit=limit))

    def state_batches(self, pipelines: Sequence[str], *, replays: int) -> list[ListedBatch]:
        """Return the batches that say in which state pipelines are, newest first.

        Of each pipeline, these are the newest committed advance, the planned one, the newest one that has failed since
        that commit, as exactbatch.pipeline_state has it, and up to `replays` of the newest planned replays.
        """
        return self._listed(
            _QUERIES.state_batches(self._connection, pipelines=list(pipelines), limit=replays)
        )

    def _listed(self, rows: Iterable[Any]) -> list[ListedBatch]:
        batches = read_rows(Batch, rows)
        failures = Batches(self._connection).read_failures(batches)
        return [ListedBatch(batch, failures.get(batch.batch_id)) for batch in batches]

    def page_of_batches(self, pipeline: str, *, before: int, limit: int) -> list[ListedBatch]:
        """Return the newest batches below the batch ID `before`, newest first, with their ranges and offsets."""
        store = Batches(self._connection)
        batches = store.read_page(pipeline, before=before, limit=limit)
        failures = store.read_failures(batches)
        ids = [batch.batch_id for batch in batches]
        totals = {row.batch_id: row for row in _QUERIES.range_totals(self._connection, batch_ids=ids)}
        return [
            ListedBatch(
                batch,
                failures.get(batch.batch_id),
                totals[batch.batch_id].ranges if batch.batch_id in totals else 0,
                totals[batch.batch_id].offsets if batch.batch_id in totals else None,
            )
            for batch in batches
        ]

    def reject_reasons(self, pipeline: str, *, limit: int) -> list[ReasonGroup]:
        """Return the most frequent kinds of reasons among the first 10,000 rejects of a pipeline."""
        rows = _QUERIES.reject_reasons(self._connection, pipeline=pipeline, sample=_SAMPLE, limit=limit)
        return read_rows(ReasonGroup, rows)

    def rejects_of_kind(
        self, pipeline: str, kind: str | None, *, after: tuple[UUID, int, int], limit: int
    ) -> list[StoredReject]:
        """Return the first rejects of a group, or of all with None, after (topic ID, partition, offset), in order."""
        topic_id, partition, offset = after
        rows = _QUERIES.rejects_of_kind(
            self._connection,
            pipeline=pipeline,
            kind=kind,
            topic_id=topic_id,
            partition=partition,
            offset=offset,
            sample=_SAMPLE,
            limit=limit,
        )
        return read_rows(StoredReject, rows)

    def rejected_record(
        self, pipeline: str, topic_id: UUID, partition: int, offset: int, *, limit: int
    ) -> RejectedRecord | None:
        """Return one reject, its parts cut to `limit` bytes; None if there is no such reject."""
        row = _QUERIES.rejected_record(
            self._connection,
            pipeline=pipeline,
            topic_id=topic_id,
            partition=partition,
            offset=offset,
            bytes=limit,
        )
        if row is None:
            return None
        values = row._asdict()
        for name in ("key", "value"):
            values[name] = None if values[name] is None else bytes(values[name])
        return RejectedRecord(**values)
