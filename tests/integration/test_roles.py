"""Each role of docs/roles.sql can do its work, and nothing else."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg2
import psycopg2.errors
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Append, Json, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, migrate
from exactbatch.local.postgres import start_disposable
from exactbatch.operations.status import load_status
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import connect, transaction
from support.dashboard import VIEWS, queries
from support.logins import LOGIN, as_login
from support.roles import ROLES
from support.topics import record


@pytest.fixture
def topic(make_topic):
    topic = make_topic()
    topic.produce(*(record(n) for n in range(5)), b"bad")
    return topic


@pytest.mark.parametrize("kind", ["append", "upsert", "partition"])
def test_each_role_can_do_its_work(spark, deployment, topic, kind):
    sink = Upsert("shop.item", key=("id",)) if kind == "upsert" else Append("shop.item")
    pipeline = Pipeline(
        name=topic.name,
        topics=(topic.name,),
        value=Json("id int, name text"),
        sink=sink,
        max_rejects=1,
        commit="partition" if kind == "partition" else "batch",
    )
    deployment.init(pipeline)
    deployment.execute(ROLES)
    deployment.run(spark, pipeline)
    topic.produce(record(7))
    deployment.run(spark, pipeline)
    deployment.run(spark, pipeline, ReplayRequest(ranges=(RequestedRange(topic.name, 0, 2, 6),)))
    deployment.execute("grant usage on schema shop to exactbatch_reader")
    deployment.execute("grant select on all tables in schema shop to exactbatch_reader")
    reader = deployment.settings("reader")
    found = audit(pipeline, reader)
    assert (found.is_exact, found.rows, found.rejected) == (True, 6, 1)
    connection = connect(reader.postgres, application="tests")
    assert load_status(connection, KafkaBroker(reader.kafka), pipeline).partitions[0].stored.next_offset == 7
    connection.close()


@pytest.fixture
def committed(spark, deployment, topic):
    """A deployment in which a batch has committed."""
    pipeline = Pipeline(
        name=topic.name, topics=(topic.name,), value=Json("id int"), sink=Append("shop.item"), max_rejects=1
    )
    deployment.init(pipeline)
    deployment.execute(ROLES)
    deployment.run(spark, pipeline)
    return deployment


def test_a_privilege_that_is_missing_is_named(spark, deployment, topic):
    pipeline = Pipeline(
        name=topic.name, topics=(topic.name,), value=Json("id int"), sink=Append("other.item"), max_rejects=1
    )
    deployment.init(pipeline)
    with pytest.raises(
        ConfigurationError,
        match=r"login 'test_job': a privilege is missing: permission",
    ):
        deployment.run(spark, pipeline)
    deployment.execute(ROLES)
    with pytest.raises(
        ConfigurationError,
        match=r"permission denied for database \S+ \(SQLSTATE 42501\)\. .* `exactbatch roles`",
    ):
        deployment.run(spark, pipeline)


def test_what_the_jobs_login_lacks_is_named_with_its_grant(spark, committed, topic):
    pipeline = Pipeline(
        name=topic.name, topics=(topic.name,), value=Json("id int"), sink=Append("shop.item"), max_rejects=1
    )
    topic.produce(record(8))
    committed.execute("revoke usage on schema exactbatch_staging from exactbatch_job, test_job")
    with pytest.raises(ConfigurationError, match="permission denied for schema exactbatch_staging"):
        committed.run(spark, pipeline)
    committed.execute(ROLES)
    committed.execute("alter table shop.item owner to test_owner; grant usage on schema shop to test_owner")
    committed.execute("grant select, update on shop.item to test_job")
    with pytest.raises(
        TargetMismatch,
        match=r"target shop\.item: the login test_job lacks a privilege: permission denied for table item "
        r"\(SQLSTATE 42501\)\. .* grant select, insert, update, delete on shop\.item to test_job;",
    ):
        committed.run(spark, pipeline)


def test_what_the_login_lacks_is_named_also_if_its_search_path_leads_elsewhere(spark, deployment, topic):
    pipeline = Pipeline(
        name=topic.name, topics=(topic.name,), value=Json("id int"), sink=Append("item"), max_rejects=1
    )
    deployment.init(pipeline)
    deployment.execute(ROLES)
    deployment.execute("grant usage, create on schema public to test_job; create table shop.item (id int)")
    deployment.execute(
        "do $$ begin execute format('alter database %I set search_path to shop', current_database()); end $$"
    )
    deployment.run(spark, pipeline)
    topic.produce(record(8))
    deployment.execute("alter table public.item owner to test_owner")
    deployment.execute("grant select, update on public.item to test_job")
    with pytest.raises(TargetMismatch, match=r"grant select, insert, update, delete on item to test_job;"):
        deployment.run(spark, pipeline)


def test_nobody_changes_the_past_and_a_reader_writes_nothing(committed):
    past = {
        "update exactbatch.batch set status = 'planned', committed_at = null": "is committed: its row can not",
        "update exactbatch.batch set records = 0": "is committed: its row can not",
        "update exactbatch.batch_range set records = 0": "its ranges can not be changed any more",
        "update exactbatch.stored_offset set next_offset = 0": "can only move forward",
    }
    for statement, message in past.items():
        for role in ("job", "owner", None):
            with pytest.raises(psycopg2.errors.RestrictViolation, match=message):
                committed.execute(statement, role)
    foreign = [
        "delete from exactbatch.batch",
        "delete from exactbatch.batch_range",
        "delete from exactbatch.stored_offset",
        "update exactbatch.pipeline set target = 'x'",
        "update exactbatch.batch set run_id = 'x'",
        "update exactbatch.batch_range set until_offset = 9",
        "update exactbatch.coverage set batch_id = 1",
        "update exactbatch.rejected_record set reason = 'x'",
        "delete from exactbatch.time_boundary",
        'update exactbatch.replay_horizon set "offset" = 1',
        "truncate exactbatch.coverage",
        "alter table exactbatch.batch disable trigger past",
        "drop table exactbatch.batch",
    ]
    for statement in foreign:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            committed.execute(statement, "job")
    writes = [
        *past,
        *foreign,
        # The job may: a table that joins is registered by the plan that includes it first.
        "insert into exactbatch.pipeline (name, target, sink, lineage) values ('x', 'x', 'append', 'record')",
        "delete from exactbatch.coverage",
        "insert into exactbatch.time_boundary select * from exactbatch.time_boundary",
        "create table exactbatch_staging.x ()",
        "delete from shop.item",
    ]
    for statement in writes:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            committed.execute(statement, "reader")
    assert committed.execute("select from exactbatch.batch where status = 'committed'", "reader") == 1


def test_any_member_of_the_owner_goes_on_with_the_ledger(deployment):
    """Whoever ran `exactbatch register` first, with the roles or before them."""
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("shop.item"))
    deployment.init(pipeline)
    deployment.execute("alter schema exactbatch owner to test_owner")
    deployment.execute(ROLES)
    deployment.execute(f"create role test_other {LOGIN} in role exactbatch_owner")
    try:
        connection = connect(deployment.settings("other").postgres, application="tests")
        with closing(connection):
            assert migrate(connection) == []
            with transaction(connection):
                assert Ledger(connection).registry.register(replace(pipeline, topics=("t", "u")))
            with transaction(connection) as cursor:
                # As migrations do.
                cursor.execute("alter table exactbatch.batch add column added int")
                cursor.execute("create index on exactbatch.coverage (batch_id)")
    finally:
        deployment.execute("drop role test_other")


def test_a_reporter_reads_the_views_and_nothing_else(deployment):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("shop.item"))
    deployment.init(pipeline)
    deployment.execute(ROLES)
    now = datetime.now(UTC)
    for query in queries():
        deployment.execute(query.expanded(["p"], now, now), "reporter")
    assert deployment.execute("select from exactbatch.partition_state", "reporter") == 0
    for table in ("pipeline", "batch", "rejected_record", "batch_failure", "coverage"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            deployment.execute(f"select from exactbatch.{table}", "reporter")
    allowed = (
        "select from pg_class, unnest(array['select', 'insert', 'update', 'delete', 'truncate']) right_on "
        "where relnamespace = 'exactbatch'::regnamespace and relkind in ('r', 'v') "
        "and has_table_privilege('test_reporter', pg_class.oid, right_on)"
    )
    assert deployment.execute(allowed) == len(VIEWS)


OWNED = """
select relname, relowner::regrole::text as owner, relacl::text as rights from pg_class
where relnamespace in ('exactbatch'::regnamespace, 'exactbatch_staging'::regnamespace) and relkind in ('r', 'v')
union all
select proname, proowner::regrole::text, proacl::text from pg_proc where pronamespace = 'exactbatch'::regnamespace
union all
select nspname, nspowner::regrole::text, nspacl::text from pg_namespace where nspname like 'exactbatch%'
order by 1, 2, 3
"""


def test_the_login_that_owns_a_managed_database_gives_the_same_rights_as_a_superuser():
    """It is no superuser, and a colleague migrates the ledger."""
    superuser = start_disposable()
    run(
        superuser,
        f"create role dba createrole {LOGIN}",
        "create database managed owner dba",
        "create database other",
    )
    dba = as_login(str(make_dsn(superuser, dbname="managed")), "dba")
    run(dba, ROLES, f"create role colleague {LOGIN}", "grant exactbatch_owner to colleague")
    run(dba, f"create role airflow {LOGIN}", "grant exactbatch_job to airflow")
    for dsn, who in ((dba, "colleague"), (str(make_dsn(superuser, dbname="other")), None)):
        if who is None:
            run(dsn, ROLES)
        with closing(connect(as_login(dsn, who) if who else dsn, application="tests")) as connection:
            migrate(connection)
        for _ in range(2):
            run(dsn, ROLES)
    managed, other = (run(str(make_dsn(superuser, dbname=name)), OWNED) for name in ("managed", "other"))
    assert managed == other
    assert {row[1] for row in managed} == {"exactbatch_owner"}
    job = as_login(dba, "airflow")
    run(
        job, "update exactbatch.batch set rows = 1 where false", "delete from exactbatch.coverage where false"
    )
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        run(job, "delete from exactbatch.batch")


def run(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, each in a transaction of its own; return the rows of the last one."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
