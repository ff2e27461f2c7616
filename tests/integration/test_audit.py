"""The auditor finds what a fault would leave behind, and nothing where nothing is wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from psycopg2.extensions import parse_dsn

from exactbatch import Append, Pipeline
from exactbatch.audit import run_audit
from exactbatch.audit.audit_result import AuditReport
from exactbatch.errors import ConfigurationError, TargetMismatch, TopicRecreated
from exactbatch.kafka.broker import KafkaBroker
from support.audited_target import COUNT, FORGE, AuditedTarget, findings, settle
from support.logins import LOGIN, as_login, password_of
from support.topics import Topic, record

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]


@pytest.fixture
def make_world(connection, settings, make_pipeline, monkeypatch):
    """A pipeline over a topic; the auditor compares seven offsets at a time."""
    monkeypatch.setattr(run_audit, "_WINDOW", 7)
    return lambda topic, **changes: AuditedTarget(connection, settings, make_pipeline(topic, **changes))


@pytest.fixture
def topic(make_topic):
    """A topic with one partition of thirty records."""
    topic = make_topic()
    topic.produce(*map(record, range(30)))
    return topic


def test_a_target_that_holds_what_the_log_holds_is_exact(make_world, topic):
    world = make_world(topic)
    world.load()
    found = world.audit()
    assert findings(found) == {}
    [only] = found.partitions
    assert (only.from_offset, only.until_offset, only.records, only.rows) == (0, 30, 30, 30)


def test_each_fault_is_found_and_named(make_world, topic):
    """Each is planted in a sound target and taken back again."""
    world = make_world(topic)
    first = world.load()
    topic.produce(*map(record, range(5)))
    second = world.load()
    row = "insert into {t} values (0, '', %s, 0, %s, null, %s)"
    name = topic.name
    faults: list[tuple[tuple[Any, ...], dict[str, tuple[int, list[int]]]]] = [
        (("delete from {t} where kafka_offset in (3, 20)",), {"missing": (2, [3, 20]), **COUNT}),
        (("insert into {t} select * from {t} where kafka_offset = 9",), {"duplicated": (1, [9]), **COUNT}),
        ((row, name, 40, second), {"unexpected": (1, [40]), **COUNT}),
        (
            (
                "insert into {t} select 0, '', %s, 0, o, null, %s from generate_series(35, 59) o",
                name,
                second,
            ),
            {"unexpected": (25, list(range(35, 45))), **COUNT},
        ),
        (
            ("update {t} set batch_id = %s where kafka_offset = 4", second),
            {"unexpected": (1, [4]), "miscounted": (2, [])},
        ),
        (
            ("update {t} set batch_id = %s where kafka_offset = 33", first),
            {"unexpected": (1, [33]), "miscounted": (2, [])},
        ),
        (
            ("update {t} set kafka_offset = kafka_offset + 1 where kafka_offset >= 30",),
            {"missing": (1, [30]), "unexpected": (1, [35])},
        ),
        (
            ("update {t} set kafka_offset = kafka_offset + 1 where kafka_offset = 6",),
            {"missing": (1, [6]), "duplicated": (1, [7])},
        ),
        (
            ("update {t} set kafka_partition = 1 where kafka_offset = 6",),
            {"missing": (1, [6]), "misplaced": (1, [])},
        ),
        (
            (f"{FORGE} update exactbatch.stored_offset set next_offset = 33",),
            {"unexpected": (2, [33, 34])},
        ),
        (
            ("delete from exactbatch.coverage where batch_id = %s", second),
            {"unexpected": (5, [30, 31, 32, 33, 34]), "gaps": (5, [30, 31, 32, 33, 34]), **COUNT},
        ),
        (
            ("update exactbatch.coverage set offsets = '[0,25)' where batch_id = %s", first),
            {"unexpected": (5, [25, 26, 27, 28, 29]), "gaps": (5, [25, 26, 27, 28, 29])},
        ),
        (
            ("update exactbatch.coverage set offsets = '[4,30)' where batch_id = %s", first),
            {"unexpected": (4, [0, 1, 2, 3]), "gaps": (4, [0, 1, 2, 3])},
        ),
        (
            ("delete from exactbatch.coverage where batch_id = %s", first),
            {"unexpected": (30, list(range(10))), "gaps": (30, list(range(10))), **COUNT},
        ),
        (
            ("delete from exactbatch.stored_offset where next_offset = 35",),
            {"unexpected": (35, list(range(10)))},
        ),
        (
            (
                "update exactbatch.coverage set kind = 'loss', batch_id = null where batch_id = %s",
                second,
            ),
            {"unexpected": (5, [30, 31, 32, 33, 34]), **COUNT},
        ),
    ]
    tables = ("{t}", "exactbatch.coverage", "exactbatch.stored_offset")
    for number, table in enumerate(tables):
        world.execute(f"create table saved_{number} as select * from {table}")
    world.execute("set session_replication_role = replica")  # the ledger refuses some of them
    for fault, expected in faults:
        assert world.execute(*fault) > 0
        assert findings(world.audit()) == expected, fault
        for number, table in enumerate(tables):
            world.execute(f"delete from {table}")
            world.execute(f"insert into {table} select * from saved_{number}")
    assert findings(world.audit()) == {}


def test_tombstones_and_rejects_are_accounted_for(make_world, make_topic):
    topic = make_topic()
    topic.produce(record(0), None, b"bad", None, record(4), *[None] * 10, record(15))
    world = make_world(topic)
    batch_id = world.load(tombstones=(1, 3, *range(5, 15)), rejects=(2,))
    found = world.audit()
    assert findings(found) == {}
    assert (found.records, found.rows, found.rejected, found.partitions[0].tombstones) == (16, 3, 1, 12)
    world.reject(4, batch_id)
    world.reject(20, batch_id)
    assert findings(world.audit()) == {"duplicated": (1, [4]), "unexpected": (1, [20]), **COUNT}


def test_row_at_offset_that_holds_no_committed_record_is_found(make_world, make_topic):
    topic = make_topic()
    topic.transaction(record(0), record(1))  # 2 is the marker
    topic.transaction(record(3), record(4), end="abort")  # 5 is the marker
    topic.produce(record(6))
    world = make_world(topic)
    log = KafkaBroker(world.settings.kafka)
    settle(log, topic, 7)
    world.load(2, 3, 4, 5)
    assert findings(world.audit()) == {}
    world.execute("update {t} set kafka_offset = 4 where kafka_offset = 1")
    assert findings(world.audit()) == {"missing": (1, [1]), "unexpected": (1, [4])}


def test_the_end_of_a_log_that_ends_with_a_marker_is_no_record(make_world, make_topic):
    """The reader has to wait for the event that says that it has reached the end."""
    topic = make_topic()
    topic.transaction(record(0), record(1))  # 2 is the marker
    world = make_world(topic)
    settle(KafkaBroker(world.settings.kafka), topic, 3)
    world.load(2)
    found = world.audit()
    assert findings(found) == {}
    assert (found.records, found.partitions[0].until_offset) == (2, 3)


def test_records_that_retention_removed_after_they_were_processed_prove_nothing_and_break_nothing(
    make_world, topic, admin
):
    world = make_world(topic)
    world.load()
    for future in admin.delete_records([TopicPartition(topic.name, 0, 10)]).values():
        future.result(30)
    found = world.audit()
    assert findings(found) == {}
    assert (found.rows, found.records, found.partitions[0].removed) == (30, 20, 10)
    world.execute("delete from {t} where kafka_offset = 15")
    assert findings(world.audit()) == {"missing": (1, [15]), **COUNT}


def test_a_row_in_offsets_that_were_lost_is_found(make_world, topic, admin):
    world = make_world(topic, on_loss="skip")
    world.load()
    topic.produce(*map(record, range(20)))
    for future in admin.delete_records([TopicPartition(topic.name, 0, 40)]).values():
        future.result(30)
    batch_id = world.load()
    found = world.audit()
    assert findings(found) == {}
    assert (found.partitions[0].lost, found.rows) == (10, 40)
    world.execute("insert into {t} values (0, '', %s, 0, 33, null, %s)", topic.name, batch_id)
    assert findings(world.audit()) == {"unexpected": (1, [33]), **COUNT}


def test_holes_that_compaction_made_break_nothing(make_world, make_topic, admin):
    """On a compacted topic a row without a record was right when it was written."""
    topic = make_topic()
    topic.transaction(
        *[record(n) for n in range(8)], end="abort"
    )  # offsets without records, as compaction leaves
    topic.produce(*map(record, range(5)), key=b"k")
    world = make_world(topic)
    log = KafkaBroker(world.settings.kafka)
    settle(log, topic, 14)
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[compact])
    admin.incremental_alter_configs([resource])[resource].result(30)
    world.load()
    found = world.audit()
    assert findings(found) == {}
    assert (found.rows, found.records, found.partitions[0].removed) == (14, 5, 9)
    world.execute("delete from {t} where kafka_offset = 11")
    assert findings(world.audit()) == {"missing": (1, [11]), **COUNT}


def test_rows_of_another_pipeline_in_same_target_are_not_looked_at(make_world, topic, make_pipeline):
    world = make_world(topic)
    world.load()
    other = AuditedTarget(
        world.connection,
        world.settings,
        make_pipeline(topic, name="other", sink=Append(world.pipeline.traits.target)),
    )
    other.load()
    assert findings(world.audit()) == findings(other.audit()) == {}
    assert world.audit().rows == 30


def test_topic_created_again_cannot_be_taken_for_exact_one(make_world, topic):
    world = make_world(topic)
    world.load()
    world.execute(f"{FORGE} update exactbatch.stored_offset set topic_id = %s", UUID(int=1))
    with pytest.raises(TopicRecreated, match=rf"{topic.name}\[0\]: the topic was deleted and created again"):
        world.audit()


def test_batches_that_commit_during_an_audit_do_not_disturb_it(make_world, topic):
    world = make_world(topic)
    world.load()
    topic.produce(*map(record, range(5)))

    def commit(_done: int, _all: int) -> None:
        if not committed:
            committed.append(world.load())

    committed: list[int] = []
    found = run_audit.audit(world.pipeline, world.settings, progress=commit)
    assert committed
    assert findings(found) == {}
    assert found.rows == 30


def test_an_audit_tells_how_far_it_is(make_world, topic):
    world = make_world(topic)
    world.load()
    told: list[tuple[int, int]] = []
    run_audit.audit(world.pipeline, world.settings, progress=lambda done, whole: told.append((done, whole)))
    assert told == [(7, 30), (14, 30), (21, 30), (28, 30), (30, 30)]


def test_a_pipeline_without_a_target_has_nothing_to_audit(settings, make_topic, make_pipeline):
    pipeline = make_pipeline(make_topic())
    with pytest.raises(TargetMismatch, match=r'the table "public"."\w+" does not exist: either no batch'):
        run_audit.audit(pipeline, settings)


def test_rows_are_found_wherever_they_claim_to_be(make_world, topic, make_pipeline):
    """Under another topic's name, in a partition that there is not, below zero, with another pipeline's batch."""
    world = make_world(topic)
    first = world.load()
    elsewhere = AuditedTarget(
        world.connection,
        world.settings,
        make_pipeline(topic, name="elsewhere", sink=Append("public.elsewhere")),
    )
    foreign = elsewhere.load()
    name, again = (
        topic.name,
        "insert into {t} select id, name, %s, %s, %s, null, %s from {t} where kafka_offset = 7",
    )
    planted: list[tuple[tuple[Any, ...], dict[str, tuple[int, list[int]]]]] = [
        ((again, "another", 0, 7, first), {"misplaced": (1, []), **COUNT}),
        ((again, name, 5, 7, first), {"misplaced": (1, []), **COUNT}),
        ((again, name, 0, -1, first), {"misplaced": (1, []), **COUNT}),
        ((again, "another", 0, 7, foreign), {"misplaced": (1, [])}),
        ((again, "another", 0, 7, foreign + 100), {"misplaced": (1, [])}),
        ((again, name, 5, 7, foreign), {"misplaced": (1, [])}),
        ((again, name, 0, 7, foreign), {"duplicated": (1, [7]), "unexpected": (1, [7])}),
        ((again, name, 0, 7, foreign + 100), {"duplicated": (1, [7]), "unexpected": (1, [7])}),
    ]
    for fault, expected in planted:
        assert world.execute(*fault) == 1
        found = world.audit()
        assert findings(found) == expected, fault
        assert len(found.target.notes) == len({"misplaced", "miscounted"} & {*expected})
        assert world.execute("delete from {t} where ctid = (select max(ctid) from {t})") == 1
    assert findings(world.audit()) == {}
    assert findings(elsewhere.audit()) == {}


def test_rows_from_before_exactbatch_are_told_and_are_no_fault(make_world, topic):
    world = make_world(topic)
    world.load()
    world.execute(
        "alter table {t} alter batch_id drop not null, alter kafka_topic drop not null, "
        "alter kafka_partition drop not null, alter kafka_offset drop not null"
    )
    world.execute("insert into {t} (id) values (1), (2)")
    found = world.audit()
    assert (findings(found), found.target.not_ours) == ({}, 2)
    world.execute(
        "update {t} set kafka_topic = %s, kafka_partition = 3 where kafka_topic is null", topic.name
    )
    assert findings(world.audit()) == {"misplaced": (2, [])}


def test_rows_that_log_no_longer_proves_are_counted_by_ledger(make_world, topic, admin):
    """An unlogged table that a crash has emptied, after retention has removed the records."""
    world = make_world(topic)
    world.load()
    for future in admin.delete_records([TopicPartition(topic.name, 0, 30)]).values():
        future.result(30)
    assert findings(world.audit()) == {}
    world.execute("truncate {t}")
    found = world.audit()
    assert findings(found) == COUNT
    assert found.target.notes == ["batch 1: the ledger has 30 rows, its table 0"]


def test_a_topic_that_was_taken_out_of_the_pipeline_is_no_fault(make_world, topic, make_topic, make_pipeline):
    other = make_topic()
    other.produce(*map(record, range(5)))
    both = make_world(topic, topics=(topic.name, other.name))
    both.load()
    assert findings_of(run_audit.audit(both.pipeline, both.settings)) == set()
    alone = AuditedTarget(both.connection, both.settings, make_pipeline(topic))
    assert findings(alone.audit()) == {}
    both.execute("update {t} set kafka_offset = 5 where kafka_topic = %s and kafka_offset = 4", other.name)
    assert findings(alone.audit()) == {"misplaced": (1, [])}


def findings_of(results: AuditReport) -> set[str]:
    return {kind for kind, count in results.findings.items() if count}


def test_a_ledger_that_contradicts_itself_is_found(make_world, topic):
    world = make_world(topic)
    batch_id = world.load()
    forged = [
        "update exactbatch.batch set records = 31 where batch_id = %s",
        "update exactbatch.batch set rejected = 31 where batch_id = %s",
        "update exactbatch.batch_range set until_offset = 29 where batch_id = %s",
        "update exactbatch.batch set status = 'superseded', committed_at = null where batch_id = %s; "
        "update exactbatch.batch_range set records = null",
        "alter table exactbatch.coverage drop constraint coverage_counts_once; insert into exactbatch.coverage "
        "select pipeline, topic, topic_id, partition, '[3,4)', 'batch', batch_id from exactbatch.coverage "
        "where batch_id = %s",
    ]
    tables = ("batch", "batch_range", "coverage")
    for table in tables:
        world.execute(f"create table kept_{table} as table exactbatch.{table}")
    for statement in forged:
        world.execute(FORGE + statement, batch_id)
        found = world.audit()
        assert found.target.contradictory == 1, statement
        assert "the ledger contradicts itself: " in "".join(found.target.notes)
        world.execute(
            FORGE
            + "".join(f"delete from exactbatch.{table};" for table in tables)
            + "insert into exactbatch.batch overriding system value table kept_batch;"
            + "".join(f"insert into exactbatch.{table} table kept_{table};" for table in tables[1:])
        )
    assert findings(world.audit()) == {}


def test_tables_that_cannot_keep_what_is_committed_are_named(make_world, topic):
    world = make_world(topic)
    world.load()
    world.execute("alter table {t} set unlogged")
    found = world.audit()
    assert findings(found) == {"unsafe": (1, [])}
    assert found.target.notes == [f"public.{topic.name} is unlogged: a crash of the server empties it"]


def test_a_foreign_partition_is_named(make_world, topic, database):
    world = make_world(topic)
    far = parse_dsn(database)
    columns = (
        "id int, name text, kafka_topic text, kafka_partition int, kafka_offset bigint, "
        "kafka_timestamp timestamptz, batch_id bigint"
    )
    world.execute(
        f"create table {{t}} ({columns}) partition by list (kafka_partition); "
        "create table near partition of {t} default; "
        f"create table far_away ({columns})"
    )
    world.load()
    # A batch would refuse it; somebody may attach it afterwards.
    world.execute(
        "create extension postgres_fdw; "
        "create server far foreign data wrapper postgres_fdw "
        f"options (host '{far['host']}', port '{far['port']}', dbname '{far['dbname']}'); "
        f"create user mapping for current_user server far options (user '{far['user']}', "
        f"password '{password_of(database)}'); "
        "create foreign table cold partition of {t} for values in (7) server far options (table_name 'far_away')"
    )
    found = world.audit()
    assert findings(found) == {"unsafe": (1, [])}
    assert "cold is a foreign table, which commits separately" in found.target.notes[0]


@pytest.fixture
def reader(make_world, topic, database):
    """A sound target, and a login that may read it and the ledger."""
    world = make_world(topic)
    world.load()
    login = f"reader_{topic.name}"
    world.execute(
        f"create role {login} {LOGIN}; grant usage on schema exactbatch to {login}; "
        f"grant select on all tables in schema exactbatch to {login}; grant select on {{t}} to {login}"
    )
    yield world, replace(world.settings, postgres=as_login(database, login))
    world.execute(f"drop owned by {login}; drop role {login}")


@pytest.mark.parametrize("table", ["{t}", "exactbatch.coverage"])
def test_rows_that_a_login_cannot_see_are_no_lost_ones(reader, table):
    world, settings = reader
    assert findings(run_audit.audit(world.pipeline, settings)) == {}
    world.execute(
        f"alter table {table} enable row level security; create policy hidden on {table} using (false)"
    )
    said = r"Row security on \S+ hides rows from the login 'reader_|login 'reader_.*affected by row-level security"
    with pytest.raises(ConfigurationError, match=said):
        run_audit.audit(world.pipeline, settings)
    assert findings(world.audit()) == {}


def test_a_privilege_that_is_missing_is_named(reader):
    world, settings = reader
    name = parse_dsn(settings.postgres)["dbname"]
    world.execute(f"revoke temporary on database {name} from public")
    assert findings(run_audit.audit(world.pipeline, settings)) == {}
    with pytest.raises(ConfigurationError, match="may not create temporary tables in the database"):
        run_audit.audit(world.pipeline, settings, values=True)
    world.execute("revoke select on {t} from " + parse_dsn(settings.postgres)["user"])
    with pytest.raises(ConfigurationError, match="may not read .*: grant select on"):
        run_audit.audit(world.pipeline, settings)


def test_two_pipelines_that_share_target_see_each_others_faults_only_where_they_are(
    make_world, topic, make_topic, make_pipeline
):
    """Over topics that overlap; each row is the fault of the pipeline whose batch it names."""
    more = make_topic()
    more.produce(*map(record, range(5)))
    world = make_world(topic)
    world.load()
    other = AuditedTarget(
        world.connection,
        world.settings,
        make_pipeline(
            topic, name="other", topics=(topic.name, more.name), sink=Append(world.pipeline.traits.target)
        ),
    )
    second = other.load()
    assert findings(world.audit()) == {}
    assert findings_of(run_audit.audit(other.pipeline, other.settings)) == set()
    world.execute("update {t} set kafka_offset = 30 where kafka_offset = 7 and batch_id = %s", second)
    assert findings(world.audit()) == {"unexpected": (1, [30])}
    assert findings_of(run_audit.audit(other.pipeline, other.settings)) == {"missing", "unexpected"}
