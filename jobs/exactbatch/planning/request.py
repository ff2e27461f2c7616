"""Parse and check replay requests: offset ranges, a time window, or whole batches; and the ranges of a window whose
offsets are known. Pure, no I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, Final

from exactbatch.errors import ConfigurationError, RangePlace
from exactbatch.model import LogPartition, StoredOffset
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.time_text import read_time
from exactbatch.to_topic import is_topic_name

_LARGEST: Final = 2**63 - 1  # the largest bigint
_SHOWN: Final = 200  # characters of a value in a message
# What somebody sends may be large or deeply nested: only its beginning is looked at.
_REPR: Final = Repr()
_REPR.maxstring = _REPR.maxother = _SHOWN
_REPR.maxdict = 6
MOST_ENTRIES: Final = 100  # of ranges and of batch_ids in one request
_RANGE_KEYS: Final = ("topic", "partition", "from_offset", "until_offset")
PARAMETERS: Final = ("ranges", "start", "end", "batch_ids", "available_only")


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """Offsets [from_offset, until_offset) of one partition, as a user writes them: not checked yet."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def place(self) -> RangePlace:
        """The keyword arguments with which an error names this range."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "from_offset": self.from_offset,
            "until_offset": self.until_offset,
        }

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.from_offset}..{self.until_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Exactly one of: ranges; a window [start, end) of message timestamps; the exact ranges of committed batches.

    With `available_only`, the replay processes the rest where retention has removed a part of the request, or
    compact has dropped changes of it.

    Raises ConfigurationError if none or several are given, or the window is not valid.
    """

    ranges: tuple[RequestedRange, ...] = ()
    window: tuple[datetime, datetime] | None = None
    batch_ids: tuple[int, ...] = ()
    available_only: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("ranges", "window", "batch_ids") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigurationError(
                f"expected one of ranges, a time window (start and end) or batch ids to replay, found "
                f"{' and '.join(given) or 'none of them'}. Give exactly one."
            )
        if self.window is not None:
            start, end = self.window
            if start.tzinfo is None or end.tzinfo is None:
                raise ConfigurationError(
                    f"the time window {start} to {end} has no time zone. Write times as 2026-11-21T08:00:00Z"
                )
            if start >= end:
                raise ConfigurationError(
                    f"the time window {start} to {end} is empty: its start must be before its end. Correct it."
                )


def parse_request(parameters: Mapping[str, Any]) -> ReplayRequest | None:
    """Return the replay that a DAG run's parameters request, or None if they request none.

    Keys: `ranges`, a list of {topic, partition, from_offset, until_offset}; `start` and `end`, ISO 8601, in UTC
    unless they have a UTC offset; `batch_ids`, a list of numbers; `available_only`, true or false. Empty and null
    values count as not given. A list has at most 100 entries; those that it repeats count once.

    Raises ConfigurationError for anything else.
    """
    for name in parameters:
        if name not in PARAMETERS:
            similar = get_close_matches(name, PARAMETERS, n=1)
            raise ConfigurationError(
                f"expected the parameters {', '.join(PARAMETERS)}, found {shown(name)}"
                + (f": did you mean {similar[0]!r}?" if similar else "")
            )
    start, end = parameters.get("start"), parameters.get("end")
    if bool(start) != bool(end):
        raise ConfigurationError(
            f"a time window needs both start and end, found only {'start' if start else 'end'}"
        )
    available_only = parameters.get("available_only") or False
    if not isinstance(available_only, bool):
        raise ConfigurationError(f"expected available_only as true or false, found {shown(available_only)}")
    ranges = tuple(dict.fromkeys(map(_range, _list(parameters, "ranges"))))
    batch_ids = tuple(
        dict.fromkeys(_whole_number(each, "a batch id") for each in _list(parameters, "batch_ids"))
    )
    if not (ranges or start or batch_ids):
        if available_only:
            raise ConfigurationError(
                "available_only has no effect without ranges, a time window or batch_ids. Give one of them."
            )
        return None
    window = (parse_time(start, "start"), parse_time(end, "end")) if start and end else None
    return ReplayRequest(ranges=ranges, window=window, batch_ids=batch_ids, available_only=available_only)


def ranges_of_offsets(offsets: Iterable[tuple[str, int, int]]) -> tuple[RequestedRange, ...]:
    """Return ranges that contain exactly these (topic, partition, offset)s; adjacent offsets form one range."""
    ranges: list[RequestedRange] = []
    for topic, partition, offset in sorted(set(offsets)):
        last = ranges[-1] if ranges else None
        if last is not None and (last.topic, last.partition, last.until_offset) == (topic, partition, offset):
            ranges[-1] = replace(last, until_offset=offset + 1)
        else:
            ranges.append(RequestedRange(topic, partition, offset, offset + 1))
    return tuple(ranges)


def parse_time(text: Any, name: str) -> datetime:
    """Parse an ISO 8601 time, UTC unless it has a UTC offset; return it in UTC. Raises ConfigurationError."""
    try:
        return read_time(text)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(
            f"expected {name} as an ISO 8601 time such as 2026-11-21T08:00:00Z, found {shown(text)}"
        ) from None


def shown(value: Any) -> str:
    """Return a value that somebody has sent as a message shows it: at most 200 characters, all of them printable."""
    text = _REPR.repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def parse_range(text: str) -> RequestedRange:
    """Parse a range written `topic:partition:from-until`, as in "flights:0:100-200". Raises ConfigurationError."""
    topic, *rest = text.rsplit(":", 2)
    if len(rest) == 2:
        partition, (from_offset, dash, until_offset) = rest[0], rest[1].partition("-")
        if topic and dash and all(map(_is_number, (partition, from_offset, until_offset))):
            return RequestedRange(topic, int(partition), int(from_offset), int(until_offset))
    raise ConfigurationError(
        f"expected a range as TOPIC:PARTITION:FROM-UNTIL, such as flights:0:100-200 for the offsets 100 to 199, found "
        f"{text!r}"
    )


def parse_place(text: str) -> RequestedRange:
    """Parse a record written `topic:partition:offset`, as in "flights:0:100". Raises ConfigurationError."""
    topic, *rest = text.rsplit(":", 2)
    if len(rest) == 2 and topic and all(map(_is_number, rest)):
        partition, offset = map(int, rest)
        return RequestedRange(topic, partition, offset, offset + 1)
    raise ConfigurationError(
        f"expected a record as TOPIC:PARTITION:OFFSET, such as flights:0:100, found {text!r}"
    )


def _range(value: Any) -> RequestedRange:
    if not isinstance(value, Mapping) or set(value) != set(_RANGE_KEYS):
        raise ConfigurationError(
            f"expected each of ranges as {{{', '.join(_RANGE_KEYS)}}}, found {shown(value)}"
        )
    if not isinstance(value["topic"], str) or not is_topic_name(value["topic"]):
        raise ConfigurationError(
            f"expected the topic of a range as the name of a topic, found {shown(value['topic'])}"
        )
    return RequestedRange(value["topic"], *(_whole_number(value[name], name) for name in _RANGE_KEYS[1:]))


def _list(parameters: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = parameters.get(name) or []
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"expected {name} as a list, found {shown(value)}")
    if len(value) > MOST_ENTRIES:
        raise ConfigurationError(
            f"expected at most {MOST_ENTRIES} {name}, found {len(value):,}. Replay a time window (start and end), join "
            f"adjacent ranges, or start several replays."
        )
    return value


def _whole_number(value: Any, name: str) -> int:
    """Parse a whole number from 0 to the largest bigint, which Airflow's form may send as text."""
    number = int(value) if isinstance(value, str) and _is_number(value.strip()) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _LARGEST:
        raise ConfigurationError(
            f"expected {name} as a whole number from 0 to {_LARGEST}, found {shown(value)}"
        )
    return number


def _is_number(text: str) -> bool:
    """True for digits, and not for more of them than a bigint has, which int() may refuse to read."""
    return text.isdecimal() and len(text) <= len(str(_LARGEST))


_RANGES_SHOWN: Final = 5


def window_ranges(
    stored: Sequence[StoredOffset],
    starts: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int | None],
) -> list[RequestedRange]:
    """Return the processed offsets of a time window: those below the stored offsets.

    `starts` and `ends` give the offsets of the window's start and end; None, or a missing partition, is a time in
    the future.
    """
    requested = []
    for offset in stored:
        head = offset.next_offset
        start, end = starts.get(offset.topic_partition), ends.get(offset.topic_partition)
        from_offset = head if start is None else start
        until_offset = head if end is None else min(end, head)
        if from_offset < until_offset:
            requested.append(RequestedRange(*offset.topic_partition, from_offset, until_offset))
    return requested


def beyond_ranges(
    stored: Sequence[StoredOffset],
    partitions: Sequence[LogPartition],
    starts: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int | None],
) -> tuple[OffsetRange, ...]:
    """Return the offsets of a time window at or above the stored offsets, for topics that have stored offsets.

    A partition that was added to such a topic is processed from its earliest offset.
    """
    heads = {offset.topic_partition: offset.next_offset for offset in stored}
    topics = {offset.topic for offset in stored}
    beyond = []
    for partition in partitions:
        start, end = starts.get(partition.topic_partition), ends.get(partition.topic_partition)
        if partition.topic not in topics or start is None:
            continue
        from_offset = max(start, heads.get(partition.topic_partition, partition.earliest))
        until_offset = partition.last_stable if end is None else min(end, partition.last_stable)
        if from_offset < until_offset:
            beyond.append(partition.range(from_offset, until_offset))
    return tuple(beyond)


def beyond_text(beyond: Sequence[OffsetRange]) -> str:
    """Say how many offsets of a window are above the stored offsets, and which."""
    more = f" and {len(beyond) - _RANGES_SHOWN} more" if len(beyond) > _RANGES_SHOWN else ""
    return (
        f"{sum(map(len, beyond))} offsets of the window are above the stored offsets: "
        f"{', '.join(map(str, beyond[:_RANGES_SHOWN]))}{more}"
    )
