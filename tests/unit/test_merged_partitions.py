"""Which neighbouring partitions a merge combines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch.sinks.by_batch.merge import group_neighbours
from exactbatch.sinks.by_batch.partitions import Partition, build_partition, range_from
from exactbatch.sinks.tables.target import TargetTable


def partitions(*bounds: tuple[int | None, int | None]) -> list[Partition]:
    return [Partition("public", f"p{lower}", lower, upper) for lower, upper in bounds]


@pytest.mark.parametrize(
    ("sizes", "planned", "expected"),
    [
        ((1, 1, 1, 1), (), [(1, 8)]),
        ((1, 1, 9, 1, 1), (), [(1, 4), (7, 11)]),
        ((2, 2, 2, 2), (), [(1, 4), (5, 8)]),
        ((1, 1, 1, 1), (4,), [(1, 4), (5, 8)]),
        ((1, 1, 1, 1), (3,), [(5, 8)]),
        ((4, 4), (), []),
        ((1,), (), []),
    ],
)
def test_neighbours_are_merged_up_to_a_size_and_not_across_a_planned_batch(sizes, planned, expected):
    """Partitions are of the batches 1, 3, 5, and so on; those in between belong to other pipelines."""
    given_partitions = partitions((1, 2), (3, 4), (5, 6), (7, 8), (10, 11))[: len(sizes)]
    groups = group_neighbours(
        list(zip(given_partitions, sizes, strict=True)), planned=planned, below=99, max_bytes=4
    )
    assert [(group.lower, group.upper) for group in groups] == expected


def test_partitions_that_take_more_rows_or_have_no_bound_are_left():
    sizes = [(each, 1) for each in partitions((None, 1), (1, 2), (2, 3), (3, 103))]
    [group] = group_neighbours(sizes, planned=(), below=50, max_bytes=4)
    assert (group.lower, group.upper, group.partitions, group.bytes) == (1, 3, ("p1", "p2"), 2)


def test_a_transaction_exchanges_100_partitions_at_most_and_the_next_merge_goes_on():
    sizes = [(each, 1) for each in partitions(*((number, number + 1) for number in range(2101)))]
    counts = []
    while groups := group_neighbours(sizes, planned=(), below=9999, max_bytes=1 << 29):
        assert max(len(group.partitions) for group in groups) <= 100
        names = {name for group in groups for name in group.partitions}
        merged = [
            (partition, group.bytes)
            for group in groups
            for partition in partitions((group.lower, group.upper))
        ]
        sizes = sorted(
            [*merged, *(each for each in sizes if each[0].name not in names)],
            key=lambda sized: sized[0].lower or 0,
        )
        counts.append(len(sizes))
    assert counts == [22, 1]
    assert sizes[0][1] == 2101


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 6)), max_size=12),
    st.sets(st.integers(0, 60), max_size=4),
    st.integers(0, 60),
)
def test_groups_are_disjoint_and_within_all_limits(steps, planned, below):
    sizes, end = [], 0
    for gap, width, size in steps:
        sizes.append((Partition("s", f"p{end + gap}", end + gap, end + gap + width), size))
        end += gap + width
    groups = group_neighbours(sizes, planned=planned, below=below, max_bytes=6)
    for group in groups:
        members = [(each, size) for each, size in sizes if group.lower <= (each.lower or 0) < group.upper]
        assert [each.name for each, _ in members] == list(group.partitions)
        assert len(members) > 1
        assert members[-1][0].upper == group.upper <= below
        assert sum(size for _, size in members) == group.bytes <= 6
        assert not any(group.lower <= batch_id < group.upper for batch_id in planned)
    assert all(one.upper <= other.lower for one, other in pairwise(groups))


def test_an_open_partition_ends_where_the_next_one_begins():
    assert range_from(partitions((1, 2), (9, 10)), 4, 100) == (4, 9)
    assert range_from(partitions((1, 2)), 4, 100) == (4, 104)


def test_a_name_has_63_bytes_at_most():
    table = TargetTable(f'public."{"ü" * 31}"')
    partition = build_partition(table, 12, 112)
    assert partition.name == "ü" * 27 + "_b12_112"
    assert build_partition(table, 12, 13).name == "ü" * 29 + "_b12"
