"""The types that planning, batches, the ledger and Kafka share. Pure, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from exactbatch.errors import ConfigurationError
from exactbatch.offsets import OffsetRange, PartitionKey, TopicPartition
from exactbatch.options import check_types, names_options

OnLoss = Literal["fail", "skip"]
# What becomes of columns that a target lacks.
Evolve = Literal["refuse", "add"]
_FOR_EVER: Final = 10**14  # ms
Start = Literal["earliest", "latest"] | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPartition:
    """The state of one partition as the broker reports it.

    Offsets satisfy earliest <= last_stable <= high_watermark.
    """

    topic: str
    partition: int
    topic_id: UUID
    leader_epoch: int | None
    earliest: int
    last_stable: int
    high_watermark: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def key(self) -> PartitionKey:
        """Topic, partition and topic ID."""
        return self.topic, self.partition, self.topic_id

    def lag(self, next_offset: int | None) -> int:
        """Number of offsets between a stored offset, or without one the start of the log, and the end of the log.

        As Kafka's own tools count, the end is the high watermark: markers of transactions and records of open ones
        count, too. 0 if the log ends below the stored offset.
        """
        return max(0, self.high_watermark - (self.earliest if next_offset is None else next_offset))

    def range(self, from_offset: int, until_offset: int) -> OffsetRange:
        """A range of this partition, [from_offset, until_offset)."""
        return OffsetRange(
            self.topic, self.partition, from_offset, until_offset, self.topic_id, self.leader_epoch
        )

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Retention:
    """When the broker removes old records of a topic: `milliseconds` after their timestamps, or if a partition has
    more than `bytes`. None for no such limit."""

    milliseconds: int | None
    bytes: int | None

    @property
    def age(self) -> timedelta | None:
        """The age at which records may be removed; None for no limit, and for a limit of thousands of years."""
        if self.milliseconds is None or self.milliseconds > _FOR_EVER:
            return None
        return timedelta(milliseconds=self.milliseconds)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """Offset and timestamp, in ms since 1970, of a record that a search by time found in a partition."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the ledger knows of one record: enough to notice another one at its offset.

    `timestamp` is in ms since 1970, None without one. `digest` has 16 bytes: of key, value and timestamp.
    """

    topic: str
    partition: int
    topic_id: UUID
    offset: int
    timestamp: int | None
    digest: bytes

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition


def convert_time(milliseconds: int | None) -> datetime | None:
    """Return the time of a record's timestamp, in milliseconds since 1970.

    None without a timestamp, and beyond Python's calendar: a producer may have sent nanoseconds.
    """
    if milliseconds is None:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    """The position of a pipeline in one partition: every offset below `next_offset` is accounted for."""

    topic: str
    partition: int
    next_offset: int
    leader_epoch: int | None
    topic_id: UUID

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def key(self) -> PartitionKey:
        """Topic, partition and topic ID."""
        return self.topic, self.partition, self.topic_id


@dataclass(frozen=True, slots=True)
class Covered:
    """A row of exactbatch.coverage: who accounts for offsets [from_offset, until_offset) of a partition.

    `batch_id` is None for the kinds "loss" and "pruned". A row of the kind "pruned" stands for the results of several
    batches that exactbatch prune has folded; `newest_batch_id` is the newest of them, and None for other kinds.
    """

    topic: str
    topic_id: UUID
    partition: int
    from_offset: int
    until_offset: int
    kind: Literal["batch", "loss", "pruned"]
    batch_id: int | None
    newest_batch_id: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def key(self) -> PartitionKey:
        """Topic, partition and topic ID."""
        return self.topic, self.partition, self.topic_id


@names_options
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The number of offsets that one batch may span; None for no limit.

    The default lets a first load of a large topic commit step by step, where one batch could take hours, fill the disk
    with staged rows, and begin again after an error. `max_offsets` is shared fairly among the partitions: those with
    fewer offsets leave their share to the others.
    """

    max_offsets: int | None = 10_000_000
    max_offsets_per_partition: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("max_offsets", "max_offsets_per_partition"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(
                    f"Limits: expected {name} to be 1 or more, or None for no limit, found {value}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one advance.

    seeds    where partitions without a stored offset start
    losses   offsets that retention removed before they were processed
    ranges   offsets to process
    joining  topics without any stored offset, which this plan is the first to include, with their IDs
    started  what says where these start: "earliest", "latest", a time, "group:NAME", or "offsets" of a mapping
    unnamed  partitions that start at their earliest offset because `start`, a mapping or the committed offsets
             of a group, does not name them
    left     number of offsets that the limits leave to later runs
    """

    seeds: tuple[StoredOffset, ...]
    losses: tuple[OffsetRange, ...]
    ranges: tuple[OffsetRange, ...]
    unnamed: tuple[TopicPartition, ...] = ()
    joining: tuple[tuple[str, UUID], ...] = ()
    started: str = "earliest"
    left: int = 0

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to process. Seeds and losses are stored all the same."""
        return not self.ranges


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch as a task names it to the next one and to the driver: PIPELINE:ID:PLAN.

    `plan_id` is None for a run that was planned before ledger version 6: the number alone names its batch.
    """

    pipeline: str
    batch_id: int
    plan_id: UUID | None = None

    def __str__(self) -> str:
        return f"{self.pipeline}:{self.batch_id}:{self.plan_id or ''}"

    @classmethod
    def parse(cls, text: str) -> "PlannedBatch":
        """Return the batch that a text names. Raises ValueError."""
        pipeline, batch_id, plan_id = text.split(":")
        return cls(pipeline, int(batch_id), UUID(plan_id) if plan_id else None)
