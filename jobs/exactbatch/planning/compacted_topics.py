"""Refuse replays of compacted topics (cleanup.policy) that could not restore what they retract. Pure, no I/O."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from exactbatch.coverage import Coverage
from exactbatch.errors import ReplayRefused
from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange
from exactbatch.planning.replay import ReplayPlan


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
