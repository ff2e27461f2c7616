"""With commit="partition", compiled code writes what ADBC writes, and what is refused there is refused here."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from exactbatch import Append, Json, Pipeline, Tuning
from exactbatch.batch.by_partition.partition_commit import Committed, commit_batch, commit_range
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.compiled.availability import VARIABLE
from exactbatch.errors import ExactbatchError, PostgresUnavailable, StagedRowsDiffer, TargetMismatch
from exactbatch.postgres.connection import connect, transaction
from support.batch_runner import LINEAGE, BatchRunner
from support.fuzzed_values import Fuzzer
from support.killed_workers import KilledWorkers
from support.plausible_values import PlausibleValues
from support.range_commits import committed, task_of
from support.topics import record

ADBC, COMPILED = "off", "0"
_SCHEMA = (
    "i int, b bigint, s smallint, f float8, r real, d numeric(10,2), t boolean, name text, day date, "
    'at timestamptz, local timestamp, raw bytea, "50% ünï; --" text'
)


@pytest.fixture
def pipeline(make_topic, make_pipeline) -> Pipeline:
    """Its range has five rows."""
    topic = make_topic()
    topic.produce(*map(record, range(5)))
    return make_pipeline(topic, commit="partition")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code encodes the ranges that this process commits."""
    monkeypatch.setenv(VARIABLE, COMPILED)


def on_both_paths(world: BatchRunner, pipeline: Pipeline, monkeypatch: Any) -> list[ExactbatchError]:
    """The errors of the first range with ADBC and with compiled code."""
    batch_id = world.plan(pipeline)
    errors = []
    for value in (ADBC, COMPILED):
        monkeypatch.setenv(VARIABLE, value)
        outcome = commit_range(task_of(world, pipeline, batch_id), 1)
        assert isinstance(outcome, ExactbatchError)
        errors.append(outcome)
    assert world.target(pipeline, "id") == []
    assert committed(world, batch_id) == [(0, None, None, None, None)]
    return errors


def test_both_paths_write_the_same_rows_and_rejects(world, make_topic, make_pipeline, monkeypatch):
    """The target has its columns in another order, and more of them, and it is partitioned."""
    topic = make_topic()
    value = Json(_SCHEMA)
    topic.produce(*PlausibleValues(value.columns, {}, 3).values(1500))
    topic.produce(*Fuzzer(4).values(500, fuzzed=0.3, long=2), None)
    topic.produce(b'{"i":1,"name":"no time"}', timestamp=2**62)
    columns = [f'"{column.name}" {column.type}' for column in reversed(value.columns)]
    outcomes, taken = [], []
    for name, path in (("adbc", ADBC), ("compiled", COMPILED)):
        target = f"public.by_{name}"
        world.execute(
            f"create table {target} (more int default 7, {', '.join(columns)}, "
            f"twice int generated always as (s * 2) stored, {LINEAGE}) partition by list (t); "
            f"create table {name}_true partition of {target} for values in (true); "
            f"create table {name}_other partition of {target} default"
        )
        pipeline = make_pipeline(
            topic, name=name, value=value, sink=Append(target), commit="partition", max_reject_share=1.0
        )
        monkeypatch.setenv(VARIABLE, path)
        task = task_of(world, pipeline, world.plan(pipeline))
        outcome = commit_range(task, 1)
        assert isinstance(outcome, Committed)
        taken.append(outcome.fast_count)
        commit_batch(world.connection, pipeline, task.batch_id, task.plan_id)
        assert world.is_exact(pipeline)
        outcomes.append((outcome, committed(world, task.batch_id)))
    assert outcomes[0] == outcomes[1]
    assert taken[0] == 0
    assert taken[1] > 300
    names = ", ".join(["more", "twice", *(f'"{column.name}"' for column in value.columns), *LINEAGE_NAMES])
    rows = [f"select {names} from by_{name}" for name in ("adbc", "compiled")]
    rejects = [
        'select topic_id, partition, "offset", topic, key, value, headers, reason '
        f"from exactbatch.rejected_record where pipeline = '{name}'"
        for name in ("adbc", "compiled")
    ]
    for one, other in (rows, rejects, rows[::-1], rejects[::-1]):
        assert world.rows(f"select count(*) > 50 from ({one}) a") == [(True,)]
        assert world.rows(f"{one} except all {other}") == []


def test_a_refusal_is_the_same_error_on_both_paths(world, pipeline, monkeypatch):
    target = pipeline.traits.target
    world.execute(
        f"create table {target} (id int, name text, {LINEAGE}, constraint not_three check (id <> 3))"
    )
    one, other = on_both_paths(world, pipeline, monkeypatch)
    assert type(one) is type(other) is TargetMismatch
    assert str(one) == str(other)
    topic = pipeline.topic_names[0]
    assert f"pipeline '{topic}', {topic}[0] 0..5, target {target}: it refuses what the range writes" in str(
        other
    )
    assert 'violates check constraint "not_three"' in str(other)
    assert (other.topic, other.partition, other.from_offset, other.until_offset) == (topic, 0, 0, 5)
    assert (one.sqlstate, other.sqlstate) == ("23514", "23514")


def test_a_type_that_is_changed_after_the_check_is_the_same_error_on_both_paths(world, pipeline, monkeypatch):
    """A real and a date take the four bytes of an int for their own; Postgres refuses other lengths."""
    batch_id = world.plan(pipeline)
    task = task_of(world, pipeline, batch_id)
    for type_ in ("real", "date", "smallint", "bigint", "text"):
        world.execute(
            f"alter table {pipeline.traits.target} drop id; alter table {pipeline.traits.target} add id {type_}"
        )
        errors = []
        for path in (ADBC, COMPILED):
            monkeypatch.setenv(VARIABLE, path)
            try:
                errors.append(commit_range(task, 1))
            except ExactbatchError as error:
                errors.append(error)
        one, other = errors
        assert isinstance(other, StagedRowsDiffer if type_ in ("real", "date") else ExactbatchError)
        assert (type(one), str(one)) == (type(other), str(other))
    assert world.target(pipeline, "id") == []
    assert committed(world, batch_id) == [(0, None, None, None, None)]


def test_a_row_that_a_trigger_replaces_is_noticed(world, pipeline, compiled):
    """The target then has the right number of new rows; the COPY has stored one fewer."""
    target = pipeline.traits.target
    batch_id = world.plan(pipeline)
    world.execute(
        f"create table {target} (id int, name text, {LINEAGE}); "
        "create function other() returns trigger language plpgsql as $$ begin if new.id = 3 then "
        f"insert into {target} values (-3, 'x', 't', 0, 3, now(), 1); return null; end if; return new; end $$; "
        f"create trigger other before insert on {target} for each row execute function other()"
    )
    error = commit_range(task_of(world, pipeline, batch_id), 1)
    assert isinstance(error, TargetMismatch), error
    assert (
        "5 rows were decoded and 5 were sent, of which the COPY stored 4, and Postgres counts 5 inserted, "
        "0 updated and 0 deleted in the target, because of trigger other (BEFORE INSERT)"
    ) in str(error)
    assert world.target(pipeline, "id") == []


def test_a_postgres_that_does_not_respond_is_given_up(world, make_topic, make_pipeline, compiled):
    """Another session locks the target; the COPY that waits for it writes nothing afterwards either."""
    topic = make_topic()
    topic.produce(*map(record, range(5)))
    pipeline = make_pipeline(topic, commit="partition", tuning=Tuning(statement_timeout="1 second"))
    task = task_of(world, pipeline, world.plan(pipeline))
    holder = connect(world.settings.postgres, application="tests", timeout=30)
    with transaction(holder) as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute(f"lock table {pipeline.traits.target}")
        running = pool.submit(commit_range, task, 1)
        with pytest.raises(PostgresUnavailable, match="Postgres did not respond within 1 s"):
            running.result(30)
    holder.close()
    deadline = time.monotonic() + 30
    while world.rows(
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and application_name = 'exactbatch task'"
    ) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert world.target(pipeline, "id") == []
    assert commit_range(task, 2) == Committed(5)


MOMENTS = (
    "read.after_records",
    "partition.after_rejects",
    "partition.before_locks",
    "partition.before_commit",
    "partition.after_commit",
)


@pytest.fixture(scope="module")
def killed_workers(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> KilledWorkers:
    return KilledWorkers(spark, tmp_path_factory.mktemp("killed"), MOMENTS)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_worker_is_replaced_and_leaves_nothing(
    world, make_topic, make_pipeline, killed_workers, caplog, moment
):
    topic = make_topic()
    topic.produce(*map(record, range(99)), b"bad")
    caplog.set_level(logging.INFO, "exactbatch")
    pipeline = make_pipeline(topic, commit="partition", max_rejects=1)
    with killed_workers.at(moment):
        batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (100, 99, 1)
    if moment != "partition.after_commit":  # then the second attempt reads nothing
        assert f"batch {batch.batch_id}: compiled code took 99 of 100 records" in caplog.text
    assert world.is_exact(pipeline)
