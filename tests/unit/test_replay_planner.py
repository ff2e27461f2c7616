"""A replay processes exactly what was asked for and the log still has, or whole batches around it."""

import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch.errors import OffsetsLost, ReplayRefused, StoredOffsetBeyondLog, TopicRecreated
from exactbatch.model import Covered, FoundRecord, StoredOffset
from exactbatch.offsets import OffsetRange, union
from exactbatch.planning.refused_replays import check_end_not_in_future
from exactbatch.planning.replay import check_above_horizons, plan_replay
from exactbatch.planning.request import RequestedRange, window_ranges
from support.logs import ID, log


def stored(next_offset: int = 100, partition: int = 0, topic_id: UUID = ID) -> StoredOffset:
    return StoredOffset(
        topic="t", partition=partition, next_offset=next_offset, leader_epoch=0, topic_id=topic_id
    )


def asked(*bounds: tuple[int, int]) -> list[RequestedRange]:
    return [RequestedRange("t", 0, *each) for each in bounds]


def covered(batch_id: int, from_offset: int, until_offset: int, partition: int = 0) -> Covered:
    return Covered("t", ID, partition, from_offset, until_offset, "batch", batch_id)


def offsets(*ranges: OffsetRange) -> set[int]:
    return {offset for each in ranges for offset in range(each.from_offset, each.until_offset)}


disjoint = st.lists(st.integers(0, 100), min_size=2, max_size=12, unique=True).map(
    lambda cuts: list(zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False))
)


@given(disjoint, st.integers(0, 100))
def test_every_offset_that_was_asked_for_is_processed_or_removed(bounds, earliest):
    plan = plan_replay(asked(*bounds), [stored()], [log(earliest=earliest)], available_only=True)
    wanted = {offset for one, other in bounds for offset in range(one, other)}
    assert offsets(*plan.ranges) == {offset for offset in wanted if offset >= earliest}
    assert offsets(*plan.removed) == {offset for offset in wanted if offset < earliest}
    assert plan.widened == ()


@given(disjoint, st.integers(0, 100), st.integers(1, 100))
def test_what_lies_below_the_horizon_is_left_out_or_refused(bounds, earliest, horizon):
    horizons = {("t", 0, ID): horizon, ("t", 0, UUID(int=2)): 100, ("t", 1, ID): 100}
    plan = plan_replay(
        asked(*bounds), [stored()], [log(earliest=earliest)], horizons=horizons, available_only=True
    )
    wanted = {offset for one, other in bounds for offset in range(one, other)}
    assert offsets(*plan.compacted) == {offset for offset in wanted if offset < horizon}
    assert offsets(*plan.removed) == {offset for offset in wanted if horizon <= offset < earliest}
    assert offsets(*plan.ranges) == {offset for offset in wanted if offset >= max(horizon, earliest)}
    if plan.compacted:
        with pytest.raises(ReplayRefused, match=f"these offsets are below {horizon}, the replay horizon of"):
            plan_replay(asked(*bounds), [stored()], [log(earliest=earliest)], horizons=horizons)
    elif not plan.removed:
        assert plan_replay(asked(*bounds), [stored()], [log(earliest=earliest)], horizons=horizons) == plan


def test_planned_replay_is_refused_from_first_offset_below_horizon():
    ranges = [OffsetRange("t", 0, 5, 9, ID), OffsetRange("t", 0, 20, 30, ID)]
    for horizons in ({}, {("t", 0, ID): 5}, {("t", 1, ID): 40}, {("t", 0, UUID(int=2)): 40}):
        check_above_horizons(4, ranges, horizons)
    with pytest.raises(ReplayRefused) as caught:
        check_above_horizons(4, ranges, {("t", 0, ID): 6})
    assert "batch 4: t[0] 5..6: these offsets are below 6" in str(caught.value)
    assert (caught.value.batch_id, caught.value.from_offset, caught.value.until_offset) == (4, 5, 6)
    assert "the 13 offsets above the horizon" in str(caught.value)
    with pytest.raises(ReplayRefused, match="None of them can be replayed"):
        check_above_horizons(4, ranges, {("t", 0, ID): 30})


@given(disjoint, st.lists(st.integers(1, 99), max_size=8, unique=True), st.data())
def test_whole_batches_around_what_was_asked_for(bounds, cuts, data):
    edges = [0, *sorted(cuts), 100]
    coverage = [covered(data.draw(st.integers(1, 4)), one, other) for one, other in itertools.pairwise(edges)]
    plan = plan_replay(asked(*bounds), [stored()], [log()], coverage=coverage, lineage="batch")
    wanted = {offset for one, other in bounds for offset in range(one, other)}
    of = {
        batch_id: {
            o for c in coverage if c.batch_id == batch_id for o in range(c.from_offset, c.until_offset)
        }
        for batch_id in range(1, 5)
    }
    touched = {batch_id for batch_id, its in of.items() if its & wanted}
    assert offsets(*plan.ranges) == wanted.union(*(of[batch_id] for batch_id in touched))
    assert {each.batch_id for each in plan.widened} <= touched
    assert offsets(*(each.range for each in plan.widened)) == offsets(*plan.ranges) - wanted


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), max_size=8))
def test_a_union_has_every_offset_once(pairs):
    ranges = [OffsetRange("t", 0, start, start + size, ID) for start, size in pairs]
    joined = union(ranges)
    assert offsets(*joined) == offsets(*ranges)
    assert sum(map(len, joined)) == len(offsets(*ranges))


def test_a_plan_has_the_epoch_of_the_log_and_joins_what_touches():
    plan = plan_replay(asked((5, 9), (0, 5)), [stored()], [log()])
    assert plan.ranges == (OffsetRange("t", 0, 0, 9, ID, 7),)


def test_a_log_that_is_another_one_is_told():
    with pytest.raises(TopicRecreated):
        plan_replay(asked((0, 5)), [stored(topic_id=UUID(int=9))], [log()])
    with pytest.raises(StoredOffsetBeyondLog):
        plan_replay(asked((0, 5)), [stored(200)], [log()])


def test_batch_of_topic_that_left_pipeline_is_not_replayed_in_part():
    elsewhere = Covered("gone", UUID(int=2), 0, 0, 5, "batch", 1)
    with pytest.raises(ReplayRefused, match="'gone' is no longer a topic of the pipeline"):
        plan_replay(
            asked((0, 5)), [stored()], [log()], coverage=[covered(1, 0, 10), elsewhere], lineage="batch"
        )


def test_history_that_no_batch_covers_may_be_cut_although_lineage_is_by_batch():
    plan = plan_replay(
        asked((0, 20)),
        [stored()],
        [log(earliest=5)],
        coverage=[covered(1, 10, 30)],
        lineage="batch",
        available_only=True,
    )
    assert list(map(str, plan.ranges)) == ["t[0] 5..30"]
    with pytest.raises(OffsetsLost, match="retention removed these offsets of batch 1") as caught:
        plan_replay(
            asked((0, 20)),
            [stored()],
            [log(earliest=15)],
            coverage=[covered(1, 10, 30)],
            lineage="batch",
            available_only=True,
        )
    assert (caught.value.batch_id, caught.value.from_offset, caught.value.until_offset) == (1, 0, 15)


def test_a_window_ends_at_the_stored_head():
    heads = [stored(50), stored(10, partition=1), stored(10, partition=2)]
    starts = {("t", 0): 20, ("t", 1): 10, ("t", 2): None}
    ends = {("t", 0): 70, ("t", 1): 15, ("t", 2): None}
    assert window_ranges(heads, starts, ends) == [RequestedRange("t", 0, 20, 50)]
    assert window_ranges(heads, starts, {**ends, ("t", 0): None}) == [RequestedRange("t", 0, 20, 50)]


def test_a_replay_of_ten_thousand_ranges_is_planned_at_once():
    partitions = range(10_000)
    plan = plan_replay(
        [RequestedRange("t", partition, 10, 90) for partition in partitions],
        [stored(partition=partition) for partition in partitions],
        [log(partition=partition) for partition in partitions],
        coverage=[covered(batch, 50 * batch, 50 * batch + 50, p) for p in partitions for batch in (0, 1)],
        lineage="batch",
    )
    assert {(each.from_offset, each.until_offset) for each in plan.ranges} == {(0, 100)}
    assert len(plan.ranges) == len(partitions)


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(2_000_000_000_000, "2033-05-18 03:33:20 UTC"), (2**62, f"{2**62} ms since 1970")],
)
def test_window_that_would_end_at_record_from_future_is_refused(milliseconds, shown):
    now = datetime(2026, 1, 3, tzinfo=UTC)
    window = now - timedelta(days=2), now - timedelta(days=1)

    def check(offset: int, timestamp: int) -> None:
        check_end_not_in_future([stored(100)], {("t", 0): FoundRecord(offset, timestamp)}, window, now=now)

    with pytest.raises(ReplayRefused, match=rf"^t\[0\] offset 98: .*{shown}, and 1 processed"):
        check(98, milliseconds)
    check(99, milliseconds)  # nothing follows it that was processed
    check(0, round((now + timedelta(minutes=59)).timestamp() * 1000))  # a clock that is a little ahead
    check_end_not_in_future([stored(100)], {}, window, now=now)
