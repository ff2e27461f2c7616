"""OffsetRange and the algebra of ranges."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch import OffsetRange
from exactbatch.offsets import fill_bins, group_small, merge, split_ranges

LIVES = (UUID(int=1), UUID(int=2))


def range_(from_offset: int, until_offset: int, *, partition: int = 0, life: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, from_offset, until_offset, LIVES[life])


@st.composite
def disjoint_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    """Ranges of several partitions and lives of a topic that do not overlap, in any order."""
    ranges = []
    for partition in range(draw(st.integers(1, 3))):
        for life in range(2):
            cuts = sorted(draw(st.sets(st.integers(0, 10**6), max_size=8)))
            chosen = [pair for pair in pairwise(cuts) if draw(st.booleans())]
            ranges += [range_(*pair, partition=partition, life=life) for pair in chosen]
    return draw(st.permutations(ranges))


def edges(ranges: Sequence[OffsetRange]) -> Counter[tuple[object, int]]:
    """What a set of offsets looks like from its borders: touching ranges cancel out."""
    borders: Counter[tuple[object, int]] = Counter()
    for each in ranges:
        borders[each.key, each.from_offset] += 1
        borders[each.key, each.until_offset] -= 1
    return Counter({border: count for border, count in borders.items() if count})


@pytest.mark.parametrize(("from_offset", "until_offset"), [(5, 5), (5, 4), (-1, 4)])
def test_a_range_is_never_empty_nor_negative(from_offset, until_offset):
    with pytest.raises(ValueError, match="expected 0 <= from_offset < until_offset, found .*t.*0"):
        range_(from_offset, until_offset)


def test_a_range_spans_its_offsets_and_reads_well():
    assert len(range_(3, 10)) == 7
    assert str(range_(3, 10, partition=2)) == "t[2] 3..10"


@given(disjoint_ranges(), st.integers(1, 20), st.integers(1, 10**5))
def test_split_keeps_exactly_the_same_offsets(ranges, parts, smallest):
    splits = split_ranges(ranges, parts=parts, smallest=smallest)
    assert edges(splits) == edges(ranges)
    assert sum(map(len, splits)) == sum(map(len, ranges))
    assert merge(splits) == merge(ranges)


@given(disjoint_ranges(), st.integers(1, 20), st.integers(1, 10**5))
def test_split_makes_about_as_many_splits_as_asked_for(ranges, parts, smallest):
    splits = split_ranges(ranges, parts=parts, smallest=smallest)
    assert len(ranges) <= len(splits) <= len(ranges) + parts * 3 // 2


@given(disjoint_ranges(), st.integers(1, 20), st.integers(1, 10**5))
def test_split_makes_no_split_smaller_than_the_smallest(ranges, parts, smallest):
    for split in split_ranges(ranges, parts=parts, smallest=smallest):
        whole = next(
            r for r in ranges if r.key == split.key and r.from_offset <= split.from_offset < r.until_offset
        )
        assert len(split) >= min(smallest, len(whole))


def test_split_cuts_one_large_range_evenly():
    assert split_ranges([range_(0, 11)], parts=3, smallest=1) == [range_(0, 4), range_(4, 8), range_(8, 11)]
    assert split_ranges([], parts=3, smallest=1) == []


@given(disjoint_ranges())
def test_merge_keeps_exactly_same_offsets_in_as_few_ranges_as_possible(ranges):
    merged = merge(ranges)
    assert edges(merged) == edges(ranges)
    assert len(merged) * 2 == len(edges(ranges))
    assert merge(merged) == merged


@given(disjoint_ranges().filter(bool), st.data())
def test_merge_refuses_an_offset_that_is_there_twice(ranges, data):
    doubled = data.draw(st.sampled_from(ranges))
    offset = data.draw(st.integers(doubled.from_offset, doubled.until_offset - 1))
    again = replace(doubled, from_offset=offset, until_offset=offset + 1, leader_epoch=3)
    with pytest.raises(ValueError, match="expected ranges that do not overlap, found "):
        merge([*ranges, again])


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 12))
def test_every_item_is_in_one_of_the_bins_of_similar_size(sizes, bins):
    filled = fill_bins(sizes, bins)
    assert sorted(index for bin_ in filled for index in bin_) == list(range(len(sizes)))
    assert len(filled) == min(bins, len(sizes))
    weights = [sum(sizes[index] for index in bin_) for bin_ in filled]
    assert all(weights)
    assert not sizes or max(weights) - min(weights) <= max(sizes)


def test_large_items_go_to_different_bins():
    assert fill_bins([1, 90, 2, 80, 3, 70], 3) == [[1], [3], [5, 4, 2, 0]]
    assert fill_bins([5, 7], 9) == [[1], [0]]
    assert fill_bins([], 3) == []


@given(disjoint_ranges(), st.integers(0, 10**6), st.integers(1, 10**6))
def test_every_range_is_in_one_group_and_no_group_is_too_large_or_has_a_partition_twice(
    ranges, small, together
):
    groups = group_small(ranges, small=min(small, together), together=together)
    assert sorted(index for group in groups for index in group) == list(range(len(ranges)))
    for group in groups:
        grouped = [ranges[index] for index in group]
        assert len({each.topic_partition for each in grouped}) == len(grouped)
        assert len(grouped) == 1 or all(len(each) <= small for each in grouped)
        assert len(grouped) == 1 or sum(map(len, grouped)) <= together


def test_several_small_ranges_of_each_partition_give_as_many_groups():
    ranges = [range_(each, each + 10, partition=number) for number in range(50) for each in range(0, 100, 20)]
    groups = group_small(ranges, small=10, together=10_000)
    assert list(map(len, groups)) == [50] * 5
