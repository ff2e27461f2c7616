"""commit="partition": ranges are committed one by one, and what is there is exact at each moment."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from exactbatch import Append, Json, Pipeline, Tuning
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.batch.by_partition import partition_commit
from exactbatch.batch.by_partition.partition_commit import Committed, commit_batch, commit_range
from exactbatch.cli.render import build_batches_table
from exactbatch.compiled.availability import VARIABLE
from exactbatch.errors import (
    Fenced,
    ReplayRefused,
    StagedRowsDiffer,
    TargetMismatch,
    TasksFailed,
    TooManyRejects,
    TopicRecreated,
)
from exactbatch.ledger import Ledger
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import LINEAGE, BatchRunner, recreate
from support.range_commits import committed, task_of
from support.replays import ranges
from support.topics import record


@pytest.fixture
def topic(make_topic):
    """Two partitions: 5 records in the first, and 3 and a bad one in the second."""
    topic = make_topic(2, retention_ms="-1")
    topic.produce(*map(record, range(5)))
    topic.produce(record(5), record(6), b"bad", record(7), partition=1)
    return topic


@pytest.fixture
def pipeline(topic, make_pipeline):
    """It allows no reject, so that only the first partition's range can be committed."""
    return make_pipeline(topic, commit="partition")


@pytest.fixture(params=["off", "0"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that this process commits go through ADBC, or compiled code encodes them."""
    monkeypatch.setenv(VARIABLE, request.param)


def tolerant(pipeline: Pipeline) -> Pipeline:
    return replace(pipeline, max_rejects=1)


def half_done(world: BatchRunner, pipeline: Pipeline) -> int:
    """A batch with one range that is committed and one that failed."""
    batch_id = world.plan(pipeline)
    with pytest.raises(TooManyRejects):
        world.process(pipeline, batch_id)
    assert committed(world, batch_id) == [(0, 5, 5, 0, 0), (1, None, None, None, None)]
    return batch_id


def status_of(world: BatchRunner, batch_id: int) -> str:
    with transaction(world.connection):
        return Ledger(world.connection).batches.read(batch_id).status


def waiting(world: BatchRunner) -> bool:
    """Whether a session of the test's database waits for a lock."""
    return world.rows(
        "select count(*) > 0 from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock'"
    ) == [(True,)]


class Held:
    """The first attempt that comes to a failpoint waits there until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._name, self._first = name, threading.Lock()
        self.reached, self.go = threading.Event(), threading.Event()
        monkeypatch.setattr(partition_commit, "failpoint", self._at)

    def _at(self, name: str) -> None:
        if name == self._name and self._first.acquire(blocking=False):
            self.reached.set()
            assert self.go.wait(30)

    def while_held(
        self, first: Callable[[], Any], then: Callable[[], Any], until: Callable[[], bool]
    ) -> tuple[Future[Any], Future[Any]]:
        """Start `first`, hold it, start `then`, and let `first` go when `until` is so; returns both."""
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(first)
            assert self.reached.wait(30), one
            other = pool.submit(then)
            deadline = time.monotonic() + 30
            while not until() and not other.done():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            self.go.set()
        return one, other


def test_each_range_is_a_transaction_and_the_batch_has_the_sums(world, make_topic, make_pipeline):
    topic = make_topic(4, retention_ms="-1")
    topic.produce(record(1, "a"), None, record(2, None), timestamp=1_700_000_000_123)
    topic.produce(b"bad", record(3, "ü"), partition=1)
    topic.transaction(record(9), end="abort", partition=2)
    pipeline = make_pipeline(topic, commit="partition", max_rejects=1)
    world.settle(pipeline)
    published = world.run(pipeline)
    batch = published.batch
    assert published.wrote
    assert (batch.status, batch.records, batch.rows, batch.rejected, batch.tombstones, batch.dropped) == (
        "committed", 5, 3, 1, 1, 0,
    )  # fmt: skip
    assert sorted(batch.stages or ()) == ["commit", "plan", "prepare", "publish", "start"]
    assert committed(world, batch.batch_id) == [(0, 3, 2, 0, 1), (1, 2, 1, 1, 0), (2, 0, 0, 0, 0)]
    columns = (
        "id, name, kafka_topic, kafka_partition, kafka_offset, "
        "extract(epoch from kafka_timestamp)::text, batch_id"
    )
    found = world.target(pipeline, columns)
    assert found[:2] == [
        (1, "a", topic.name, 0, 0, "1700000000.123000", batch.batch_id),
        (2, None, topic.name, 0, 2, "1700000000.123000", batch.batch_id),
    ]
    assert found[2][:5] == (3, "ü", topic.name, 1, 1)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    assert world.rows(f"select count(distinct xmin::text) from {table}") == [(2,)]
    rejects = world.rows("select topic, topic_id, partition, \"offset\", value, headers, batch_id "
                         "from exactbatch.rejected_record")  # fmt: skip
    topic_id = world.log.topic_ids([topic.name])[topic.name]
    assert [(*each[:4], bytes(each[4]), *each[5:]) for each in rejects] == [
        (topic.name, topic_id, 1, 0, b"bad", [], batch.batch_id)
    ]
    assert world.rows(
        "select s.partition, s.next_offset, s.leader_epoch = r.leader_epoch from exactbatch.stored_offset s "
        "left join exactbatch.batch_range r using (topic, partition) order by 1"
    ) == [(0, 3, True), (1, 2, True), (2, 2, True), (3, 0, None)]
    assert world.staging() == []
    assert world.is_exact(pipeline)
    again = world.process(pipeline, batch.batch_id)
    assert (again.wrote, again.batch) == (False, batch)
    topic.produce(record(10), partition=3)
    topic.produce(record(11))
    assert world.run(pipeline).batch.rows == 2
    assert world.is_exact(pipeline)


def test_range_with_too_many_rejects_keeps_others_and_retry_goes_on_with_it(world, topic, pipeline):
    batch_id = world.plan(pipeline)
    with pytest.raises(TooManyRejects) as caught:
        world.process(pipeline, batch_id)
    message = str(caught.value)
    assert (
        f"batch {batch_id} of pipeline '{topic.name}', {topic.name}[1] 0..4: 1 or more of the 4 " in message
    )
    assert "max_rejects=0 allows 0 in each range" in message
    assert "Nothing of this range was written; other ranges of the batch may" in message
    assert "The first: offset 2: " in message
    assert status_of(world, batch_id) == "planned"
    assert world.rows("select count(*) from exactbatch.rejected_record") == [(0,)]
    assert world.is_exact(pipeline), "the auditor counts what is committed, and no gap beside it"
    before = world.target(pipeline, "id, xmin::text, ctid::text")
    assert [row[0] for row in before] == [0, 1, 2, 3, 4]

    batch = world.process(tolerant(pipeline), batch_id).batch
    assert (batch.status, batch.records, batch.rows, batch.rejected) == ("committed", 9, 8, 1)
    assert world.target(pipeline, "id, xmin::text, ctid::text")[:5] == before
    assert world.is_exact(pipeline)


def test_a_share_of_rejects_holds_for_each_range_by_itself(world, topic, pipeline):
    """1 of 4 in the second partition is more than 0.2, although it is less than 0.2 of all 9."""
    batch_id = world.plan(pipeline)
    with pytest.raises(TooManyRejects, match="of the 4 records .* max_reject_share=0.2 allows 0"):
        world.process(replace(pipeline, max_reject_share=0.2), batch_id)
    assert world.process(replace(pipeline, max_reject_share=0.25), batch_id).batch.rejected == 1
    assert world.is_exact(pipeline)


def test_of_two_attempts_at_one_range_at_once_one_writes_and_both_end_well(
    world, pipeline, monkeypatch, path
):
    """The range with a reject, which is in the ledger once as well."""
    pipeline = tolerant(pipeline)
    task = task_of(world, pipeline, world.plan(pipeline), partition=1)
    held = Held(monkeypatch, "partition.before_commit")
    one, other = held.while_held(
        lambda: commit_range(task, 1), lambda: commit_range(task, 2), until=lambda: waiting(world)
    )
    assert (one.result(), other.result()) == (Committed(4), Committed(4))
    assert [row[0] for row in world.target(pipeline, "id")] == [5, 6, 7]
    assert world.rows("select count(*) from exactbatch.rejected_record") == [(1,)]
    assert commit_range(task, 3) == Committed(0), "nor does a later one read or write"
    assert len(world.target(pipeline, "id")) == 3
    assert world.process(pipeline, task.batch_id).batch.rows == 8
    assert commit_range(task, 4) == Committed(0), "nor one that comes after the batch has committed"
    assert world.is_exact(pipeline)


def test_attempt_that_comes_late_to_its_locks_finds_range_committed(world, pipeline, monkeypatch, path):
    """It has copied all of its rows by then."""
    task = task_of(world, pipeline, world.plan(pipeline))
    held = Held(monkeypatch, "partition.before_locks")
    one, other = held.while_held(
        lambda: commit_range(task, 1), lambda: commit_range(task, 2), until=lambda: False
    )
    assert (one.result(), other.result()) == (Committed(5), Committed(5))
    assert len(world.target(pipeline, "id")) == 5
    assert world.is_exact(pipeline)


def test_batch_superseded_in_middle_is_fenced_and_next_advance_goes_on(world, topic, pipeline):
    older = half_done(world, pipeline)
    task = task_of(world, tolerant(pipeline), older, partition=1)
    topic.produce(record(8))
    newer = world.plan(pipeline)
    assert status_of(world, older) == "superseded"
    with pytest.raises(Fenced) as caught:
        world.process(tolerant(pipeline), older)
    assert f"superseded by batch {newer}, which was planned later" in str(caught.value)
    assert "1 of its ranges were committed before and remain, and nothing is lost" in str(caught.value)
    assert "was superseded by one that was planned later" in str(commit_range(task, 1))
    assert world.is_exact(pipeline)
    assert world.process(tolerant(pipeline), newer).batch.records == 5
    assert [row[0] for row in world.target(pipeline, "id")] == [0, 1, 2, 3, 4, 8, 5, 6, 7]
    assert world.is_exact(pipeline)
    # What the superseded batch has committed is not history that no batch has to account for.
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    world.execute(f"update exactbatch.coverage set offsets = '[0,2)' where batch_id = {older}")
    world.execute(f"delete from {table} where batch_id = {older} and kafka_offset >= 2")
    first, _ = audit(pipeline, world.settings).partitions
    assert (first.gaps.count, first.missing.count) == (3, 3)


def test_batch_superseded_while_range_is_copied_does_not_commit_it(world, pipeline, monkeypatch, path):
    task = task_of(world, pipeline, world.plan(pipeline))
    held = Held(monkeypatch, "partition.before_locks")
    one, newer = held.while_held(
        lambda: commit_range(task, 1), lambda: world.plan(pipeline), until=lambda: False
    )
    assert isinstance(one.result(), Fenced)
    assert world.target(pipeline, "id") == []
    assert world.process(tolerant(pipeline), newer.result()).batch.rows == 8
    assert world.is_exact(pipeline)


def test_plan_waits_for_range_about_to_commit_and_goes_on_behind_it(world, topic, pipeline, monkeypatch):
    older = world.plan(pipeline)
    task = task_of(world, pipeline, older)
    topic.produce(record(8))
    looking_on = connect(world.settings.postgres, application="tests", timeout=10)
    onlooker = BatchRunner(world.spark, looking_on, world.settings)
    held = Held(monkeypatch, "partition.before_commit")
    one, newer = held.while_held(
        lambda: commit_range(task, 1),
        lambda: world.plan(pipeline),
        until=lambda: waiting(onlooker),
    )
    assert one.result() == Committed(5)
    with transaction(world.connection):
        planned = Ledger(world.connection).batches.read_ranges(newer.result())
    assert [(each.partition, each.from_offset, each.until_offset) for each in planned] == [
        (0, 5, 6),
        (1, 0, 4),
    ]
    looking_on.close()
    assert status_of(world, older) == "superseded"
    assert world.process(tolerant(pipeline), newer.result()).batch.rows == 4
    assert world.is_exact(pipeline)


def test_what_superseded_batch_committed_can_be_replayed_and_is_shown(world, replays, topic, pipeline):
    older = half_done(world, pipeline)
    assert f"batch {older}: expected a committed batch" in replays.refused(
        ReplayRefused, pipeline, ReplayRequest(batch_ids=(older,))
    )
    newer = world.plan(pipeline)
    shown = load_status(world.connection, world.log, pipeline)
    (part,) = shown.partly_committed
    assert (part.batch_id, part.ranges, part.committed, part.records, part.rows) == (older, 2, 1, 5, 5)
    assert shown.as_json()["partly_committed"][0]["committed"] == 1
    cells = list(zip(*(list(column.cells) for column in build_batches_table(shown).columns), strict=True))
    assert cells[0][3:7] == ("planned", "–", "–", "–")
    assert cells[1][3:7] == ("superseded, 1 of 2 ranges committed", "5", "5", "0")

    again = replays.plan(pipeline, ReplayRequest(batch_ids=(older,)))
    assert replays.planned(again) == [(0, 0, 5)]
    assert again is not None
    assert world.process(pipeline, again).batch.rows == 5
    assert replays.coverage(pipeline) == [(0, 0, 5, again)]
    assert world.is_exact(pipeline)
    world.process(tolerant(pipeline), newer)
    assert world.is_exact(pipeline)
    nothing = world.rows("insert into exactbatch.batch (pipeline, kind, origin, status) "
                         "values (%s, 'advance', 'cli', 'superseded') returning batch_id", topic.name)  # fmt: skip
    assert "found a superseded one" in replays.refused(
        ReplayRefused, pipeline, ReplayRequest(batch_ids=(nothing[0][0],))
    )


def test_replay_is_one_transaction_also_of_part_of_batch_that_goes_on(world, replays, topic, pipeline):
    batch_id = half_done(world, pipeline)
    replayed = replays.run(pipeline, ranges((1, 3), topic=topic)).batch
    assert (replayed.kind, replayed.rows) == ("replay", 2)
    assert world.is_exact(pipeline)
    assert world.process(tolerant(pipeline), batch_id).batch.rows == 8, "the range is not written again"
    assert replays.coverage(pipeline) == [
        (0, 0, 1, batch_id), (0, 1, 3, replayed.batch_id), (0, 3, 5, batch_id), (1, 0, 4, batch_id),
    ]  # fmt: skip
    assert world.is_exact(pipeline)
    everything = replays.run(tolerant(pipeline), ReplayRequest(batch_ids=(batch_id,))).batch
    assert (everything.rows, everything.rejected) == (8, 1)
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    assert world.rows(f"select count(distinct xmin::text), count(*) as rows from {table}") == [(1, 8)]
    assert world.is_exact(pipeline)


def test_batch_begun_range_by_range_cannot_be_finished_in_one_transaction(world, pipeline):
    batch_id = half_done(world, pipeline)
    other = replace(tolerant(pipeline), commit="batch")
    with pytest.raises(Fenced, match="the stored offset is 5, not 0 as planned"):
        world.process(other, batch_id)
    assert world.is_exact(pipeline)
    assert world.run(other).batch.rows == 3
    assert world.is_exact(pipeline)


def test_range_whose_stored_offset_has_moved_otherwise_is_fenced(world, pipeline):
    batch_id = world.plan(pipeline)
    world.execute("update exactbatch.stored_offset set next_offset = 1 where partition = 0")
    with pytest.raises(Fenced, match=r"the stored offset is 1 \(topic ID .*, not 0 "):
        world.process(tolerant(pipeline), batch_id)
    assert [row[0] for row in world.target(pipeline, "id")] == [5, 6, 7]


def test_a_batch_is_not_committed_before_its_last_range(world, pipeline):
    batch_id = half_done(world, pipeline)
    with pytest.raises(TasksFailed, match=r"these ranges are not committed: .*\[1\] 0..4"):
        commit_batch(world.connection, pipeline, batch_id, task_of(world, pipeline, batch_id).plan_id)
    assert status_of(world, batch_id) == "planned"


@pytest.mark.parametrize(
    ("definition", "found"),
    [
        (f"id int primary key, name text, {LINEAGE}", "constraint or unique index public.t_pkey"),
        (
            f"id int, name text constraint one_each unique, {LINEAGE}",
            "constraint or unique index public.one_each. ",
        ),
        (f"id int, name text, {LINEAGE}); create unique index one_id on t (id", "unique index public.one_id"),
        (f"id int, name text, {LINEAGE}, constraint apart exclude (id with =)", "unique index public.apart"),
        (
            f"id int, name text, {LINEAGE}) partition by range (id); create table p partition of t (unique (id)"
            ") default; select (1",
            "unique index public.p_id_key",
        ),
        (f"id bigint, name text, {LINEAGE}", "column id: expected exactly the type integer, .* found bigint"),
        (
            f"id int, name varchar, {LINEAGE}",
            "column name: expected exactly the type text, .* character vary",
        ),
        (
            f"id int, name text, {LINEAGE.replace('timestamptz', 'timestamptz(3)')}",
            "column kafka_timestamp: expected exactly the type timestamp with time zone, .* found timestamp.3. with",
        ),
    ],
)
def test_target_that_ranges_cannot_be_copied_into_is_refused_before_record_is_read(
    world, topic, make_pipeline, definition, found
):
    world.execute(f"create table t ({definition})")
    pipeline = make_pipeline(topic, sink=Append("public.t"), commit="partition")
    message = world.refused(TargetMismatch, pipeline)
    assert message.endswith("use commit='batch'.")
    assert re.search(found, message), message


def test_rows_that_do_not_arrive_and_rows_refused_fail_their_range(world, topic, pipeline):
    """A trigger drops a row of the first partition; then a check and another trigger refuse it. The second
    partition's rows stay."""
    batch_id = world.plan(pipeline)
    world.execute(
        f"create table {pipeline.traits.target} (id int, name text, {LINEAGE}); "
        "create function swallow() returns trigger language plpgsql as "
        f"$$ begin delete from {pipeline.traits.target} where id = 3; return null; end $$; "
        f"create trigger swallow after insert on {pipeline.traits.target} for each row execute function swallow()"
    )
    with pytest.raises(TargetMismatch) as caught:
        world.process(tolerant(pipeline), batch_id)
    message = str(caught.value)
    assert (
        "5 rows were decoded and 5 were sent, and Postgres counts 5 inserted, 0 updated and 1 deleted"
        in message
    )
    assert "because of trigger swallow (AFTER INSERT)" in message
    assert [row[0] for row in world.target(pipeline, "id")] == [5, 6, 7]
    world.execute(
        f"drop trigger swallow on {pipeline.traits.target}; "
        f"alter table {pipeline.traits.target} add constraint not_three check (id <> 3)"
    )
    with pytest.raises(TargetMismatch, match='violates check constraint "not_three"'):
        world.process(pipeline, batch_id)
    world.execute(
        f"alter table {pipeline.traits.target} drop constraint not_three; "
        "create function refuse() returns trigger language plpgsql as "
        "$$ begin if new.id = 3 then raise 'not on a Sunday'; end if; return new; end $$; "
        f"create trigger refuse after insert on {pipeline.traits.target} for each row execute function refuse()"
    )
    with pytest.raises(TargetMismatch, match="not on a Sunday"):
        world.process(pipeline, batch_id)
    assert world.is_exact(pipeline)
    world.execute(f"drop trigger refuse on {pipeline.traits.target}")
    assert world.process(tolerant(pipeline), batch_id).batch.rows == 8
    assert world.is_exact(pipeline)


def test_what_waits_for_commit_is_done_before_rows_are_counted(world, topic, pipeline, path):
    """Deferred triggers of the target and of a table that it logs into, and a deferred foreign key."""
    target = pipeline.traits.target
    batch_id = world.plan(pipeline)
    world.execute(
        f"create table {target} (id int, name text, more int, {LINEAGE}); create table log (id int); "
        f"insert into {target} values (-1, 'old', 0, 't', 0, 0, now(), 0); "
        "create function log() returns trigger language plpgsql as "
        "$$ begin insert into log values (new.id); return null; end $$; "
        f"create trigger log after insert on {target} for each row execute function log()"
    )
    bodies = {
        "0 updated and 1 deleted": f"delete from {target} where id = 3",
        "6 inserted, 0 updated and 1 deleted": f"delete from {target} where id = 3; "
        f"insert into {target} values (3, 'x', 0, 't', 0, 3, now(), 1)",
        "1 updated and 0 deleted": f"update {target} set more = 1 where id = -1",
        "after a TRUNCATE": f"truncate {target}",
    }
    for where in (target, "log"):
        for done, body in bodies.items():
            if where == target and "TRUNCATE" in done:
                continue  # Postgres refuses it to a trigger of the same table
            world.execute(
                "create or replace function late() returns trigger language plpgsql as "
                f"$$ begin if new.id = 4 then {body}; end if; return null; end $$; "
                f"create constraint trigger late after insert on {where} deferrable initially deferred "
                "for each row execute function late()"
            )
            error = commit_range(task_of(world, pipeline, batch_id), 1)
            assert isinstance(error, TargetMismatch)
            assert f"target {target}: 5 rows were decoded and 5 were sent, and Postgres counts " in str(error)
            assert done in str(error)
            world.execute(f"drop trigger late on {where}")
    world.execute(
        f"create table known (id int primary key); alter table {target} add constraint is_known "
        "foreign key (id) references known deferrable initially deferred not valid"
    )
    error = commit_range(task_of(world, pipeline, batch_id), 1)
    assert isinstance(error, TargetMismatch)
    assert f"target {target}: it refuses what the range writes: " in str(error)
    assert 'violates foreign key constraint "is_known"' in str(error)
    task = task_of(world, pipeline, batch_id)
    world.execute(f"alter table {target} drop constraint is_known")
    error = commit_range(task, 1)
    assert isinstance(error, StagedRowsDiffer)
    assert "constraint is_known is now gone" in str(error)
    assert world.target(pipeline, "id") == [(-1,)]
    assert commit_range(task_of(world, pipeline, batch_id), 1) == Committed(5)
    assert world.process(tolerant(pipeline), batch_id).batch.rows == 8
    assert world.rows("select count(*) from log") == [(8,)]


def test_a_truncate_behind_which_the_counts_are_right_is_noticed(world, topic, pipeline, path):
    """It takes older rows away, and writes those of the range again."""
    target = pipeline.traits.target
    batch_id = world.plan(pipeline)
    world.execute(
        f"create table {target} (id int, name text, {LINEAGE}); create table log (id int); "
        f"insert into {target} values (-1, 'old', 't', 0, 0, now(), 0); "
        "create function log() returns trigger language plpgsql as "
        "$$ begin insert into log values (new.id); return null; end $$; "
        f"create trigger log after insert on {target} for each row execute function log(); "
        "create function anew() returns trigger language plpgsql as $$ begin if new.id = 4 then "
        f"create temp table kept on commit drop as select * from {target} where id >= 0; truncate {target}; "
        f"alter table {target} disable trigger log; insert into {target} select * from kept; "
        f"alter table {target} enable trigger log; end if; return null; end $$; "
        "create constraint trigger anew after insert on log deferrable initially deferred "
        "for each row execute function anew()"
    )
    error = commit_range(task_of(world, pipeline, batch_id), 1)
    assert isinstance(error, StagedRowsDiffer), error
    assert "a table of the target was truncated or rewritten while the range was copied" in str(error)
    assert world.target(pipeline, "id") == [(-1,)]


def test_a_type_that_is_changed_after_the_check_is_noticed(world, topic, pipeline, monkeypatch):
    """A real takes the four bytes of an int for its own: a COPY would put other numbers into it."""
    batch_id = world.plan(pipeline)

    def change(moment: str) -> None:
        if moment == "job.before_ranges":
            world.execute(f"alter table {pipeline.traits.target} alter id type real")

    monkeypatch.setattr(batch_job, "failpoint", change)
    message = world.refused(StagedRowsDiffer, tolerant(pipeline), batch_id)
    assert "it was changed while the batch ran: " in message
    assert ": column id is now real, was integer" in message
    monkeypatch.undo()
    world.execute(f"alter table {pipeline.traits.target} alter id type int")
    assert world.process(tolerant(pipeline), batch_id).batch.rows == 8
    assert world.is_exact(pipeline)


def test_a_partition_that_is_attached_meanwhile_with_a_trigger_takes_no_rows(
    world, topic, pipeline, monkeypatch, path
):
    target = pipeline.traits.target
    world.execute(
        f"create table {target} (id int, name text, {LINEAGE}) partition by list (kafka_partition); "
        f"create table others partition of {target} default; "
        "create function other_name() returns trigger language plpgsql as "
        "$$ begin new.name = 'other'; return new; end $$"
    )
    batch_id = world.plan(pipeline)
    task = task_of(world, pipeline, batch_id)
    world.execute(
        f"create table first_one (like {target}); "
        "create trigger other_name before insert on first_one for each row execute function other_name(); "
        f"alter table {target} attach partition first_one for values in (0)"
    )
    error = commit_range(task, 1)
    assert isinstance(error, TargetMismatch), error
    assert "trigger other_name (BEFORE INSERT) could alter rows while they are copied" in str(error)
    assert world.target(pipeline, "id") == []
    world.execute("drop trigger other_name on first_one")
    assert commit_range(task, 1) == Committed(5)


def test_a_partitioned_target_with_any_name_takes_ranges(world, topic, make_pipeline):
    value = Json('id int, "50% ünï; --" text, "select" int')
    target = '"My Schema"."100% ""sure""; drop table x --"'
    pipeline = make_pipeline(topic, value=value, sink=Append(target), commit="partition", max_rejects=1)
    world.execute(
        'create schema "My Schema"; '
        f"""create table {target} ("select" int, id int, "50% ünï; --" text, more int, {LINEAGE}) """
        "partition by list (kafka_partition); "
        f"create table first_one partition of {target} for values in (0); "
        f"create table others partition of {target} default"
    )
    assert world.run(pipeline).batch.rows == 8
    assert [row[0] for row in world.target(pipeline, "id")] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert world.is_exact(pipeline)


def test_topic_created_again_while_it_is_read_gives_no_rows(
    world, admin, topic, pipeline, make_topic, monkeypatch
):
    batch_id = world.plan(pipeline)

    def at(moment: str) -> None:
        if moment == "job.before_ranges":
            recreate(admin, make_topic, topic)
            topic.produce(*map(record, range(5)))

    monkeypatch.setattr(batch_job, "failpoint", at)
    # The new topic has one partition, so that the second range cannot even be read: the next try tells why.
    impatient = replace(pipeline, tuning=Tuning(read_timeout="2 seconds"))
    with pytest.raises(TasksFailed, match=r"\[1\] 0\.\.4: the broker does not know this topic and partition"):
        world.process(impatient, batch_id)
    with pytest.raises(TopicRecreated, match="created again since the batch was planned"):
        world.process(impatient, batch_id)
    assert isinstance(commit_range(task_of(world, pipeline, batch_id), 1), TopicRecreated)
    assert world.target(pipeline, "id") == []
    assert world.rows("select count(*) from exactbatch.coverage") == [(0,)]
    assert world.rows("select distinct next_offset from exactbatch.stored_offset") == [(0,)]


def test_batch_all_of_whose_ranges_are_committed_is_finished_or_superseded(
    world, topic, pipeline, monkeypatch
):
    """Its driver failed just before the end: there is nothing to plan, and then there is."""
    pipeline = tolerant(pipeline)

    def fail(moment: str) -> None:
        if moment == "job.after_ranges":
            raise RuntimeError(moment)

    monkeypatch.setattr(batch_job, "failpoint", fail)
    with pytest.raises(RuntimeError):
        world.run(pipeline)
    monkeypatch.undo()
    ((batch_id,),) = world.rows("select max(batch_id) from exactbatch.batch")
    assert freeze_advance(world.connection, world.log, pipeline, origin="cli") is None
    assert status_of(world, batch_id) == "planned"
    assert world.is_exact(pipeline)
    topic.produce(record(8))
    assert world.run(pipeline).batch.rows == 1
    assert status_of(world, batch_id) == "superseded"
    assert world.is_exact(pipeline)
    assert [each.records for each in audit(pipeline, world.settings).partitions] == [6, 4]
