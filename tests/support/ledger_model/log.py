"""The log of the model: records that are made up, and what a broker would tell of them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import strategies as st

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.model import FoundRecord, LogPartition
from exactbatch.offsets import OffsetRange

TOPIC_IDS = {"a": UUID(int=1), "b": UUID(int=2)}
MOST_PARTITIONS = 3
T0 = datetime(2020, 1, 1, tzinfo=UTC)
MINUTES = 8
NOT_YET = datetime(2100, 1, 1, tzinfo=UTC)
Key = tuple[str, int]  # topic, partition
Ranges = dict[Key, list[tuple[int, int]]]


@dataclass(frozen=True)
class Record:
    """One record: its time in minutes, how many rows it gives, and the first program that can decode it."""

    minute: int
    rows: int = 1
    decoded_from: int = 0

    @property
    def at(self) -> datetime:
        return T0 + timedelta(minutes=self.minute)

    def rows_by(self, program: int) -> int | None:
        """Return the number of rows that a version of the program makes of it; None for a reject."""
        return None if program < self.decoded_from else self.rows


class FakeLog(KafkaBroker):
    """A fake broker. An offset without a record is a hole, as markers and compaction leave them."""

    def __init__(self) -> None:
        super().__init__({}, settle=0)
        self.records: dict[Key, list[Record | None]] = {}
        self.earliest: dict[Key, int] = {}
        self.held: dict[Key, int] = {}
        self.meanwhile: Callable[[], None] | None = None

    def add_partition(self, topic: str, records: list[Record | None]) -> None:
        key = topic, sum(each == topic for each, _ in self.records)
        self.records[key], self.earliest[key] = list(records), 0

    def stable(self, key: Key) -> int:
        return self.held.get(key, len(self.records[key]))

    def first_record(self, key: Key, at: datetime = T0 - timedelta(days=1)) -> int | None:
        """The first record at or after a time that can be read."""
        for offset in range(self.earliest[key], self.stable(key)):
            record = self.records[key][offset]
            if record is not None and record.at >= at:
                return offset
        return None

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        answer = tuple(
            LogPartition(
                topic=key[0],
                partition=key[1],
                topic_id=TOPIC_IDS[key[0]],
                leader_epoch=1,
                earliest=self.earliest[key],
                last_stable=self.stable(key),
                high_watermark=len(self.records[key]),
            )
            for key in sorted(self.records)
            if key[0] in topics
        )
        # A broker that takes its time to answer: others commit meanwhile.
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return answer

    def records_at(self, partitions: Sequence[LogPartition], at: datetime) -> dict[Key, FoundRecord]:
        found = {(each.topic, each.partition): None for each in partitions}
        return {
            key: FoundRecord(offset, 0) for key in found if (offset := self.first_record(key, at)) is not None
        }

    def topic_ids(self, topics: Sequence[str]) -> dict[str, UUID]:
        return {topic: TOPIC_IDS[topic] for topic in topics}

    def compacted(self, topics: Sequence[str]) -> set[str]:
        return set()


def written(key: Key, offset: int, program: int, row: int) -> str:
    """The one column of the target: where the row comes from, and which program made it."""
    return f"{key[0]}[{key[1]}] {offset} by {program} row {row}"


def records(first: int, last: int) -> st.SearchStrategy[list[Record | None]]:
    """Records with times of these minutes, in any order, and holes."""
    record = st.builds(
        Record,
        minute=st.integers(first, last),
        rows=st.sampled_from((1, 1, 2, 0)),
        decoded_from=st.sampled_from((0, 0, 0, 1, 2)),
    )
    return st.lists(st.one_of(record, record, record, st.none()), min_size=1, max_size=6)


def as_ranges(ranges: Sequence[OffsetRange]) -> Ranges:
    found: Ranges = {}
    for each in ranges:
        found.setdefault((each.topic, each.partition), []).append((each.from_offset, each.until_offset))
    return found
