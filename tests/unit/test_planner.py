"""Planning: stored offsets + the log + limits → a plan."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch import Limits
from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    OffsetsLost,
    PartitionGone,
    StartOutOfRange,
    StoredOffsetBeyondLog,
    TopicRecreated,
)
from exactbatch.model import StoredOffset
from exactbatch.offsets import OffsetRange
from exactbatch.planning.advance import plan_advance, take_fairly
from support.logs import ID, log

OTHER_ID = UUID(int=2)


def stored(next_offset: int, partition: int = 0, *, topic: str = "t", leader_epoch: int = 5) -> StoredOffset:
    return StoredOffset(
        topic=topic, partition=partition, next_offset=next_offset, leader_epoch=leader_epoch, topic_id=ID
    )


def spans(ranges: Sequence[OffsetRange]) -> list[str]:
    return [str(each) for each in ranges]


def seeds(found: Sequence[StoredOffset]) -> dict[tuple[str, int], int]:
    return {(each.topic, each.partition): each.next_offset for each in found}


counts = st.lists(st.integers(0, 10**6), max_size=12)
limit = st.none() | st.integers(1, 2 * 10**6)


@given(counts, limit, limit)
def test_a_share_exceeds_neither_what_is_there_nor_a_limit(available, most, each_most):
    takes = take_fairly(available, Limits(max_offsets=most, max_offsets_per_partition=each_most))
    assert len(takes) == len(available)
    assert all(0 <= take <= there for take, there in zip(takes, available, strict=True))
    assert each_most is None or all(take <= each_most for take in takes)
    assert most is None or sum(takes) <= most


@given(counts, limit, limit)
def test_the_shares_use_all_that_the_limits_allow(available, most, each_most):
    takes = take_fairly(available, Limits(max_offsets=most, max_offsets_per_partition=each_most))
    allowed = sum(min(there, each_most or there) for there in available)
    assert sum(takes) == min(allowed, most or allowed)


@given(counts, st.integers(1, 2 * 10**6))
def test_the_shares_are_max_min_fair(available, most):
    """A partition that gives less than all it has gives as much as any other, but for rounding."""
    takes = take_fairly(available, Limits(max_offsets=most))
    for take, there in zip(takes, available, strict=True):
        assert take == there or take >= max(takes) - 1


@pytest.mark.parametrize("name", ["max_offsets", "max_offsets_per_partition"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(ConfigurationError, match=f"expected {name} to be 1 or more, or None .*, found 0"):
        Limits(**{name: 0})


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """A log of several partitions, and where a pipeline stands in some of them."""
    partitions, at = [], []
    for number in range(draw(st.integers(1, 5))):
        earliest, stable, high = sorted(draw(st.lists(st.integers(0, 10**4), min_size=3, max_size=3)))
        partitions.append(log(number, earliest=earliest, last_stable=stable, high_watermark=high))
        if draw(st.booleans()):
            at.append(stored(draw(st.integers(0, high)), number))
    return {
        "partitions": draw(st.permutations(partitions)),
        "stored": at,
        "start": draw(st.sampled_from(["earliest", "latest"])),
        "limits": Limits(
            max_offsets=draw(st.none() | st.integers(1, 10**4)),
            max_offsets_per_partition=draw(st.none() | st.integers(1, 10**4)),
        ),
    }


@given(worlds())
def test_stored_offsets_seeds_losses_and_ranges_tile_each_partition(world):
    """From where a pipeline stands, or starts, no offset is left out and none comes twice."""
    plan = plan_advance(**world, on_loss="skip")
    position = seeds(world["stored"])
    for seed in plan.seeds:
        assert (seed.topic, seed.partition) not in position
        position[seed.topic, seed.partition] = seed.next_offset
    assert position.keys() == {(each.topic, each.partition) for each in world["partitions"]}
    for each in (*plan.losses, *plan.ranges):
        assert each.from_offset == position[each.topic, each.partition]
        position[each.topic, each.partition] = each.until_offset
    for each in world["partitions"]:
        ends = [r.until_offset for r in plan.ranges if r.partition == each.partition]
        assert all(end <= each.last_stable for end in ends)
        assert position[each.topic, each.partition] >= each.earliest


@given(worlds())
def test_ranges_are_in_the_log_and_losses_are_not(world):
    plan = plan_advance(**world, on_loss="skip")
    there = {each.partition: each for each in world["partitions"]}
    assert all(each.until_offset == there[each.partition].earliest for each in plan.losses)
    assert all(there[each.partition].earliest <= each.from_offset for each in plan.ranges)


def test_a_first_run_from_earliest_takes_the_whole_log():
    plan = plan_advance([], [log(0, earliest=10), log(1)], start="earliest")
    assert seeds(plan.seeds) == {("t", 0): 10, ("t", 1): 0}
    assert spans(plan.ranges) == ["t[0] 10..100", "t[1] 0..100"]
    assert {each.leader_epoch for each in plan.ranges} == {7}


def test_first_run_from_latest_stores_where_it_stands_and_takes_nothing():
    plan = plan_advance([], [log(0, last_stable=90, high_watermark=95)], start="latest")
    assert seeds(plan.seeds) == {("t", 0): 90}
    assert plan.is_empty


def test_first_run_from_given_offsets_takes_unnamed_partitions_from_earliest():
    plan = plan_advance([], [log(0), log(1, earliest=5)], start={("t", 0): 42})
    assert seeds(plan.seeds) == {("t", 0): 42, ("t", 1): 5}


def test_a_plan_with_nothing_new_keeps_its_seeds():
    plan = plan_advance([], [log(0, earliest=100)], start="earliest")
    assert plan.is_empty
    assert seeds(plan.seeds) == {("t", 0): 100}


def test_new_partition_of_known_topic_starts_at_its_first_offset_whatever_start_says():
    """Its first records may be older than the run that sees it: latest would skip them."""
    plan = plan_advance([stored(100)], [log(0), log(1)], start="latest")
    assert seeds(plan.seeds) == {("t", 1): 0}
    assert spans(plan.ranges) == ["t[1] 0..100"]


def test_what_retention_has_removed_of_a_new_partition_is_lost():
    error = error_of(OffsetsLost, [stored(100)], [log(0), log(1, earliest=3)])
    assert "t[1]: retention removed 3 unprocessed offsets" in str(error)
    plan = plan_advance([stored(100)], [log(0), log(1, earliest=3)], on_loss="skip")
    assert seeds(plan.seeds) == {("t", 1): 0}
    assert spans(plan.losses) == ["t[1] 0..3"]
    assert spans(plan.ranges) == ["t[1] 3..100"]


def test_a_new_topic_of_a_known_pipeline_begins_as_start_says():
    plan = plan_advance([stored(100)], [log(0), log(0, topic="u")], start="latest")
    assert seeds(plan.seeds) == {("u", 0): 100}


def test_nothing_is_new_when_last_stable_offset_is_below_stored_one():
    plan = plan_advance([stored(95)], [log(last_stable=90, high_watermark=100)])
    assert plan.is_empty


def test_limits_cut_each_range_at_its_end():
    partitions = [log(0), log(1, last_stable=10), log(2)]
    plan = plan_advance([], partitions, limits=Limits(max_offsets=50))
    assert spans(plan.ranges) == ["t[0] 0..20", "t[1] 0..10", "t[2] 0..20"]
    assert plan.left == 80 + 80


def test_a_first_load_is_limited_unless_the_pipeline_says_otherwise():
    partitions = [log(0, last_stable=25_000_000), log(1, last_stable=30_000_000)]
    plan = plan_advance([], partitions)
    assert spans(plan.ranges) == ["t[0] 0..5000000", "t[1] 0..5000000"]
    assert plan.left == 45_000_000
    plan = plan_advance([], partitions, limits=Limits(max_offsets=None))
    assert (sum(map(len, plan.ranges)), plan.left) == (55_000_000, 0)


def error_of(expected: type[ExactbatchError], *arguments: Any, **options: Any) -> ExactbatchError:
    with pytest.raises(expected) as caught:
        plan_advance(*arguments, **options)
    assert not caught.value.retryable
    return caught.value


def place(error: ExactbatchError) -> tuple[str | None, int | None, int | None, int | None]:
    return error.topic, error.partition, error.from_offset, error.until_offset


def test_a_topic_with_another_id_was_created_again():
    error = error_of(TopicRecreated, [stored(40)], [log(topic_id=OTHER_ID)])
    assert place(error) == ("t", 0, None, None)
    assert f"t[0]: the topic was deleted and created again: its ID was {ID}, and is {OTHER_ID}" in str(error)
    assert "Register a pipeline under a new name" in str(error)


def test_partition_with_stored_offset_not_there_is_gone():
    error = error_of(PartitionGone, [stored(40), stored(33, 2)], [log(0), log(1)])
    assert place(error) == ("t", 2, None, None)
    assert "its stored offset is 33; the topic has 2 partitions" in str(error)
    assert "check that bootstrap.servers names the right cluster" in str(error)


def test_log_that_ends_below_stored_offset_lost_processed_records():
    error = error_of(StoredOffsetBeyondLog, [stored(101)], [log()])
    assert place(error) == ("t", 0, 100, 101)
    assert "the log ends at 100, below the stored offset 101" in str(error)
    assert "register a pipeline under a new name with an explicit start" in str(error)


def test_offsets_that_retention_removed_before_they_were_processed_are_error():
    error = error_of(OffsetsLost, [stored(40)], [log(earliest=60)])
    assert place(error) == ("t", 0, 40, 60)
    assert "retention removed 20 unprocessed offsets (stored offset 40, log starts at 60)" in str(error)
    assert "Set on_loss='skip'" in str(error)


def test_recorded_loss_reaches_from_stored_offset_to_start_of_log():
    plan = plan_advance([stored(40)], [log(earliest=60)], on_loss="skip")
    assert spans(plan.losses) == ["t[0] 40..60"]
    assert spans(plan.ranges) == ["t[0] 60..100"]


def test_a_loss_of_all_that_was_left_gives_a_plan_without_ranges():
    plan = plan_advance([stored(40)], [log(earliest=100)], on_loss="skip")
    assert spans(plan.losses) == ["t[0] 40..100"]
    assert plan.is_empty


@pytest.mark.parametrize("offset", [9, 101])
def test_a_start_outside_of_the_log_is_refused(offset):
    error = error_of(StartOutOfRange, [], [log(earliest=10)], start={("t", 0): offset})
    assert place(error) == ("t", 0, offset, offset + 1)
    assert f"the start offset {offset} is outside the log, which now spans 10 to 100" in str(error)
    assert "or use start='earliest'" in str(error)


@pytest.mark.parametrize("offset", [10, 100])
def test_a_start_at_either_end_of_the_log_is_taken(offset):
    plan = plan_advance([], [log(earliest=10)], start={("t", 0): offset})
    assert seeds(plan.seeds) == {("t", 0): offset}


def test_a_start_for_a_partition_that_is_not_there_is_refused():
    error = error_of(StartOutOfRange, [], [log(0), log(1)], start={("t", 2): 5})
    assert place(error) == ("t", 2, None, None)
    assert "the topic has partitions 0 to 1" in str(error)
