"""Refuse time windows that cannot be replayed by time. Pure, no I/O."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from exactbatch.errors import ReplayRefused
from exactbatch.model import FoundRecord, StoredOffset, convert_time
from exactbatch.offsets import TopicPartition
from exactbatch.planning.replay import ReplayPlan
from exactbatch.planning.time_window import beyond_text

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
