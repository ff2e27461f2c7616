"""Draw which batch covers which offsets of a pipeline's partitions, merged into a few hundred steps.

A strip has a few hundred steps. Where a step stands for several rows of coverage, it shows the first of them, and
neighbouring steps are merged. Losses, replays, rejects and what is in flight are found by indexes of their own and
are never passed over. A gap that is narrower than a step may be: look_for_gaps() reads the rows, some at a time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

from exactbatch.ledger.overview_rows import PartitionPosition
from exactbatch.ledger.strip_rows import Gap, Strip, StripRows, Walked
from exactbatch.postgres.connection import Connection, transaction

SegmentKind = Literal["batch", "replay", "backfill", "loss", "gap", "pruned"]
# All strips together have at most this number of steps: each is a look-up in an index.
_STEPS: Final = 4000
_EXCEPTIONS: Final = 300  # losses and folded rows of each strip
_REPLAYS: Final = 300  # committed replays
_COUNTED: Final = 100  # rejects of one step
_GAPS: Final = 100
# Postgres underestimates how many rows a partition has, and would read and sort all of them; and it overestimates how
# many a recursive query has, and may compile it for longer than it runs.
_IN_ORDER: Final = (
    "set local jit = off; set local enable_bitmapscan = off; set local enable_seqscan = off; "
    "set local enable_sort = off"
)
_IN_ANY_ORDER: Final = (
    "set local enable_bitmapscan = on; set local enable_seqscan = on; set local enable_sort = on"
)
_ROWS: Final = 50_000  # of coverage, in which one call looks for gaps


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets [from_offset, until_offset) of one kind.

    `batch_id` is the batch, or the first of several that are merged; `last_batch_id` is the last of them. Both are
    None for the kinds loss, gap and pruned. `is_merged` is True if the segment stands for several rows of coverage.
    """

    from_offset: int
    until_offset: int
    kind: SegmentKind
    batch_id: int | None
    last_batch_id: int | None
    is_merged: bool


@dataclass(frozen=True, slots=True)
class InFlight:
    """A range of a planned batch that is not committed yet."""

    from_offset: int
    until_offset: int
    kind: SegmentKind
    batch_id: int


@dataclass(frozen=True, slots=True)
class DrawnStrip:
    """One partition between two offsets, for drawing.

    segments   in order, without overlaps; offsets between segments were not processed
    exceptions  replays, backfills and losses to be drawn over the segments, where steps were passed over
    rejects    (from_offset, until_offset, count) of steps with rejects; a count of 100 means 100 or more
    is_exact   True if every row of coverage was looked at, so that there is no other gap
    """

    strip: Strip
    segments: tuple[Segment, ...]
    exceptions: tuple[Segment, ...]
    in_flight: tuple[InFlight, ...]
    rejects: tuple[tuple[int, int, int], ...]
    is_exact: bool


@dataclass(frozen=True, slots=True)
class SearchedForGaps:
    """Gaps that were found in some `rows` rows of coverage.

    `next` is where the search goes on: the number of the partition among those that were asked for, and an offset. It
    is None at the end.
    """

    gaps: tuple[Gap, ...]
    rows: int
    next: tuple[int, int] | None


def build_strips(
    positions: Sequence[PartitionPosition], first: int, until: int, *, steps: int
) -> list[Strip]:
    """Return the strips of partitions between two offsets: what the pipeline has processed of them, or has planned.

    `steps` is the number of steps between the two offsets; it is reduced for many partitions.
    """
    number = max(1, min(steps, _STEPS // max(1, len(positions))))
    step = max(1, -((first - until) // number))
    return [
        Strip(position.topic, position.topic_id, position.partition, first, until, step)
        for position in positions
        if first < until
    ]


def load_strips(
    connection: Connection,
    pipeline: str,
    positions: Sequence[PartitionPosition],
    first: int,
    until: int,
    *,
    steps: int,
) -> list[DrawnStrip]:
    """Read the strips of partitions between two offsets, in at most `steps` steps each."""
    strips = build_strips(positions, first, until, steps=steps)
    by_partition = {(position.topic_id, position.partition): position for position in positions}
    with transaction(connection) as cursor:
        rows = StripRows(connection)
        cursor.execute(_IN_ORDER)
        walked = _grouped(rows.walk(pipeline, strips))
        cursor.execute(_IN_ANY_ORDER)
        passed = [
            strip for strip in strips if any(row.passed for row in walked[strip.topic_id, strip.partition])
        ]
        exceptions = _grouped(rows.exceptions(pipeline, passed, limit=_EXCEPTIONS)) if passed else {}
        replays = _grouped(rows.replays(pipeline, passed, limit=_REPLAYS)) if passed else {}
        in_flight = _grouped(rows.in_flight(pipeline, strips, limit=_REPLAYS))
        rejects = _grouped(rows.reject_counts(pipeline, strips, most=_COUNTED))
    drawn = []
    for strip in strips:
        key = strip.topic_id, strip.partition
        drawn.append(
            DrawnStrip(
                strip,
                segments=tuple(merge(walked[key], by_partition[key])),
                exceptions=tuple(_drawn_over(strip, exceptions.get(key, ()), replays.get(key, ()))),
                in_flight=tuple(
                    InFlight(
                        row.from_offset, row.until_offset, _kind_of_batch(row.kind, row.origin), row.batch_id
                    )
                    for row in in_flight.get(key, ())
                ),
                rejects=tuple(
                    (row.from_offset, row.until_offset, row.rejects) for row in rejects.get(key, ())
                ),
                is_exact=strip not in passed,
            )
        )
    return drawn


def look_for_gaps(
    connection: Connection,
    pipeline: str,
    positions: Sequence[PartitionPosition],
    *,
    first: int = 0,
    rows: int = _ROWS,
) -> SearchedForGaps:
    """Look for offsets between the beginning of a pipeline and its stored offsets that no row of coverage covers.

    Reads at most `rows` rows: the first partition's from the offset `first` on, then the next ones'.
    There is no gap unless the ledger was changed by hand. Each partition has at most 100 in an answer.
    """
    found: list[Gap] = []
    left = rows
    with transaction(connection) as cursor:
        cursor.execute(_IN_ORDER)
        statements = StripRows(connection)
        for number, position in enumerate(positions):
            begin = max(position.first_offset, first if number == 0 else 0)
            if begin >= position.next_offset:
                continue
            if left <= 0:
                return SearchedForGaps(tuple(found), rows - left, (number, begin))
            searched = statements.gaps(
                pipeline,
                position.topic_id,
                position.partition,
                begin,
                position.next_offset,
                rows=left,
                limit=_GAPS,
            )
            found += searched.gaps
            left -= searched.rows
            if searched.reached < position.next_offset:
                return SearchedForGaps(tuple(found), rows - left, (number, searched.reached))
    return SearchedForGaps(tuple(found), rows - left, None)


def find_gaps(connection: Connection, pipeline: str, positions: Sequence[PartitionPosition]) -> list[Gap]:
    """Return what look_for_gaps() finds in all rows, the first 100 gaps."""
    found: list[Gap] = []
    number = first = 0
    while len(found) < _GAPS:
        searched = look_for_gaps(connection, pipeline, positions[number:], first=first)
        found += searched.gaps
        if searched.next is None:
            break
        number, first = number + searched.next[0], searched.next[1]
    return found[:_GAPS]


def merge(walked: Iterable[Walked], position: PartitionPosition) -> Iterator[Segment]:
    """Yield segments: steps that were passed over are merged with neighbours of their kind. Pure.

    Offsets that no row covers are a gap between the beginning of the pipeline and its stored offset, and no segment
    elsewhere.
    """
    last: Segment | None = None
    for row in walked:
        segment = _segment(row, position)
        if segment is None:
            continue
        if last is not None and _joins(last, segment):
            last = replace(
                last,
                until_offset=segment.until_offset,
                last_batch_id=segment.last_batch_id,
                is_merged=last.is_merged or segment.is_merged,
            )
            continue
        if last is not None:
            yield last
        last = segment
    if last is not None:
        yield last


def _joins(one: Segment, other: Segment) -> bool:
    if one.kind != other.kind or one.until_offset != other.from_offset:
        return False
    return (
        one.kind == "gap"
        or (one.is_merged and other.is_merged)
        or (one.batch_id == other.batch_id is not None)
    )


def _segment(row: Walked, position: PartitionPosition) -> Segment | None:
    if row.kind is not None:
        kind = _kind_of_batch(row.batch_kind, row.origin) if row.kind == "batch" else row.kind
        return Segment(row.from_offset, row.until_offset, kind, row.batch_id, row.batch_id, row.passed)
    first = max(row.from_offset, position.first_offset)
    until = min(row.until_offset, position.next_offset)
    return Segment(first, until, "gap", None, None, False) if first < until else None


def _kind_of_batch(kind: str | None, origin: str | None) -> SegmentKind:
    if kind != "replay":
        return "batch"
    return "backfill" if origin == "backfill" else "replay"


def _drawn_over(strip: Strip, exceptions: Iterable[Any], replays: Iterable[Any]) -> Iterator[Segment]:
    """Yield replays and losses; those that are closer to each other than one step are merged."""
    found = [
        Segment(row.from_offset, row.until_offset, "loss", None, None, False)
        for row in exceptions
        if row.kind == "loss"
    ]
    found += [
        Segment(
            row.from_offset,
            row.until_offset,
            _kind_of_batch("replay", row.origin),
            row.batch_id,
            row.batch_id,
            False,
        )
        for row in replays
    ]
    last: dict[SegmentKind, Segment] = {}
    for segment in sorted(found, key=lambda each: each.from_offset):
        before = last.get(segment.kind)
        if before is not None and segment.from_offset - before.until_offset < strip.step:
            last[segment.kind] = replace(
                before,
                until_offset=segment.until_offset,
                last_batch_id=segment.last_batch_id,
                is_merged=True,
            )
            continue
        if before is not None:
            yield before
        last[segment.kind] = segment
    yield from last.values()


def _grouped(rows: Iterable[Any]) -> dict[tuple[UUID, int], list[Any]]:
    groups: dict[tuple[UUID, int], list[Any]] = defaultdict(list)
    for row in rows:
        groups[row.topic_id, row.partition].append(row)
    return groups
