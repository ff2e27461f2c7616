"""Replays from end to end: the rows of a range are taken back and written again, and the rest stays."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from exactbatch import Append, Json, Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.errors import Fenced, OffsetsLost, ReplayRefused
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import DagRun
from exactbatch.model import LogPartition
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.run import plan_run
from exactbatch.sinks.writers import find_writer
from support.replays import ranges
from support.topics import Topic, record

HOUR = timedelta(hours=1)
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def window(start: datetime, end: datetime, **more: Any) -> ReplayRequest:
    return ReplayRequest(window=(start, end), **more)


def at(hours: float) -> int:
    """A message timestamp, in ms."""
    return int((T0 + hours * HOUR).timestamp() * 1000)


@pytest.fixture
def topic(make_topic):
    """Two partitions: 100 records in the first and 20 in the second."""
    topic = make_topic(2, retention_ms="-1")
    topic.produce(*[record(n, f"a{n}") for n in range(100)])
    topic.produce(*[record(n, f"b{n}") for n in range(20)], partition=1)
    return topic


def with_another_column(pipeline: Pipeline) -> Pipeline:
    """The same pipeline after its program has changed: it writes one column more, null in these records."""
    return replace(pipeline, value=Json("id int, name text, other text"))


def test_only_range_changes_and_coverage_shows_both_batches(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    first = world.run(pipeline).batch
    world.execute(f"alter table public.\"{topic.name}\" add column other text default 'new'")
    stored = replays.stored(pipeline)
    rest = "not (kafka_partition = 0 and kafka_offset >= 30 and kafka_offset < 50)"
    before = replays.checksum(pipeline, rest)
    published = replays.run(with_another_column(pipeline), ranges((30, 50), topic=topic))
    second = published.batch
    assert (second.kind, second.origin, second.records, second.rows) == ("replay", "cli", 20, 20)
    assert replays.checksum(pipeline, rest) == before
    # The changed program wrote null where the old rows have the default.
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    changed = world.rows(f"select kafka_offset, batch_id from {table} where other is null order by 1")
    assert changed == [(offset, second.batch_id) for offset in range(30, 50)]
    assert replays.coverage(pipeline) == [
        (0, 0, 30, first.batch_id),
        (0, 30, 50, second.batch_id),
        (0, 50, 100, first.batch_id),
        (1, 0, 20, first.batch_id),
    ]
    assert replays.stored(pipeline) == stored
    assert world.is_exact(pipeline)
    assert world.staging() == []


def test_what_was_recorded_as_lost_and_came_back_counts_once_replay_takes_it(
    world, replays, make_topic, make_pipeline, monkeypatch
):
    """As after a broker was killed that had not removed the offsets for good."""
    topic = make_topic()
    topic.produce(record(0))
    pipeline = make_pipeline(topic, on_loss="skip")
    first = world.run(pipeline).batch
    topic.produce(*map(record, range(1, 10)))
    ask = KafkaBroker.partitions
    monkeypatch.setattr(
        KafkaBroker,
        "partitions",
        lambda log, topics, *_: [replace(each, earliest=5) for each in ask(log, topics)],
    )
    second = world.run(pipeline).batch
    monkeypatch.undo()
    assert replays.coverage(pipeline)[1:] == [(0, 1, 5, None), (0, 5, 10, second.batch_id)]
    third = replays.run(pipeline, ranges((3, 7), topic=topic)).batch
    assert third.records == 4
    assert replays.coverage(pipeline) == [
        (0, 0, 1, first.batch_id),
        (0, 1, 3, None),
        (0, 3, 7, third.batch_id),
        (0, 7, 10, second.batch_id),
    ]
    assert [row[0] for row in world.target(pipeline, "kafka_offset")] == [0, *range(3, 10)]
    found = audit(pipeline, world.settings)
    assert found.is_exact
    assert found.partitions[0].lost == 2


class SlowLog(KafkaBroker):
    """A broker that takes its time to answer: something happens meanwhile."""

    def __init__(self, properties: Any, meanwhile: Callable[[], Any]) -> None:
        super().__init__(properties)
        self._meanwhile = meanwhile

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        self._meanwhile()
        return super().partitions(topics)


def test_a_replay_names_its_batches_before_it_asks_the_broker(world, replays, topic, make_pipeline):
    """One that commits meanwhile reaches beyond where the pipeline stood, and is one that was planned."""
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    topic.produce(record(100))
    batch_id = world.plan(pipeline)
    world.log = SlowLog(world.settings.kafka, lambda: world.process(pipeline, batch_id))
    message = replays.refused(ReplayRefused, pipeline, ReplayRequest(batch_ids=(batch_id,)))
    assert f"batch {batch_id}: expected a committed batch" in message
    assert "found a planned one" in message


def test_a_replay_of_a_committed_replay_writes_nothing_twice(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    batch_id = replays.plan(pipeline, ranges((0, 10), topic=topic))
    assert batch_id is not None
    assert world.process(pipeline, batch_id).wrote
    before = replays.checksum(pipeline, "true")
    assert not world.process(pipeline, batch_id).wrote
    assert replays.checksum(pipeline, "true") == before


def test_rejects_are_taken_back_and_written_anew(world, replays, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(record(0), b'{"id": "one", "name": "x"}', record(2), b"no json", record(4))
    pipeline = make_pipeline(topic, max_rejects=5)
    first = world.run(pipeline).batch
    assert (first.rows, first.rejected) == (3, 2)
    lenient = replace(pipeline, value=Json("name text"))
    world.execute(f'alter table public."{topic.name}" alter column id drop not null')
    second = replays.run(lenient, ranges((0, 4), topic=topic)).batch
    assert (second.rows, second.rejected) == (3, 1)
    assert world.rows('select "offset", batch_id from exactbatch.rejected_record') == [(3, second.batch_id)]
    assert world.is_exact(lenient)


def test_ranges_of_several_partitions_and_batches_at_once(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    topic.produce(*[record(n) for n in range(100, 150)])
    world.run(pipeline)
    request = ReplayRequest(
        ranges=(
            RequestedRange(topic.name, 0, 90, 110),
            RequestedRange(topic.name, 0, 0, 5),
            RequestedRange(topic.name, 1, 3, 20),
            RequestedRange(topic.name, 0, 5, 10),
        )
    )
    batch_id = replays.plan(pipeline, request)
    # Ranges that touch are one.
    assert replays.planned(batch_id) == [(0, 0, 10), (0, 90, 110), (1, 3, 20)]
    assert batch_id is not None
    assert world.process(pipeline, batch_id).batch.rows == 47
    assert world.is_exact(pipeline)


def test_rows_of_another_pipeline_in_the_same_target_stay(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    other = make_pipeline(topic, name=f"{topic.name}.other")
    world.run(pipeline)
    theirs = world.run(other).batch
    before = replays.checksum(pipeline, f"batch_id = {theirs.batch_id}")
    replays.run(pipeline, ranges((0, 100), topic=topic))
    assert replays.checksum(pipeline, f"batch_id = {theirs.batch_id}") == before
    assert world.is_exact(pipeline)
    assert world.is_exact(other)


def test_an_older_replay_cannot_overwrite_a_newer_ones_result(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    older = replays.plan(pipeline, ranges((0, 50), topic=topic))
    newer = replays.plan(pipeline, ranges((40, 60), topic=topic))
    assert older is not None
    assert newer is not None
    world.process(pipeline, newer)
    before = replays.checksum(pipeline, "true"), replays.coverage(pipeline)
    with pytest.raises(Fenced) as caught:
        world.process(pipeline, older)
    assert (replays.checksum(pipeline, "true"), replays.coverage(pipeline)) == before
    assert f"batch {older}" in str(caught.value)
    assert f"[0] 40..50 are those of batch {newer}, which was planned after this replay" in str(caught.value)


def test_newer_replay_takes_back_older_one_that_committed_meanwhile(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    first = world.run(pipeline).batch.batch_id
    older = replays.plan(pipeline, ranges((0, 50), topic=topic))
    newer = replays.plan(pipeline, ranges((40, 60), topic=topic))
    assert older is not None
    assert newer is not None
    world.process(pipeline, older)
    world.process(pipeline, newer)
    assert replays.coverage(pipeline) == [
        (0, 0, 40, older),
        (0, 40, 60, newer),
        (0, 60, 100, first),
        (1, 0, 20, first),
    ]
    assert world.is_exact(pipeline)


def test_what_cannot_be_replayed_is_told_before_anything_runs(replays, world, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    assert "it has processed nothing that could be replayed" in replays.refused(
        ReplayRefused, pipeline, ranges((0, 5), topic=topic)
    )
    world.run(pipeline)
    told = {
        "beyond": ranges((90, 101), topic=topic),
        "reversed": ranges((10, 5), topic=topic),
        "empty": ranges((5, 5), topic=topic),
        "overlap": ranges((0, 10), (9, 20), topic=topic),
        "partition": ranges((0, 5), partition=7, topic=topic),
    }
    message = {name: replays.refused(ReplayRefused, pipeline, each) for name, each in told.items()}
    assert f"{topic.name}[0] 90..101: the range ends above the stored offset 100" in message["beyond"]
    assert f"{topic.name}[0] 10..5: a range needs 0 <= from_offset < until_offset" in message["reversed"]
    assert f"{topic.name}[0] 5..5: a range needs" in message["empty"]
    assert f"{topic.name}[0] 0..10 and {topic.name}[0] 9..20 overlap. Join them" in message["overlap"]
    assert f"for this partition of topic '{topic.name}', only for 0, 1. Correct" in message["partition"]
    unknown = ReplayRequest(ranges=(RequestedRange("other", 0, 0, 5),))
    said = replays.refused(ReplayRefused, pipeline, unknown)
    assert (
        f"the topics with stored offsets are: '{topic.name}'. Correct the range: a replay covers topics"
        in said
    )


def test_batches_are_replayed_by_their_ids(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)
    first = world.run(pipeline).batch.batch_id
    again = replays.run(pipeline, ranges((10, 20), topic=topic)).batch.batch_id
    # The ranges of both overlap: each offset is processed once.
    third = replays.plan(pipeline, ReplayRequest(batch_ids=(again, first)))
    assert replays.planned(third) == [(0, 0, 100), (1, 0, 20)]
    assert f"batch {third}: expected a committed batch" in replays.refused(
        ReplayRefused, pipeline, ReplayRequest(batch_ids=(third or 0,))
    )
    assert third is not None
    world.process(pipeline, third)
    assert {each[-1] for each in replays.coverage(pipeline)} == {third}
    assert world.is_exact(pipeline)


def delete_below(admin: AdminClient, topic: Topic, offset: int, partition: int = 0) -> None:
    (done,) = admin.delete_records([TopicPartition(topic.name, partition, offset)]).values()
    done.result(30)


def test_what_retention_removed_is_refused_or_left_out_as_asked(world, replays, topic, make_pipeline, admin):
    pipeline = make_pipeline(topic)
    first = world.run(pipeline).batch.batch_id
    delete_below(admin, topic, 30)
    message = replays.refused(OffsetsLost, pipeline, ranges((20, 50), topic=topic))
    assert f"{topic.name}[0] 20..50: retention removed 10 of these 30 offsets (log starts at 30)" in message
    assert (
        f"To replay the rest, {topic.name}[0] 30..50, and keep the results of the removed offsets" in message
    )
    assert "None of them can be replayed" in replays.refused(
        OffsetsLost, pipeline, ranges((0, 30), topic=topic)
    )
    second = replays.run(pipeline, replace(ranges((20, 50), topic=topic), available_only=True)).batch.batch_id
    assert replays.coverage(pipeline)[:3] == [(0, 0, 30, first), (0, 30, 50, second), (0, 50, 100, first)]
    assert replays.plan(pipeline, replace(ranges((0, 30), topic=topic), available_only=True)) is None
    assert world.is_exact(pipeline)


def test_window_is_offset_range_and_neighbours_tile_although_records_come_late(
    world, replays, make_topic, make_pipeline
):
    topic = make_topic(retention_ms="-1")
    for hours in (0, 0.5, 1, 1.5, 2, 2.5):
        topic.produce(record(int(hours * 10)), timestamp=at(hours))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    second = replays.plan(pipeline, window(T0 + HOUR, T0 + 2 * HOUR))
    assert replays.planned(second) == [(0, 2, 4)]
    # This one is late, for the second hour: it belongs to where it stands in the log.
    topic.produce(record(99), timestamp=at(1.2))
    world.run(pipeline)
    third = replays.plan(pipeline, window(T0 + 2 * HOUR, T0 + 3 * HOUR))
    fourth = replays.plan(pipeline, window(T0 + 3 * HOUR, T0 + 4 * HOUR))
    first = replays.plan(pipeline, window(T0, T0 + HOUR))
    assert replays.planned(first) == [(0, 0, 2)]
    assert replays.planned(third) == [(0, 4, 7)]
    assert fourth is None
    # A time for which there was no record yet is not kept: records that come with times of the last hour are its.
    topic.produce(record(100), record(101), timestamp=at(2.7))
    world.run(pipeline)
    assert replays.planned(replays.plan(pipeline, window(T0 + 2 * HOUR, T0 + 3 * HOUR))) == [(0, 4, 9)]
    assert replays.plan(pipeline, window(T0 + 3 * HOUR, T0 + 4 * HOUR)) is None
    topic.produce(record(102), timestamp=at(3.1))
    topic.produce(record(103), timestamp=at(2.9))
    world.run(pipeline)
    assert replays.planned(replays.plan(pipeline, window(T0 + 2 * HOUR, T0 + 3 * HOUR))) == [(0, 4, 9)]
    assert replays.planned(replays.plan(pipeline, window(T0 + 3 * HOUR, T0 + 4 * HOUR))) == [(0, 9, 11)]
    kept = world.rows('select boundary, "offset" from exactbatch.time_boundary order by 1')
    assert kept == [(T0 + n * HOUR, offset) for n, offset in enumerate([0, 2, 4, 9])]


def test_window_not_over_ends_at_stored_head_and_is_not_kept(world, replays, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(record(0), record(1))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    topic.produce(record(2))
    now = datetime.now(UTC)
    request = window(now - HOUR, now + HOUR)
    assert replays.planned(replays.plan(pipeline, request)) == [(0, 0, 2)]
    world.run(pipeline)
    assert replays.planned(replays.plan(pipeline, request)) == [(0, 0, 3)]
    assert len(world.rows("select from exactbatch.time_boundary")) == 1
    assert replays.plan(pipeline, window(now + HOUR, now + 2 * HOUR)) is None


def test_a_time_resolved_after_a_later_one_stays_below_it(world, replays, make_topic, make_pipeline, admin):
    """Backwards, and with records that come or go in between: intervals never overlap."""
    topic = make_topic(retention_ms="-1")
    topic.produce(record(0), record(1), timestamp=at(0))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    topic.produce(record(2), record(3), timestamp=at(3.5))
    world.run(pipeline)
    assert replays.planned(replays.plan(pipeline, window(T0 + 3 * HOUR, T0 + 4 * HOUR))) == [(0, 2, 4)]
    topic.produce(record(4), timestamp=at(1))
    topic.produce(record(5), timestamp=at(2.5))
    world.run(pipeline)
    delete_below(admin, topic, 4)
    # The first record that is left for the time before is late: it is of the hour that is resolved.
    late = window(T0 + 2 * HOUR, T0 + 3 * HOUR, available_only=True)
    assert replays.plan(pipeline, late) is None
    assert [
        row[1] for row in world.rows('select boundary, "offset" from exactbatch.time_boundary order by 1')
    ] == [
        2,
        2,
    ]


def test_a_window_whose_beginning_was_removed_is_refused(world, replays, make_topic, make_pipeline, admin):
    topic = make_topic(retention_ms="-1")
    for hours in (0, 0.2, 0.4, 1.5):
        topic.produce(record(1), timestamp=at(hours))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    delete_below(admin, topic, 2)
    message = replays.refused(OffsetsLost, pipeline, window(T0, T0 + HOUR))
    assert "the log starts at offset 2, after the start of the window" in message
    assert world.rows("select from exactbatch.time_boundary") == []
    batch_id = replays.plan(pipeline, window(T0, T0 + HOUR, available_only=True))
    assert replays.planned(batch_id) == [(0, 2, 3)]
    # What was taken for its beginning then is not kept: the same window is refused as before, not found empty.
    for hours in (-2, -1, 0):
        early = T0 + hours * HOUR, T0 + (hours + 1) * HOUR
        replays.plan(pipeline, window(*early, available_only=True))
        assert replays.refused(OffsetsLost, pipeline, window(*early)).count("the log starts at offset 2") == 1
    assert world.rows('select boundary, "offset" from exactbatch.time_boundary') == [(T0 + HOUR, 3)]
    delete_below(admin, topic, 4)
    message = replays.refused(OffsetsLost, pipeline, window(T0 + 2 * HOUR, T0 + 3 * HOUR))
    assert "the log starts at offset 4" in message  # nothing is left that could tell


def test_history_before_the_first_batch_can_be_filled_in(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic, start="latest")
    assert freeze_advance(world.connection, world.log, pipeline, origin="cli") is None
    topic.produce(record(100))
    world.run(pipeline)
    replays.run(pipeline, ranges((20, 40), topic=topic))
    # What lies below where the pipeline began and was never asked for is no gap.
    report = audit(pipeline, world.settings)
    assert report.is_exact, report
    assert (report.partitions[0].rows, report.partitions[0].records) == (21, 21)
    world.execute(f'delete from public."{topic.name}" where kafka_offset = 30')
    assert audit(pipeline, world.settings).partitions[0].missing.first == [30]


def test_rows_without_offsets_are_replaced_by_whole_batches(world, replays, topic, make_pipeline):
    sink = Append(f'public."{topic.name}"', lineage="batch")
    pipeline = make_pipeline(topic, sink=sink)
    first = world.run(pipeline).batch
    topic.produce(*[record(n) for n in range(100, 110)])
    second = world.run(pipeline).batch
    columns = world.rows(
        "select string_agg(column_name, ',' order by ordinal_position) from information_schema.columns "
        "where table_name = %s",
        topic.name,
    )
    assert columns == [("id,name,batch_id",)]
    assert world.is_exact(pipeline)
    preview = preview_replay(world.connection, world.log, pipeline, ranges((10, 20), topic=topic))
    assert preview.rows == 120
    assert [(each.batch_id, str(each.range)) for each in preview.plan.widened] == [
        (first.batch_id, f"{topic.name}[0] 0..10"),
        (first.batch_id, f"{topic.name}[0] 20..100"),
        (first.batch_id, f"{topic.name}[1] 0..20"),
    ]
    third = replays.run(pipeline, ranges((10, 20), topic=topic)).batch
    assert replays.coverage(pipeline) == [
        (0, 0, 100, third.batch_id),
        (0, 100, 110, second.batch_id),
        (1, 0, 20, third.batch_id),
    ]
    counted = world.rows(f'select batch_id, count(*) from public."{topic.name}" group by 1 order by 1')
    assert counted == [(second.batch_id, 10), (third.batch_id, 120)]
    assert world.is_exact(pipeline)
    world.execute(f'delete from public."{topic.name}" where id = 105')
    found, _ = audit(pipeline, world.settings).partitions
    assert (found.missing.count, found.missing.first) == (1, [100])


def test_a_widening_that_no_longer_holds_is_fenced(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic, sink=Append(f'public."{topic.name}"', lineage="batch"))
    world.run(pipeline)
    topic.produce(*[record(n) for n in range(100, 110)])
    world.run(pipeline)
    both = replays.plan(pipeline, ranges((90, 110), topic=topic))
    one = replays.plan(pipeline, ranges((0, 5), topic=topic))  # widened to the first batch alone
    assert both is not None
    assert one is not None
    world.process(pipeline, both)  # and now one batch has the rows of both
    before = replays.checksum(pipeline, "true")
    with pytest.raises(Fenced, match=f"but batch {both} has results beyond this replay's ranges"):
        world.process(pipeline, one)
    assert replays.checksum(pipeline, "true") == before
    assert world.is_exact(pipeline)


def test_whole_batch_that_lost_part_to_retention_is_never_replayed(
    world, replays, topic, make_pipeline, admin
):
    pipeline = make_pipeline(topic, sink=Append(f'public."{topic.name}"', lineage="batch"))
    first = world.run(pipeline).batch.batch_id
    delete_below(admin, topic, 5, partition=1)
    for available_only in (False, True):
        request = replace(ranges((50, 60), topic=topic), available_only=available_only)
        message = replays.refused(OffsetsLost, pipeline, request)
        assert (
            f"{topic.name}[1] 0..5: retention removed these offsets of batch {first} (log starts at"
            in message
        )
        assert "The replay is refused" in message


def test_what_a_dag_run_gets(world, replays, topic, make_pipeline):
    pipeline = make_pipeline(topic)

    def planned(run: DagRun, request: ReplayRequest | None = None, origin: Any = "schedule") -> Any:
        return plan_run(world.connection, world.log, pipeline, run, request, origin=origin).batch

    began = datetime(2026, 1, 1, tzinfo=UTC)
    run = DagRun("dag", "scheduled__1", 0, began)
    first = planned(run)
    assert (first.kind, first.generation) == ("advance", 0)
    assert planned(run) == first  # an automatic retry keeps its plan
    cleared = replace(run, clear_number=1, started_at=began + HOUR)
    anew = planned(cleared)  # its batch never committed: it plans again
    assert (anew.kind, anew.generation) == ("advance", 1)
    with pytest.raises(Fenced):
        world.process(pipeline, first.batch_id)
    world.process(pipeline, anew.batch_id)
    assert planned(cleared).batch_id == anew.batch_id  # committed, and a retry all the same
    topic.produce(record(1))  # not for the cleared run
    again = planned(replace(run, clear_number=2, started_at=began + 2 * HOUR))
    assert (again.kind, again.origin, again.generation) == ("replay", "clear", 2)
    assert replays.planned(again.batch_id) == replays.planned(anew.batch_id)
    # Cleared in mid-run: only the number tells. Its first replay must not commit any more.
    once_more = planned(replace(run, clear_number=3, started_at=began + 2 * HOUR))
    assert once_more.kind == "replay"
    with pytest.raises(Fenced, match=f"superseded by batch {once_more.batch_id}"):
        world.process(pipeline, again.batch_id)
    # Deleted and created again under the same id: a new run, which moves forward.
    other_life = planned(DagRun("dag", "scheduled__1", 0, began + 5 * HOUR))
    assert (other_life.kind, replays.planned(other_life.batch_id)) == ("advance", [(0, 100, 101)])
    cleared_again = planned(DagRun("dag", "scheduled__1", 1, began + 6 * HOUR))
    assert cleared_again.kind == "advance"  # nothing of this life has committed
    world.process(pipeline, cleared_again.batch_id)
    assert planned(DagRun("dag", "scheduled__2", 0, began)) is None


def test_a_backfill_asks_for_its_interval_each_time(world, replays, make_topic, make_pipeline):
    topic = make_topic(retention_ms="-1")
    for hours in range(4):
        topic.produce(record(hours), timestamp=at(hours))
    pipeline = make_pipeline(topic)
    run = DagRun("dag", "scheduled__1", 0, T0)
    first = plan_run(world.connection, world.log, pipeline, run, None, origin="schedule").batch
    assert first is not None
    world.process(pipeline, first.batch_id)
    # A backfill that reprocesses takes over the scheduled run of this id.
    for clear_number in (1, 2):
        batch = plan_run(
            world.connection,
            world.log,
            pipeline,
            replace(run, clear_number=clear_number),
            window(T0 + HOUR, T0 + 2 * HOUR),
            origin="backfill",
        ).batch
        assert batch is not None
        assert (batch.kind, batch.origin) == ("replay", "backfill")
        assert replays.planned(batch.batch_id) == [(0, 1, 2)]
        world.process(pipeline, batch.batch_id)
    assert world.is_exact(pipeline)


def test_a_compacted_topic_with_rejects_is_not_replayed_from_the_beginning(
    world, replays, make_topic, make_upsert
):
    """Compaction may have removed the record whose row the reject left: the replay could not restore it."""
    topic = make_topic(1, cleanup_policy="compact")
    good = b'{"id": 1, "name": "a", "version": 1}'
    topic.produce(good, key=b'{"id": 1}')
    pipeline = make_upsert(topic, max_rejects=1)
    world.run(pipeline)
    whole = ranges((0, 2), topic=topic)
    assert replays.plan(pipeline, ranges((0, 1), topic=topic)) is not None
    topic.produce(b"bad", key=b'{"id": 1}')
    second = world.run(pipeline).batch.batch_id
    message = replays.refused(ReplayRefused, pipeline, whole)
    assert f"is compacted (cleanup.policy), and batch {second} rejected records of this range" in message
    assert replays.run(pipeline, replace(whole, available_only=True)).batch.rejected == 1
    assert world.is_exact(pipeline)
