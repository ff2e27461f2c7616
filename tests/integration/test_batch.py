"""A batch from end to end: real Kafka, Spark and Postgres in one process."""

import base64
import logging
import re
import secrets
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, stop_after_delay, wait_fixed

from exactbatch import Append, Json, Limits, Raw, Text
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.batch.staging import staging_tables
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows
from exactbatch.errors import (
    ConfigurationError,
    Fenced,
    OffsetsLost,
    PostgresUnavailable,
    StagedRowsDiffer,
    TargetMismatch,
    TasksFailed,
    TooManyRejects,
    TopicMissing,
    TopicRecreated,
)
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import LINEAGE, BatchRunner, MakePipeline, MakeTopic, recreate
from support.topics import record


def test_json_records_become_rows_with_their_lineage(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(2, retention_ms="-1")
    topic.produce(record(1, "a"), record(2, None), timestamp=1_700_000_000_123)
    topic.produce(record(3, "ü"), partition=1, timestamp=1_700_000_000_999)
    pipeline = make_pipeline(topic)
    published = world.run(pipeline)
    batch = published.batch
    assert published.wrote
    counts = (batch.records, batch.rows, batch.rejected, batch.tombstones)
    assert (batch.status, counts) == ("committed", (3, 3, 0, 0))
    columns = (
        "id, name, kafka_topic, kafka_partition, kafka_offset, "
        "extract(epoch from kafka_timestamp)::text, batch_id"
    )
    assert world.target(pipeline, columns) == [
        (1, "a", topic.name, 0, 0, "1700000000.123000", batch.batch_id),
        (2, None, topic.name, 0, 1, "1700000000.123000", batch.batch_id),
        (3, "ü", topic.name, 1, 0, "1700000000.999000", batch.batch_id),
    ]
    assert world.rows("select partition, next_offset from exactbatch.stored_offset order by 1") == [
        (0, 2),
        (1, 1),
    ]
    assert world.rows("select partition, records from exactbatch.batch_range order by 1") == [(0, 2), (1, 1)]
    assert world.staging() == []
    assert world.is_exact(pipeline)
    assert sorted(batch.stages or ()) == ["check", "plan", "prepare", "publish", "stage", "start"]
    assert batch.application_id == world.spark.sparkContext.applicationId


@pytest.mark.parametrize(
    ("value", "produced", "expected"),
    [
        (Text(), ["plain", None, "zażółć"], ["plain", None, "zażółć"]),
        (Raw("body"), [b"\x00\xff", None, b""], [b"\x00\xff", None, b""]),
    ],
    ids=["text", "raw"],
)
def test_text_and_raw_values_are_kept_as_they_are(
    world: BatchRunner,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    value: Any,
    produced: Any,
    expected: Any,
) -> None:
    topic = make_topic()
    topic.produce(*[each.encode() if isinstance(each, str) else each for each in produced])
    pipeline = make_pipeline(topic, value=value)
    assert world.run(pipeline).batch.rows == 3
    found = [row[0] for row in world.target(pipeline, value.column)]
    assert [bytes(each) if isinstance(each, memoryview) else each for each in found] == expected
    assert world.is_exact(pipeline)


def test_rejects_are_kept_with_all_that_the_record_had(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    headers = [("trace", b"\x00\x01"), ("empty", None)]
    topic.produce(b"no json \xff", key=b"\x00key", headers=headers)
    topic.produce(record(2))
    topic.produce(b'{"id": "two"}')
    pipeline = make_pipeline(topic, max_rejects=2)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (4, 2, 2)
    first, second = world.rows(
        'select topic, partition, "offset", key, value, headers, reason, batch_id '
        'from exactbatch.rejected_record order by "offset"'
    )
    assert first[:3] == (topic.name, 0, 1)
    assert (bytes(first[3]), bytes(first[4])) == (b"\x00key", b"no json \xff")
    encoded = [[name, None if value is None else base64.b64encode(value).decode()] for name, value in headers]
    assert first[5] == encoded
    assert first[7] == batch.batch_id
    assert (second[2], second[3], bytes(second[4]), second[5]) == (3, None, b'{"id": "two"}', [])
    assert first[6]
    assert second[6]
    assert world.is_exact(pipeline)


def test_one_reject_more_than_allowed_fails_batch_and_names_records(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(2)
    topic.produce(record(1), b"bad", record(2))
    topic.produce(record(3), record(4), b"worse", partition=1)
    pipeline = make_pipeline(topic, max_rejects=1)
    message = world.refused(TooManyRejects, pipeline)
    assert "2 or more of the 6 records read were rejected (33 %); max_rejects=1 allows 1" in message
    assert f"{topic.name}[0] offset 1: " in message
    assert f"{topic.name}[1] offset 2: " in message
    assert "or raise max_rejects to keep such records in exactbatch.rejected_record" in message
    assert world.run(replace(pipeline, max_rejects=2)).batch.rejected == 2
    assert world.is_exact(pipeline)


def test_tombstones_are_counted_and_give_no_rows(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1), None, record(2), None)
    pipeline = make_pipeline(topic)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.tombstones) == (4, 2, 2)
    assert world.is_exact(pipeline)


def test_several_batches_in_a_row_go_on_where_the_last_one_ended(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(3)
    pipeline = make_pipeline(topic, limits=Limits(max_offsets=20))
    topic.produce(*map(record, range(30)))
    topic.produce(*map(record, range(4)), partition=2)
    batches = []
    while (batch_id := freeze_advance(world.connection, world.log, pipeline, origin="cli")) is not None:
        batches.append(world.process(pipeline, batch_id).batch)
    assert [batch.records for batch in batches] == [20, 14]
    topic.produce(*map(record, range(5)), partition=1)
    assert world.run(pipeline).batch.records == 5
    assert len(world.target(pipeline, "1")) == 39
    assert world.is_exact(pipeline)


def test_a_range_of_markers_only_is_a_batch_without_records(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.transaction(record(1), record(2), end="abort")
    pipeline = make_pipeline(topic)
    world.settle(pipeline)
    assert world.run(pipeline).batch.records == 0
    assert world.rows("select next_offset from exactbatch.stored_offset") == [(3,)]
    assert world.is_exact(pipeline)


def test_a_committed_batch_is_left_as_it_is(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    batch = world.run(pipeline).batch
    rows = world.target(pipeline, "xmin::text, ctid::text")
    again = world.process(pipeline, batch.batch_id)
    assert (again.wrote, again.batch) == (False, batch)
    assert str(again) == f"batch {batch.batch_id} was committed before: nothing written"
    assert world.target(pipeline, "xmin::text, ctid::text") == rows


def test_a_batch_whose_stored_offset_has_moved_is_fenced(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(2)
    topic.produce(record(1), record(2))
    topic.produce(record(3), partition=1)
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    world.execute("update exactbatch.stored_offset set next_offset = 1 where partition = 0")
    with pytest.raises(Fenced) as caught:
        world.process(pipeline, batch_id)
    assert f"{topic.name}[0] 0..2: the stored offset is 1, not 0 as planned" in str(caught.value)
    assert world.target(pipeline, "1") == []
    assert world.rows("select next_offset from exactbatch.stored_offset order by partition") == [(1,), (0,)]


def test_a_batch_of_another_pipeline_is_refused(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    batch_id = world.plan(make_pipeline(topic))
    other = make_pipeline(topic, name="other", sink=Append("public.other"))
    message = world.refused(ConfigurationError, other, batch_id)
    assert f"belongs to pipeline '{topic.name}', not to 'other'" in message
    assert world.rows("select to_regclass('public.other') is null") == [(True,)]


def test_batch_planned_before_topic_left_pipeline_still_commits(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    one, two = make_topic(), make_topic()
    one.produce(record(1))
    two.produce(record(2))
    pipeline = make_pipeline(one, topics=(one.name, two.name))
    batch_id = world.plan(pipeline)
    assert world.process(replace(pipeline, topics=(one.name,)), batch_id).batch.records == 2
    assert world.is_exact(pipeline)


def test_target_is_made_with_block_range_index_and_no_primary_key(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic, sink=Append("made.of_nothing"))
    world.run(pipeline)
    assert world.rows(
        "select attname, format_type(atttypid, atttypmod), attnotnull from pg_attribute "
        "where attrelid = 'made.of_nothing'::regclass and attnum > 0 order by attnum"
    ) == [
        ("id", "integer", False),
        ("name", "text", False),
        ("kafka_topic", "text", True),
        ("kafka_partition", "integer", True),
        ("kafka_offset", "bigint", True),
        ("kafka_timestamp", "timestamp with time zone", False),
        ("batch_id", "bigint", True),
    ]
    assert world.rows(
        "select am.amname, i.indisprimary from pg_index i join pg_class c on c.oid = i.indexrelid "
        "join pg_am am on am.oid = c.relam where i.indrelid = 'made.of_nothing'::regclass"
    ) == [("brin", False)]


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (f"id int, {LINEAGE}", "expected a column name of type text, found none. Add it: alter table"),
        (
            f"id date, name text, {LINEAGE}",
            "column id: expected type integer, .* found date. Change the",
        ),
        (f"id text, name text, {LINEAGE}", "column id: expected type integer, .* found text"),
        ("id int, name text, batch_id bigint", "expected a column kafka_topic of type text, found none"),
        (
            f"id int, name text, more date not null, {LINEAGE}",
            "column more: the pipeline does not write this column, and it is date not null without a default",
        ),
    ],
)
def test_target_that_does_not_fit_is_refused_before_record_is_read(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, definition: str, message: str
) -> None:
    topic = make_topic()
    topic.produce(b"no record that could be read")
    pipeline = make_pipeline(topic)
    world.execute(f"create table {pipeline.traits.target} ({definition})")
    found = world.refused(TargetMismatch, pipeline)
    assert found.startswith(f"target {pipeline.traits.target}")
    assert re.search(message, found), found


def test_a_view_is_no_target(world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    world.execute(f"create view {pipeline.traits.target} as select 1 as id")
    assert "is a view, not a table" in world.refused(TargetMismatch, pipeline)


def test_a_target_may_be_wider_and_have_more_columns(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(7, "seven"))
    pipeline = make_pipeline(topic)
    world.execute(
        f"create table {pipeline.traits.target} (extra int, stamp timestamptz not null default now(), number "
        f"bigint generated always as identity, name varchar, id bigint, {LINEAGE}) partition by list (kafka_topic)"
    )
    world.execute(f"create table any_part partition of {pipeline.traits.target} default")
    world.run(pipeline)
    assert world.target(pipeline, "id, name, extra") == [(7, "seven", None)]
    assert world.is_exact(pipeline)


def test_a_constraint_of_the_target_that_refuses_a_row_is_named(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1), record(2), record(1))
    pipeline = make_pipeline(topic)
    world.execute(
        f"create table {pipeline.traits.target} (id int constraint one_each unique, name text, {LINEAGE})"
    )
    message = world.refused(TargetMismatch, pipeline)
    assert (
        'duplicate key value violates unique constraint "one_each" (Key (id)=(1) already exists.)' in message
    )


def test_a_trigger_that_swallows_rows_fails_the_batch(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1), record(2))
    pipeline = make_pipeline(topic)
    world.execute(
        f"create table {pipeline.traits.target} (id int, name text, {LINEAGE}); "
        "create function swallow() returns trigger language plpgsql as "
        "'begin return case when new.id > 1 then new end; end'; "
        f"create trigger swallow before insert on {pipeline.traits.target} for each row execute function swallow()"
    )
    message = world.refused(TargetMismatch, pipeline)
    assert "2 rows were written, and 1 arrived, because of trigger swallow (BEFORE INSERT)" in message


def test_a_trigger_that_swallows_rejects_fails_the_batch(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1), b"no JSON")
    pipeline = make_pipeline(topic, max_rejects=1)
    world.execute(
        "create function swallow() returns trigger language plpgsql as 'begin return null; end'; "
        "create trigger swallow before insert on exactbatch.rejected_record for each row execute function swallow()"
    )
    message = world.refused(TargetMismatch, pipeline)
    assert "1 rows and 1 rejected records were staged, but 1 and 0 arrived" in message


def test_error_of_servers_own_is_no_refusal_of_row_and_can_be_tried_again(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    """As a file that may not grow, or a damaged page: Postgres has XX000 for them."""
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    world.execute(
        f"create table {pipeline.traits.target} (id int, name text, {LINEAGE}); "
        "create function break() returns trigger language plpgsql as "
        "'begin raise exception ''could not extend file: File too large'' using errcode = ''XX000''; end'; "
        f"create trigger break before insert on {pipeline.traits.target} for each row execute function break()"
    )
    batch_id = world.plan(pipeline)
    with pytest.raises(
        PostgresUnavailable,
        match="Postgres had an internal or system error: could not extend file: File too large",
    ):
        world.process(pipeline, batch_id)
    world.execute(f"drop trigger break on {pipeline.traits.target}")
    assert world.process(pipeline, batch_id).batch.rows == 1


def test_names_may_hold_whatever_postgres_and_kafka_allow(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic(name="T.opic-with_All.100")
    name = '100% "sure"; drop table x --'
    columns = ["Mixed Case", "50%", "%s", "it's; --", "select", "ünï", "a\\b", "{}"]
    value = Json(", ".join(f'"{each}" int' for each in columns))
    topic.produce(('{"Mixed Case": 0, "50%": 1, "%s": 2, "it\'s; --": 3, "select": 4, '
                   '"ünï": 5, "a\\\\b": 6, "{}": 7}').encode(), b"bad")  # fmt: skip
    target = '"My Schema"."' + name.replace('"', '""') + '"'
    pipeline = make_pipeline(topic, value=value, sink=Append(target), max_rejects=1)
    world.run(pipeline)
    assert world.target(pipeline, ", ".join(f'"{each}"' for each in columns)) == [tuple(range(8))]
    assert world.is_exact(pipeline)
    topic.produce(b'{"50%": 51}')
    world.run(pipeline)
    assert world.is_exact(pipeline)


def test_topic_created_again_between_plan_and_read_gives_no_rows(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    recreate(admin, make_topic, topic)
    topic.produce(record(2))
    message = world.refused(TopicRecreated, pipeline, batch_id)
    assert (
        f"{topic.name}[0] 0..1: the topic was deleted and created again since the batch was planned"
        in message
    )
    assert "Nothing was written" in message


def test_topic_created_again_while_it_is_read_gives_no_rows(
    world: BatchRunner,
    admin: AdminClient,
    make_topic: MakeTopic,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Staging has read the new topic's records as if they were the old one's."""
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)

    def at(moment: str) -> None:
        if moment == "job.before_stage":
            recreate(admin, make_topic, topic)
            topic.produce(record(2))

    monkeypatch.setattr(batch_job, "failpoint", at)
    assert "created again since the batch was planned" in world.refused(TopicRecreated, pipeline, batch_id)


@pytest.mark.usefixtures("settles_soon")
def test_a_topic_that_was_deleted_since_the_plan_is_named(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    batch_id = world.plan(pipeline)
    admin.delete_topics([topic.name])[topic.name].result(30)
    while topic.name in admin.list_topics(timeout=10).topics:
        pass
    assert f"the broker does not know the topic '{topic.name}'" in world.refused(
        TopicMissing, pipeline, batch_id
    )


def test_offsets_that_retention_removes_between_plan_and_read_end_batch(
    world: BatchRunner, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(*map(record, range(10)))
    pipeline = make_pipeline(topic, on_loss="skip")
    batch_id = world.plan(pipeline)
    for future in admin.delete_records([TopicPartition(topic.name, 0, 4)]).values():
        future.result(30)
    message = world.refused(OffsetsLost, pipeline, batch_id)
    assert (
        f"{topic.name}[0] 0..10: retention removed 4 of these offsets since the batch was planned (log starts at 4)"
        in message
    )
    assert world.run(pipeline).batch.records == 6
    assert world.is_exact(pipeline)
    assert audit(pipeline, world.settings).partitions[0].lost == 4


@pytest.mark.slow
def test_loss_across_restart_of_broker_is_not_taken_for_log_that_was_cut(
    world: BatchRunner, stack: Any, admin: AdminClient, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic, on_loss="skip")
    world.run(pipeline)
    stack.broker.stop()
    stack.broker.start()  # its partitions have a new leader epoch now
    topic.produce(*map(record, range(9)))
    # The admin client may not have heard of the new leader yet.
    for attempt in Retrying(stop=stop_after_delay(30), wait=wait_fixed(0.5), reraise=True):
        with attempt:
            for future in admin.delete_records([TopicPartition(topic.name, 0, 5)]).values():
                future.result(30)
    assert world.run(pipeline).batch.records == 5
    assert world.is_exact(pipeline)


def test_a_task_that_fails_for_good_is_told_with_its_own_error(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here: the staging table that it copies into is gone."""
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)

    def at(moment: str) -> None:
        if moment == "job.before_stage":
            drop_staging(world)

    monkeypatch.setattr(batch_job, "failpoint", at)
    message = world.refused(TasksFailed, pipeline)
    assert "a task failed to stage its range: " in message
    assert "does not exist" in message
    assert "\n" not in message


def drop_staging(world: BatchRunner) -> None:
    for table in world.staging():
        if not table.endswith("_rejects"):  # its launch has locked that one
            world.execute(f'drop table exactbatch_staging."{table}"')


def test_staged_rows_that_are_gone_at_publish_fail_the_batch(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    topic.produce(record(1), record(2))
    pipeline = make_pipeline(topic)

    def lose_rows(moment: str) -> None:
        if moment == "job.after_stage":
            world.execute(f'truncate exactbatch_staging."{world.staging()[-1]}"')

    monkeypatch.setattr(batch_job, "failpoint", lose_rows)
    message = world.refused(StagedRowsDiffer, pipeline)
    assert "expected the 2 rows that the task reported, found 0" in message

    def lose_table(moment: str) -> None:
        if moment == "job.after_stage":
            drop_staging(world)

    monkeypatch.setattr(batch_job, "failpoint", lose_table)
    assert "_rows is missing: " in world.refused(StagedRowsDiffer, pipeline)
    monkeypatch.undo()
    assert world.run(pipeline).batch.rows == 2
    assert world.is_exact(pipeline)


def test_rows_of_attempt_that_spark_did_not_accept_do_not_count(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    topic.produce(record(1), b"bad", record(2))
    pipeline = make_pipeline(topic, max_rejects=1)

    def stage_again(moment: str) -> None:
        if moment == "job.after_stage":
            for table in world.staging():
                world.execute(
                    f'create temp table again as select * from exactbatch_staging."{table}"; '
                    "update again set task_attempt = 99999; "
                    f'insert into exactbatch_staging."{table}" select * from again; drop table again'
                )

    monkeypatch.setattr(batch_job, "failpoint", stage_again)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (3, 2, 1)
    assert world.is_exact(pipeline)


def test_leftovers_of_dead_launch_are_dropped_and_those_of_live_one_never(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    dead, live, busy = (StagingTables(1, secrets.randbits(62)) for _ in range(3))
    with transaction(world.connection) as cursor:
        for tables in (dead, live, busy):
            create_rejects(cursor, tables)
            create_rows(cursor, tables, pipeline.value.columns)
        cursor.execute("create table exactbatch_staging.not_ours (id int)")
    holder, copying = (connect(world.settings.postgres, application="tests") for _ in range(2))
    holder.cursor().execute(f"lock table exactbatch_staging.{live.rejects} in access share mode")
    with transaction(copying) as cursor, caplog.at_level(logging.WARNING):
        # An executor of a driver that was killed may still be copying.
        cursor.execute(f"insert into exactbatch_staging.{busy.rows} select")
        world.run(pipeline)
    assert set(world.staging()) == {live.rows, live.rejects, busy.rows, busy.rejects, "not_ours"}
    assert busy.rows in caplog.text
    assert live.rows not in caplog.text  # nobody waited for its locks
    assert "remain until the next launch drops them: canceling statement due to lock timeout" in caplog.text
    holder.close()
    copying.close()
    topic.produce(record(2))
    world.run(pipeline)
    assert world.staging() == ["not_ours"]


def test_launch_whose_connection_ends_before_it_begins_says_so_and_can_be_tried_again(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    drop_leftovers = staging_tables.drop_leftovers

    def cut_off(holder: Any) -> None:
        world.execute(f"select pg_terminate_backend({holder.info.backend_pid}, 60000)")
        drop_leftovers(holder)

    with monkeypatch.context() as patch:
        patch.setattr(staging_tables, "drop_leftovers", cut_off)
        message = world.refused(PostgresUnavailable, pipeline)
    assert "the connection to Postgres was lost" in message
    assert world.run(pipeline).wrote


def test_target_that_has_vanished_is_not_begun_anew_by_advance(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline
) -> None:
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    world.execute(f"drop table {table}")
    topic.produce(record(2))
    with pytest.raises(TargetMismatch, match="is missing, although batches of pipeline"):
        world.run(pipeline)
    replayed = freeze_replay(
        world.connection, world.log, pipeline, ReplayRequest(batch_ids=(1,)), origin="cli"
    ).batch_id
    assert replayed is not None
    world.process(pipeline, replayed)
    world.run(pipeline)
    assert world.target(pipeline, "id") == [(1,), (2,)]
    assert world.is_exact(pipeline)
