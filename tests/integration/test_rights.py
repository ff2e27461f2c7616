"""What code of a target's owner, and a login for some pipelines, can do to the rows of other pipelines: nothing."""

from contextlib import closing
from typing import Any

import psycopg2
import pytest

from exactbatch import Append, Json, Pipeline
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect
from support.roles import ROLES, Deployment
from support.topics import record

# The rows of pipeline beta, which another owner's target must not reach.
BETA = """
insert into exactbatch.pipeline (name, target, sink, lineage) values ('beta', 'shop.beta', 'append', 'record');
insert into exactbatch.stored_offset (pipeline, topic, partition, next_offset, topic_id, first_offset)
values ('beta', 't', 0, 8, '00000000-0000-0000-0000-000000000001', 0);
insert into exactbatch.batch (pipeline, kind, origin, status, committed_at, records, rows, rejected, tombstones, dropped)
values ('beta', 'advance', 'cli', 'committed', now(), 8, 7, 1, 0, 0);
insert into exactbatch.batch (pipeline, kind, origin) values ('beta', 'replay', 'cli');
insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id, records)
select batch_id, 't', 0, 0, 8, '00000000-0000-0000-0000-000000000001', null
from exactbatch.batch where pipeline = 'beta' and kind = 'replay';
insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id)
select 'beta', 't', '00000000-0000-0000-0000-000000000001', 0, '[0,8)', 'batch', batch_id
from exactbatch.batch where pipeline = 'beta' and kind = 'advance';
insert into exactbatch.rejected_record (pipeline, topic_id, partition, "offset", topic, headers, reason, batch_id)
select 'beta', '00000000-0000-0000-0000-000000000001', 0, 3, 't', '[]', 'bad', batch_id
from exactbatch.batch where pipeline = 'beta' and kind = 'advance';
insert into exactbatch.forward (pipeline, stream, topic) values ('beta', 'beta', 'out');
insert into exactbatch.outbox (stream_id, sequence, batch_id, change)
select stream_id, 1, 1, 'row' from exactbatch.forward where pipeline = 'beta';
insert into exactbatch.empty_run (pipeline, dag_id, run_id, clear_number) values ('beta', 'd', 'r', 0);
insert into exactbatch.batch_failure (batch_id, error, message, retryable)
select batch_id, 'E', 'm', true from exactbatch.batch where pipeline = 'beta' and kind = 'replay';
"""
_BATCH = "(select max(batch_id) from exactbatch.batch where pipeline = 'beta')"
_STREAM = "(select stream_id from exactbatch.forward where pipeline = 'beta')"
# Every way in which the job's role may write, with a row of beta.
WRITES = (
    "update exactbatch.stored_offset set next_offset = next_offset + 1000 where pipeline = 'beta'",
    "insert into exactbatch.stored_offset (pipeline, topic, partition, next_offset, topic_id, first_offset) "
    "values ('beta', 't', 1, 8, '00000000-0000-0000-0000-000000000001', 0)",
    "insert into exactbatch.batch (pipeline, kind, origin) values ('beta', 'replay', 'cli')",
    "update exactbatch.batch set status = 'superseded' where pipeline = 'beta' and status = 'planned'",
    "insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id) "
    f"select {_BATCH}, 't', 1, 0, 8, '00000000-0000-0000-0000-000000000001'",
    f"update exactbatch.batch_range set records = 8 where batch_id = {_BATCH}",
    "insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind) "
    "values ('beta', 't', '00000000-0000-0000-0000-000000000001', 0, '[8,2000)', 'loss')",
    "delete from exactbatch.coverage where pipeline = 'beta'",
    'insert into exactbatch.rejected_record (pipeline, topic_id, partition, "offset", topic, headers, reason, '
    f"batch_id) select 'beta', '00000000-0000-0000-0000-000000000001', 0, 4, 't', '[]', 'bad', {_BATCH}",
    "delete from exactbatch.rejected_record where pipeline = 'beta'",
    'insert into exactbatch.time_boundary (pipeline, topic, topic_id, partition, boundary, "offset") '
    "values ('beta', 't', '00000000-0000-0000-0000-000000000001', 0, now(), 4)",
    "insert into exactbatch.batch_failure (batch_id, error, message, retryable) "
    "select min(batch_id), 'E', 'm', true from exactbatch.batch where pipeline = 'beta'",
    f"update exactbatch.batch_failure set failures = 9 where batch_id = {_BATCH}",
    "insert into exactbatch.run_life (pipeline, dag_id, run_id, generation) values ('beta', 'd', 'r', 1)",
    "insert into exactbatch.empty_run (pipeline, dag_id, run_id, clear_number) values ('beta', 'd', 's', 0)",
    "update exactbatch.empty_run set clear_number = 1 where pipeline = 'beta'",
    "delete from exactbatch.empty_run where pipeline = 'beta'",
    "insert into exactbatch.joined_topic (pipeline, topic, pattern, start) values ('beta', 'u', 'u.*', 'earliest')",
    "insert into exactbatch.pipeline (name, target, sink, lineage) values ('beta.x', 'shop.x', 'append', 'record')",
    "update exactbatch.pipeline set registered_at = now() where name = 'beta'",
    "update exactbatch.forward set last_sequence = 9 where pipeline = 'beta'",
    f"insert into exactbatch.outbox (stream_id, sequence, batch_id, change) select {_STREAM}, 2, 1, 'row'",
    f"delete from exactbatch.outbox where stream_id = {_STREAM}",
)
# Every row of beta, as text.
STATE = "; ".join(
    f"select coalesce(string_agg(t::text, ' ' order by t::text), '') from exactbatch.{table} t where {where}"
    for table, where in [
        *((table, "pipeline like 'beta%'") for table in ("stored_offset", "batch", "coverage", "rejected_record")),
        *((table, "pipeline like 'beta%'") for table in ("time_boundary", "run_life", "empty_run", "joined_topic")),
        ("forward", "pipeline like 'beta%'"),
        ("pipeline", "name like 'beta%'"),
        ("batch_range", "batch_id in (select batch_id from exactbatch.batch where pipeline = 'beta')"),
        ("batch_failure", "batch_id in (select batch_id from exactbatch.batch where pipeline = 'beta')"),
        ("outbox", f"stream_id = {_STREAM}"),
    ]
)
# Whatever the code of the target does first, it may do in a block of its own: an error is caught.
ESCAPES = (
    "set constraints all deferred",
    "set constraints all immediate",
    "set local session_replication_role to replica",
    "set role exactbatch_job",
    "set role exactbatch_owner",
    "reset role",
    "set local row_security to off",
    "set local search_path to shop, pg_catalog",
    "alter table exactbatch.stored_offset disable trigger all",
    "delete from exactbatch.bound_transaction",
    "insert into exactbatch.bound_transaction values (pg_current_xact_id(), clock_timestamp(), ''beta'')",
    "select exactbatch.bind_transaction(''beta'')",
    "select set_config(''exactbatch.pipeline'', ''beta'', true)",
)


def state(deployment: Deployment) -> list[str]:
    found = []
    with closing(psycopg2.connect(deployment.superuser)) as connection, connection.cursor() as cursor:
        for query in STATE.split("; "):
            cursor.execute(query)
            found.append(cursor.fetchone()[0])
    return found


def run(spark: Any, deployment: Deployment, pipeline: Pipeline, role: str = "job") -> int:
    settings = deployment.settings(role)
    with closing(connect(settings.postgres, application="tests")) as connection:
        batch_id = freeze_advance(connection, KafkaBroker(settings.kafka), pipeline, origin="cli")
        assert batch_id is not None
        process_batch(DriverEngine(spark), pipeline, batch_id, settings)
        return batch_id


@pytest.fixture
def topic(make_topic):
    topic = make_topic()
    topic.produce(*(record(n) for n in range(5)))
    return topic


@pytest.fixture
def shop(deployment, topic):
    """A deployment with the pipeline beta, and with shop.mal, a target of mallory that pipeline mal loads."""
    pipeline = Pipeline(name="mal", topics=(topic.name,), value=Json("id int, name text"), sink=Append("shop.mal"))
    deployment.init(pipeline)
    deployment.execute(ROLES)
    deployment.execute(BETA)
    deployment.execute(
        "do $$ begin if to_regrole('test_mallory') is null then create role test_mallory login; end if; end $$; "
        "grant usage, create on schema shop to test_mallory"
    )
    return deployment


def evil(what: str) -> str:
    """The statement that creates shop.evil() as mallory, and shop.hidden(), which looks immutable."""
    return (
        f"create or replace function shop.evil() returns boolean language plpgsql as $f$ begin {what}; "
        "return true; end $f$; "
        "create or replace function shop.hidden(text) returns boolean immutable language plpgsql as "
        "$f$ begin return shop.evil(); end $f$"
    )


KINDS = {
    "trigger": "create function shop.fire() returns trigger language plpgsql as "
    "$f$ begin perform shop.evil(); return null; end $f$; "
    "create trigger t after insert on shop.mal for each statement execute function shop.fire()",
    "default": "alter table shop.mal add column more boolean; alter table shop.mal alter column more set default shop.evil()",
    "check": "alter table shop.mal add check (shop.evil())",
    "domain": "create domain shop.word as text check (shop.hidden(value)); "
    "alter table shop.mal alter column name type shop.word",
    "index": "create index on shop.mal (shop.hidden(name))",
}


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_a_targets_owner_reaches_no_other_pipeline(spark, shop, topic, kind):
    pipeline = Pipeline(name="mal", topics=(topic.name,), value=Json("id int, name text"), sink=Append("shop.mal"))
    run(spark, shop, pipeline)
    topic.produce(record(7))
    shop.execute("alter table shop.mal owner to test_mallory; grant select, insert, update, delete on shop.mal to exactbatch_job")
    shop.execute(f"{evil('null')}; {KINDS[kind]}", "mallory")
    before = state(shop)
    for what in (WRITES[0], WRITES[7]):
        shop.execute(evil(what), "mallory")
        with pytest.raises(ExactbatchError, match="transaction writes for pipeline mal, and something in it") as caught:
            run(spark, shop, pipeline)
        assert "writes rows of pipeline beta into exactbatch." in str(caught.value)
        assert not caught.value.retryable
        assert state(shop) == before
    # What catches every error lets the batch commit, and has reached nothing.
    tries = "; ".join(
        f"begin {escape}; exception when others then null; end; begin {write}; exception when others then null; end; "
        "set local search_path to default"
        for escape, write in [
            *((f"execute '{escape}'", WRITES[0]) for escape in ESCAPES),
            *(("null", write) for write in WRITES),
        ]
    )
    shop.execute(evil(tries), "mallory")
    run(spark, shop, pipeline)
    assert state(shop) == before
    assert shop.execute("select from shop.mal") == 6
