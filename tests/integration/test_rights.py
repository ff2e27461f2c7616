"""What code of a target's owner, and a login for some pipelines, can do to the rows of other pipelines: nothing."""

import re
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.errors
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Append, Json, Pipeline
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.errors import ConfigurationError, ExactbatchError, PostgresUnavailable
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, list_staging_tables, migrate
from exactbatch.operations.doctor.registrations import check_owners
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks.tables.target import TargetTable
from support.logins import LOGIN
from support.roles import ROLES, Deployment
from support.topics import record

# The rows of pipeline beta, which another owner's target must not reach.
BETA = """
insert into exactbatch.pipeline (name, target, sink, lineage) values ('beta', 'shop.beta', 'append', 'record');
insert into exactbatch.stored_offset (pipeline, topic, partition, next_offset, topic_id, first_offset)
values ('beta', 't', 0, 8, '00000000-0000-0000-0000-000000000001', 0);
insert into exactbatch.batch (pipeline, kind, origin, status, committed_at, records, rows, rejected, tombstones,
                              dropped)
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
insert into exactbatch.fingerprint (pipeline, topic, topic_id, partition, "offset", digest)
values ('beta', 't', '00000000-0000-0000-0000-000000000001', 0, 7, '');
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
    'insert into exactbatch.fingerprint (pipeline, topic, topic_id, partition, "offset", digest) '
    "values ('beta', 't', '00000000-0000-0000-0000-000000000001', 0, 6, '')",
    "delete from exactbatch.fingerprint where pipeline = 'beta'",
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
        *(
            (table, "pipeline like 'beta%'")
            for table in ("stored_offset", "batch", "coverage", "rejected_record")
        ),
        *(
            (table, "pipeline like 'beta%'")
            for table in ("time_boundary", "run_life", "empty_run", "joined_topic", "fingerprint")
        ),
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
    pipeline = Pipeline(
        name="mal", topics=(topic.name,), value=Json("id int, name text"), sink=Append("shop.mal")
    )
    deployment.init(pipeline)
    deployment.execute(ROLES)
    deployment.execute(BETA)
    deployment.execute(
        f"do $$ begin if to_regrole('test_mallory') is null then create role test_mallory {LOGIN}; end if; end $$; "
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
    "default": "alter table shop.mal add column more boolean, alter column more set default shop.evil()",
    "check": "alter table shop.mal add check (shop.evil())",
    "domain": "create domain shop.word as text check (shop.hidden(value)); "
    "alter table shop.mal alter column name type shop.word",
    "index": "create index on shop.mal (shop.hidden(name))",
}


def mal(topic: Any, **changes: Any) -> Pipeline:
    given = {"sink": Append("shop.mal"), **changes}
    return Pipeline(name="mal", topics=(topic.name,), value=Json("id int, name text"), **given)


def give_to_mallory(deployment: Deployment, kind: str) -> None:
    deployment.execute(
        "do $$ declare part regclass; begin for part in select relid from pg_partition_tree('shop.mal') "
        "union select 'shop.mal'::regclass loop "
        "execute format('alter table %s owner to test_mallory', part); end loop; end $$; "
        "grant select, insert, update, delete on shop.mal to exactbatch_job"
    )
    deployment.execute(f"{evil('null')}; {KINDS[kind]}", "mallory")


def check_beta_is_out_of_reach(
    spark: Any, deployment: Deployment, pipeline: Pipeline, attacks: tuple[str, ...]
) -> None:
    before = state(deployment)
    for what in attacks:
        deployment.execute(evil(what), "mallory")
        with pytest.raises(
            ExactbatchError, match="transaction writes for pipeline mal, and something in it"
        ) as caught:
            run(spark, deployment, pipeline)
        assert "writes rows of pipeline beta into exactbatch." in str(caught.value)
        assert not caught.value.retryable
        assert state(deployment) == before


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_a_targets_owner_reaches_no_other_pipeline(spark, shop, topic, kind):
    pipeline = mal(topic)
    run(spark, shop, pipeline)
    topic.produce(record(7))
    give_to_mallory(shop, kind)
    check_beta_is_out_of_reach(spark, shop, pipeline, (WRITES[0], WRITES[7]))
    before = state(shop)
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


@pytest.mark.parametrize(
    "changes",
    [{"commit": "partition"}, {"sink": Append("shop.mal", layout="by_batch", min_offsets=1)}],
    ids=["commit of a partition", "partition of a batch"],
)
def test_nor_does_it_where_executors_copy_into_the_target(spark, shop, topic, changes):
    pipeline = mal(topic, **changes)
    run(spark, shop, pipeline)
    topic.produce(record(7))
    # A target by batch is dropped and attached to by its owner.
    shop.execute("grant test_mallory to test_job")
    try:
        give_to_mallory(shop, "check")
        check_beta_is_out_of_reach(spark, shop, pipeline, (WRITES[0],))
    finally:
        shop.execute("revoke test_mallory from test_job")


def test_a_preview_of_a_replay_lets_code_of_the_target_write_nothing(spark, shop, topic):
    pipeline = mal(topic)
    run(spark, shop, pipeline)
    give_to_mallory(shop, "index")
    # Postgres calls it when it plans a query of the table.
    shop.execute("create index on shop.mal (id) where shop.hidden('a')", "mallory")
    shop.execute(
        evil(f"begin {WRITES[0]}; exception when read_only_sql_transaction then null; end"), "mallory"
    )
    before, settings = state(shop), shop.settings("job")
    request = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 1, 3),))
    with closing(connect(settings.postgres, application="tests")) as connection:
        assert preview_replay(connection, KafkaBroker(settings.kafka), pipeline, request).rows == 2
    assert state(shop) == before


@pytest.fixture
def confined(shop):
    """shop, where test_job is a login for pipeline mal, and for Tables of the name mall."""
    shop.execute(
        "insert into exactbatch.login_pipeline values ('test_job', 'mal'), ('test_job', 'mall')", "owner"
    )
    return shop


def test_a_login_for_some_pipelines_writes_no_row_of_others(spark, confined, topic):
    run(spark, confined, mal(topic))
    before = state(confined)
    for write in WRITES:
        with pytest.raises(
            psycopg2.DatabaseError, match="login test_job may not write rows of pipeline beta"
        ) as caught:
            confined.execute(write, "job")
        assert caught.value.pgcode == "EX002"
    assert state(confined) == before
    other = Pipeline(name="other", topics=(topic.name,), value=Json("id int"), sink=Append("shop.other"))
    confined.init(other)
    with pytest.raises(
        ConfigurationError, match="this login is for other pipelines: login test_job may not write"
    ):
        run(spark, confined, other)
    with pytest.raises(
        psycopg2.DatabaseError, match="rows of pipeline "
    ):  # of a stream that is still to come
        confined.execute(
            "insert into exactbatch.outbox (stream_id, sequence, batch_id, change) values (99, 1, 1, 'row')",
            "job",
        )
    # A member of Tables is registered by the plan in which it joins.
    insert = "insert into exactbatch.pipeline (name, target, sink, lineage) values ('{}', 'x.x', 'append', 'record')"
    assert confined.execute(insert.format("mall.a"), "job") == 1
    with pytest.raises(psycopg2.DatabaseError, match="rows of pipeline malls"):
        confined.execute(insert.format("malls"), "job")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        confined.execute("delete from exactbatch.login_pipeline", "job")


def test_a_login_keeps_a_pipeline_that_is_renamed(confined):
    with closing(connect(confined.settings("owner").postgres, application="tests")) as connection:
        renamed = Pipeline(name="new", topics=("t",), value=Json("id int"), sink=Append("shop.mal"))
        with transaction(connection):
            Ledger(connection).registry.register(renamed, rename="mal")
    assert confined.execute("select from exactbatch.login_pipeline where pipeline = 'new'") == 1
    insert = "insert into exactbatch.batch (pipeline, kind, origin) values ('new', 'replay', 'cli')"
    assert confined.execute(insert, "job") == 1


def test_what_is_done_is_not_removed_by_truncate_or_delete(confined):
    tables = [
        name
        for (name,) in query(
            confined,
            "select relname from pg_class where relnamespace = 'exactbatch'::regnamespace and relkind = 'r'",
        )
    ]
    for role in ("owner", None):
        for table in set(tables) - {"named_lock", "bound_transaction"}:  # without a history
            with pytest.raises(
                psycopg2.errors.RestrictViolation, match="has a history: it can not be truncated"
            ):
                confined.execute(f"truncate exactbatch.{table} cascade", role)
        with pytest.raises(
            psycopg2.errors.RestrictViolation, match=r"stored offset 8 of t\[0\] can not be deleted"
        ):
            confined.execute("delete from exactbatch.stored_offset", role)


def test_a_path_of_the_session_does_not_change_what_is_refused(shop):
    """An operator that says that a committed batch is planned."""
    shop.execute(
        "create function shop.equal(text, text) returns boolean language sql immutable as 'select false'; "
        "create operator shop.<> (leftarg = text, rightarg = text, function = shop.equal)"
    )
    with pytest.raises(psycopg2.errors.RestrictViolation, match="is committed: its row can not be changed"):
        shop.execute(
            "set search_path to shop, pg_catalog; update exactbatch.batch set records = 9 where pipeline = 'beta'"
        )


def query(deployment: Deployment, statement: str) -> list[Any]:
    with closing(psycopg2.connect(deployment.superuser)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_a_login_without_rights_holds_up_no_batch_and_one_that_does_is_named(shop):
    target = TargetTable("shop.mal")
    names = ("shop.mal", "exactbatch.schema_version", "exactbatch.pipeline", "registrations")
    with (
        closing(psycopg2.connect(shop.settings("mallory").postgres)) as mallory,
        closing(connect(shop.settings("job").postgres, application="tests", timeout=0.5)) as job,
        closing(connect(shop.settings("owner").postgres, application="tests", timeout=0.5)) as owner,
    ):
        cursor = mallory.cursor()
        for name in names:
            cursor.execute(
                "select pg_advisory_lock(hashtextextended(%s, 0)), pg_advisory_lock(hashtext(%s))",
                (name, name),
            )
        mallory.commit()
        for attempt in (
            "select exactbatch.take_lock('shop.mal')",
            "lock table exactbatch.named_lock in share mode",
        ):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute(attempt)
            mallory.rollback()
        with transaction(job) as own:
            target.lock(own)
        assert migrate(owner) == []
        with transaction(owner):
            Ledger(owner).registry.register(
                Pipeline(name="n", topics=("t",), value=Json("id int"), sink=Append("shop.n"))
            )
        # Now the job's login holds it up, in another session.
        dsn = make_dsn(shop.settings("job").postgres, application_name="somebody's session")
        with closing(psycopg2.connect(dsn)) as holder:
            held = holder.cursor()
            held.execute("savepoint inner_one; select exactbatch.take_lock('shop.mal'); release inner_one")
            with pytest.raises(PostgresUnavailable) as caught, transaction(job) as own:
                target.lock(own)
            named = f"login test_job (pid {holder.info.backend_pid}, application somebody's session)"
            assert f"the lock shop.mal is held by {named} (SQLSTATE 55P03)" in str(caught.value)
            mallory.rollback()
            cursor.execute("select pg_advisory_unlock_all()")
            held.execute("select exactbatch.take_lock('shop.mal')")
            with closing(psycopg2.connect(dsn)) as another, transaction(job) as own:
                another.cursor().execute("select exactbatch.take_lock('shop.another')")
                with pytest.raises(
                    psycopg2.errors.LockNotAvailable, match=re.escape(f"is held by {named}\n")
                ):
                    target.lock(own)
                job.rollback()
            with transaction(job) as own:
                own.execute(
                    "select exactbatch.try_lock('shop.mal'), exactbatch.try_lock('shop.other') as other"
                )
                assert tuple(own.fetchone()) == (False, True)


def test_a_second_launch_drops_no_tables_of_another_login(shop):
    """They are of another owner of targets."""
    shop.execute(
        "create unlogged table exactbatch_staging.batch_1_a_rejects (); "
        "create unlogged table exactbatch_staging.batch_1_b_rejects (); "
        "alter table exactbatch_staging.batch_1_b_rejects owner to test_job"
    )
    with closing(connect(shop.settings("job").postgres, application="tests")) as job, transaction(job):
        assert list_staging_tables(job) == ["batch_1_b_rejects"]


def test_doctor_names_whose_code_runs_as_the_jobs_login(shop, topic):
    pipeline = mal(topic)
    shop.execute("create table shop.mal (id int, name text)")

    def found() -> list[str]:
        with closing(connect(shop.settings("job").postgres, application="tests")) as job:
            return [f"{each.level} {each.found}" for each in check_owners(job, pipeline)]

    assert found() == []  # a superuser may do anything anyway
    for role, given, taken, why in (
        ("alter table shop.mal owner to {}", "test_mallory", "postgres", "owns shop.mal"),
        ("alter schema shop owner to {}", "test_mallory", "postgres", "owns schema shop"),
        ("grant trigger on shop.mal to {}", "test_mallory", None, "may create triggers on shop.mal"),
    ):
        shop.execute(role.format(given))
        assert found() == [
            f"warning shop.mal: 'test_mallory' {why}, so code of theirs runs as login 'test_job', which may write all "
            "pipelines"
        ]
        shop.execute(role.format(taken) if taken else "revoke trigger on shop.mal from test_mallory")
    shop.execute("grant usage, create on schema shop to test_mallory")
    shop.execute(evil("null"), "mallory")
    shop.execute("alter table shop.mal add check (shop.evil())")
    assert "'test_mallory' owns function shop.evil()" in found()[0]
    # The members of a role that owns a table own it.
    shop.execute("alter table shop.mal drop constraint mal_check; alter table shop.mal owner to test_owner")
    assert found() == []  # who owns the ledger may do more anyway
    shop.execute("alter table shop.mal owner to test_mallory")
    shop.execute("insert into exactbatch.login_pipeline values ('test_job', 'mal')")
    assert found() == []


def test_whatever_the_job_writes_is_checked(shop):
    """A table of a later migration, too."""
    written = query(
        shop,
        "select c.relname, p.privilege from pg_class c, unnest(array['insert', 'update', 'delete']) p (privilege) "
        "where c.relnamespace = 'exactbatch'::regnamespace and c.relkind = 'r' "
        "and (has_table_privilege('exactbatch_job', c.oid, p.privilege) "
        "or p.privilege <> 'delete' and has_any_column_privilege('exactbatch_job', c.oid, p.privilege)) order by 1, 2",
    )
    checked = query(
        shop,
        "select tgrelid::regclass::text, tgname from pg_trigger where tgfoid = 'exactbatch.check_writer'::regproc "
        "and tgenabled = 'O'",
    )
    assert {(f"exactbatch.{table}", f"writer_{privilege}s") for table, privilege in written} <= set(checked)
