"""The timestamps of the first unprocessed records, of pipelines that can be overdue. Each record is read once."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from exactbatch.model import LogPartition
from exactbatch.offsets import TopicPartition

_AGAIN: Final = 60.0  # seconds until a timestamp that was not found is looked up again
Place = tuple[TopicPartition, int]  # a partition, and an offset in it
# As KafkaBroker.first_timestamps: (offset by partition, whether uncommitted records count) -> milliseconds.
LookUp = Callable[[dict[TopicPartition, int], bool], dict[TopicPartition, int]]


class FirstRecords:
    """Timestamps by partition and offset: of the first record at or after the offset. One thread at a time asks.

    A record does not change, so its timestamp is right for as long as a stored offset stands there.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[Place, tuple[float, datetime | None]] = {}

    def look_up(
        self,
        logs: Sequence[LogPartition],
        pipelines: Sequence[tuple[Sequence[str], Mapping[TopicPartition, int]]],
        look_up: LookUp,
    ) -> dict[Place, datetime]:
        """Return the timestamps of the first unprocessed records of pipelines, given as (topics, stored offsets).

        Calls `look_up` for those that are not known, and forgets those that no pipeline needs any more.
        """
        needed = {place: is_held for each in pipelines for place, is_held in _places(logs, *each).items()}
        now = self._clock()
        self._found = {
            place: (at, timestamp)
            for place, (at, timestamp) in self._found.items()
            if place in needed and (timestamp is not None or now - at < _AGAIN)
        }
        for is_held in (False, True):
            while missing := {
                partition: offset
                for (partition, offset), held in needed.items()
                if held == is_held and (partition, offset) not in self._found
            }:  # several pipelines may stand at different offsets of one partition: one for each turn
                found = look_up(missing, is_held)
                for partition, offset in missing.items():
                    milliseconds = found.get(partition)
                    timestamp = (
                        None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
                    )
                    self._found[partition, offset] = now, timestamp
        return {place: timestamp for place, (_, timestamp) in self._found.items() if timestamp is not None}


def oldest_unprocessed(
    logs: Sequence[LogPartition], stored: Mapping[TopicPartition, int], known: Mapping[Place, datetime]
) -> datetime | None:
    """Return the timestamp of the oldest unprocessed record of a pipeline; None if there is none, or it is not known.

    The stored offsets may have moved since the timestamps were looked up: those of other offsets do not count. Pure.
    """
    topics = {log.topic for log in logs}
    return min((known[place] for place in _places(logs, topics, stored) if place in known), default=None)


def _places(
    logs: Sequence[LogPartition], topics: Sequence[str] | set[str], stored: Mapping[TopicPartition, int]
) -> dict[Place, bool]:
    """Return where the first unprocessed records of a pipeline are, and whether an open transaction holds them back."""
    places = {}
    for log in logs:
        offset = stored.get(log.topic_partition, log.earliest)
        if log.topic in topics and log.earliest <= offset < log.high_watermark:
            places[log.topic_partition, offset] = offset >= log.last_stable
    return places
