"""The records that a test gives to a pipeline, their places in topics, and what the pipeline makes of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.topic_pattern import TopicPattern

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")
Row = dict[str, object]


@dataclass(frozen=True)
class Record:
    """One record of a topic. Text stands for its bytes in UTF-8.

    value      None for a null value
    key        None for a null key
    headers    pairs of a name and bytes, text or None; or a mapping
    topic      None for the pipeline's first topic
    partition  its number, 0 or more
    timestamp  a datetime with a time zone, or ms since 1970 UTC; None: the record has none
    """

    value: bytes | str | None
    key: bytes | str | None = None
    headers: Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] = ()
    topic: str | None = None
    partition: int = 0
    timestamp: datetime | int | None = None

    @property
    def milliseconds(self) -> int | None:
        """The timestamp in ms since 1970 UTC."""
        if isinstance(self.timestamp, datetime):
            return (self.timestamp - _EPOCH) // timedelta(milliseconds=1)
        return self.timestamp


Given = Record | bytes | str | None


def placed(pipeline: Pipeline, records: Iterable[Given]) -> dict[TopicPartition, list[Record]]:
    """Return the records of each (topic, partition), in the order of their offsets: 0, 1, 2, …

    Raises ConfigurationError for a record that no topic of the pipeline can have.
    """
    by_partition: dict[TopicPartition, list[Record]] = defaultdict(list)
    for number, given in enumerate(records):
        record = given if isinstance(given, Record) else Record(given)
        topic = _topic(pipeline, record, number)
        by_partition[topic, record.partition].append(replace(record, topic=topic))
    return dict(sorted(by_partition.items()))


def _topic(pipeline: Pipeline, record: Record, number: int) -> str:
    if record.partition < 0:
        raise ConfigurationError(f"record {number}: its partition is {record.partition}. Make it 0 or more.")
    if isinstance(record.timestamp, datetime) and record.timestamp.tzinfo is None:
        raise ConfigurationError(
            f"record {number}: its timestamp {record.timestamp} has no time zone. Give it one, such as UTC."
        )
    if record.topic is None:
        if isinstance(pipeline.topic_names, TopicPattern):
            raise ConfigurationError(
                f"record {number}: pipeline {pipeline.name!r} loads {pipeline.topics_text}, and the record does not "
                f"name one of them. Give the record a topic."
            )
        return pipeline.topic_names[0]
    if not pipeline.loads(record.topic):
        raise ConfigurationError(
            f"record {number}: its topic is {record.topic!r}, and pipeline {pipeline.name!r} loads "
            f"{pipeline.topics_text}. Give the record one of these topics."
        )
    return record.topic


@dataclass(frozen=True)
class Reject:
    """A record that gave no row, and the reason that exactbatch.rejected_record would have."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes | None
    key: bytes | None


@dataclass(frozen=True)
class DecodedRecords:
    """What a pipeline makes of records.

    rows        the rows, with Python values, by topic, partition and offset; for an Upsert they are changes, with the
                column `deleted`. A value of a type that Postgres parses, such as uuid, jsonb or numeric without a
                precision, is text, and so is a date or time that Python cannot hold
    rejects     the records that gave no row, by topic, partition and offset
    records     how many records there were: those with rows + rejects + tombstones + dropped
    tombstones  how many had a null value, and gave no row
    dropped     how many decoded and gave no row: an array without elements, or a transform that left them out
    unverified  the columns whose values Postgres alone can refuse, with their types; empty after load()
    """

    rows: list[Row]
    rejects: list[Reject]
    records: int
    tombstones: int
    dropped: int
    unverified: Mapping[str, str]


@dataclass(frozen=True)
class Loaded(DecodedRecords):
    """What batches of a pipeline make of records, and what its targets hold; of several batches, `rows` and `rejects`
    have those of the first one before those of the second."""

    _targets: Mapping[str, list[Row]] = field(repr=False)
    _error: ExactbatchError | None = field(repr=False)

    @property
    def targets(self) -> Mapping[str, list[Row]]:
        """The rows of each target, by its name in the sink.

        Raises what a batch raises instead of writing, such as TooManyRejects and KeyOnTwoPartitions.
        """
        if self._error is not None:
            raise self._error
        return self._targets

    @property
    def target(self) -> list[Row]:
        """The rows of the only target, for an Append by topic, partition and offset, otherwise by key.

        Raises what `targets` raises, and ConfigurationError if there are several.
        """
        if len(self.targets) > 1:
            names = ", ".join(map(repr, self.targets))
            raise ConfigurationError(f"the pipeline has several targets. Use targets[…] with one of {names}.")
        return next(iter(self.targets.values()))
