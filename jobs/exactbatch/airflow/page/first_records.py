"""The timestamps of the first unprocessed records, of pipelines that can be overdue. Each record is read once."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from exactbatch.model import LogPartition, convert_time
from exactbatch.offsets import TopicPartition
from exactbatch.operations.unprocessed import FirstOffset, Stored, first_offsets

_AGAIN: Final = 60.0  # seconds until a timestamp that was not found is looked up again
# As KafkaBroker.first_timestamps: (offset by partition, whether uncommitted records count) -> milliseconds.
LookUp = Callable[[dict[TopicPartition, int], bool], dict[TopicPartition, int | None]]


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record at or after an offset, as it was asked for at a time of the clock.

    `timestamp` is None if there was none. If the partition did not answer, it is what was known before.
    """

    at: FirstOffset
    asked_at: float
    timestamp: datetime | None
    is_answer: bool = True


class Unprocessed(NamedTuple):
    """The topics of a pipeline, and its stored offsets."""

    topics: Collection[str]
    stored: Mapping[TopicPartition, Stored]


# Of each pipeline, by its name.
Known = Mapping[str, Mapping[TopicPartition, FirstRecord]]


class FirstRecords:
    """The first unprocessed record of each partition of pipelines, as it was looked up last. One thread at a time asks.

    A record does not change, so its timestamp is right for as long as a stored offset stands there.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, dict[TopicPartition, FirstRecord]] = {}

    def look_up(
        self, logs: Sequence[LogPartition], pipelines: Mapping[str, Unprocessed], look_up: LookUp
    ) -> Known:
        """Return what is known of pipelines, by name, after calling `look_up` for what is not known.

        What is known of a partition whose log is missing stays. Pipelines that are not given are forgotten.
        """
        now = self._clock()
        begins = {
            name: first_offsets(_of_topics(logs, each.topics), each.stored)
            for name, each in pipelines.items()
        }
        needed = {
            (place, at)
            for name in begins
            for place, at in begins[name].items()
            if self._is_due(name, place, at, now)
        }
        found = _found(needed, look_up)
        logged = {log.topic_partition for log in logs}
        known: dict[str, dict[TopicPartition, FirstRecord]] = {}
        for name, places in begins.items():
            before = self._known.get(name, {})
            known[name] = {place: each for place, each in before.items() if place not in logged}
            for place, at in places.items():
                if (place, at) not in needed:
                    known[name][place] = before[place]
                    continue
                last = before[place].timestamp if place in before else None
                known[name][place] = FirstRecord(
                    at, now, found.get((place, at), last), is_answer=(place, at) in found
                )
        self._known = known
        return known

    def _is_due(self, pipeline: str, place: TopicPartition, at: FirstOffset, now: float) -> bool:
        known = self._known.get(pipeline, {}).get(place)
        if known is None or known.at != at:
            return True
        is_known = known.is_answer and known.timestamp is not None
        return not is_known and now - known.asked_at >= _AGAIN


def find_oldest_unprocessed(
    logs: Iterable[LogPartition],
    stored: Mapping[TopicPartition, Stored],
    known: Mapping[TopicPartition, FirstRecord],
) -> datetime | None:
    """Return the timestamp of the oldest unprocessed record of a pipeline; None if there is none, or it is not known.

    Where a stored offset has moved since the timestamp was looked up, the one before it stands in for the seconds until
    the new one is: a mark that goes by it would vanish and come back otherwise. Pure.
    """
    return min(
        (
            record.timestamp
            for place, at in first_offsets(logs, stored).items()
            if (record := known.get(place)) is not None
            and record.timestamp is not None
            and record.at.offset <= at.offset
        ),
        default=None,
    )


def only_current(known: Known, pipelines: Mapping[str, Unprocessed]) -> Known:
    """Return what is known without timestamps of offsets where pipelines no longer stand. Pure."""
    return {
        name: {
            place: record
            for place, record in known[name].items()
            if record.is_answer
            and ((offset := each.stored.get(place)) is None or record.at.offset == offset.next_offset)
        }
        for name, each in pipelines.items()
        if name in known
    }


def _of_topics(logs: Iterable[LogPartition], topics: Collection[str]) -> list[LogPartition]:
    return [log for log in logs if log.topic in topics]


def _found(
    needed: Collection[tuple[TopicPartition, FirstOffset]], look_up: LookUp
) -> dict[tuple[TopicPartition, FirstOffset], datetime | None]:
    """Look up timestamps; timestamps of partitions that do not answer are missing."""
    found: dict[tuple[TopicPartition, FirstOffset], datetime | None] = {}
    for is_held_back in (False, True):
        waiting = [(place, at) for place, at in sorted(needed) if at.is_held_back == is_held_back]
        while waiting:  # several pipelines may stand at different offsets of one partition: one for each turn
            turn = dict(reversed(waiting))
            answers = look_up({place: at.offset for place, at in turn.items()}, is_held_back)
            for place, milliseconds in answers.items():
                found[place, turn[place]] = convert_time(milliseconds)
            waiting = [(place, at) for place, at in waiting if turn[place] != at]
    return found
