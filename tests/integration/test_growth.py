"""What thousands of partitions, ranges and batches cost: the statements under a pipeline's lock stay few."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import pytest
from psycopg2 import sql

from exactbatch import Aggregate, Append, Count, Json, Max, OffsetRange, Pipeline, Upsert
from exactbatch.audit.derived import counts_of_batches
from exactbatch.batch.publishing.publish import _count_records
from exactbatch.batch.staging.task import Staged
from exactbatch.columns import Column
from exactbatch.coverage import Coverage
from exactbatch.errors import BatchLost, ConfigurationError
from exactbatch.ledger import Ledger, TimeBoundaries, registry
from exactbatch.model import Covered, FoundRecord, LogPartition, Plan, StoredOffset
from exactbatch.planning.freeze_replay import resolve_window
from exactbatch.planning.plan_tables import _requests
from exactbatch.planning.replay_inputs import BEGINNING, ReplayInputs, ranges_of_batches
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres import connection as connections
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.aggregate.watermark import Watermark
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.writers import find_writer
from support.query_plans import executed_plans
from support.staged_batches import ID, Batches
from support.writers import writer_of

MANY: Final = 200
WIDE: Final = Pipeline(name="wide", topics=("w",), value=Json("id int"), sink=Append("public.wide"))
LOG: Final = tuple(
    LogPartition(
        topic="w", partition=each, topic_id=ID, leader_epoch=0, earliest=0, last_stable=30, high_watermark=30
    )
    for each in range(MANY)
)


@pytest.fixture
def few(monkeypatch):
    """A block in which no more than ten statements may be sent."""
    sent: list[Any] = []
    execute = connections.Cursor.execute
    monkeypatch.setattr(
        connections.Cursor, "execute", lambda self, *given: (sent.append(given), execute(self, *given))[1]
    )

    @contextmanager
    def block() -> Iterator[None]:
        sent.clear()
        yield
        assert len(sent) <= 10, f"{len(sent)} statements"

    return block


def ranges(first: int, until: int) -> tuple[OffsetRange, ...]:
    return tuple(each.range(first, until) for each in LOG)


def test_partitions_are_planned_committed_and_resolved_in_few_statements(connection, few):
    ledger = Ledger(connection)
    seeds = tuple(
        StoredOffset(topic="w", partition=each, next_offset=5, leader_epoch=None, topic_id=ID)
        for each in range(MANY)
    )
    with transaction(connection):
        ledger.registry.register(WIDE)
    with few(), transaction(connection):
        plan = Plan(seeds=seeds, losses=ranges(5, 10), ranges=ranges(10, 20))
        batch_id = ledger.plans.write_advance(WIDE, plan, origin="cli", run=None)
    assert batch_id is not None
    with few(), transaction(connection):
        batch = ledger.batches.read(batch_id)
        assert len(ledger.plans.advance_stored_offsets(batch)) == MANY
        ledger.coverage.add(batch)
        assert len(ledger.coverage.read_batch(batch)) == MANY
        counts = [(each, each.partition) for each in ledger.batches.read_ranges(batch_id)]
        ledger.batches.mark_committed(batch, rows=0, rejected=0, tombstones=0, records=counts)
    with transaction(connection):
        assert ledger.plans.read_stored_offsets(WIDE)[7] == StoredOffset(
            topic="w", partition=7, next_offset=20, leader_epoch=0, topic_id=ID
        )
        assert [count for _, count in ledger.batches.read_ranges_with_records(batch_id)] == list(range(MANY))
        kinds = [(each.from_offset, each.until_offset, each.kind) for each in ledger.coverage.read_all(WIDE)]
        assert kinds == [(5, 10, "loss"), (10, 20, "batch")] * MANY
        stored = ledger.plans.read_stored_offsets(WIDE)
    window = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)
    found = {
        at: {("w", each.partition): FoundRecord(offset, 0) for each in LOG}
        for at, offset in zip((BEGINNING, *window), (0, 12, 18), strict=True)
    }
    inputs = ReplayInputs(stored=stored, partitions=LOG, first_records=found)
    for _ in range(2):
        with few(), transaction(connection):
            asked, _ = resolve_window(
                TimeBoundaries(connection), WIDE, ReplayRequest(window=window), inputs, pin=True
            )
        assert [(each.from_offset, each.until_offset) for each in asked] == [(12, 18)] * MANY
    with transaction(connection):
        assert len(TimeBoundaries(connection).read(WIDE, limit=9999)) == 2 * MANY


def test_scattered_ranges_of_replay_are_taken_back_in_few_statements(connection, few):
    """As `exactbatch rejects --replay` asks for them; twice, for then each has a row of coverage."""
    pipeline = Pipeline(name="s", topics=("t",), value=Json("id int"), sink=Append("public.s"))
    batches, ledger = Batches(connection, pipeline), Ledger(connection)
    batches.run(*[(each,) for each in range(2 * MANY)])
    scattered = [OffsetRange("t", 0, each, each + 1, ID) for each in range(1, 2 * MANY, 2)]
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.rejected_record select 's', %s, 0, n, 't', null, null, '[]', 'x', 1 "
            "from generate_series(0, 9) n",
            (str(ID),),
        )
    for batch_id in (2, 3):
        with few(), transaction(connection) as cursor:
            covering = Coverage(ledger.coverage.read("s", scattered))
            parts = [(each, tuple(covering.batches(each))) for each in scattered]
            assert find_writer(pipeline.traits).lineage_table.count_by_part(cursor, parts) == [1] * MANY
            assert ledger.rejects.count(pipeline, parts) == ([1] * 5 if batch_id == 2 else []) + [0] * (
                MANY - 5 if batch_id == 2 else MANY
            )
        batches.replay(*((0, each.from_offset, each.until_offset) for each in scattered))
        with transaction(connection):
            rows = [(each.from_offset, each.batch_id) for each in ledger.coverage.read_all(pipeline)]
        assert rows == [(each, batch_id if each % 2 else 1) for each in range(2 * MANY)]


def test_requested_batches_are_looked_up_in_few_statements(connection, few):
    pipeline = Pipeline(name="s", topics=("t",), value=Json("id int"), sink=Append("public.s"))
    batches, ledger = Batches(connection, pipeline), Ledger(connection)
    ids = [batches.run((each,)).batch.batch_id for each in range(40)]
    with few(), transaction(connection):
        [asked] = ranges_of_batches(ledger, pipeline, ids)
    assert (asked.from_offset, asked.until_offset) == (0, 40)
    member, tables = SimpleNamespace(name="s"), SimpleNamespace(name="tables")
    with few():
        found = _requests(connection, tables, [member], {}, ReplayRequest(batch_ids=tuple(ids)))
    assert found["s"].batch_ids == tuple(ids)
    for lacking in ([999, *ids], [*ids, 999]):
        with pytest.raises(BatchLost, match="batch 999 is not in the ledger"), transaction(connection):
            ranges_of_batches(ledger, pipeline, lacking)


def test_counts_of_scattered_ranges_are_found_in_their_order():
    first, second = (OffsetRange("t", 0, each, each + 5, ID) for each in (0, 10))
    splits = [Staged(OffsetRange("t", 0, *each, ID), 0, 1, 1, 0, 0) for each in ((10, 12), (0, 5), (12, 15))]
    assert _count_records([second, first], splits) == [(first, 1), (second, 2)]


def test_what_ranges_leave_of_the_coverage():
    def rows(*places: tuple[int, int]) -> list[Covered]:
        return [Covered("t", ID, 0, first, until, "batch", 1) for first, until in places]

    cuts = [OffsetRange("t", 0, first, until, ID) for first, until in ((25, 26), (2, 4), (8, 12), (19, 22))]
    coverage = Coverage(rows((0, 10), (10, 20), (20, 21), (24, 30)))
    rest = coverage.without([*cuts, OffsetRange("t", 1, 0, 99, ID)])
    left = sorted((each.from_offset, each.until_offset) for each in rest)
    assert left == [(0, 2), (4, 8), (12, 19), (24, 25), (26, 30)]
    assert [(each.from_offset, each.until_offset) for each in coverage.cut(cuts[2])] == [(8, 10), (10, 12)]
    assert all(end <= start for (_, end), (start, _) in pairwise(left))


def test_the_audit_of_a_transform_looks_for_no_batch_by_itself(connection):
    """A scan for each batch makes a year of batches take days."""
    pipeline = Pipeline(
        name="s",
        topics=("t",),
        value=Json("id int"),
        sink=Append("public.s"),
        transform="select * from records",
    )
    Batches(connection, pipeline, Json("id int").columns).run((1,))
    with transaction(connection) as cursor:
        query = counts_of_batches(find_writer(pipeline.traits)).as_string(cursor).replace("$1", "'s'")
        cursor.execute(
            f"select * from ({query}) counts (batch_id, expected, rows, records_expected, records)"
        )
        assert [tuple(row) for row in cursor.fetchall()] == [(1, 1, 1, 1, 1)]
        cursor.execute(f"explain {query}")
        assert "SubPlan" not in "\n".join(row[0] for row in cursor.fetchall())


def test_the_watermark_reads_one_row_for_each_of_its_own_partitions(connection):
    """And not one for each batch, nor one for each partition of other pipelines."""
    watermark = Watermark(TargetTable("public.hours_watermark"), "at")
    with transaction(connection) as cursor:
        watermark.prepare(cursor)
        cursor.execute(
            "insert into public.hours_watermark select case p % 2 when 0 then 'a' else 'b' end, p / 2, b, "
            "timestamptz '2026-01-01' + make_interval(mins => (b * 7919 + p * 104729) % 10007) "
            "from generate_series(0, 99) p, generate_series(1, 500) b"
        )
        cursor.execute("analyze public.hours_watermark")
    with executed_plans(connection) as plans, connection.cursor() as cursor:
        cursor.execute(sql.SQL("select {}").format(watermark.reached))
        [reached] = cursor.fetchone()
    [plan] = plans
    assert plan.blocks <= 4 * 100  # of 50,000 rows in about 470 blocks, and an index with three levels
    with transaction(connection) as cursor:
        cursor.execute(
            "select min(latest) from (select max(event_time) as latest from public.hours_watermark "
            "group by topic, partition) each"
        )
        assert cursor.fetchone() == (reached,)


@pytest.mark.parametrize("batches", [1, 30_000])
def test_a_batch_of_an_aggregate_costs_what_it_changes(connection, batches):
    """And nothing for the partial results that batches before it have left, though the planner would scan them."""
    sink = Aggregate("public.sums", group_by=("id",), aggregates={"n": Count(), "most": Max("id")})
    columns = (Column("id", "integer"),)
    with transaction(connection) as cursor:
        writer_of(sink).prepare(cursor, columns)
        cursor.execute(
            "insert into public.sums_partial (id, n, most, records, batch_id) "
            "select id, 1, id, 1, b from generate_series(1, %s) b, generate_series(1, 2) id",
            (batches,),
        )
        # One group has a single result, in the last block, and one has none yet.
        cursor.execute(
            "insert into public.sums_partial (id, n, most, records, batch_id) values (3, 1, 3, 1, 40000)"
        )
        cursor.execute(
            "insert into public.sums select id, case id when 3 then 1 else %s end, id from generate_series(1, 3) id",
            (batches,),
        )
        cursor.execute(
            "create table public.staged as select id, 7::bigint as task_attempt from generate_series(1, 4) id"
        )
        cursor.execute("analyze public.sums_partial")
    staged = StagedRows(sql.Identifier("public", "staged"), 50_000, {7: 4})
    with executed_plans(connection) as plans, transaction(connection) as cursor:
        assert writer_of(sink).insert_staged(cursor, staged, columns) == 4
        cursor.execute("select n from public.sums order by id")
        assert [row.n for row in cursor.fetchall()] == [batches + 1] * 2 + [2, 1]
    own = [
        plan for plan in plans if plan.statement.startswith(("with inserted", 'update "exactbatch_added"'))
    ]
    assert len(own) == 2
    # 4 look-ups and insertions in small indexes; one scan would read 500 blocks.
    assert max(plan.blocks for plan in own) <= 60
    # A search in the index into which its statement inserts would pass over the new results, each time over more.
    [insert] = [plan for plan in own if plan.statement.startswith("with inserted")]
    at = [node["Node Type"] for node in insert.nodes() if node.get("Relation Name") == "sums_partial"]
    assert at == ["ModifyTable"]
    others = [node for plan in plans if plan not in own for node in plan.nodes()]
    assert "sums_partial" not in [node.get("Relation Name") for node in others]


def test_compaction_passes_over_each_change_a_few_times(connection):
    """Although it looks for the value that each of the latest changes lacks."""
    sink = Upsert("public.t", key=("id",), version="v")
    keys, changes = 500, 2_000
    with transaction(connection) as cursor:
        writer_of(sink).prepare(
            cursor, (Column("id", "integer"), Column("v", "integer"), Column("doc", "text"))
        )
        cursor.execute("alter table public.t_change add column if not exists unchanged_columns text[]")
        cursor.execute(
            "insert into public.t_change (id, v, doc, deleted, unchanged_columns, kafka_topic, kafka_partition, "
            "kafka_offset, kafka_timestamp, batch_id) select o %% %s, o, case when o < %s then 'x' end, false, "
            "case when o >= %s then array['doc'] end, 't', 0, o, now(), 1 from generate_series(0, %s) o",
            (keys, keys, keys, changes - 1),
        )
    part = (OffsetRange("t", 0, 0, changes, ID), (1,))
    with executed_plans(connection) as plans, transaction(connection) as cursor:
        # Of each key, the latest change and the one that has its value stay.
        assert writer_of(sink).compactor.compact(cursor, [part]) == {("t", 0): (changes - 2 * keys, 2 * keys)}
    [compaction] = [plan for plan in plans if "judged" in plan.statement]
    for node in compaction.nodes():
        removed = sum(node.get(f"Rows Removed by {step}", 0) for step in ("Filter", "Join Filter"))
        assert (node["Actual Rows"] + removed) * node["Actual Loops"] <= 2 * changes, node


def test_a_check_of_one_pipeline_reads_the_registrations_that_may_share_its_tables(connection, monkeypatch):
    """Not all of thousands, as those of many tables are."""
    ledger = Ledger(connection)
    sinks = {
        "history": Upsert("public.t", key=("id",)),
        "its_changes": Append('"t_change"'),
        "spelled_otherwise": Upsert('"t"', key=("id",)),
        "another": Upsert("public.t_other", key=("id",)),
        "with_others": [Append("public.a"), Append("public.b")],
    }
    pipelines = {
        name: Pipeline(name=name, topics=(name,), value=Json("id int"), sink=sink)
        for name, sink in sinks.items()
    }
    with transaction(connection) as cursor:
        for pipeline in pipelines.values():
            ledger.registry.register(pipeline, accept_identity=True)
        cursor.execute(
            "insert into exactbatch.pipeline (name, target, sink, key, lineage, version, topics, shares_topics) "
            "select 'p' || n, 'public.of_' || n, sink, key, lineage, version, topics, shares_topics "
            "from exactbatch.pipeline, generate_series(1, 3000) n where name = 'its_changes'"
        )
        cursor.execute(
            "insert into exactbatch.pipeline (name, target, sink, key, lineage, version, topics, shares_topics) "
            "select 'of_a_later_version', 'public.x', 'Later', key, lineage, version, topics, shares_topics "
            "from exactbatch.pipeline where name = 'its_changes'"
        )
        cursor.execute("analyze exactbatch.pipeline")
    read: list[int] = []
    conversions = registry.read_rows
    monkeypatch.setattr(
        registry,
        "read_rows",
        lambda kind, rows: (found := conversions(kind, rows), read.append(len(found)))[0],
    )
    with (
        transaction(connection),
        pytest.raises(ConfigurationError, match="'of_a_later_version' is registered with"),
    ):
        ledger.registry.find_sharing(pipelines["history"])
    with transaction(connection) as cursor:
        cursor.execute("delete from exactbatch.pipeline where name = 'of_a_later_version'")
        read.clear()
        assert ledger.registry.find_sharing(pipelines["history"]) == ["its_changes", "spelled_otherwise"]
        assert ledger.registry.find_sharing(pipelines["its_changes"]) == ["history", "spelled_otherwise"]
        assert ledger.registry.find_sharing(pipelines["another"]) == []
        assert read == [3, 3, 1]
    with executed_plans(connection) as plans, transaction(connection):
        ledger.registry.find_sharing(pipelines["history"])
    assert "pipeline_by_table" in {node.get("Index Name") for plan in plans for node in plan.nodes()}
