"""Refuse time windows that cannot be replayed by time, and replays of compacted topics (cleanup.policy) that could not
restore what they retract. Pure, no I/O.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from exactbatch.coverage import Coverage
from exactbatch.errors import ReplayRefused
from exactbatch.model import Covered, FoundRecord, StoredOffset, convert_time
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.planning.replay import ReplayPlan
from exactbatch.planning.request import beyond_text

# How far a record's timestamp may be ahead of this machine's clock: what Kafka 4 lets producers write by default
# (message.timestamp.after.max.ms).
_AHEAD: Final = timedelta(hours=1)
_SHOWN: Final = 5


def check_reached(planned: ReplayPlan) -> None:
    """Raise ReplayRefused if the pipeline has not processed any offset of a window that has some in the log."""
    if planned.beyond and planned.is_empty:
        raise ReplayRefused(
            f"{beyond_text(planned.beyond)}. The pipeline has not processed them yet, and a replay only processes "
            f"offsets again. Let the next advance process them: a scheduled run, or a triggered run without "
            f"parameters; if such a run fails, `exactbatch status` says why.",
            **planned.beyond[0].place,
        )


def check_whole(planned: ReplayPlan, window: tuple[datetime, datetime]) -> None:
    """Raise ReplayRefused if a backfill's interval shares batches with others that are replayed as a whole."""
    if planned.widened:
        batch_ids = sorted({widening.batch_id for widening in planned.widened})
        more = f" and {len(batch_ids) - _SHOWN} more" if len(batch_ids) > _SHOWN else ""
        start, end = (f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" for at in window)
        raise ReplayRefused(
            f"the interval {start} to {end} holds parts of batches that can only be replayed as a whole "
            f"(lineage='batch'): {', '.join(map(str, batch_ids[:_SHOWN]))}{more}. Each interval of a backfill "
            f"would process them again. Trigger one run over the whole time instead, with "
            f'{{"start": "{start}", "end": "…"}}: it processes each batch once.',
            batch_id=batch_ids[0],
        )


def check_end_not_in_future(
    stored: Sequence[StoredOffset],
    ends: Mapping[TopicPartition, FoundRecord],
    window: tuple[datetime, datetime],
    *,
    now: datetime,
) -> None:
    """Raise ReplayRefused if a window ends at a record with a future timestamp and processed records follow it.

    `ends` gives the first record at or after the end of the window. Kafka finds a record with a future timestamp
    for every time before it, so this window and all later ones would leave out the records that follow it.
    """
    latest = round((now + _AHEAD).timestamp() * 1000)
    for offset in stored:
        record = ends.get(offset.topic_partition)
        if record is not None and record.timestamp > latest and record.offset + 1 < offset.next_offset:
            start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in window)
            raise ReplayRefused(
                f"{offset.topic}[{offset.partition}] offset {record.offset}: the record has a timestamp in the "
                f"future, {_moment(record.timestamp)}, and {offset.next_offset - record.offset - 1} processed "
                f"offsets follow it. Kafka finds this record for every time before that, so the window {start} "
                f"to {end} UTC would end there and leave out the following records. Replay by offsets instead: "
                f"--range {offset.topic}:{offset.partition}:FROM-UNTIL.",
                topic=offset.topic,
                partition=offset.partition,
                from_offset=record.offset,
                until_offset=record.offset + 1,
            )


def late_ends(
    stored: Sequence[StoredOffset], ends: Mapping[TopicPartition, FoundRecord], end: datetime
) -> list[tuple[StoredOffset, FoundRecord]]:
    """Return the records at which a window ends long after its time, with processed offsets behind them.

    Either nothing was sent for a while, or the record has a wrong timestamp and precedes records of the window.
    """
    latest = round((end + _AHEAD).timestamp() * 1000)
    records = [(offset, ends.get(offset.topic_partition)) for offset in stored]
    return [
        (offset, record)
        for offset, record in records
        if record is not None and record.timestamp > latest and record.offset + 1 < offset.next_offset
    ]


def hides_a_record(
    offset: StoredOffset, record: FoundRecord, hidden: FoundRecord, window: tuple[datetime, datetime]
) -> ReplayRefused:
    """Return the error for a window that ends at `record`, with the record `hidden` of the window behind it."""
    start, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for at in window)
    return ReplayRefused(
        f"{offset.topic}[{offset.partition}] offset {record.offset}: the record has the timestamp "
        f"{_moment(record.timestamp)}, and the later offset {hidden.offset} has {_moment(hidden.timestamp)}. "
        f"Kafka finds the former for every time before its own, so the window {start} to {end} UTC would end "
        f"there and leave out the latter. Replay by offsets instead: --range "
        f"{offset.topic}:{offset.partition}:FROM-UNTIL.",
        topic=offset.topic,
        partition=offset.partition,
        from_offset=record.offset,
        until_offset=record.offset + 1,
    )


def _moment(milliseconds: int) -> str:
    """Format the time of a record; as a number if it is beyond Python's calendar."""
    time = convert_time(milliseconds)
    return f"{milliseconds} ms since 1970" if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def check_not_compacted(planned: ReplayPlan, compacted: Set[str]) -> None:
    """Raise ReplayRefused if compaction may have removed records whose results the replay would retract."""
    for range_ in planned.ranges:
        if range_.topic in compacted:
            raise ReplayRefused(
                f"{range_}: topic {range_.topic!r} is compacted (cleanup.policy): the replay would retract "
                f"results of records that compaction has removed since, and could not restore them. To replay "
                f"the remaining records, and lose the results of the others, set available_only.",
                **range_.place,
            )


def check_without_rejects(ranges: Sequence[OffsetRange], rejects: Mapping[int, Collection[int]]) -> None:
    """Raise ReplayRefused if records of these ranges, of compacted topics, were rejected. `rejects` has their batches
    by the position of the range.

    Kafka may have removed the record before a reject because of it: the reject is now the last record of its key. The
    row would be retracted, and if the record is rejected again, nothing restores it.
    """
    for position, range_ in enumerate(ranges):
        if batches := rejects.get(position):
            raise ReplayRefused(
                f"{range_}: topic {range_.topic!r} is compacted (cleanup.policy), and batch {min(batches)} rejected "
                f"records of this range. Kafka may since have removed earlier records, whose rows these rejects left "
                f"unchanged. To replay the remaining records, and lose such rows if they are rejected again, set "
                f"available_only.",
                **range_.place,
            )


def check_from_the_beginning(planned: ReplayPlan, compacted: Set[str], coverage: Sequence[Covered]) -> None:
    """Raise ReplayRefused if results of a compacted topic would remain below those that the replay replaces.

    The last record of a key may be a delete, which Kafka removes in the end. The replay takes the delete back and
    cannot read it again; an older change of the key that remains would then become the row.
    """
    rows = Coverage(coverage)
    last = {range_.key: range_ for range_ in sorted(planned.ranges, key=lambda r: r.from_offset)}
    for range_ in last.values():
        if range_.topic not in compacted:
            continue
        results = Coverage(row for row in rows.cut(replace(range_, from_offset=0)) if row.kind != "loss")
        remaining = results.without(planned.ranges)
        if remaining:
            first = min(remaining, key=lambda row: row.from_offset)
            kept = replace(range_, from_offset=first.from_offset, until_offset=first.until_offset)
            raise ReplayRefused(
                f"{range_}: topic {range_.topic!r} is compacted (cleanup.policy), and the results of {kept} "
                f"would stay as they are. Kafka may since have removed a delete in the replayed range, whose "
                f"row would come back. Replay from the beginning, "
                f"{range_.topic}:{range_.partition}:{kept.from_offset}-{range_.until_offset}; or, to replay "
                f"this range alone and accept such rows, set available_only.",
                **range_.place,
            )
