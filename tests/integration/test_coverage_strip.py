"""Strips show every offset with what the ledger has for it, at a cost that does not grow with the history."""

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from exactbatch import Append, Json, Pipeline
from exactbatch.ledger.overview_rows import OverviewRows
from exactbatch.model import LogPartition
from exactbatch.operations.coverage_strip import find_gaps, load_strips, look_for_gaps
from exactbatch.operations.overview import find_lag, find_state, load_summaries
from exactbatch.postgres.connection import transaction
from support.environment import draw_seed
from support.large_ledger import History, fill
from support.page_ledger import SIZE, fail_newest, fill_story
from support.query_plans import executed_plans

TOPIC_ID = UUID(int=7)


def pipeline_named(name):
    return Pipeline(name=name, topics=(name,), value=Json("id int, name text"), sink=Append(f"public.{name}"))


@pytest.fixture
def story(connection):
    pipeline = pipeline_named("story")
    fill_story(connection, pipeline, TOPIC_ID)
    return pipeline


def positions_of(connection, name):
    with transaction(connection):
        return OverviewRows(connection).positions([name])


def strips(connection, name, first, until, steps=300):
    return load_strips(connection, name, positions_of(connection, name), first, until, steps=steps)


def kinds(strip, *names):
    return [(s.kind, s.from_offset, s.until_offset) for s in strip.segments if s.kind in names]


def test_each_step_is_one_record_or_more(connection, story):
    [strip, *_] = strips(connection, "story", 0, 24 * SIZE, steps=2000)
    assert strip.strip.step == 1
    assert strip.is_exact
    assert kinds(strip, "loss", "replay", "backfill", "gap") == [
        ("loss", 4 * SIZE, 5 * SIZE),
        ("replay", 10 * SIZE, 12 * SIZE),
        ("backfill", 20 * SIZE + SIZE // 2, 21 * SIZE),
    ]
    assert strip.exceptions == ()
    batches = [s for s in strip.segments if s.kind == "batch"]
    assert [s.until_offset - s.from_offset for s in batches[:5]] == [SIZE] * 5
    assert len({s.batch_id for s in batches}) == len(batches)


def test_what_is_narrower_than_a_step_is_still_shown(connection, story):
    [strip, other, _] = strips(connection, "story", 0, 40 * SIZE, steps=6)
    assert not strip.is_exact
    assert len(strip.segments) <= 6
    assert {(s.kind, s.from_offset, s.until_offset) for s in strip.exceptions} == {
        ("loss", 4 * SIZE, 5 * SIZE),
        ("replay", 10 * SIZE, 12 * SIZE),
        ("backfill", 20 * SIZE + SIZE // 2, 21 * SIZE),
    }
    assert other.exceptions == ()
    assert sum(count for *_, count in strip.rejects) == 12
    assert [(r.from_offset, r.until_offset, r.kind) for r in strip.in_flight] == []


def test_what_is_in_flight_lies_beyond_the_stored_offset(connection, story):
    [strip, *_] = strips(connection, "story", 39 * SIZE, 42 * SIZE, steps=100)
    assert [(r.from_offset, r.until_offset, r.kind) for r in strip.in_flight] == [
        (40 * SIZE, 41 * SIZE, "batch")
    ]
    assert strip.segments[-1].until_offset == 40 * SIZE


def test_rejects_are_counted_in_their_steps(connection, story):
    [strip, *_] = strips(connection, "story", 5 * SIZE, 5 * SIZE + 10, steps=10)
    assert strip.rejects == tuple((5 * SIZE + n, 5 * SIZE + n + 1, 1) for n in range(4))


def test_a_gap_is_found_whatever_its_width(connection, story):
    with transaction(connection) as cursor:
        cursor.execute(
            "update exactbatch.coverage set offsets = int8range(lower(offsets), upper(offsets) - 1) "
            "where partition = 1 and offsets @> %s::bigint",
            (30 * SIZE,),
        )
    gap = 31 * SIZE - 1
    [_, strip, _] = strips(connection, "story", 30 * SIZE, 32 * SIZE)
    assert kinds(strip, "gap") == [("gap", gap, gap + 1)]
    [found] = find_gaps(connection, "story", positions_of(connection, "story"))
    assert (found.partition, found.from_offset, found.until_offset) == (1, gap, gap + 1)


def test_offsets_below_the_beginning_are_no_gap(connection):
    pipeline = pipeline_named("late")
    fill_story(connection, pipeline, TOPIC_ID, partitions=1, batches=30)
    with transaction(connection) as cursor:
        cursor.execute("set local session_replication_role = replica")
        cursor.execute("update exactbatch.stored_offset set first_offset = %s", (2 * SIZE,))
        cursor.execute("delete from exactbatch.coverage where lower(offsets) < %s", (3 * SIZE,))
    [strip] = strips(connection, "late", 0, 30 * SIZE, steps=2000)
    assert kinds(strip, "gap") == [("gap", 2 * SIZE, 3 * SIZE)]


def test_random_coverage_is_drawn_as_it_is(connection):
    randomness = random.Random(draw_seed())
    pipeline = pipeline_named("random")
    fill_story(connection, pipeline, TOPIC_ID, partitions=1, batches=30)
    with transaction(connection) as cursor:
        cursor.execute("delete from exactbatch.coverage")
        truth, at = {}, 0
        while at < 30 * SIZE:
            until = min(30 * SIZE, at + randomness.choice((1, 2, 3, 40)))
            batch_id = randomness.choice((None, 1, 2))
            if batch_id is not None:
                cursor.execute(
                    "insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id) "
                    "values ('random', 'random', %s, 0, int8range(%s, %s), 'batch', %s)",
                    (str(TOPIC_ID), at, until, batch_id),
                )
            truth.update(dict.fromkeys(range(at, until), batch_id))
            at = until
    for steps in (7, 100, 1500):
        first = randomness.randrange(100)
        [strip] = strips(connection, "random", first, 30 * SIZE, steps=steps)
        at = first
        for segment in strip.segments:
            assert segment.from_offset == at
            assert truth[at] == segment.batch_id, (steps, at)
            assert segment.kind == ("gap" if truth[at] is None else "batch")
            if not segment.is_merged:
                assert {truth[o] for o in range(at, segment.until_offset)} == {segment.batch_id}
            at = segment.until_offset
        assert at == 30 * SIZE
        assert strip.is_exact == all(not s.is_merged for s in strip.segments)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_search_for_gaps_in_portions_finds_all_of_them(connection, rows):
    randomness = random.Random(draw_seed())
    pipeline = pipeline_named("holes")
    fill_story(connection, pipeline, TOPIC_ID, partitions=3, batches=30)
    with transaction(connection) as cursor:
        cursor.execute("set local session_replication_role = replica")
        cursor.execute(
            "update exactbatch.stored_offset set first_offset = %s where partition = 1", (2 * SIZE,)
        )
        cursor.execute(
            "delete from exactbatch.coverage where partition < 2 and lower(offsets) = any(%s)",
            ([SIZE * n for n in (0, 1, 2, 29, *randomness.sample(range(3, 28), 5))],),
        )
    positions = positions_of(connection, "holes")
    expected = _uncovered(connection, positions)
    assert {gap[0] for gap in expected} == {0, 1}
    found, number, first, calls = [], 0, 0, 0
    while True:
        portion = look_for_gaps(connection, "holes", positions[number:], first=first, rows=rows)
        assert portion.rows <= rows
        found += portion.gaps
        calls += 1
        if portion.next is None:
            break
        number, first = number + portion.next[0], portion.next[1]
    assert [(gap.partition, gap.from_offset, gap.until_offset) for gap in found] == expected
    assert find_gaps(connection, "holes", positions) == found
    assert calls == 1 or rows < 1000


def _uncovered(connection, positions):
    """Gaps by partition, found by Postgres from all rows at once."""
    with transaction(connection) as cursor:
        cursor.execute(
            "select s.partition, lower(g), upper(g) from exactbatch.stored_offset s, lateral (select unnest("
            "int8multirange(int8range(s.first_offset, s.next_offset)) - coalesce(range_agg(c.offsets), '{}')) as g "
            "from exactbatch.coverage c where c.pipeline = s.pipeline and c.partition = s.partition) g "
            "where s.pipeline = %s order by 1, 2",
            (positions[0].pipeline,),
        )
        return [tuple(row) for row in cursor.fetchall()]


def test_the_cost_depends_on_the_steps_and_not_on_the_rows(connection):
    pipeline = pipeline_named("grown")
    fill(connection, History(pipeline, 20_000, 2))
    with executed_plans(connection) as plans:
        drawn = strips(connection, "grown", 0, 200_000, steps=200)
    assert [len(strip.segments) for strip in drawn] == [1, 1]
    for plan in plans:
        assert plan.scanned == [], plan.statement
        assert plan.rows_read < 10_000, plan.statement
    walk = next(plan for plan in plans if "recursive strips" in plan.statement and "passed" in plan.statement)
    assert walk.rows_read <= 2 * 2 * 201


def test_the_summary_has_batches_lag_and_the_error(connection, story):
    fail_newest(connection, "story", "column id is text. Change it.", retryable=False)
    summary = load_summaries(connection, ["story", "unknown"])["story"]
    assert len(summary.positions) == 3
    assert summary.failure[1].message == "column id is text. Change it."
    logs = [
        LogPartition(
            topic="story",
            partition=0,
            topic_id=TOPIC_ID,
            leader_epoch=0,
            earliest=0,
            last_stable=40 * SIZE + 10,
            high_watermark=40 * SIZE + 25,
        )
    ]
    lag = find_lag(summary, logs, datetime.now(UTC))
    assert (lag.lag, lag.held_back, lag.lost, lag.contradiction) == (25, 15, 0, None)
    assert find_state(summary, lag, is_paused=True, now=datetime.now(UTC)) == "failing"
    assert find_state(None, lag, is_paused=False, now=datetime.now(UTC)) == "not registered"


def add_replays(connection, *, planned_at, status="planned"):
    """More replays than the newest batches of which a summary shows the throughput."""
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.batch (pipeline, kind, origin, status, planned_at, committed_at, records, rows, "
            "rejected, tombstones, dropped) select 'story', 'replay', 'manual', %s, %s, %s, 0, 0, 0, 0, 0 "
            "from generate_series(1, 13)",
            (status, planned_at, planned_at if status == "committed" else None),
        )


@pytest.mark.parametrize("status", ["committed", "planned", "superseded"])
def test_replays_do_not_hide_an_advance_that_fails(connection, story, status):
    fail_newest(connection, "story", "column id is text. Change it.", retryable=False)
    now = datetime.now(UTC)
    add_replays(connection, planned_at=now, status=status)
    summary = load_summaries(connection, ["story", "unknown"])["story"]
    assert summary.failure[1].message == "column id is text. Change it."
    with transaction(connection) as cursor:
        cursor.execute("select failing_batch_id from exactbatch.pipeline_state where pipeline = 'story'")
        assert cursor.fetchone() == (summary.failure[0].batch_id,)
    assert find_state(summary, None, is_paused=True, now=now) == "failing"


def test_replays_that_nobody_processes_do_not_hide_that_a_dag_is_paused(connection, story):
    now = datetime.now(UTC)
    with transaction(connection) as cursor:
        cursor.execute(
            "update exactbatch.batch set status = 'superseded' where pipeline = 'story' and status = 'planned'"
        )
    add_replays(connection, planned_at=now - timedelta(minutes=50))
    summary = load_summaries(connection, ["story"])["story"]
    assert find_state(summary, None, is_paused=True, now=now) == "processing"
    assert find_state(summary, None, is_paused=True, now=now + timedelta(minutes=20)) == "paused"
    assert summary.committed.status == "committed"


def test_reasons_that_differ_in_values_are_one_group(connection, story):
    with transaction(connection):
        rows = OverviewRows(connection)
        groups = rows.reject_reasons("story", limit=10)
        assert sorted((group.kind, group.records) for group in groups) == [
            ("column id: … is not an int", 4),
            ("column name: missing", 4),
            ("not a JSON object: …", 4),
        ]
        listed = rows.rejects_of_kind(
            "story", "column id: … is not an int", after=(UUID(int=0), -1, -1), limit=3
        )
        assert [each.offset for each in listed] == [5 * SIZE, 5 * SIZE + 1, 5 * SIZE + 2]
        record = rows.rejected_record("story", TOPIC_ID, 0, 5 * SIZE, limit=8)
    assert (record.key, record.value, record.value_bytes) == (b"key", b"<script>", 25)
