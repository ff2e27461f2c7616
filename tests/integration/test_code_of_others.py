"""Code of a target's owner does not get the rights of a person who may do more: who compacts, audits or examines."""

from contextlib import closing
from dataclasses import replace

import psycopg2
import pytest

from exactbatch import Append, Json, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.sample import Bounds
from exactbatch.operations import compact, merge_partitions
from exactbatch.operations.compact import compact_changes, preview_compaction
from exactbatch.operations.doctor.registrations import check_owners, check_targets
from exactbatch.operations.try_records import try_records
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from exactbatch.sinks.capabilities import MergeGroup
from support.look_alikes import calls_of_look_alikes, set_trap
from support.roles import ROLES, Deployment
from support.topics import record

# The job's login owns the tables that it has created. No rollback takes a number of the trap's sequence back.
PLANTED = (
    "create function shop.evil() returns boolean language plpgsql as "
    "$f$ begin if session_user <> 'test_job' then perform nextval('trap.ran'); end if; return true; end $f$; "
    "create function shop.hidden(text) returns boolean immutable language plpgsql as "
    "$f$ begin return shop.evil(); end $f$"
)
READ = {
    "domain": "create domain shop.word as text check (shop.hidden(value)); "
    "alter table shop.up alter column name type shop.word",
    "domain of a domain": "create domain shop.inner as text check (shop.hidden(value)); "
    "create domain shop.word as shop.inner; alter table shop.up_change alter column name type shop.word",
    "index": "create index on shop.up_change (id) where shop.hidden('a')",
    "operator": "create function shop.same(text, text) returns boolean immutable language plpgsql as "
    "$f$ begin return shop.evil(); end $f$; "
    "create operator shop.=== (leftarg = text, rightarg = text, function = shop.same); "
    "create index on shop.up_change (id) where 'a' operator(shop.===) 'b'",
}
TRIGGER = (
    "create function shop.fire() returns trigger language plpgsql as "
    "$f$ begin perform shop.evil(); return old; end $f$; "
    "create trigger t before delete on shop.up_change for each row execute function shop.fire()"
)


REFUSED = "may do more than the owners of functions"


@pytest.fixture
def pipeline(spark, deployment, make_topic):
    topic = make_topic()
    topic.produce(*(record(n % 5) for n in range(10)))
    pipeline = Pipeline(
        name="up", topics=(topic.name,), value=Json("id int, name text"), sink=Upsert("shop.up", key=("id",))
    )
    deployment.init(pipeline)
    deployment.execute(ROLES)
    deployment.run(spark, pipeline)
    set_trap(deployment.superuser)
    deployment.execute(
        "grant usage on schema shop to exactbatch_owner, exactbatch_reader; "
        "grant select on all tables in schema shop to exactbatch_owner, exactbatch_reader; "
        "grant delete on shop.up_change to exactbatch_owner"
    )
    deployment.execute(PLANTED, "job")
    return pipeline


def settings(deployment: Deployment, role: str | None) -> Settings:
    of_superuser = Settings(kafka=deployment.kafka, postgres=deployment.superuser)
    return of_superuser if role is None else deployment.settings(role)


def refused(deployment: Deployment, pipeline: Pipeline, role: str | None, *, deletes: bool) -> list[bool]:
    """Whether each command is refused to a login."""
    found = []
    with closing(connect(settings(deployment, role).postgres, application="tests")) as connection:
        broker = KafkaBroker(dict(deployment.kafka))
        commands = (
            [
                lambda: preview_compaction(connection, broker, pipeline, before=None),
                lambda: compact_changes(connection, broker, pipeline, before=None),
            ]
            if deletes
            else [lambda: audit(pipeline, settings(deployment, role), values=True)]
        )
        for command in commands:
            try:
                command()
                found.append(False)
            except ConfigurationError as error:
                found.append(REFUSED in str(error) and "of 'test_job'" in str(error))
        if not deletes and role is None:  # doctor and try ask whether a login may write, first
            texts = [each.found for each in check_targets(connection, {"up": pipeline})]
            found.append(any(REFUSED in text for text in texts))
            trial = try_records(pipeline, settings(deployment, role), Bounds(10))
            found.append(REFUSED in (trial.unchecked or ""))
    return found


@pytest.mark.parametrize("kind", READ)
def test_who_may_do_more_reads_no_table_that_calls_functions_of_others(deployment, pipeline, kind):
    deployment.execute(READ[kind], "job")
    for role in (None, "owner"):
        assert all(refused(deployment, pipeline, role, deletes=False))
    assert refused(deployment, pipeline, None, deletes=True) == [True, True]
    assert calls_of_look_alikes(deployment.superuser) == 0
    assert refused(deployment, pipeline, "reader", deletes=False) == [False]
    # The functions of whoever may do as much are called.
    functions = (
        "shop.evil()",
        "shop.hidden(text)",
        *(["shop.same(text, text)"] if kind == "operator" else []),
    )
    for function in functions:
        deployment.execute(f"alter function {function} owner to postgres")
    assert not any(refused(deployment, pipeline, None, deletes=False))


def test_a_target_with_a_domain_that_refuses_null_is_audited(deployment, pipeline):
    deployment.execute(
        "create domain shop.word as text not null; alter table shop.up alter column name type shop.word",
        "job",
    )
    assert audit(pipeline, deployment.settings("reader"), values=True).is_exact


def test_who_may_do_more_deletes_from_no_table_that_calls_functions_of_others(deployment, pipeline):
    deployment.execute(TRIGGER, "job")
    for role in (None, "owner"):
        assert refused(deployment, pipeline, role, deletes=True) == [True, True]
        assert not any(refused(deployment, pipeline, role, deletes=False))
    assert calls_of_look_alikes(deployment.superuser) == 0


def test_who_may_do_more_merges_no_partitions_that_call_functions_of_others(deployment, pipeline):
    merged = replace(
        pipeline, name="merged", value=Json("id int"), sink=Append("shop.merged", layout="by_batch")
    )
    deployment.execute(
        "create table shop.merged (id int check (shop.evil()), kafka_topic text not null, "
        "kafka_partition int not null, kafka_offset bigint not null, kafka_timestamp timestamptz, "
        "batch_id bigint not null) partition by range (batch_id); "
        "create table shop.merged_1 partition of shop.merged for values from (1) to (2); "
        "create table shop.merged_2 partition of shop.merged for values from (2) to (3); "
        "insert into shop.merged values (1, 't', 0, 0, null, 1)",
        "job",
    )
    group = MergeGroup(1, 3, ("merged_1", "merged_2"), 1)
    with (
        closing(connect(deployment.superuser, application="tests")) as connection,
        pytest.raises(ConfigurationError, match=REFUSED),
    ):
        merge_partitions._merge(connection, merged, merge_partitions._find_merger(merged), group)
    assert calls_of_look_alikes(deployment.superuser) == 0


def test_nobody_adds_a_trigger_in_the_meantime(deployment, pipeline, monkeypatch):
    def fail(_name: str) -> None:
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            deployment.execute(f"set lock_timeout = '1s'; {TRIGGER}", "job")

    monkeypatch.setattr(compact, "failpoint", fail)
    with closing(connect(deployment.settings("owner").postgres, application="tests")) as connection:
        done = compact_changes(connection, KafkaBroker(dict(deployment.kafka)), pipeline, before=None)
    assert done.dropped == 5


def test_doctor_names_who_owns_what_an_operator_or_an_inner_domain_calls(deployment, pipeline):
    deployment.execute(
        "alter table shop.up owner to postgres; alter table shop.up_change owner to postgres; "
        "alter schema shop owner to test_owner; "
        "create schema mallory; grant usage, create on schema mallory to test_reader"
    )
    returns_true = "returns boolean immutable language plpgsql as $f$ begin return true; end $f$"
    deployment.execute(
        f"create function mallory.accepts(text) {returns_true}; "
        f"create function mallory.same(text, text) {returns_true}; "
        "create operator mallory.=== (leftarg = text, rightarg = text, function = mallory.same); "
        "create domain mallory.inner as text check (mallory.accepts(value))",
        "reader",
    )

    def found() -> str:
        with closing(connect(deployment.settings("job").postgres, application="tests")) as job:
            return " ".join(each.found for each in check_owners(job, pipeline))

    assert "test_reader" not in found()
    deployment.execute("alter table shop.up add check (name operator(mallory.===) name)")
    assert "'test_reader' owns function mallory.same(text,text)" in found()
    deployment.execute(
        "alter table shop.up drop constraint up_name_check; create domain shop.outer as mallory.inner; "
        "alter table shop.up alter column name type shop.outer"
    )
    assert "'test_reader' owns domain" in found()
