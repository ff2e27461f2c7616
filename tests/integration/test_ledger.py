"""The ledger on a real Postgres: its versions, who is registered, and what the database itself refuses."""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg2
import pytest

from exactbatch import Append, Json, OffsetRange, Pipeline
from exactbatch.errors import (
    BatchLost,
    IdentityChanged,
    NotRegistered,
    PostgresUnavailable,
    StatementRefused,
)
from exactbatch.ledger import DagRun, Ledger, check_schema, migrate
from exactbatch.ledger.schema import migrations
from exactbatch.model import Plan, StoredOffset
from exactbatch.postgres.connection import connect, transaction

ID = UUID(int=1)


@pytest.fixture
def ledger(connection):
    """A ledger with one registered pipeline, whose only partition stands at 0."""
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.register(pipeline())
        ledger.plans.write_advance(pipeline(), plan(seed=True), origin="cli", run=None)
    return ledger


def pipeline(name: str = "flights", target: str = "public.flight") -> Pipeline:
    return Pipeline(name=name, topics=("t",), value=Json("id int"), sink=Append(target))


def plan(*ranges: tuple[int, int], seed: bool = False) -> Plan:
    start = StoredOffset(topic="t", partition=0, next_offset=0, leader_epoch=None, topic_id=ID)
    return Plan(
        seeds=(start,) if seed else (),
        losses=(),
        ranges=tuple(OffsetRange("t", 0, *each, ID) for each in ranges),
    )


def query(connection: Any, statement: str) -> list[Any]:
    with transaction(connection) as cursor:
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()]


def test_a_ledger_is_made_once_however_often_it_is_asked_for(empty):
    newest = [version for version, _ in migrations()]
    assert migrate(empty) == newest
    assert migrate(empty) == []
    check_schema(empty)


def test_of_two_that_make_a_ledger_at_once_only_one_does(database):
    connections = [connect(database, application="tests", timeout=10) for _ in range(2)]
    applied: list[list[int]] = []
    errors: list[Exception] = []
    together = threading.Barrier(2)

    def run(connection: Any) -> None:
        together.wait()
        try:
            applied.append(migrate(connection))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in connections]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    for each in connections:
        each.close()
    assert errors == []
    assert sorted(applied) == [[], [version for version, _ in migrations()]]


def with_another_version(folder: Path, statements: str) -> Path:
    for version, text in migrations():
        (folder / f"{version:04d}_old.sql").write_text(text)
    (folder / f"{migrations()[-1][0] + 1:04d}_new.sql").write_text(statements)
    return folder


def test_a_ledger_moves_forward_and_keeps_what_it_knows(connection, ledger, tmp_path):
    newer = with_another_version(
        tmp_path, "alter table exactbatch.pipeline add column note text default 'x';"
    )
    assert migrate(connection, newer) == [migrations()[-1][0] + 1]
    assert query(connection, "select name, note from exactbatch.pipeline") == [("flights", "x")]


def test_the_kinds_of_rejects_are_found_when_a_ledger_is_upgraded(empty, tmp_path):
    for version, text in migrations():
        if version < 20:
            (tmp_path / f"{version:04d}_old.sql").write_text(text)
    migrate(empty, tmp_path)
    reasons = ["column id: 'x1' is not an int", 'column "a": 12 digits', "x" * 300, "it isn't 7"]
    with transaction(empty) as cursor:
        cursor.execute("set local session_replication_role = replica")
        cursor.execute(
            'insert into exactbatch.rejected_record (pipeline, topic_id, partition, "offset", topic, headers, reason, '
            "batch_id) select 'p', %s, 0, n, 't', '[]', reason, 1 from unnest(%s) with ordinality r (reason, n)",
            (str(ID), reasons),
        )
    migrate(empty)
    kinds = query(empty, 'select kind from exactbatch.rejected_record order by "offset"')
    assert [kind for (kind,) in kinds] == [
        "column id: … is not an int", "column …: # digits", "x" * 200, "it isn't #"
    ]  # fmt: skip
    with pytest.raises(StatementRefused, match="kind"), transaction(empty) as cursor:
        cursor.execute("update exactbatch.rejected_record set kind = 'other'")


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(connection, tmp_path):
    broken = with_another_version(tmp_path, "create table exactbatch.half (); select 1/0;")
    with pytest.raises(StatementRefused, match="division by zero .SQLSTATE 22012."):
        migrate(connection, broken)
    assert query(connection, "select to_regclass('exactbatch.half') is null") == [(True,)]
    check_schema(connection)


def test_older_and_newer_ledger_are_refused_and_say_who_has_to_move(connection):
    newest = migrations()[-1][0]
    with transaction(connection) as cursor:
        cursor.execute("insert into exactbatch.schema_version values (%s)", (newest + 1,))
    with pytest.raises(NotRegistered, match=f"found the newer version {newest + 1}. Upgrade exactbatch"):
        check_schema(connection)
    with pytest.raises(NotRegistered, match=f"found the newer version {newest + 1}. Upgrade exactbatch"):
        migrate(connection)  # an old program registers nothing in it
    with transaction(connection) as cursor:
        cursor.execute("delete from exactbatch.schema_version")
    with pytest.raises(NotRegistered, match=f"expected version {newest} of the ledger, found version 0. Run"):
        check_schema(connection)


def test_an_empty_database_is_not_taken_for_a_first_run(empty):
    with pytest.raises(NotRegistered) as caught:
        check_schema(empty)
    assert f"the database '{empty.info.dbname}' has no ledger" in str(caught.value)
    assert "Check the connection string. If this is the right database, run `exactbatch migrate`" in str(
        caught.value
    )


def test_a_pipeline_is_registered_once(connection, ledger):
    with transaction(connection):
        assert ledger.registry.register(pipeline("other"), share_topics=True) is True
        assert ledger.registry.register(pipeline("other"), share_topics=True) is False
        ledger.registry.check(pipeline("other"))


def test_an_unknown_pipeline_is_told_which_there_are(connection, ledger):
    with transaction(connection), pytest.raises(NotRegistered) as caught:
        ledger.registry.check(pipeline("flihgts", target="public.another"))
    assert "pipeline 'flihgts' is not in the ledger of database" in str(caught.value)
    assert "which has flights. If this is the right database, run `exactbatch register`" in str(caught.value)
    with transaction(connection) as cursor:
        cursor.execute("set local session_replication_role to replica; truncate exactbatch.pipeline cascade")
    with transaction(connection), pytest.raises(NotRegistered, match="which has no pipeline at all"):
        ledger.registry.lock(pipeline())


def test_another_target_is_refused_until_it_is_accepted(connection, ledger):
    moved = pipeline(target="public.elsewhere")
    for check in (ledger.registry.register, ledger.registry.check, ledger.registry.lock):
        with transaction(connection), pytest.raises(IdentityChanged) as caught:
            check(moved)
        assert "expected target 'public.flight', as registered, found 'public.elsewhere'" in str(caught.value)
        assert "`exactbatch register --accept-identity`" in str(caught.value)
    with transaction(connection):
        assert ledger.registry.register(moved, accept_identity=True) is True
        ledger.registry.check(moved)


def test_the_database_refuses_to_count_an_offset_twice(connection, ledger):
    with transaction(connection):
        first = ledger.plans.write_advance(pipeline(), plan((0, 10)), origin="cli", run=None)
        ledger.coverage.add(ledger.batches.read(first))
        second = ledger.plans.write_advance(pipeline(), plan((9, 12)), origin="cli", run=None)
    with (
        pytest.raises(StatementRefused, match="coverage_counts_once"),
        transaction(connection),
    ):
        ledger.coverage.add(ledger.batches.read(second))
    assert [(each.from_offset, each.until_offset) for each in ledger.coverage.read_all(pipeline())] == [
        (0, 10)
    ]


def test_two_pipelines_and_two_lives_of_topic_are_counted_apart(connection, ledger):
    with transaction(connection) as cursor:
        ledger.registry.register(pipeline("other"), share_topics=True)
        for name, life in (("flights", 1), ("flights", 2), ("other", 1)):
            cursor.execute(
                "insert into exactbatch.coverage values (%s, 't', %s, 0, '[0,10)', 'loss')",
                (name, UUID(int=life)),
            )
    assert len(ledger.coverage.read_all(pipeline())) == 2


def test_an_empty_coverage_is_refused(connection, ledger):
    with pytest.raises(StatementRefused, match="SQLSTATE 23514"), transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.coverage values ('flights', 't', %s, 0, '[5,5)', 'loss')", (ID,)
        )


def test_new_plan_supersedes_one_planned_advance_there_can_be(connection, ledger):
    with transaction(connection):
        first, second = (
            ledger.plans.write_advance(pipeline(), plan((0, 10)), origin="cli", run=DagRun("dag", run))
            for run in "ab"
        )
        assert [ledger.batches.read(each).status for each in (first, second)] == ["superseded", "planned"]
        assert ledger.batches.find_successor(ledger.batches.read(first)) == second
    with (
        pytest.raises(StatementRefused, match="batch_planned_advance"),
        transaction(connection) as c,
    ):
        # Without the first statement the ledger refuses to change its past.
        c.execute(
            "set local session_replication_role = replica; "
            "update exactbatch.batch set status = 'planned' where batch_id = %s",
            (first,),
        )


def test_one_life_of_a_run_has_one_batch(connection, ledger):
    run = DagRun("dag", "run", 0, datetime(2026, 1, 1, tzinfo=UTC))
    cleared, anew = replace(run, clear_number=1), replace(run, started_at=datetime(2026, 1, 2, tzinfo=UTC))
    with transaction(connection):
        first = ledger.plans.write_advance(pipeline(), plan((0, 10)), origin="schedule", run=run)
        assert ledger.plans.find_batch(pipeline(), run) == first
        assert ledger.plans.find_batch(pipeline(), cleared) is None
        assert ledger.plans.find_batch(pipeline(), anew) is None
        second = ledger.plans.write_advance(pipeline(), plan((0, 10)), origin="schedule", run=cleared)
    with pytest.raises(StatementRefused, match="batch_of_run"), transaction(connection):
        ledger.plans.write_advance(pipeline(), plan((0, 10)), origin="schedule", run=run)
    with transaction(connection):
        assert [each.generation for each in ledger.plans.read_all_batches(pipeline(), run)] == [1, 0]
        assert [each.batch_id for each in ledger.plans.read_all_batches(pipeline(), run)] == [second, first]


def test_a_batch_that_is_not_there_is_told(connection, ledger):
    with (
        transaction(connection),
        pytest.raises(BatchLost, match="batch 999 is not in the ledger of database"),
    ):
        ledger.batches.read(999)


def test_a_committed_batch_has_its_counts(connection, ledger):
    with transaction(connection):
        first = ledger.plans.write_advance(pipeline(), plan((0, 10)), origin="cli", run=None)
    with pytest.raises(StatementRefused, match="SQLSTATE 23514"), transaction(connection) as cursor:
        cursor.execute("update exactbatch.batch set status = 'committed' where batch_id = %s", (first,))


def test_plan_waits_for_lock_of_its_pipeline_no_longer_than_it_may(connection, ledger, database):
    other = connect(database, application="tests", timeout=0.3)
    begin = time.monotonic()
    with transaction(connection):
        ledger.registry.lock(pipeline())
        with pytest.raises(PostgresUnavailable, match="a lock was not granted within the lock_timeout"):
            lock(other)
    assert time.monotonic() - begin < 30
    lock(other)
    other.close()


def lock(connection: Any, *, sit_idle: float = 0) -> None:
    """Hold the pipeline's lock for some seconds."""
    with transaction(connection) as cursor:
        Ledger(connection).registry.lock(pipeline())
        time.sleep(sit_idle)
        cursor.execute("select 1")


def test_transaction_that_sits_idle_for_too_long_is_ended_by_server(connection, ledger, database):
    hung = connect(database, application="tests", timeout=0.3)
    with pytest.raises(PostgresUnavailable, match="the connection to Postgres was lost"):
        lock(hung, sit_idle=1)
    lock(connection)
    hung.close()


def test_a_connection_that_has_ended_tells_why(connection, empty):
    def end_it(cursor: Any) -> None:
        query(empty, f"select pg_terminate_backend({connection.info.backend_pid}, 60000)")
        cursor.execute("select 1")

    with (
        pytest.raises(PostgresUnavailable, match="was lost: server closed the connection"),
        transaction(connection) as cursor,
    ):
        end_it(cursor)


def test_what_libpq_reports_without_servers_sqlstate_is_lost_connection(connection):
    # Seen when a server was killed in the middle of an answer; the moment cannot be had at will.
    with (
        pytest.raises(PostgresUnavailable, match="was lost: server closed the connection"),
        transaction(connection),
        connection.deadline(),
    ):
        raise psycopg2.DatabaseError("server closed the connection")
    with pytest.raises(psycopg2.ProgrammingError), transaction(connection) as cursor:
        cursor.fetchall()


def old_ledger(connection: Any, folder: Path) -> None:
    """A ledger of version 9: a pipeline that began at 5, lost offsets, and replayed what lies below."""
    for version, text in migrations():
        if version < 10:
            (folder / f"{version:04d}_old.sql").write_text(text)
    assert migrate(connection, folder)[-1] == 9
    with transaction(connection) as cursor:
        cursor.execute(
            """
            insert into exactbatch.pipeline (name, target, sink, lineage)
            values ('p', 'public.p', 'append', 'record');
            insert into exactbatch.stored_offset (pipeline, topic, partition, next_offset, topic_id)
            select 'p', 't', p, 20, %(id)s from generate_series(0, 2) p;
            insert into exactbatch.batch (pipeline, kind, origin)
            values ('p', 'advance', 'cli'), ('p', 'replay', 'cli');
            insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id) values
                (1, 't', 0, 5, 20, %(id)s), (1, 't', 1, 9, 20, %(id)s), (2, 't', 0, 0, 5, %(id)s);
            insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind, batch_id) values
                ('p', 't', %(id)s, 0, '[5,20)', 'batch', 1), ('p', 't', %(id)s, 0, '[0,5)', 'batch', 2),
                ('p', 't', %(id)s, 1, '[9,20)', 'batch', 1), ('p', 't', %(id)s, 1, '[7,9)', 'loss', null);
            update exactbatch.batch set status = 'committed', committed_at = now(), records = 0, rows = 0, rejected = 0,
                tombstones = 0, dropped = 0;
            """,
            {"id": str(ID)},
        )


NEWEST = "select version from exactbatch.schema_version order by 1 desc limit 1"


def test_an_old_ledger_keeps_its_coverage_and_learns_where_its_pipelines_began(empty, tmp_path):
    old_ledger(empty, tmp_path)
    before = query(empty, "select * from exactbatch.coverage order by partition, offsets")
    steps: list[str] = []
    assert migrate(empty, progress=steps.append)[0] == 10
    assert steps[0].startswith("Upgrading the ledger to version 10; it has about ")
    after = query(empty, "select * from exactbatch.coverage order by partition, offsets")
    assert after == [(*row, None) for row in before]
    began = "select partition, first_offset from exactbatch.stored_offset order by 1"
    assert query(empty, began) == [(0, 5), (1, 7), (2, 20)]
    with pytest.raises(StatementRefused, match="coverage_counts_once"), transaction(empty) as cursor:
        cursor.execute(
            "insert into exactbatch.coverage (pipeline, topic, topic_id, partition, offsets, kind) "
            "values ('p', 't', %s, 0, '[19,21)', 'loss')",
            (str(ID),),
        )


def test_a_migration_that_is_killed_leaves_the_old_ledger(empty, database, tmp_path):
    old_ledger(empty, tmp_path)
    before = query(empty, "select * from exactbatch.coverage order by partition, offsets")
    other = connect(database, application="tests", timeout=10)
    # A batch that is about to commit: the migration has changed other tables by now, and waits.
    with transaction(other) as cursor:
        cursor.execute("lock table exactbatch.coverage in row exclusive mode")
        errors: list[Exception] = []

        def run() -> None:
            try:
                migrate(empty)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        waiting = (
            "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        for _ in range(200):
            cursor.execute(waiting)
            if (found := cursor.fetchone()) is not None:
                break
            time.sleep(0.05)
        cursor.execute("select pg_terminate_backend(%s)", (found.pid,))
        thread.join(30)
    assert [type(error) for error in errors] == [PostgresUnavailable]
    assert query(other, NEWEST) == [(9,)]
    assert query(other, "select * from exactbatch.coverage order by partition, offsets") == before
    assert migrate(other)[0] == 10
    assert query(other, "select count(*) from exactbatch.coverage") == [(4,)]
    other.close()
