"""The rows that the ledger's queries return."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from exactbatch.offsets import OffsetRange

Kind = Literal["advance", "replay"]
BatchStatus = Literal["planned", "committed", "superseded"]
Origin = Literal["schedule", "manual", "backfill", "clear", "cli"]
# The stages of a batch in their order; `commit` takes the place of `stage` and `check` with commit="partition".
STAGES: Final = ("plan", "start", "prepare", "stage", "check", "commit", "publish")


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of exactbatch.batch. Counts are None until the batch is committed.

    `stages` has milliseconds: of the plan, from the plan to the start of the last launch, and of the stages of the
    launch that committed the batch. `application_id` is the Spark application of the last launch. Both are None for
    batches of ledgers before version 14.

    `batch_id` is its number in this ledger. `plan_id` is unique for ever: a batch that was lost when the database was
    restored had another one, although its number is issued again.
    """

    batch_id: int
    plan_id: UUID
    pipeline: str
    kind: Kind
    origin: Origin
    dag_id: str | None
    run_id: str | None
    generation: int
    clear_number: int
    run_started_at: datetime | None
    status: BatchStatus
    records: int | None
    rows: int | None
    rejected: int | None
    tombstones: int | None
    dropped: int | None
    planned_at: datetime
    committed_at: datetime | None
    stages: dict[str, int] | None
    application_id: str | None
    replaced: int | None = None  # in ledgers of version 18 and newer

    @property
    def seconds(self) -> float | None:
        """Seconds from plan to commit; None before the commit."""
        return None if self.committed_at is None else (self.committed_at - self.planned_at).total_seconds()


@dataclass(frozen=True, slots=True)
class JoinedTopic:
    """A row of exactbatch.joined_topic: a topic that a plan included for the first time, because it matches a pattern.

    `batch_id` is None if the plan found nothing to process. It is also None, like `topic_id`, for a table that joined:
    all of its batches are of this topic. `start` is "earliest", "latest", a time, "group:NAME" or "offsets".
    """

    topic: str
    topic_id: UUID | None
    pattern: str
    start: str
    batch_id: int | None
    dag_id: str | None
    run_id: str | None
    joined_at: datetime


@dataclass(frozen=True, slots=True)
class FirstRanges:
    """The number of the ranges of a batch, and the first of them."""

    ranges: int
    shown: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """A row of exactbatch.batch_failure: how often the processing of a batch has failed, and its latest error."""

    batch_id: int
    failures: int
    first_failed_at: datetime
    failed_at: datetime
    error: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class DagRun:
    """The DAG run that asks for a plan.

    `clear_number` counts how often the run was cleared. `started_at` is when it began: it changes when a run that
    had ended is cleared, and when the run is deleted and created again under the same ID. An automatic retry changes
    neither.
    """

    dag_id: str
    run_id: str
    clear_number: int = 0
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EmptyRun:
    """A row of exactbatch.empty_run: when a run found nothing to process, and how often it had been cleared by then."""

    clear_number: int
    planned_at: datetime


@dataclass(frozen=True, slots=True)
class PartlyCommitted:
    """A batch that is not committed, although `committed` of its `ranges` are; the counts are sums over these."""

    batch_id: int
    ranges: int
    committed: int
    records: int
    rows: int
    rejected: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class Failing:
    """A planned batch that fails, with its latest error.

    For an advance, `failures` and `since` include the failures of the advances that it superseded since an advance
    was last committed.
    """

    batch_id: int
    kind: Kind
    failures: int
    since: datetime
    failed_at: datetime
    error: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class StoredReject:
    """A row of exactbatch.rejected_record without its contents; `bytes` is the length of the record's value."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    bytes: int | None
    reason: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class RejectReason:
    """The number of records that were rejected for one reason, and the first of them as topic[partition] offset."""

    reason: str
    records: int
    first: str


@dataclass(frozen=True, slots=True)
class RejectReasons:
    """The most frequent reasons of rejected records, and the number of all reasons and all rejected records."""

    shown: tuple[RejectReason, ...]
    reasons: int
    records: int


@dataclass(frozen=True, slots=True)
class TimeBoundary:
    """A row of exactbatch.time_boundary: the offset of a partition at which a time begins."""

    topic: str
    topic_id: UUID
    partition: int
    at: datetime
    offset: int
    resolved_at: datetime


@dataclass(frozen=True, slots=True)
class NearbyTimeBoundaries:
    """The offset that a time is pinned to in a partition, and the offsets of its nearest pinned neighbours in time.

    Each is None if there is none.
    """

    pinned: int | None
    before: int | None
    after: int | None

    def between(self, first: int) -> int:
        """Return the pinned offset or, without one, the offset `first`, moved in between the neighbours' offsets.

        Retention and late records can move a time's first offset: intervals would overlap.
        """
        if self.pinned is not None:
            return self.pinned
        offset = max(first, self.before or 0)
        return offset if self.after is None else min(offset, self.after)


@dataclass(frozen=True, slots=True)
class Stream:
    """A row of exactbatch.forward: the results that a pipeline forwards to a topic.

    `next_offsets` is by the partition's number as text, as JSON has it.
    """

    pipeline: str
    stream_id: int
    stream: str
    topic: str
    topic_id: UUID | None
    last_sequence: int
    sent_sequence: int
    attempted_sequence: int | None
    next_offsets: dict[str, int]
    forwarder: UUID | None
    sent_at: datetime | None

    @property
    def unsent(self) -> int:
        """How many results were committed and are not known to be in the topic."""
        return self.last_sequence - self.sent_sequence
