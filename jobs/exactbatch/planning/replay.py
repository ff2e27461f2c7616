"""What a replay processes: what was asked for + where the pipeline stands + the log → a plan. Pure, no I/O."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal

from exactbatch.coverage import Coverage
from exactbatch.errors import OffsetsLost, ReplayRefused
from exactbatch.kafka.identity import check_same_logs
from exactbatch.model import Covered, FoundRecord, LogPartition, StoredOffset, TopicPartition
from exactbatch.offsets import Log, OffsetRange, union
from exactbatch.planning.request import AskedRange

# How far ahead of the planner's clock a record's time may lie: what Kafka 4 lets producers write by default
# (message.timestamp.after.max.ms).
_AHEAD: Final = timedelta(hours=1)
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Widening:
    """A part of a batch that was not asked for, and is processed again because the rest of the batch is."""

    batch_id: int
    range: OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a replay processes; what was asked for and is no longer in the log, or is below a horizon; what came
    in beside it; and `beyond`, what lies in a window and above the stored offset: it is for the next advance."""

    ranges: tuple[OffsetRange, ...]
    removed: tuple[OffsetRange, ...] = ()
    compacted: tuple[OffsetRange, ...] = ()
    widened: tuple[Widening, ...] = ()
    beyond: tuple[OffsetRange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing to process."""
        return not self.ranges


def window_ranges(
    stored: Sequence[StoredOffset],
    starts: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int | None],
) -> list[AskedRange]:
    """The offsets of a time window, cut at the stored head.

    `starts` and `ends` give the offset at which each time begins; None is a time that has not come yet.
    """
    asked = []
    for each in stored:
        key, head = (each.topic, each.partition), each.next_offset
        start, end = starts.get(key), ends.get(key)
        from_offset = head if start is None else start
        until_offset = head if end is None else min(end, head)
        if from_offset < until_offset:
            asked.append(AskedRange(*key, from_offset, until_offset))
    return asked


def beyond_ranges(
    stored: Sequence[StoredOffset],
    log: Sequence[LogPartition],
    starts: Mapping[TopicPartition, int | None],
    ends: Mapping[TopicPartition, int | None],
) -> tuple[OffsetRange, ...]:
    """The offsets of a time window that the log holds above the stored offsets, for topics that were processed.

    A partition that such a topic has gained since is processed from its earliest offset on.
    """
    heads = {(each.topic, each.partition): each.next_offset for each in stored}
    topics = {each.topic for each in stored}
    beyond = []
    for each in log:
        key = each.topic, each.partition
        start, end = starts.get(key), ends.get(key)
        if each.topic not in topics or start is None:
            continue
        from_offset = max(start, heads.get(key, each.earliest))
        until_offset = each.last_stable if end is None else min(end, each.last_stable)
        if from_offset < until_offset:
            beyond.append(each.range(from_offset, until_offset))
    return tuple(beyond)


def beyond_text(beyond: Sequence[OffsetRange]) -> str:
    """How many offsets of a window are above the stored ones, and which."""
    more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    return (
        f"{sum(map(len, beyond))} offsets of the window are above the stored ones: "
        f"{', '.join(map(str, beyond[:_SHOWN]))}{more}"
    )


def check_reached(planned: "ReplayPlan") -> None:
    """Raise ReplayRefused where all that a window has in the log is still to be processed for the first time."""
    if planned.beyond and planned.is_empty:
        raise ReplayRefused(
            f"{beyond_text(planned.beyond)}. The pipeline has not processed them yet, and a replay processes "
            f"again: they are for the next advance. Let a scheduled run, or a triggered one without parameters, "
            f"process them; if such a run fails, `exactbatch status` says why."
        )


def check_whole(planned: "ReplayPlan", window: tuple[datetime, datetime]) -> None:
    """Raise ReplayRefused where the interval of a backfill can only be processed together with others of it."""
    if planned.widened:
        batch_ids = sorted({each.batch_id for each in planned.widened})
        more = f" and {len(batch_ids) - _SHOWN} more" if len(batch_ids) > _SHOWN else ""
        start, end = (f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" for at in window)
        raise ReplayRefused(
            f"the interval {start} to {end} holds parts of batches that can only be processed again as a whole "
            f"(lineage='batch'): {', '.join(map(str, batch_ids[:_SHOWN]))}{more}. Each interval of a backfill "
            f"would process them again. Trigger one run over all of its time instead, with "
            f'{{"start": "{start}", "end": "…"}}: it processes each batch once.'
        )


def may_hide(
    stored: Sequence[StoredOffset], ends: Mapping[TopicPartition, FoundRecord], end: datetime
) -> list[tuple[StoredOffset, FoundRecord]]:
    """The records at which a window ends whose times lie far after its end, with processed offsets behind them.

    Nothing was sent for a while, or the record has a wrong time and stands before others of the window.
    """
    latest = round((end + _AHEAD).timestamp() * 1000)
    found = [(each, ends.get((each.topic, each.partition))) for each in stored]
    return [
        (each, record)
        for each, record in found
        if record is not None and record.timestamp > latest and record.offset + 1 < each.next_offset
    ]


def hidden(
    each: StoredOffset, record: FoundRecord, behind: FoundRecord, window: tuple[datetime, datetime]
) -> ReplayRefused:
    """The error for a window that ends at a record with one of its own time behind it."""
    start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in window)
    return ReplayRefused(
        f"topic {each.topic!r}, partition {each.partition}, offset {record.offset}: the record there has the "
        f"time {_moment(record.timestamp)}, and offset {behind.offset} behind it has {_moment(behind.timestamp)}. "
        f"Kafka finds the former for every time up to its own, so the window {start} to {end} UTC would end there "
        f"and leave out the latter. Replay by offsets instead: --range {each.topic}:{each.partition}:FROM-UNTIL."
    )


def check_not_from_the_future(
    stored: Sequence[StoredOffset],
    ends: Mapping[TopicPartition, FoundRecord],
    window: tuple[datetime, datetime],
    *,
    now: datetime,
) -> None:
    """Raise ReplayRefused where a window ends at a record whose time is yet to come, with others behind it.

    `ends` gives the first record at or after the end of the window. For Kafka it stands before all of that time,
    so what follows it, of whatever time, would be left out of this window and of each one after it.
    """
    latest = round((now + _AHEAD).timestamp() * 1000)
    for each in stored:
        record = ends.get((each.topic, each.partition))
        if record is not None and record.timestamp > latest and record.offset + 1 < each.next_offset:
            start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in window)
            raise ReplayRefused(
                f"topic {each.topic!r}, partition {each.partition}, offset {record.offset}: the record there has "
                f"a time in the future, {_moment(record.timestamp)}, and {each.next_offset - record.offset - 1} "
                f"processed offsets follow it. Kafka finds it for every time up to then, so the window {start} "
                f"to {end} UTC would end there and leave out what follows. Replay by offsets instead: "
                f"--range {each.topic}:{each.partition}:FROM-UNTIL."
            )


def plan_replay(
    asked: Sequence[AskedRange],
    stored: Sequence[StoredOffset],
    log: Sequence[LogPartition],
    *,
    coverage: Sequence[Covered] = (),
    horizons: Mapping[Log, int] = MappingProxyType({}),
    lineage: Literal["record", "batch"] = "record",
    available_only: bool = False,
    beyond: tuple[OffsetRange, ...] = (),
) -> ReplayPlan:
    """Plan a replay of exactly what was asked for; `beyond` goes into the plan as it is.

    With lineage="batch" nothing less than a whole batch can be taken back, so the plan is widened to all that
    `coverage` says of every batch that it touches. `horizons` gives for each log the offset below which changes
    were compacted.

    Raises ReplayRefused for ranges that are reversed, overlap, are beyond the stored head or of an unknown
    partition, ReplayRefused for what lies below a horizon and OffsetsLost for what retention has removed,
    unless `available_only`, and TopicRecreated, PartitionGone or LogWentBackwards where the log is not the one
    that was processed.
    """
    heads = {(each.topic, each.partition): each for each in stored}
    for each in asked:
        _check(each, heads)
    _check_overlaps(asked)
    topics = {each.topic for each in asked}
    check_same_logs([each for each in stored if each.topic in topics], log)
    partitions = {(each.topic, each.partition): each for each in log}
    wanted = [
        partitions[each.topic, each.partition].range(each.from_offset, each.until_offset) for each in asked
    ]
    widened: list[Widening] = []
    if lineage == "batch":
        widened = _widen(wanted, coverage, partitions)
    asked_for = union([*wanted, *(each.range for each in widened)])
    compacted, above = _cut_at_horizons(asked_for, horizons)
    if compacted and not available_only:
        raise ReplayRefused(_compacted_message(compacted[0], above, horizons))
    found = Coverage(coverage)
    removed = []
    ranges = []
    for range_ in above:
        earliest = partitions[range_.topic, range_.partition].earliest
        lost, left = range_.cut(earliest)
        if lost is not None:
            if lineage == "batch":
                _check_no_batch_is_lost(lost, found, earliest)
            if not available_only:
                raise OffsetsLost(_lost_message(range_, lost, left, earliest))
            removed.append(lost)
        if left is not None:
            ranges.append(left)
    return ReplayPlan(
        ranges=tuple(ranges),
        removed=tuple(removed),
        compacted=tuple(compacted),
        widened=tuple(widened),
        beyond=beyond,
    )


def check_not_compacted(planned: ReplayPlan, compacted: Set[str]) -> None:
    """Raise ReplayRefused where records that compaction has removed since may have given results."""
    for each in planned.ranges:
        if each.topic in compacted:
            raise ReplayRefused(
                f"{each}: expected a topic that loses records to retention alone, found that {each.topic!r} is "
                f"compacted (cleanup.policy): the replay would take back the results of records that compaction "
                f"has removed since, and could not make them again. To replay what is left, and lose the results "
                f"of the rest, set available_only."
            )


def check_from_the_beginning(planned: ReplayPlan, compacted: Set[str], coverage: Sequence[Covered]) -> None:
    """Raise ReplayRefused where results of a compacted topic would stay below those that are made again.

    The last record of a key may be a delete, which Kafka removes in the end. A replay takes it back and does not
    find it; an older change of the key that stays would then be the row again.
    """
    found = Coverage(coverage)
    last = {each.log: each for each in sorted(planned.ranges, key=lambda r: r.from_offset)}
    for each in last.values():
        if each.topic not in compacted:
            continue
        below = replace(each, from_offset=0)
        stays = [
            replace(
                below, from_offset=row.from_offset, until_offset=min(row.until_offset, below.until_offset)
            )
            for row in found.overlapping(below)
            if row.kind == "batch"
        ]
        for range_ in planned.ranges:
            stays = [piece for one in stays for piece in one.without(range_)]
        if stays:
            first = stays[0].from_offset
            raise ReplayRefused(
                f"{each}: {each.topic!r} is compacted (cleanup.policy), and the results of {stays[0]} would stay "
                f"as they are. Kafka may have removed a delete in the replayed range since, whose row would come "
                f"back. Replay from the beginning, {each.topic}:{each.partition}:{first}-{each.until_offset}; or, "
                f"to replay this alone, and take such rows into the bargain, set available_only."
            )


def check_above_horizons(batch_id: int, ranges: Iterable[OffsetRange], horizons: Mapping[Log, int]) -> None:
    """Raise ReplayRefused when a planned replay reaches below a horizon that has moved since."""
    compacted, above = _cut_at_horizons(ranges, horizons)
    if compacted:
        raise ReplayRefused(
            f"batch {batch_id}: {_compacted_message(compacted[0], above, horizons)} The horizon has moved since "
            f"this replay was planned. Nothing was written; plan the replay again."
        )


def _check(asked: AskedRange, heads: Mapping[TopicPartition, StoredOffset]) -> None:
    if not 0 <= asked.from_offset < asked.until_offset:
        raise ReplayRefused(
            f"{asked}: expected 0 <= from_offset < until_offset (until_offset is not included), found them "
            f"otherwise. Correct the range."
        )
    head = heads.get((asked.topic, asked.partition))
    if head is None:
        there = sorted(partition for topic, partition in heads if topic == asked.topic)
        raise ReplayRefused(
            f"{asked}: expected a partition that the pipeline has a stored offset for, found "
            + (
                f"partitions {_listed(there)} of topic {asked.topic!r}"
                if there
                else f"topics {', '.join(sorted({repr(topic) for topic, _ in heads})) or 'none at all'}"
            )
            + (
                ". Correct the range; what the pipeline has not reached yet is processed by its next run."
                if there
                else ". Correct the range: a replay is of topics that the pipeline reads and has processed."
            )
        )
    if asked.until_offset > head.next_offset:
        raise ReplayRefused(
            f"{asked}: expected it to end at or below the stored offset {head.next_offset}, up to which the "
            f"pipeline has processed the log. A replay processes again; what lies beyond is for the next run. "
            f"End the range at {head.next_offset}."
        )


def _check_overlaps(asked: Sequence[AskedRange]) -> None:
    for one, other in pairwise(sorted(asked, key=lambda a: (a.topic, a.partition, a.from_offset))):
        if (one.topic, one.partition) == (
            other.topic,
            other.partition,
        ) and other.from_offset < one.until_offset:
            raise ReplayRefused(f"expected ranges that do not overlap, found {one} and {other}. Join them.")


def _widen(
    wanted: Sequence[OffsetRange],
    coverage: Sequence[Covered],
    partitions: Mapping[TopicPartition, LogPartition],
) -> list[Widening]:
    """The parts of touched batches that were not asked for."""
    found = Coverage(coverage)
    touched = {batch_id for range_ in wanted for batch_id in found.batches(range_)}
    of_log: dict[Log, list[OffsetRange]] = defaultdict(list)
    for range_ in wanted:
        of_log[range_.log].append(range_)
    widened = []
    for each in coverage:
        if each.batch_id is None or each.batch_id not in touched:
            continue
        partition = partitions.get((each.topic, each.partition))
        if partition is None or partition.topic_id != each.topic_id:
            raise ReplayRefused(
                f"expected every topic of batch {each.batch_id}, which can only be replayed as a whole, found "
                f"that {each.topic!r} is no longer a topic of the pipeline, or was created again"
            )
        rest = [partition.range(each.from_offset, each.until_offset)]
        for range_ in of_log[each.log]:
            rest = [piece for one in rest for piece in one.without(range_)]
        widened += [Widening(each.batch_id, piece) for piece in rest]
    return widened


def _check_no_batch_is_lost(lost: OffsetRange, coverage: Coverage, earliest: int) -> None:
    if batch_ids := coverage.batches(lost):
        raise OffsetsLost(
            f"{lost}: expected all of batch {min(batch_ids)} in the log, whose rows can only be replaced as "
            f"a whole (lineage='batch'), found that retention has removed its offsets below {earliest}. "
            f"The replay is refused: it would lose what these offsets had given."
        )


def _cut_at_horizons(
    ranges: Iterable[OffsetRange], horizons: Mapping[Log, int]
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """What lies below the horizon of its log, and what lies at or above it."""
    cuts = [each.cut(horizons.get(each.log, 0)) for each in ranges]
    return [low for low, _ in cuts if low is not None], [high for _, high in cuts if high is not None]


def _compacted_message(low: OffsetRange, above: Sequence[OffsetRange], horizons: Mapping[Log, int]) -> str:
    return (
        f"{low}: expected offsets at or above {horizons[low.log]}, the horizon of {low.topic}[{low.partition}], "
        f"found them below it: exactbatch compact has dropped changes there, and what is dropped cannot be "
        f"taken back. "
        + (
            f"To replay the {sum(map(len, above))} offsets that lie above, and keep the results of the rest as "
            f"they are, set available_only."
            if above
            else "Nothing of it can be replayed; its results stay as they are."
        )
    )


def _lost_message(range_: OffsetRange, lost: OffsetRange, left: OffsetRange | None, earliest: int) -> str:
    return (
        f"{range_}: expected all of it in the log, found that the log starts at {earliest}: retention has "
        f"removed {len(lost)} of its {len(range_)} offsets. "
        + (
            f"To replay what is left, {left}, and keep the results of the rest as they are, set available_only."
            if left is not None
            else "Nothing of it can be replayed; its results stay as they are."
        )
    )


def _moment(milliseconds: int) -> str:
    """A time since 1970, where the calendar of Python reaches it: a producer may have sent nanoseconds."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms since 1970"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) < 10 else f"{numbers[0]} to {numbers[-1]}"
