"""The auditor's comparison of offsets, against a plain model of sets, and at the ends of windows and runs."""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch.audit.audit_result import SHOWN, Differences, PartitionAudit
from exactbatch.audit.covering import NOT_COVERED, Covering
from exactbatch.audit.offset_sets import FoundOffsets, Positions, Rules, compare
from exactbatch.audit.units import Slice, Unit, divide_into_units, group_into_windows

SIZE: Final = 24  # offsets of a partition
RULES: Final = Rules(began=0, earliest=0, horizon=0, is_compacted=False, has_row_per_record=True)


@dataclass
class World:
    """One partition: what the log, the tables and the ledger have. Rows and rejects are (offset, batch)."""

    records: set[int] = field(default_factory=lambda: set(range(SIZE)))
    nulls: set[int] = field(default_factory=set)
    rows: list[tuple[int, int]] = field(default_factory=lambda: [(offset, 1) for offset in range(SIZE)])
    rejects: list[tuple[int, int]] = field(default_factory=list)
    coverage: list[tuple[int, int, int | None]] = field(default_factory=lambda: [(0, SIZE, 1)])
    rules: Rules = RULES

    def covering(self, offset: int) -> int | None:
        """The batch that covers an offset, None for a lost one, and NOT_COVERED."""
        for start, end, batch in self.coverage:
            if start <= offset < end:
                return batch
        return NOT_COVERED

    def batch(self, offset: int) -> int:
        return self.covering(offset) or NOT_COVERED


def model(world: World) -> PartitionAudit:
    """What an audit has to find, by sets of single offsets."""
    rules, result = world.rules, PartitionAudit("t", 0, 0, SIZE)
    found = Counter(offset for offset, _ in world.rows + world.rejects)
    inside = {offset for offset in found if 0 <= offset < SIZE}
    rejected = {offset for offset, _ in world.rejects}
    tombstones = world.nulls - rejected
    ours = {offset for offset in world.records if offset >= rules.began or world.batch(offset) != NOT_COVERED}
    expected = ours - tombstones
    result.records, result.tombstones = len(ours), len(ours & tombstones)
    result.rows = sum(0 <= offset < SIZE for offset, _ in world.rows)
    result.rejected = sum(0 <= offset < SIZE for offset, _ in world.rejects)
    unproven = {
        offset for offset in inside if offset < rules.earliest or (rules.is_compacted and offset not in ours)
    }
    result.removed = len(unproven)
    if rules.has_row_per_record:
        absent = {offset for offset in expected - inside if world.covering(offset) is not None}
        compacted = {
            offset for offset in absent if offset < rules.horizon and world.batch(offset) != NOT_COVERED
        }
        result.compacted = len(compacted)
        result.missing = finding(absent - compacted)
        result.duplicated = finding({offset for offset in inside if found[offset] > 1})
    misplaced = {
        offset
        for offset, batch in world.rows + world.rejects
        if 0 <= offset < SIZE and batch != world.batch(offset)
    }
    result.unexpected = finding((inside - ours - unproven) | misplaced | (tombstones & inside))
    outside = [offset for offset, _ in world.rows + world.rejects if offset >= SIZE]
    result.unexpected.merge(Differences(len(outside), sorted(outside)[:SHOWN]))
    return result


def finding(offsets: set[int]) -> Differences:
    return Differences(len(offsets), sorted(offsets)[:SHOWN])


def audited(world: World, window: int = SIZE, chunk: int = 7) -> PartitionAudit:
    """What the auditor finds, window by window; rows arrive in chunks, in the order of the table."""
    result, whole = PartitionAudit("t", 0, 0, SIZE), Slice(0, 0, SIZE)
    rest: Slice | None = whole
    while rest is not None:
        part, rest = rest.cut(rest.start + window) if len(rest) > window else (rest, None)
        # As the query for a part selects them.
        low, high = 0 if part.is_first else part.start, 10**9 if part.is_last else part.end
        found = FoundOffsets(Positions([part]), [covering_of(world)])
        for kind, located in (("rows", world.rows), ("rejects", world.rejects)):
            selected = [each for each in located if low <= each[0] < high]
            for start in range(0, len(selected), chunk):
                offsets, batches = np.array(selected[start : start + chunk], np.int64).T
                found.add(kind, np.zeros(len(offsets), np.int32), offsets, batches)
        is_record = np.array([offset in world.records for offset in range(part.start, part.end)], bool)
        nulls = np.array(sorted(n for n in world.nulls if part.start <= n < part.end), np.int64)
        compare(result, part, is_record, nulls, found.in_slice(0), covering_of(world), world.rules)
    return result


def covering_of(world: World) -> Covering:
    rows = sorted(world.coverage, key=lambda row: row[0])
    return Covering(
        np.array([start for start, _, _ in rows], np.int64),
        np.array([end for _, end, _ in rows], np.int64),
        np.array([NOT_COVERED if batch is None else batch for _, _, batch in rows], np.int64),
        np.array([batch is None for _, _, batch in rows], bool),
    )


OFFSETS: Final = st.integers(0, SIZE - 1)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A sound partition with a few holes, tombstones, rejects, batches and losses, and some damage."""
    holes, nulls, rejects = (draw(st.sets(OFFSETS, max_size=6)) for _ in range(3))
    ends = sorted({0, SIZE, *draw(st.sets(OFFSETS, max_size=3))})
    batches = draw(st.lists(st.sampled_from([1, 2, 3, None]), min_size=len(ends), max_size=len(ends)))
    coverage = [(*bounds, batch) for bounds, batch in zip(pairwise(ends), batches, strict=False)]
    world = World(set(range(SIZE)) - holes, nulls - holes, [], [], coverage)
    for offset in sorted(world.records):
        batch = world.covering(offset)
        if batch is None or offset in nulls:
            continue
        (world.rejects if offset in rejects else world.rows).append((offset, batch))
    world.rules = Rules(
        began=draw(st.sampled_from([0, 0, 5])),
        earliest=draw(st.sampled_from([0, 0, 4])),
        horizon=draw(st.sampled_from([0, 0, 9])),
        is_compacted=draw(st.booleans()),
        has_row_per_record=draw(st.sampled_from([True, True, False])),
    )
    # The log no longer has what lies below its start.
    world.records -= set(range(world.rules.earliest))
    world.nulls -= set(range(world.rules.earliest))
    for _ in range(draw(st.integers(0, 3))):
        damage(draw, world)
    if draw(st.booleans()):
        world.rows = draw(st.permutations(world.rows))
    return world


def damage(draw: st.DrawFn, world: World) -> None:
    rows = world.rows
    kind = draw(st.sampled_from(["lose", "repeat", "shift", "batch", "add", "uncover", "reject"]))
    at = draw(st.integers(0, max(0, len(rows) - 1)))
    if kind == "add":
        rows.append((draw(st.integers(0, SIZE + 2)), draw(st.sampled_from([-1, 1, 2]))))
    elif kind == "uncover":
        world.coverage.pop(draw(st.integers(0, len(world.coverage) - 1))) if world.coverage else None
    elif not rows:
        return
    elif kind == "lose":
        del rows[at]
    elif kind == "repeat":
        rows.insert(draw(st.integers(0, len(rows))), rows[at])
    elif kind == "shift":
        rows[at] = (max(0, rows[at][0] + draw(st.sampled_from([-1, 1]))), rows[at][1])
    elif kind == "batch":
        rows[at] = (rows[at][0], draw(st.sampled_from([-1, 1, 2, 3])))
    elif kind == "reject":
        world.rejects.append(rows[at])


@given(worlds(), st.sampled_from([1, 5, 8, SIZE]), st.sampled_from([1, 3, 100]))
def test_the_comparison_finds_what_sets_of_offsets_find(world, window, chunk):
    assert audited(world, window, chunk) == model(world)


@pytest.mark.parametrize("window", [1, 8, SIZE])
@pytest.mark.parametrize("offset", [0, 7, 8, 15, 16, SIZE - 1])
def test_damage_at_the_ends_of_runs_and_windows_is_named_by_its_offset(window, offset):
    """Runs are [0, 8), [8, 16) and [16, 24), each of a batch; every offset is the first or the last of one."""
    coverage = [(0, 8, 1), (8, 16, 2), (16, SIZE, 3)]
    sound = World(coverage=[*coverage], rows=[(each, each // 8 + 1) for each in range(SIZE)])
    assert not any(each.count for each in audited(sound, window).findings.values())
    row = sound.rows[offset]
    others = [each for each in sound.rows if each != row]
    damaged = {
        "missing": replace(sound, rows=others),
        "duplicated": replace(sound, rows=[*sound.rows, row]),
        "unexpected": replace(sound, rows=[*others, (offset, row[1] % 3 + 1)]),
    }
    for kind, world in damaged.items():
        found = audited(world, window)
        assert {name: each.first for name, each in found.findings.items() if each.count} == {kind: [offset]}
        assert found == model(world)
    # A hole of the log exactly there, and a row in it.
    hole = replace(sound, records=sound.records - {offset})
    assert audited(hole, window).unexpected == Differences(1, [offset])
    assert not any(each.count for each in audited(replace(hole, rows=others), window).findings.values())


def test_a_row_of_a_record_that_gives_none_is_found():
    world = World(nulls={1, 2, 3}, rejects=[(2, 1)])
    world.rows = [each for each in world.rows if each[0] not in (2, 3)]
    found = audited(world)
    assert {name: each.first for name, each in found.findings.items() if each.count} == {"unexpected": [1]}
    assert (found.rows, found.rejected, found.tombstones) == (SIZE - 2, 1, 2)
    for rules in (replace(RULES, is_compacted=True), replace(RULES, has_row_per_record=False)):
        assert audited(replace(world, rules=rules)).unexpected == Differences(1, [1])
    assert not audited(replace(world, nulls=set())).unexpected.count


def test_a_row_that_takes_the_place_of_its_neighbour_leaves_count_and_bounds_as_they_were():
    """The number of rows, the least and the greatest offset of the run stay the same."""
    rows = [(offset if offset != 11 else 12, 1) for offset in range(SIZE)]
    found = audited(World(rows=rows))
    assert (found.missing, found.duplicated) == (Differences(1, [11]), Differences(1, [12]))
    # Two rows too many and two too few, with the same sum of offsets.
    rows = [({11: 12, 14: 13}.get(offset, offset), 1) for offset in range(SIZE)]
    found = audited(World(rows=rows))
    assert (found.missing, found.duplicated) == (Differences(2, [11, 14]), Differences(2, [12, 13]))


def test_an_offset_that_is_covered_twice_belongs_to_the_coverage_that_begins_last():
    """The ledger refuses it; without its constraint, one of the two batches has no row there."""
    world = World(coverage=[(0, SIZE, 1), (3, 4, 2)])
    assert audited(world).unexpected.first[0] == 3


def test_gaps_and_losses_are_intervals():
    covering = covering_of(World(coverage=[(2, 5, 1), (5, 7, None), (9, 12, 2)]))
    assert covering.find_uncovered(0, 15) == [(0, 2), (7, 9), (12, 15)]
    assert covering.find_uncovered(3, 8) == [(7, 8)]
    assert covering.find_uncovered(20, 10) == []
    assert covering.count_lost(0, 15) == 2
    assert covering.count_lost(6, 15) == 1
    nothing = covering_of(World(coverage=[]))
    assert nothing.find_uncovered(3, 8) == [(3, 8)]
    assert nothing.at(np.array([1])).tolist() == [NOT_COVERED]
    assert nothing.is_lost(np.array([1])).tolist() == [False]


def test_slices_of_several_partitions_are_compared_by_the_same_query():
    """Their numbers need not be consecutive, and rows come in any order of partitions."""
    slices = [Slice(4, 100, 110), Slice(1, 0, 5), Slice(9, 50, 50)]
    coverings = [covering_of(World(coverage=[each])) for each in ((100, 110, 1), (0, 5, 2), (50, 50, 3))]
    found = FoundOffsets(Positions(slices), coverings)
    located = [(1, 0, 2), (4, 109, 1), (4, 100, 1), (1, 4, 2), (9, 50, 3), (9, 49, 3), (1, 3, 1), (4, 109, 1)]
    partitions, offsets, batches = np.array(located, np.int64).T
    found.add("rows", partitions.astype(np.int32), offsets, batches)
    first, second, third = map(found.in_slice, range(3))
    assert (np.flatnonzero(first.is_found).tolist(), first.repeated.tolist(), first.rows) == (
        [0, 9],
        [109],
        3,
    )
    assert (np.flatnonzero(second.is_found).tolist(), second.misplaced.tolist()) == ([0, 3, 4], [3])
    assert (third.rows, third.outside) == (0, Differences(2, [49, 50]))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 6), st.integers(1, 40))
def test_units_and_windows_cover_each_offset_once(sizes, parts, window):
    partitions = [("t", None, Slice(number, 3, 3 + size)) for number, size in enumerate(sizes)]
    units = divide_into_units(partitions, parts)
    for number, size in enumerate(sizes):
        pieces = [each for unit in units for each in unit.slices if each.partition == number]
        assert [pieces[0].start, *(each.end for each in pieces)] == [
            *(each.start for each in pieces),
            3 + size,
        ]
        assert [each.is_first for each in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [each.is_last for each in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(units) <= parts + sum(size > 0 for size in sizes) + 1
    for unit in units:
        groups = list(group_into_windows(unit.slices, window))
        assert tuple(each for group in groups for each in group) == unit.slices
        for group in groups:
            assert len({each.partition for each in group}) == len(group)
            assert len(group) == 1 or sum(map(len, group)) <= window


def test_partitions_of_nearly_the_same_size_stay_whole():
    sizes = (505_165, 505_164, 505_164, 505_163)
    partitions = [("t", None, Slice(number, 0, size)) for number, size in enumerate(sizes)]
    assert [len(unit.slices) for unit in divide_into_units(partitions, 2)] == [2, 2]
    assert [len(unit.slices) for unit in divide_into_units(partitions, 1)] == [4]
    other = [*partitions, ("other", 1, Slice(0, 0, 10))]
    assert [unit.topic for unit in divide_into_units(other, 1)] == ["t", "other"]
    assert isinstance(divide_into_units(other, 1)[0], Unit)
