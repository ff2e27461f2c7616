"""The state of many pipelines at once: what the ledger knows, compared with what the brokers report."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from exactbatch.ledger.definition import Definition
from exactbatch.ledger.overview_rows import ListedBatch, OverviewRows, PartitionPosition
from exactbatch.ledger.row_types import Batch, BatchFailure
from exactbatch.model import LogPartition
from exactbatch.offsets import TopicPartition
from exactbatch.operations.lag import PartitionLag, PipelineLag
from exactbatch.operations.status import UNFINISHED_AFTER
from exactbatch.postgres.connection import Connection, transaction

State = Literal[
    "not registered", "failing", "losing data", "cannot plan", "retrying", "processing", "held back", "paused",
    "behind", "up to date", "no topic yet", "unknown",
]  # fmt: skip
# Newest batches of each pipeline, from which the throughput is taken: an hour of batches every five minutes.
# Each of them costs time when many pipelines are shown.
_BATCHES: Final = 12
_REPLAYS: Final = 12  # newest planned replays of each pipeline: one of them may be in flight or fail
_THROUGHPUT: Final = timedelta(hours=1)
_CLOCKS: Final = timedelta(seconds=10)  # by which the clocks of two servers may differ


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What the ledger knows of one pipeline.

    definition  its registration
    positions   by topic and partition
    batches     the newest ones, newest first
    current     those that its state comes from, newest first: the newest committed advance, the planned one, the newest
                one that has failed since that commit, and the newest planned replays
    """

    definition: Definition
    positions: tuple[PartitionPosition, ...]
    batches: tuple[ListedBatch, ...]
    current: tuple[ListedBatch, ...]

    @property
    def topics(self) -> list[str]:
        """Its topics; with a pattern, those that have joined."""
        return list(self.definition.known_topics(each.topic for each in self.positions))

    @property
    def stored(self) -> dict[TopicPartition, PartitionPosition]:
        """Its positions, by topic and partition."""
        return {each.topic_partition: each for each in self.positions}

    @property
    def newest(self) -> Batch | None:
        """The newest batch, in whatever state."""
        return self.batches[0].batch if self.batches else None

    @property
    def committed(self) -> Batch | None:
        """The newest committed batch; the newest committed advance, if many batches are newer."""
        known = (*self.batches, *self.current)
        return next((each.batch for each in known if each.batch.status == "committed"), None)

    def in_flight(self, now: datetime) -> Batch | None:
        """Return the newest planned batch that has not failed. A replay that was planned long ago is left over."""
        for each in self.current:
            is_left_over = each.batch.kind == "replay" and now - each.batch.planned_at > UNFINISHED_AFTER
            if each.batch.status == "planned" and each.failure is None and not is_left_over:
                return each.batch
        return None

    @property
    def failure(self) -> tuple[Batch, BatchFailure] | None:
        """The newest failure of an advance or a planned replay since an advance was committed.

        One that no retry helps comes before the others.
        """
        found = []
        for each in self.current:
            if each.batch.kind == "advance" and each.batch.status == "committed":
                break
            if each.failure is not None:
                found.append((each.batch, each.failure))
        return min(found, key=lambda each: each[1].retryable, default=None)

    def records_per_second(self, now: datetime) -> float | None:
        """Records of the batches that were committed in the last hour, for each second of it.

        None if none of the newest batches was. If all batches that are known are younger, the rate is for the time
        since the oldest of them was planned.
        """
        recent = [
            each.batch
            for each in self.batches
            if each.batch.committed_at is not None and now - each.batch.committed_at <= _THROUGHPUT
        ]
        if not recent:
            return None
        records = sum(batch.records or 0 for batch in recent)
        known = now - min(each.batch.planned_at for each in self.batches)
        return records / max(1.0, min(known, _THROUGHPUT).total_seconds())


def load_summaries(
    connection: Connection, pipelines: Sequence[str], *, batches: int = _BATCHES
) -> dict[str, LedgerSummary]:
    """Read the summaries of those pipelines that are registered, by name, each with this number of its newest batches.

    Without batches, the state of a pipeline is not known either.
    """
    with transaction(connection):
        rows = OverviewRows(connection)
        definitions = rows.definitions(pipelines)
        positions: dict[str, list[PartitionPosition]] = defaultdict(list)
        for position in rows.positions(pipelines):
            positions[position.pipeline].append(position)
        newest: dict[str, list[ListedBatch]] = defaultdict(list)
        for batch in rows.newest_batches(pipelines, limit=batches) if batches else ():
            newest[batch.batch.pipeline].append(batch)
        current: dict[str, list[ListedBatch]] = defaultdict(list)
        for batch in rows.state_batches(pipelines, replays=_REPLAYS) if batches else ():
            current[batch.batch.pipeline].append(batch)
    return {
        name: LedgerSummary(definition, tuple(positions[name]), tuple(newest[name]), tuple(current[name]))
        for name, definition in definitions.items()
    }


def find_lag(summary: LedgerSummary, logs: Iterable[LogPartition], asked_at: datetime | None) -> PipelineLag:
    """Compare stored offsets with logs, about which Kafka was asked at a time, perhaps before they moved. Pure."""
    stored = summary.stored
    partitions = []
    for log in logs:
        position = stored.get(log.topic_partition)
        is_older = asked_at is not None and position is not None and position.updated_at < asked_at - _CLOCKS
        partitions.append(PartitionLag(log, position, is_newer=not is_older))
    definition = summary.definition
    return PipelineLag(
        definition.name, asked_at or datetime.now(UTC), tuple(partitions), freshness=definition.freshness
    )


def waiting_since(summary: LedgerSummary, lag: PipelineLag) -> datetime | None:
    """Return when the oldest stored offset with unprocessed records behind it last moved; None without lag. Pure."""
    stored = summary.stored
    moved = [
        stored[each.log.topic_partition].updated_at
        for each in lag.partitions
        if each.lag and each.log.topic_partition in stored
    ]
    return min(moved, default=None)


def find_state(
    summary: LedgerSummary | None, lag: PipelineLag | None, *, is_paused: bool, now: datetime
) -> State:
    """Return the one word for a pipeline that an operator needs to know first. Pure."""
    if summary is None:
        return "not registered"
    failed = summary.failure
    if failed is not None and not failed[1].retryable:
        return "failing"
    if lag is not None and lag.lost:
        return "losing data"
    if lag is not None and lag.contradiction is not None:
        return "cannot plan"
    if failed is not None:
        return "retrying"
    if summary.in_flight(now) is not None:
        return "processing"
    if is_paused:
        return "paused"
    if lag is None:
        return "unknown"
    if not summary.topics:
        return "no topic yet"
    if lag.lag and lag.held_back == lag.lag:
        return "held back"
    return "behind" if lag.lag else "up to date"


def stored_at(
    positions: Iterable[PartitionPosition], newest: Sequence[ListedBatch], times: Sequence[datetime]
) -> dict[datetime, int]:
    """Return the sum of a pipeline's stored offsets at past times, as far as its newest batches reach back. Pure.

    Offsets that were recorded as lost count as if they had been lost from the beginning.
    """
    total = sum(each.next_offset for each in positions)
    advances = [
        (each.batch.committed_at, each.offsets)
        for each in newest
        if each.batch.kind == "advance" and each.batch.committed_at is not None
    ]
    oldest = min((at for at, _ in advances), default=None)
    # Of a folded batch the number of offsets is not known, so neither is what was stored before it.
    oldest = max((at for at, offsets in advances if offsets is None), default=oldest)
    return {
        at: total - sum(offsets or 0 for committed, offsets in advances if committed > at)
        for at in times
        if oldest is not None and at >= oldest
    }
