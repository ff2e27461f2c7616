"""On a ledger with years of history, no statement of a plan, a batch, a replay or a status reads all of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Append, Json, Pipeline
from exactbatch.audit.located_rows import LocatedRows
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.units import Slice, Unit
from exactbatch.batch.publishing.fences import check_results_exist
from exactbatch.ledger import DagRun, Ledger, RangeCommits, overview_rows
from exactbatch.ledger.overview_rows import OverviewRows
from exactbatch.operations import report
from exactbatch.operations.batch_history import load_batches
from exactbatch.operations.coverage_strip import load_strips, look_for_gaps
from exactbatch.operations.overview import load_summaries
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_advance import freeze_advance, preview_advance
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.run import plan_run
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks.writers import find_writer
from support.dashboard import VIEWS, queries
from support.environment import LONG
from support.large_ledger import BEGAN, EVERY, ID, History, analyze, fill
from support.query_plans import executed_plans
from support.staged_batches import Batches

BATCHES: Final = 1_000_000 if LONG else 20_000
# Of history, a statement may read a few rows for each of its ranges, and a few blocks for each of these.
ROWS: Final = 400
# Of the page: the steps of all strips, each a look-up in an index; and the batches of the chart of the lag.
_STEPS, _LAG_BATCHES = 4_000, 600
BLOCKS: Final = 4_000


class _Numbers(dict[int, Any]):
    """A log of one row for each offset, however far it goes."""

    def __missing__(self, partition: int) -> "_Numbers":
        return self

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [(offset,) for offset in range(key.start, key.stop)]
        return self


@pytest.fixture(scope="module")
def large(stack, ledger_template) -> Iterator[str]:
    """The connection string of a database with a large ledger."""
    name = "large_ledger"
    admin = psycopg2.connect(stack.postgres_dsn)
    admin.autocommit = True
    with admin.cursor() as cursor:
        cursor.execute(f"create database {name} template {ledger_template}")
    dsn = make_dsn(stack.postgres_dsn, dbname=name)
    connection = connect(dsn, application="tests", timeout=60)
    for history in HISTORIES.values():
        fill(connection, history)
    connection.close()
    yield dsn
    with admin.cursor() as cursor:
        cursor.execute(f"drop database {name} with (force)")
    admin.close()


def pipeline(name: str, **sink: Any) -> Pipeline:
    return Pipeline(name=name, topics=(name,), value=Json("id int"), sink=Append(f"public.{name}", **sink))


HISTORIES: Final = {
    "records": History(pipeline("records"), BATCHES),
    "wholes": History(pipeline("wholes", lineage="batch"), BATCHES // 10),
    # Its history ended before that of the others began.
    "idle": History(pipeline("idle"), 50),
}


@pytest.fixture
def bounded(large) -> Iterator[Callable[..., Any]]:
    """A block whose statements must read a bounded part of the history."""
    connection = connect(large, application="tests", timeout=60)

    @contextmanager
    def block(rows: int = ROWS, blocks: int = BLOCKS) -> Iterator[Any]:
        with executed_plans(connection) as plans:
            yield connection
        assert plans, "no statement was explained"
        for plan in plans:
            assert not plan.scanned, f"reads all of {plan.scanned}: {plan.statement}"
            assert plan.rows_read <= rows, f"reads {plan.rows_read} rows: {plan.statement}"
            assert plan.blocks <= blocks, f"reads {plan.blocks} blocks: {plan.statement}"

    yield block
    connection.close()


@pytest.fixture(params=HISTORIES)
def history(request) -> History:
    return HISTORIES[request.param]


def requests(history: History) -> list[ReplayRequest]:
    middle = history.end // 2
    at = history.convert_time(middle)
    oldest = 1 + sum(
        each.batches for each in list(HISTORIES.values())[: list(HISTORIES.values()).index(history)]
    )
    return [
        ReplayRequest(ranges=(RequestedRange(history.topic, 3, middle, middle + 100),)),
        ReplayRequest(batch_ids=(oldest + history.batches // 3,)),
        ReplayRequest(window=(at, at + timedelta(minutes=30))),
    ]


def test_plans_and_replays_read_a_bounded_part_of_the_history(bounded, history):
    log, pipeline = history.log(60), history.pipeline
    with bounded() as connection:
        preview_advance(connection, log, pipeline)
        freeze_advance(connection, log, pipeline, origin="cli")
        for request in requests(history):
            assert preview_replay(connection, log, pipeline, request).plan.ranges
            freeze_replay(connection, log, pipeline, request, origin="cli")
        for number in range(2):
            run = DagRun("records", f"manual__{number}", clear_number=number)
            assert plan_run(connection, log, pipeline, run, None, origin="manual").batch is not None


def test_batches_read_a_bounded_part_of_the_history(bounded, history):
    with bounded() as connection:
        batches = Batches(connection, history.pipeline, log=_Numbers())
        for plan in (
            lambda: freeze_advance(connection, history.log(12), history.pipeline, origin="cli"),
            lambda: (
                freeze_replay(
                    connection, history.log(12), history.pipeline, requests(history)[0], origin="cli"
                ).batch_id
            ),
        ):
            batch_id = plan()
            assert batch_id is not None
            assert batches.process(batch_id).wrote
            assert not batches.process(batch_id).wrote


def test_ranges_that_commit_one_by_one_read_a_bounded_part_of_the_history(bounded, history):
    with bounded() as connection:
        batch_id = freeze_advance(connection, history.log(30), history.pipeline, origin="cli")
        with transaction(connection):
            first = Ledger(connection).batches.read_ranges(batch_id)[0]
        commits = RangeCommits(connection)
        batch = Ledger(connection).batches.read(batch_id, lock="share")
        assert not commits.is_committed(batch_id, first)
        assert commits.lock_stored_offset(batch.pipeline, first)
        counts = {"records": 1, "rows": 1, "rejected": 0, "tombstones": 0, "replaced": 0}
        assert commits.account(batch, first, **counts) == (1, 1, 1)
        connection.rollback()


@pytest.mark.parametrize("status", [None, "planned", "committed", "superseded"])
@pytest.mark.parametrize("kind", [None, "advance", "replay"])
def test_a_page_of_batches_reads_a_bounded_part_of_the_history(bounded, history, kind, status):
    with bounded() as connection:
        for before in (None, 40):
            load_batches(connection, history.pipeline.name, kind=kind, status=status, before=before, limit=20)


def test_the_page_of_pipelines_reads_a_bounded_part_of_the_history(bounded, history):
    name = history.pipeline.name
    with bounded() as connection:
        assert load_summaries(connection, [name])[name].batches
        with transaction(connection):
            listed = OverviewRows(connection).page_of_batches(name, before=2**62, limit=20)
            older = OverviewRows(connection).page_of_batches(name, before=listed[-1].batch.batch_id, limit=20)
        assert listed[-1].batch.batch_id > older[0].batch.batch_id
        assert listed[0].ranges


def test_each_answer_of_the_page_reads_a_bounded_part_of_the_history(bounded, history, monkeypatch):
    name, end = history.pipeline.name, history.end
    with bounded(rows=_STEPS * 3, blocks=_STEPS * 30) as connection:
        positions = load_summaries(connection, [name], batches=0)[name].positions
        for first, until in ((0, end), (end // 2, end // 2 + end // 10), (end // 2, end // 2 + 20)):
            drawn = load_strips(connection, name, positions, first, until, steps=900)
            assert len(drawn) == history.partitions
    with bounded(rows=_LAG_BATCHES * 24, blocks=_LAG_BATCHES * 60) as connection, transaction(connection):
        assert OverviewRows(connection).page_of_batches(name, before=2**62, limit=_LAG_BATCHES)
    monkeypatch.setattr(overview_rows, "_SAMPLE", 100)
    with bounded() as connection, transaction(connection):
        rows = OverviewRows(connection)
        assert rows.reject_reasons(name, limit=50)[0].kind == "not a JSON object"
        assert rows.rejects_of_kind(name, "not a JSON object", after=(UUID(int=0), -1, -1), limit=100)
        assert rows.rejected_record(name, ID, 0, 0, limit=100)


def test_a_search_for_gaps_reads_so_many_rows_and_no_more(bounded, history):
    name = history.pipeline.name
    most = min(300, history.batches * history.partitions)
    for rows in (most, min(BATCHES // 2, history.batches * history.partitions)):
        with bounded(rows=rows + 100, blocks=rows + 100) as connection:
            positions = load_summaries(connection, [name], batches=0)[name].positions
            found = look_for_gaps(connection, name, positions, rows=rows)
        assert (found.gaps, found.rows) == ((), rows)


def test_a_slice_of_an_audit_reads_its_own_coverage(bounded, history, large):
    class Explained(Snapshot):
        def table(self, query):
            with transaction(self.connection) as cursor:
                cursor.execute(query)
                columns = list(zip(*cursor.fetchall(), strict=True))
            return pa.table({str(number): column for number, column in enumerate(columns)})

    slice_ = Slice(3, history.end // 2, history.end // 2 + 100)
    unit = Unit(history.topic, ID, (slice_,))
    with connect_arrow(large, application="tests", read_only=True) as arrow, bounded() as connection:
        table = find_writer(history.pipeline.traits).lineage_table
        rows = LocatedRows(Explained(arrow, connection), history.pipeline, table, unit, [], is_shared=False)
        covering = rows.covering(slice_)
    assert covering.starts[0] <= slice_.start < slice_.end <= covering.ends[-1]


def test_the_dashboard_reads_a_bounded_part_of_the_history(bounded):
    names = [each.pipeline.name for each in HISTORIES.values()]
    at = BEGAN + EVERY * 1000
    with bounded() as connection, transaction(connection) as cursor:
        for query in queries():
            cursor.execute(query.expanded(names, at, at + timedelta(hours=4)))
            assert cursor.fetchall() or "failed_at" in query.sql or "open_batches" in query.sql


def test_the_views_read_a_bounded_part_of_the_history(bounded, history):
    name = history.pipeline.name
    with bounded() as connection, transaction(connection) as cursor:
        for view in set(VIEWS) - {"batch_history"}:
            cursor.execute(f"select * from exactbatch.{view}")
            cursor.execute(f"select * from exactbatch.{view} where pipeline = %s", (name,))
        cursor.execute(
            "select * from exactbatch.batch_history where pipeline = %s and committed_at is not null "
            "order by committed_at desc limit 20",
            (name,),
        )
        assert cursor.rowcount == 20


def test_status_and_report_read_a_bounded_part_of_the_history(bounded, history, monkeypatch):
    with bounded() as connection:
        monkeypatch.setattr(report, "ledger_session", lambda *_: nullcontext(connection))
        batch_id = freeze_advance(connection, history.log(50), history.pipeline, origin="cli")
        with transaction(connection):
            ledger = Ledger(connection)
            batch = ledger.batches.read(batch_id)
            ledger.batches.record_failure(batch, ValueError("x"))
            connection.cursor().execute(
                "update exactbatch.batch set planned_at = '2020-01-01' "
                "where status = 'planned' and kind = 'replay' and pipeline = %s",
                (history.pipeline.name,),
            )
        status = load_status(connection, history.log(50), history.pipeline)
        assert [failing.batch_id for failing in status.failing] == [batch_id]
        newest = next(each for each in status.batches if each.status == "committed")
        assert len(report.load_report("", history.log(50), history.pipeline, newest.batch_id).ranges) > 0
        with transaction(connection) as cursor:
            check_results_exist(cursor, ledger, history.pipeline, batch)
            ledger.batches.find_finished(history.pipeline, [newest.plan_id])
            ledger.batches.find_unannounced_plans([newest.plan_id])
            ledger.batches.announce([newest.plan_id])


def test_a_pipeline_that_has_failed_for_long_costs_a_dashboard_no_more(bounded, large):
    connection = connect(large, application="tests", timeout=60)
    with transaction(connection) as cursor:
        Ledger(connection).registry.register(pipeline("stuck"))
        cursor.execute(
            "insert into exactbatch.batch (pipeline, kind, origin, status) "
            "select 'stuck', 'advance', 'cli', 'superseded' from generate_series(1, 5000)"
        )
        cursor.execute(
            "insert into exactbatch.batch (pipeline, kind, origin) values ('stuck', 'advance', 'cli')"
        )
    analyze(connection)
    connection.close()
    with bounded() as connection, transaction(connection) as cursor:
        cursor.execute("select waiting_since from exactbatch.pipeline_state where pipeline = 'stuck'")
        assert cursor.fetchone().waiting_since is not None
        cursor.execute("select * from exactbatch.pipeline_state")
    with bounded() as connection:
        assert load_summaries(connection, ["stuck"])["stuck"].current
