"""The records that a test gives to a pipeline, and their places in topics."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from exactbatch.errors import ConfigurationError
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.topic_pattern import TopicPattern

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")


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
