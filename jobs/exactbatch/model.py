"""The types that planning, batches, the ledger and Kafka share. Pure, no I/O.

A partition as the broker reports it, a stored offset, a row of coverage, the limits of a batch and its plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from exactbatch.errors import ConfigurationError
from exactbatch.offsets import Log, OffsetRange
from exactbatch.options import check_types

TopicPartition = tuple[str, int]
OnLoss = Literal["fail", "record"]
Start = Literal["earliest", "latest"] | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPartition:
    """What the broker says of one partition. Offsets satisfy earliest <= last_stable <= high_watermark."""

    topic: str
    partition: int
    topic_id: UUID
    leader_epoch: int | None
    earliest: int
    last_stable: int
    high_watermark: int

    def range(self, from_offset: int, until_offset: int) -> OffsetRange:
        """A range of this partition, [from_offset, until_offset)."""
        return OffsetRange(
            self.topic, self.partition, from_offset, until_offset, self.topic_id, self.leader_epoch
        )

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}"


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """The first committed record of a partition at or after a time: its offset, and its own time, in ms."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    """Where a pipeline stands in one partition: every offset below `next_offset` is accounted for."""

    topic: str
    partition: int
    next_offset: int
    leader_epoch: int | None
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class Covered:
    """A row of exactbatch.coverage: offsets [from_offset, until_offset) of one life of a partition."""

    topic: str
    topic_id: UUID
    partition: int
    from_offset: int
    until_offset: int
    kind: Literal["batch", "loss"]
    batch_id: int | None

    @property
    def log(self) -> Log:
        """The partition of the topic's life that the offsets belong to."""
        return self.topic, self.partition, self.topic_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many offsets one batch may span. None sets no limit.

    `max_records` is shared fairly over the partitions: one with less to give leaves its share to the others.
    """

    max_records: int | None = None
    max_records_per_partition: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("max_records", "max_records_per_partition"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(
                    f"Limits: expected {name} to be 1 or more, or None for no limit, found {value}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One advance: where partitions start that have no stored offset yet, what is lost, what to process.

    `unnamed` are the partitions that start at their earliest because `start`, a mapping or what a group has
    committed, has no offset for them.
    """

    seeds: tuple[StoredOffset, ...]
    losses: tuple[OffsetRange, ...]
    ranges: tuple[OffsetRange, ...]
    unnamed: tuple[TopicPartition, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing to process. Seeds and losses are stored all the same."""
        return not self.ranges
