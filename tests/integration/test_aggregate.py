"""The target of an Aggregate is what its rows make, whatever came late or was taken back."""

import json
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from psycopg2 import sql
from pyspark import cloudpickle

from exactbatch import Aggregate, Count, Custom, Json, Max, Min, Pipeline, Sum, Window, failpoints
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.columns import Column
from exactbatch.errors import (
    ConfigurationError,
    IdentityChanged,
    StagedRowsDiffer,
    TargetMismatch,
    TooManyRejects,
)
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.aggregate.added_results import AddedResults
from exactbatch.sinks.aggregate.group_key import create_group_key
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.topics import Topic
from support.upserts import decode_wrongly
from support.waiting import wait_for

MakeAggregate = Callable[..., Pipeline]

HOURLY = ("carrier", Window("at", "1 hour", "hour"))
MEASURES = {
    "flights": Count(),
    "delayed": Count("delay"),
    "delay": Sum("delay"),
    "best": Min("delay"),
    "worst": Max("delay"),
}
VALUE = Json("carrier text, at timestamptz, delay int")


def event(carrier: str | None, at: str | None, delay: int | None) -> bytes:
    """A flight at an hour and minute of the first of May, or on another day."""
    time = None if at is None else at if "-" in at else f"2026-05-01T{at}:00Z"
    return json.dumps({"carrier": carrier, "at": time, "delay": delay}).encode()


def hour(number: int) -> datetime:
    return datetime(2026, 5, 1, tzinfo=UTC) + timedelta(hours=number)


@pytest.fixture
def make_aggregate(make_pipeline):
    """Register a pipeline that aggregates flights by carrier and hour."""

    def make(topic: Topic, group_by: Any = HOURLY, aggregates: Any = None, **changes: Any) -> Pipeline:
        if "sink" in changes:
            return make_pipeline(topic, **{"value": VALUE, **changes})
        options = {each: changes.pop(each) for each in ("allowed_lateness", "on_late") if each in changes}
        sink = Aggregate(
            f'public."{topic.name}"', group_by=group_by, aggregates=aggregates or MEASURES, **options
        )
        return make_pipeline(topic, **{"sink": sink, "value": VALUE, **changes})

    return make


def state(world: BatchRunner, pipeline: Pipeline, columns: str = "*") -> dict[Any, tuple[Any, ...]]:
    """The target: its measures by carrier and hour."""
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    rows = world.rows(f"select {columns} from {table}")
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row[2:] for row in rows}


def partials(world: BatchRunner, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    table = find_writer(pipeline.traits).lineage_table.identifier.as_string(world.connection)
    return world.rows(
        f"select carrier, hour, flights, records, batch_id from {table} order by batch_id, 1, 2"
    )


def replayed(world: BatchRunner, pipeline: Pipeline, *bounds: tuple[int, int], partition: int = 0) -> int:
    asked = tuple(RequestedRange(pipeline.topic_names[0], partition, *each) for each in bounds)
    batch_id = freeze_replay(
        world.connection, world.log, pipeline, ReplayRequest(ranges=asked), origin="cli"
    ).batch_id
    assert batch_id is not None
    world.process(pipeline, batch_id)
    return batch_id


def with_wrong_delays(schema: str) -> Custom:
    """The format of a program with a mistake: its delays are 1000 too high, and its flights a day late."""

    def change(rows: pa.RecordBatch) -> pa.RecordBatch:
        rows = rows.set_column(2, "delay", pc.add(rows.column(2), pa.scalar(1000, pa.int32())))
        late = pc.add(rows.column(1), pa.scalar(timedelta(days=1), pa.duration("us")))
        return rows.set_column(1, "at", late)

    return decode_wrongly(schema, change)


# Executors cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rejects(world: BatchRunner) -> dict[tuple[int, int], str]:
    rows = world.rows('select partition, "offset", reason from exactbatch.rejected_record')
    return {row[:2]: row[2] for row in rows}


def test_counts_sums_and_extremes_by_key_and_window(world, make_topic, make_aggregate):
    topic = make_topic()
    topic.produce(
        event("AA", "05:00", 10),
        event("AA", "05:59", -3),
        event("AA", "06:00", 7),
        event("UA", "05:30", None),
    )
    pipeline = make_aggregate(topic)
    published = world.run(pipeline)
    assert (published.batch.records, published.batch.rows) == (4, 4)
    assert state(world, pipeline) == {
        ("AA", hour(5)): (2, 2, 7, -3, 10),
        ("AA", hour(6)): (1, 1, 7, 7, 7),
        ("UA", hour(5)): (1, 0, None, None, None),
    }
    assert world.is_exact(pipeline)


def test_batches_merge_and_late_rows_refine_a_window(world, make_topic, make_aggregate):
    topic = make_topic(2)
    pipeline = make_aggregate(topic)
    topic.produce(event("AA", "05:00", 10), event("UA", "07:00", 1))
    first = world.run(pipeline).batch.batch_id
    topic.produce(event("AA", "05:10", 90), event("AA", "05:20", -5), partition=1)
    topic.produce(event("AA", "09:00", 1))
    second = world.run(pipeline).batch.batch_id
    assert state(world, pipeline) == {
        ("AA", hour(5)): (3, 3, 95, -5, 90),
        ("AA", hour(9)): (1, 1, 1, 1, 1),
        ("UA", hour(7)): (1, 1, 1, 1, 1),
    }
    assert partials(world, pipeline) == [
        ("AA", hour(5), 1, 1, first),
        ("UA", hour(7), 1, 1, first),
        ("AA", hour(5), 2, 2, second),
        ("AA", hour(9), 1, 1, second),
    ]
    assert world.is_exact(pipeline)


def test_replay_of_part_takes_whole_batches_and_gives_same(world, make_topic, make_aggregate):
    topic = make_topic()
    pipeline = make_aggregate(topic)
    for minute in (10, 20, 30):
        topic.produce(*(event("AA", f"05:{minute + n}", minute + n) for n in range(5)))
        world.run(pipeline)
    expected = {("AA", hour(5)): (15, 15, sum([*range(10, 15), *range(20, 25), *range(30, 35)]), 10, 34)}
    assert state(world, pipeline) == expected
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    before = world.rows(f"select xmin from {table}")
    replayed(world, pipeline, (7, 8))
    assert state(world, pipeline) == expected
    assert [each[3] for each in partials(world, pipeline)] == [5, 5, 5]
    replayed(world, pipeline, (0, 15))
    assert [each[3] for each in partials(world, pipeline)] == [15]
    assert state(world, pipeline) == expected
    # A row that stays as it is, is not written.
    assert world.rows(f"select xmin from {table}") == before
    assert world.is_exact(pipeline)


def test_target_follows_changed_program_and_its_windows_go_and_come(world, make_topic, make_aggregate):
    topic = make_topic()
    right = make_aggregate(topic)
    wrong = replace(right, value=with_wrong_delays(VALUE.schema))
    topic.produce(event("AA", "05:00", 10), event("AA", "05:01", 20), event("UA", "06:00", 5))
    world.run(wrong)
    topic.produce(event("AA", "05:30", 15))
    world.run(right)
    assert state(world, right) == {
        ("AA", hour(29)): (2, 2, 2030, 1010, 1020),
        ("UA", hour(30)): (1, 1, 1005, 1005, 1005),
        ("AA", hour(5)): (1, 1, 15, 15, 15),
    }
    replayed(world, right, (1, 2))
    expected = {("AA", hour(5)): (3, 3, 45, 10, 20), ("UA", hour(6)): (1, 1, 5, 5, 5)}
    assert state(world, right) == expected
    assert world.is_exact(right)
    replayed(world, wrong, (3, 4))
    # The greatest of what is left, and the least.
    assert state(world, wrong) == {
        ("AA", hour(5)): (2, 2, 30, 10, 20),
        ("UA", hour(6)): (1, 1, 5, 5, 5),
        ("AA", hour(29)): (1, 1, 1015, 1015, 1015),
    }
    assert world.is_exact(wrong)
    replayed(world, right, (3, 4))
    assert state(world, right) == expected


def test_weeks_begin_on_mondays(world, make_topic, make_aggregate):
    topic = make_topic()
    value = Json("at timestamptz, carrier text, delay int")
    pipeline = make_aggregate(
        topic, group_by=(Window("at", "1 week"),), aggregates={"n": Count()}, value=value
    )
    times = [
        "1969-12-28T23:59Z",
        "1969-12-29T00:00Z",
        "2026-01-04T23:59Z",
        "2026-01-05T00:00Z",
        "2026-01-11T23:59Z",
    ]
    topic.produce(*[json.dumps({"at": at}).encode() for at in times])
    world.run(pipeline)
    monday = datetime(2026, 1, 5, tzinfo=UTC)
    assert set(state(world, pipeline)) == {
        (datetime(1969, 12, 22, tzinfo=UTC), 1),
        (datetime(1969, 12, 29, tzinfo=UTC), 1),
        (monday - timedelta(weeks=1), 1),
        (monday, 2),
    }
    assert world.is_exact(pipeline)
    # Rows of windows that begin on Thursdays, as before, are never in the same target.
    assert "at_window = at by 7 days, 0:00:00 from Monday" in pipeline.sink.identity.key


def test_null_is_a_group_like_any_other(world, make_topic, make_aggregate):
    topic = make_topic()
    pipeline = make_aggregate(
        topic, group_by=("carrier", "delay"), aggregates={"flights": Count(), "last": Max("at")}
    )
    topic.produce(event(None, "05:00", None), event(None, "05:01", None), event(None, "05:02", 1))
    world.run(pipeline)
    topic.produce(event(None, "06:00", None), event("AA", "05:00", None))
    world.run(pipeline)
    at = hour(5)
    expected = {
        (None, None): (3, hour(6)),
        (None, 1): (1, at + timedelta(minutes=2)),
        ("AA", None): (1, at),
    }
    assert state(world, pipeline) == expected
    replayed(world, pipeline, (0, 1))
    assert state(world, pipeline) == expected
    wrong = replace(pipeline, value=with_wrong_delays(VALUE.schema))
    replayed(world, wrong, (0, 5))
    assert state(world, wrong)[None, 1001][0] == 1
    replayed(world, pipeline, (0, 5))
    assert state(world, pipeline) == expected
    assert world.is_exact(pipeline)


def test_sums_are_exact_for_numbers_that_no_bigint_holds(world, make_topic, make_aggregate):
    topic = make_topic()
    great = 2**63 - 1
    topic.produce(*[json.dumps({"n": great, "i": 2**31 - 1, "d": "0.10"}).encode()] * 3)
    measures = {"n": Sum("n"), "i": Sum("i"), "d": Sum("d"), "least": Min("d")}
    value = Json("n bigint, i int, d numeric(10,2), carrier text, hour text")
    pipeline = make_aggregate(topic, group_by=("carrier", "hour"), aggregates=measures, value=value)
    world.run(pipeline)
    table = f'public."{topic.name}"'
    found = world.rows(f"select n::text, i, d::text, least::text from {table}")
    assert found == [(str(3 * great), 3 * (2**31 - 1), "0.30", "0.10")]
    types = world.rows(f"select pg_typeof(n)::text as n, pg_typeof(i)::text as i from {table}")
    assert types == [("numeric", "bigint")]
    assert world.is_exact(pipeline)


def test_sum_that_its_column_cannot_hold_is_error_that_says_way_out(world, make_topic, make_aggregate):
    topic = make_topic()
    topic.produce(event("AA", "05:00", 1))
    pipeline = make_aggregate(topic)
    world.run(pipeline)
    target, partial = (
        each.as_string(world.connection)
        for each in (
            find_writer(pipeline.traits).tables[-1].identifier,
            find_writer(pipeline.traits).lineage_table.identifier,
        )
    )
    for table in (target, partial):
        world.execute(f"update {table} set delay = {2**63 - 1}")
    topic.produce(event("AA", "05:00", 1))
    batch_id = world.plan(pipeline)
    before = partials(world, pipeline)
    with pytest.raises(TargetMismatch, match="bigint out of range.*alter column … type numeric"):
        world.process(pipeline, batch_id)
    assert partials(world, pipeline) == before
    for table in (target, partial):
        world.execute(f"alter table {table} alter column delay type numeric")
    world.process(pipeline, batch_id)
    assert state(world, pipeline)["AA", hour(5)][2] == 2**63


def test_a_sum_beyond_double_precision_asks_for_a_numeric_column(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(b'{"id": 1, "x": 1e308}', b'{"id": 1, "x": 1e308}')
    sink = Aggregate(f'public."{topic.name}"', group_by="id", aggregates={"x": Sum("x")})
    pipeline = make_pipeline(topic, value=Json("id int, x double precision"), sink=sink)
    message = world.refused(TargetMismatch, pipeline)
    assert (
        "value out of range: overflow. Nothing was written. A double precision holds at most 1.8e308. "
        in message
    )
    assert (
        "Declare the summed column numeric in the pipeline, and give the column the type numeric in"
        in message
    )


def test_a_row_without_a_time_is_a_reject(world, make_topic, make_aggregate):
    topic = make_topic()
    topic.produce(event("AA", "05:00", 1), event("AA", None, 2), event("AA", "0001-01-01T00:00:00Z", 3))
    topic.produce(event("AA", "05:01", 4))
    pipeline = make_aggregate(topic, max_rejects=2, allowed_lateness="1000 days")
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (4, 3, 1)
    assert rejects(world) == {
        (0, 1): "column 'at': expected the time of the event, in the years 1 to 9999, found null"
    }
    assert state(world, pipeline, "carrier, hour, delay")["AA", hour(5)] == (5,)
    assert world.is_exact(pipeline)
    with pytest.raises(TooManyRejects, match="expected the time of the event"):
        replayed(world, replace(pipeline, max_rejects=0), (0, 4))


def test_a_row_that_nothing_has_sifted_out_is_not_published(world, make_topic, make_aggregate, monkeypatch):
    topic = make_topic()
    topic.produce(event("AA", None, 2))
    pipeline = make_aggregate(topic)
    batch_id = world.plan(pipeline)
    monkeypatch.setattr(batch_job, "reject_uncastable", lambda *_args, staged, **_kwargs: staged)
    with pytest.raises(StagedRowsDiffer, match=rf"{topic.name}\[0\] offset 0: a staged row does not fit"):
        world.process(pipeline, batch_id)
    assert state(world, pipeline) == {}
    assert partials(world, pipeline) == []


def finals(world: BatchRunner, pipeline: Pipeline) -> dict[int, tuple[int, bool, int]]:
    """Flights, final and revisions, by hour."""
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    rows = world.rows(f"select hour, flights, final, revisions from {table}")
    return {int((row[0] - hour(0)).total_seconds() // 3600): row[1:] for row in rows}


def test_window_is_final_once_every_partition_is_so_much_past_its_end(world, make_topic, make_aggregate):
    topic = make_topic(3)  # the third partition never gives an event, and holds nothing up
    pipeline = make_aggregate(topic, allowed_lateness="30 minutes")
    topic.produce(event("AA", "05:00", 1), event("AA", "09:00", 1))
    topic.produce(event("AA", "06:29", 1), partition=1)
    world.run(pipeline)
    assert finals(world, pipeline) == {5: (1, False, 0), 6: (1, False, 0), 9: (1, False, 0)}
    topic.produce(event("AA", "06:30", 1), partition=1)
    world.run(pipeline)
    assert finals(world, pipeline) == {5: (1, True, 0), 6: (2, False, 0), 9: (1, False, 0)}
    topic.produce(event("AA", "10:30", 1), event("AA", "05:10", 1), partition=1)
    world.run(pipeline)
    # The watermark is at 9:00 now; one row came for a window that had been final, and is shown.
    assert finals(world, pipeline) == {5: (2, True, 1), 6: (2, True, 0), 9: (1, False, 0), 10: (1, False, 0)}
    topic.produce(event("UA", "05:10", 1), event("AA", "05:11", 1), event("AA", "05:12", 1))
    world.run(pipeline)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    assert world.rows(
        f"select carrier, flights, final, revisions from {table} where hour = %s order by 1", hour(5)
    ) == [
        ("AA", 4, True, 2),
        ("UA", 1, True, 1),
    ]
    assert world.is_exact(pipeline)


def test_revisions_by_a_pipeline_that_spells_the_target_otherwise_are_possible(
    world, make_topic, make_aggregate
):
    one, other = make_topic(), make_topic()
    first = make_aggregate(one, allowed_lateness="0 seconds")
    sink = replace(first.sink, target=f'"{one.name}"')
    second = make_aggregate(other, sink=sink)
    one.produce(event("AA", "01:00", 1))
    world.run(first)
    other.produce(event("AA", "05:00", 1), event("AA", "07:00", 1))
    world.run(second)
    one.produce(event("AA", "08:00", 1))
    world.run(first)
    for _ in range(2):
        other.produce(event("AA", "05:30", 1))
        world.run(second)
    assert finals(world, first)[5] == (3, True, 2)
    assert audit(first, world.settings).is_exact
    assert audit(second, world.settings).is_exact


def test_revisions_stay_possible_once_the_topic_of_their_events_is_replaced(
    world, make_topic, make_aggregate
):
    first, second = make_topic(), make_topic()
    pipeline = make_aggregate(first, allowed_lateness="0 seconds")
    for events in ([event("AA", "05:00", 1), event("AA", "07:00", 1)], [event("AA", "05:30", 1)]):
        first.produce(*events)
        world.run(pipeline)
    assert finals(world, pipeline)[5] == (2, True, 1)
    moved = replace(pipeline, topics=(second.name,))
    with transaction(world.connection):
        Ledger(world.connection).registry.register(moved)
    second.produce(event("AA", "01:00", 1))
    world.run(moved)
    assert finals(world, moved)[5] == (2, False, 1)
    assert world.is_exact(moved)


def test_final_goes_back_where_a_replay_takes_the_watermark_back(world, make_topic, make_aggregate):
    topic = make_topic()
    right = make_aggregate(topic, allowed_lateness="0 seconds")
    wrong = replace(right, value=with_wrong_delays(VALUE.schema))
    topic.produce(event("AA", "05:00", 1))
    world.run(right)
    topic.produce(event("AA", "07:00", 1))
    world.run(wrong)
    assert finals(world, right) == {5: (1, True, 0), 31: (1, False, 0)}
    topic.produce(event("AA", "05:59", 1))
    world.run(right)
    assert finals(world, right)[5] == (2, True, 1)
    replayed(world, right, (1, 2))
    # The window at 7 changed while the wrong watermark had made it final.
    assert finals(world, right) == {5: (2, True, 1), 7: (1, False, 1)}
    replayed(world, wrong, (0, 1))
    assert finals(world, right) == {5: (1, True, 2), 7: (1, True, 1), 29: (1, False, 0)}
    replayed(world, right, (0, 1))
    expected = {5: (2, True, 3), 7: (1, False, 1)}
    assert finals(world, right) == expected
    # A replay that gives the same revises nothing.
    replayed(world, right, (0, 3))
    assert finals(world, right) == expected
    assert world.is_exact(right)


def test_windows_can_become_final_later_than_the_target_was_made(world, make_topic, make_aggregate):
    topic = make_topic(2)
    plain = make_aggregate(topic)
    topic.produce(event("AA", "05:00", 1))
    topic.produce(event("AA", "09:00", 1), partition=1)
    world.run(plain)
    pipeline = replace(plain, sink=replace(plain.sink, allowed_lateness="1 hour"))
    topic.produce(event("AA", "12:00", 1))
    batch_id = world.plan(pipeline)
    with pytest.raises(TargetMismatch) as caught:
        world.process(pipeline, batch_id)
    world.execute(str(caught.value).partition("Add them: ")[2])
    world.process(pipeline, batch_id)
    # The other partition's event of the time before counts.
    assert finals(world, pipeline) == {5: (1, True, 0), 9: (1, False, 0), 12: (1, False, 0)}
    assert world.is_exact(pipeline)


def test_two_pipelines_that_share_a_target_at_once_miss_nothing(world, make_topic, make_aggregate, tmp_path):
    topics = make_topic(), make_topic()
    sink = Aggregate(f'public."{topics[0].name}"', HOURLY, MEASURES)
    one, other = (make_aggregate(topic, sink=sink) for topic in topics)
    for number, topic in enumerate(topics):
        topic.produce(event("AA", "05:00", number))
    first, second = world.plan(one), world.plan(other)
    with ThreadPoolExecutor(2) as threads:
        failpoints.actions["publish.before_commit"] = f"hold:{tmp_path}/go"
        try:
            holding = threads.submit(process_alone, world, one, first)
            wait_for((tmp_path / "go.held").exists)
        finally:
            del failpoints.actions["publish.before_commit"]
        waiting = threads.submit(process_alone, world, other, second)
        waits = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'"
        wait_for(lambda: world.rows(waits) == [(True,)])
        (tmp_path / "go").touch()
        assert holding.result().wrote
        assert waiting.result().wrote
    assert state(world, one) == {("AA", hour(5)): (2, 2, 1, 0, 1)}
    assert world.is_exact(one)
    assert world.is_exact(other)


def process_alone(world: BatchRunner, pipeline: Pipeline, batch_id: int) -> Published:
    return process_batch(DriverEngine(world.spark), pipeline, batch_id, world.settings)


def test_late_rows_can_be_rejected_and_a_replay_rejects_the_same(world, make_topic, make_aggregate):
    topic = make_topic()
    pipeline = make_aggregate(topic, allowed_lateness="1 hour", on_late="reject", max_rejects=9)
    topic.produce(event("AA", "05:00", 1), event("AA", "08:30", 1), event("AA", "05:01", 1))
    assert world.run(pipeline).batch.rejected == 0  # nothing was final before the batch
    topic.produce(event("AA", "05:02", 1), event("UA", "06:59", 1), event("AA", "07:00", 1), b"bad")
    assert world.run(pipeline).batch.rejected == 3
    reason = (
        "late: the window 2026-05-01 05:00:00 to "
        "2026-05-01 06:00:00 UTC was already final: the watermark stood at 2026-05-01 08:30:00 UTC"
    )
    assert sorted(rejects(world)) == [(0, 3), (0, 4), (0, 6)]
    assert rejects(world)[0, 3] == reason
    expected = {5: (2, True, 0), 7: (1, False, 0), 8: (1, False, 0)}
    assert finals(world, pipeline) == expected
    topic.produce(event("AA", "12:00", 1))
    world.run(pipeline)
    expected = {5: (2, True, 0), 7: (1, True, 0), 8: (1, True, 0), 12: (1, False, 0)}
    for bounds in ((3, 4), (0, 8), (0, 1)):
        before = rejects(world)
        replayed(world, pipeline, bounds)
        assert finals(world, pipeline) == expected
        assert rejects(world) == before
        assert world.is_exact(pipeline)
    # With on_late="update" a replay applies them.
    update = replace(pipeline, sink=replace(pipeline.sink, on_late="update"))
    replayed(world, update, (0, 8))
    assert sorted(rejects(world)) == [(0, 6)]
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    assert world.rows(
        f"select carrier, hour, flights, revisions from {table} where revisions > 0 order by 1"
    ) == [
        ("AA", hour(5), 3, 1),
        ("UA", hour(6), 1, 1),
    ]
    assert world.is_exact(update)


def test_a_target_that_does_not_fit_is_refused(world, make_topic, make_aggregate):
    topic = make_topic()
    topic.produce(event("AA", "05:00", 1))
    table = f'public."{topic.name}"'
    pipeline = make_aggregate(
        topic, aggregates={"flights": Count(), "delay": Sum("delay")}, allowed_lateness="1 day"
    )
    batch_id = world.plan(pipeline)
    world.execute(
        f"create table {table} (carrier text, hour timestamptz, flights int, delay bigint, final boolean)"
    )
    steps = [
        ("has allowed_lateness. Add them: alter table", "drop final"),
        (
            "has allowed_lateness. Add them: alter table",
            "add final boolean not null default false, add revisions bigint not null default 0",
        ),
        (
            "column flights: expected type bigint, as the pipeline writes it, found integer",
            "alter flights type bigint",
        ),
        (
            r"exactly \(carrier, hour\), the key of the pipeline, that treats nulls",
            "add unique (carrier, hour)",
        ),
    ]
    for said, way_out in steps:
        with pytest.raises(TargetMismatch, match=said):
            world.process(pipeline, batch_id)
        world.execute(f"alter table {table} {way_out}")
    with pytest.raises(TargetMismatch, match="that treats nulls as equal, found none") as caught:
        world.process(pipeline, batch_id)
    world.execute(str(caught.value).partition(" it: ")[2])
    world.process(pipeline, batch_id)
    assert finals(world, pipeline) == {5: (1, False, 0)}


@pytest.mark.parametrize("wider", ["numeric", "double precision", "bigint"])
def test_a_target_with_wider_types_is_exact_with_a_trigger_too(world, make_topic, make_aggregate, wider):
    topic = make_topic()
    pipeline = make_aggregate(
        topic,
        group_by=("delay", Window("at", "1 hour", name="hour")),
        aggregates={"flights": Count(), "total": Sum("delay")},
    )
    topic.produce(event("AA", "05:00", 1), event("AA", "05:10", 1), event("AA", "05:20", None))
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    world.execute(f"create table {table} (delay {wider}, hour timestamptz, flights numeric, total numeric)")
    with transaction(world.connection) as cursor:
        groups = (Column("delay", wider), Column("hour", "timestamp with time zone"))
        create_group_key(cursor, find_writer(pipeline.traits).tables[-1], groups)
    world.run(pipeline)
    assert world.is_exact(pipeline)
    world.execute("create function noted() returns trigger language plpgsql as 'begin return null; end'")
    world.execute(
        f"create trigger noted after insert or update on {table} for each row execute function noted()"
    )
    topic.produce(event("AA", "05:30", 1), event("AA", "05:40", 2))
    world.run(pipeline)
    assert world.rows(f"select delay, flights, total from {table} order by 1") == [
        (1, 3, 3),
        (2, 1, 2),
        (None, 1, None),
    ]
    assert world.is_exact(pipeline)


def test_a_window_before_1970_begins_with_its_first_moment(world, make_topic, make_aggregate):
    topic = make_topic()
    topic.produce(event("AA", "1969-12-31 23:00:00Z", 1), event("AA", "0001-01-01 00:00:00Z", 2))
    pipeline = make_aggregate(topic)
    world.run(pipeline)
    assert set(state(world, pipeline)) == {
        ("AA", datetime(1969, 12, 31, 23, tzinfo=UTC)),
        ("AA", datetime(1, 1, 1, tzinfo=UTC)),
    }


def test_auditor_finds_wrong_number_in_target_and_partial_results(world, make_topic, make_aggregate):
    topic = make_topic()
    pipeline = make_aggregate(topic, allowed_lateness="1 hour")
    topic.produce(event("AA", "05:00", 10), event(None, "08:00", 20))
    world.run(pipeline)
    topic.produce(event("AA", "05:30", 30))
    world.run(pipeline)
    assert world.is_exact(pipeline)
    target, partial = (
        each.as_string(world.connection)
        for each in (
            find_writer(pipeline.traits).tables[-1].identifier,
            find_writer(pipeline.traits).lineage_table.identifier,
        )
    )
    kept = {table: f"kept_{number}" for number, table in enumerate((target, partial))}
    for table, name in kept.items():
        world.execute(f"create table {name} as table {table}")
    faults = [
        (f"update {target} set delay = delay + 1 where carrier is null", "stale"),
        (f"update {target} set worst = worst - 1 where carrier = 'AA'", "stale"),
        (f"update {target} set final = not final where carrier = 'AA'", "stale"),
        (f"delete from {target} where carrier is null", "stale"),
        (f"update {partial} set delay = 11 where delay = 10", "stale"),
        (f"update {partial} set best = 9 where best = 10", "stale"),
        (f"update {partial} set records = records + 1 where delay = 10", "unexpected"),
        (f"delete from {partial} where delay = 10", "missing"),
        (f"update {partial} set batch_id = batch_id + 1 where delay = 10", "missing"),
    ]
    for fault, kind in faults:
        world.execute(fault)
        found = audit(pipeline, world.settings)
        assert found.findings[kind] > 0, fault
        for table, name in kept.items():
            world.execute(f"truncate {table}")
            world.execute(f"insert into {table} table {name}")
        assert world.is_exact(pipeline)


@pytest.fixture
def added(monkeypatch):
    """Whether each batch whose results could be added to the target has done so."""
    outcomes: list[bool] = []
    add = AddedResults.add

    def spied(self: AddedResults, *given: Any) -> bool:
        outcomes.append(add(self, *given))
        return outcomes[-1]

    monkeypatch.setattr(AddedResults, "add", spied)
    return outcomes


def test_results_that_are_added_are_those_of_merging_all_to_the_last_byte(
    world, make_topic, make_aggregate, added
):
    """Equal values that look different, no values at all, and a group that is null."""
    chance = random.Random(20261128)
    topic = make_topic()
    numbers = ("n", "i", "b")
    others = ("r", "d", "day", "at", "s")
    value = Json(
        "carrier text, n numeric, i int, b bigint, s smallint, r real, d double precision, day date, at timestamptz"
    )
    aggregates = {
        "all": Count(),
        "some": Count("n"),
        **{f"sum_{name}": Sum(name) for name in numbers},
        **{f"min_{name}": Min(name) for name in (*numbers, *others)},
        **{f"max_{name}": Max(name) for name in (*numbers, *others)},
    }
    pipeline = make_aggregate(topic, group_by=("carrier",), aggregates=aggregates, value=value)
    values = {
        "n": ["1", "1.0", "1.000", "-2.50", "-2.5", None],
        "i": [2**31 - 1, -(2**31), 7, None],
        "b": [2**63 - 1, -(2**63), 0, None],
        "s": [-5, 5, None],
        "r": [0.0, -0.0, 1.5, None],
        "d": [-0.0, 0.0, 1e300, None],
        "day": ["2026-11-27", "1970-01-01", None],
        "at": ["2026-11-27T00:00:00Z", "2026-11-27T01:00:00.000001+01:00", None],
    }
    for _ in range(8):
        topic.produce(
            *(
                json.dumps(
                    {"carrier": carrier, **{name: chance.choice(some) for name, some in values.items()}}
                ).encode()
                for carrier in ("AA", "UA", None, chance.choice("abcdefgh"))
                if chance.random() < 0.8
            )
        )
        world.run(pipeline)
        assert world.is_exact(pipeline)
    assert added == [True] * 8


def test_a_group_whose_row_was_deleted_is_merged_from_all_partial_results(
    world, make_topic, make_aggregate, added
):
    topic = make_topic()
    pipeline = make_aggregate(topic, allowed_lateness="1 hour")
    for delay in (10, 20):
        topic.produce(event("AA", "05:00", delay), event("UA", "05:00", delay), event("UA", "08:00", 0))
        world.run(pipeline)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    world.execute(f"delete from {table} where carrier = 'AA'")
    topic.produce(event("AA", "05:30", 30), event("UA", "05:30", 30))
    world.run(pipeline)
    assert added == [True, True, False]
    assert state(world, pipeline, "carrier, hour, flights, delay, revisions")["AA", hour(5)] == (3, 60, 1)
    assert state(world, pipeline, "carrier, hour, flights, delay, revisions")["UA", hour(5)] == (3, 60, 2)
    assert world.is_exact(pipeline)


def test_a_sum_that_depends_on_the_order_of_batches_is_never_added(world, make_topic, make_pipeline, added):
    """Here a replay commits before an advance that was planned earlier."""
    topic = make_topic()
    sink = Aggregate(f'public."{topic.name}"', group_by="id", aggregates={"x": Sum("x")})
    pipeline = make_pipeline(topic, value=Json("id int, x double precision"), sink=sink)
    for number in (1e16, -1e16):
        topic.produce(json.dumps({"id": 1, "x": number}).encode())
        world.run(pipeline)
    topic.produce(b'{"id": 1, "x": 1}')
    advance = world.plan(pipeline)
    assert replayed(world, pipeline, (0, 1)) > advance
    world.process(pipeline, advance)
    assert world.rows(f"select x from {sink.target}") == [(0.0,)]  # (-1e16 + 1) + 1e16
    assert world.is_exact(pipeline)
    assert added == []


@pytest.mark.parametrize(
    ("value", "group_by", "greatest"),
    [("id int, x text", "id", "x"), ("x numeric, y int", "x", "y"), ("x real, y int", "x", "y")],
)
def test_where_equal_values_may_look_different_all_results_are_merged(
    world, make_topic, make_pipeline, added, value, group_by, greatest
):
    topic = make_topic()
    topic.produce(b'{"id": 1, "x": %s, "y": 2}' % (b'"1.0"' if "text" in value else b"1.0"))
    sink = Aggregate(f'public."{topic.name}"', group_by=(group_by,), aggregates={"most": Max(greatest)})
    pipeline = make_pipeline(topic, value=Json(value), sink=sink)
    world.run(pipeline)
    assert world.is_exact(pipeline)
    assert added == []


def test_another_meaning_of_the_partial_results_is_refused(world, make_topic, make_aggregate):
    topic = make_topic()
    topic.produce(event("AA", "05:00", 1))
    pipeline = make_aggregate(topic)
    batch_id = world.plan(pipeline)
    sink = pipeline.sink
    assert isinstance(sink, Aggregate)
    changed = [
        replace(sink, group_by=("carrier", Window("at", "2 hours", "hour"))),
        replace(sink, group_by=(Window("at", "1 hour", "hour"),)),
        replace(sink, aggregates={**MEASURES, "delay": Max("delay")}),
        replace(sink, aggregates={"flights": Count()}),
    ]
    for each in changed:
        with pytest.raises(IdentityChanged, match="hour = at by 1:00:00"):
            world.process(replace(pipeline, sink=each), batch_id)
    # The same length, and a new wait, mean the same.
    world.process(
        replace(pipeline, sink=replace(sink, group_by=("carrier", Window("at", "60 minutes", "hour")))),
        batch_id,
    )


def test_measure_is_added_by_accepting_identity_and_replaying_all(world, make_topic, make_aggregate):
    topic = make_topic()
    topic.produce(event("AA", "05:00", 1), event("AA", "05:00", 7))
    pipeline = make_aggregate(topic, aggregates={"flights": Count()})
    world.run(pipeline)
    wider = replace(
        pipeline, sink=replace(pipeline.sink, aggregates={"flights": Count(), "worst": Max("delay")})
    )
    with transaction(world.connection):
        Ledger(world.connection).registry.register(wider, accept_identity=True)
    asked = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 0, 2),))
    batch_id = freeze_replay(world.connection, world.log, wider, asked, origin="cli").batch_id
    assert batch_id is not None
    for table in (
        find_writer(wider.traits).lineage_table.identifier,
        find_writer(wider.traits).tables[-1].identifier,
    ):
        with pytest.raises(
            TargetMismatch, match="expected a column worst of type integer, found none. Add it"
        ):
            world.process(wider, batch_id)
        world.execute(f"alter table {table.as_string(world.connection)} add column worst integer")
    world.process(wider, batch_id)
    assert state(world, wider) == {("AA", hour(5)): (2, 7)}
    assert world.is_exact(wider)


@pytest.mark.parametrize("point", ["publish.after_retract", "publish.after_insert", "publish.before_commit"])
def test_publish_that_fails_leaves_nothing_and_retry_is_exact(
    world, make_topic, make_aggregate, monkeypatch, point
):
    topic = make_topic()
    right = make_aggregate(topic, allowed_lateness="1 hour")
    wrong = replace(right, value=with_wrong_delays(VALUE.schema))
    topic.produce(event("AA", "05:00", 10), event("UA", "09:00", 20))
    world.run(wrong)
    topic.produce(event("AA", "05:30", 30))

    def everything() -> list[Any]:
        schema, name = "public", topic.name
        return [
            world.rows(f'select * from {schema}."{name}{part}" order by 1, 2, 3')
            for part in ("", "_partial", "_watermark")
        ]

    asked = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 0, 2),))

    def advance() -> int | None:
        return world.plan(right)

    def again() -> int | None:
        return freeze_replay(world.connection, world.log, right, asked, origin="cli").batch_id

    for plan in (advance, again):
        before, batch_id = everything(), plan()
        assert batch_id is not None
        monkeypatch.setitem(failpoints.actions, point, "error")
        if not (point == "publish.after_retract" and plan is advance):
            with pytest.raises(RuntimeError, match=point):
                world.process(right, batch_id)
            assert everything() == before
        monkeypatch.delitem(failpoints.actions, point)
        assert world.process(right, batch_id).wrote
        assert not world.process(right, batch_id).wrote
        assert world.is_exact(right)
    assert state(world, right, "carrier, hour, delay") == {("AA", hour(5)): (40,), ("UA", hour(9)): (20,)}


def test_windows_of_the_time_that_kafka_has_of_a_record(world, make_topic, make_aggregate):
    topic = make_topic(retention_ms="-1")
    topic.produce(event("AA", None, 1), event("AA", None, 2), timestamp=int(hour(5).timestamp() * 1000) + 1)
    topic.produce(event("AA", None, 3), timestamp=int(hour(6).timestamp() * 1000))
    pipeline = make_aggregate(
        topic,
        group_by=("carrier", Window("kafka_timestamp", timedelta(hours=1))),
        aggregates={"delay": Sum("delay")},
    )
    world.run(pipeline)
    assert state(world, pipeline, "carrier, kafka_timestamp_window, delay") == {
        ("AA", hour(5)): (3,),
        ("AA", hour(6)): (3,),
    }


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (lambda: Aggregate("t", (), MEASURES), "expected group_by of t as columns"),
        (
            lambda: Aggregate("t", (Window("at", "1 day"), Window("at", "1 hour")), MEASURES),
            "at most one Window",
        ),
        (lambda: Aggregate("t", HOURLY, {}), "expected aggregates of t as {"),
        (lambda: Aggregate("t", HOURLY, {"n": "count(*)"}), "found {'n': 'count(*)'}"),  # type: ignore[dict-item]
        (
            lambda: Aggregate("t", HOURLY, {"carrier": Count()}),
            "the columns 'carrier' occur twice or have reserved names. Give the aggregate or the window",
        ),
        (
            lambda: Aggregate("t", HOURLY, {"records": Count()}),
            "the columns 'records' occur twice or have reserved names. Give the aggregate or the window",
        ),
        (
            lambda: Aggregate("t", HOURLY, MEASURES, on_late="never"),  # type: ignore[arg-type]
            "'update' or 'reject', found 'never'",
        ),
        (
            lambda: Aggregate("t", HOURLY, MEASURES, on_late="reject"),
            "target t: on_late='reject' needs allowed_lateness",
        ),
        (
            lambda: Aggregate("t", ("carrier",), MEASURES, "1 hour"),
            "target t: allowed_lateness needs a Window in group_by",
        ),
        (
            lambda: Aggregate("t", HOURLY, MEASURES, "1 month"),
            "allowed_lateness of t: expected a length of time such as",
        ),
        (lambda: Aggregate("t", (Window("at", "0 hours"),), MEASURES), "a width greater than zero"),
        (lambda: Aggregate("t", (Window("at", "999999999 weeks"),), MEASURES), "at most 365000 days"),
        (
            lambda: Aggregate("t", (Window("delay", "1 hour"),), MEASURES),
            "of type timestamptz, found integer",
        ),
        (lambda: Aggregate("t", ("nix",), MEASURES), "by the pipeline's columns, carrier, at, delay"),
        (lambda: Aggregate("t", HOURLY, {"n": Sum("carrier")}), "sum(carrier): expected a column of numbers"),
        (
            lambda: Aggregate("t", HOURLY, {"n": Max("nix")}),
            "max(nix): expected one of the pipeline's columns",
        ),
        (lambda: Aggregate("t" * 60, HOURLY, MEASURES), "the name is too long"),
    ],
)
def test_an_aggregate_that_cannot_be_one_is_told(sink, said):
    with pytest.raises(ConfigurationError) as caught:
        Pipeline(name="p", topics=("t",), value=VALUE, sink=sink())
    assert said in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("late", ["update", "reject"])
def test_any_history_of_rows_and_replays_ends_as_plain_program_has_it(
    world, make_topic, make_aggregate, late
):
    """Two partitions, times out of order, null keys, bad records, batches of any size, replays in between."""
    chance = random.Random(late)
    topic = make_topic(2)
    pipeline = make_aggregate(topic, allowed_lateness="2 hours", on_late=late, max_rejects=1000)
    wrong = replace(pipeline, value=with_wrong_delays(VALUE.schema))
    model = Model(late)
    counts = [0, 0]
    for step in range(12):
        batch = []
        for _ in range(chance.randint(1, 50)):
            partition = chance.randint(0, 1)
            carrier = chance.choice(["AA", "UA", None])
            minute = max(0, 60 * step + chance.randint(-400, 60))
            delay = chance.choice([None, chance.randint(-50, 50)])
            at = hour(0) + timedelta(minutes=minute)
            if chance.random() < 0.1:
                topic.produce(b"bad", partition=partition)
            else:
                topic.produce(event(carrier, at.isoformat(), delay), partition=partition)
                batch.append((partition, carrier, at, delay))
            counts[partition] += 1
        world.run(pipeline)
        model.add(batch)
        if step % 2:
            partition = chance.choice([each for each in (0, 1) if counts[each]])
            cut = sorted(chance.sample(range(counts[partition] + 1), 2))
            if late == "update" and step % 4 == 1:
                replayed(world, wrong, (cut[0], cut[1]), partition=partition)
                assert world.is_exact(wrong)
            replayed(world, pipeline, (cut[0], cut[1]), partition=partition)
        found = state(world, pipeline, "carrier, hour, flights, delayed, delay, best, worst, final")
        assert found == model.target()
        assert world.is_exact(pipeline)


class Model:
    """What an Aggregate means, in plain Python."""

    def __init__(self, late: str) -> None:
        self._late = late
        self._rows: list[tuple[int, str | None, datetime, int | None]] = []

    def add(self, batch: list[tuple[int, str | None, datetime, int | None]]) -> None:
        """A batch; whether a row is late depends on the batches before it."""
        known = list(self._rows)
        for row in batch:
            if self._late == "update" or not self._is_final(_hour_of(row[2]), known):
                self._rows.append(row)

    def target(self) -> dict[Any, tuple[Any, ...]]:
        """By carrier and hour."""
        groups: dict[tuple[str | None, datetime], list[int | None]] = {}
        for _, carrier, at, delay in self._rows:
            groups.setdefault((carrier, _hour_of(at)), []).append(delay)
        return {
            key: (*_measured(delays), self._is_final(key[1], self._rows)) for key, delays in groups.items()
        }

    def _is_final(self, start: datetime, rows: list[Any]) -> bool:
        greatest: dict[int, datetime] = {}
        for partition, _, at, _ in rows:
            greatest[partition] = max(at, greatest.get(partition, at))
        return bool(greatest) and start + timedelta(hours=3) <= min(greatest.values())


def _hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0)


def _measured(delays: list[int | None]) -> tuple[Any, ...]:
    known = [each for each in delays if each is not None]
    if not known:
        return len(delays), 0, None, None, None
    return len(delays), len(known), sum(known), min(known), max(known)


def test_topic_taken_out_holds_no_window_open_and_one_that_returns_does_again(
    world, make_topic, make_aggregate
):
    fast, silent = make_topic(), make_topic()
    alone = make_aggregate(fast, allowed_lateness="0 seconds")
    both = replace(alone, topics=(fast.name, silent.name))
    silent.produce(event("AA", "05:00", 1))
    fast.produce(event("AA", "05:10", 1), event("AA", "09:00", 1))
    world.run(both)
    assert finals(world, both) == {5: (2, False, 0), 9: (1, False, 0)}
    fast.produce(event("AA", "12:00", 1))
    # A program that has failed since it was changed leaves what is exact by itself.
    batch_id = world.plan(alone)
    with transaction(world.connection) as cursor:
        find_writer(alone.traits).forget_topics(
            cursor, Ledger(world.connection).registry.find_removed_topics(alone)
        )
    assert finals(world, alone) == {5: (2, True, 0), 9: (1, False, 0)}
    assert world.is_exact(alone)
    world.process(alone, batch_id)
    assert finals(world, alone) == {5: (2, True, 0), 9: (1, True, 0), 12: (1, False, 0)}
    assert world.is_exact(alone)
    # Back again, it counts from its next event on.
    fast.produce(event("AA", "15:00", 1))
    world.run(both)
    assert finals(world, both)[12] == (1, True, 0)
    silent.produce(event("AA", "09:30", 1))
    world.run(both)
    assert finals(world, both) == {5: (2, True, 0), 9: (2, False, 1), 12: (1, False, 0), 15: (1, False, 0)}
    assert world.is_exact(both)


def test_topic_that_another_pipeline_of_same_target_has_is_not_forgotten(world, make_topic, make_aggregate):
    one, other = make_topic(), make_topic()
    first = make_aggregate(one, allowed_lateness="0 seconds")
    second = make_aggregate(other, sink=first.sink)
    both = replace(first, topics=(one.name, other.name))
    with transaction(world.connection):
        Ledger(world.connection).registry.register(both, share_topics=True)
    one.produce(event("AA", "09:00", 1))
    other.produce(event("AA", "05:00", 1))
    world.run(both)
    world.run(second)
    with transaction(world.connection) as cursor:
        find_writer(first.traits).forget_topics(
            cursor, Ledger(world.connection).registry.find_removed_topics(first)
        )
        cursor.execute(
            sql.SQL("select distinct topic from {} order by 1").format(
                find_writer(first.traits).watermark.identifier
            )
        )
        assert {row[0] for row in cursor.fetchall()} == {one.name, other.name}
