"""Pruning: old batches are folded, the target stays, and what is no longer known is refused and never guessed."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from exactbatch import Append, Json, OffsetRange, Pipeline, Upsert
from exactbatch.errors import Fenced, PruneRefused, ReplayRefused, StatementRefused, TargetMismatch
from exactbatch.errors.exit_status import WRONG_USAGE
from exactbatch.ledger import Ledger, find_parts
from exactbatch.operations import prune as pruning
from exactbatch.operations.prune import preview_pruning, prune_history
from exactbatch.operations.withdraw import withdraw_replay
from exactbatch.planning.freeze_replay import preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from support.audited_target import COUNT, AuditedTarget, findings
from support.commands import start_command
from support.large_ledger import History
from support.staged_batches import ID, Batches
from support.topics import record
from support.waiting import wait_for
from support.writers import writer_of

EVER: Final = datetime(2999, 1, 1, tzinfo=UTC)
Made = Callable[..., Batches]


@pytest.fixture
def make(connection) -> Made:
    """Commit batches of three records in two partitions: make(count, sink)."""

    def make(count: int = 4, name: str = "p", more: tuple[Any, ...] = (), **changes: Any) -> Batches:
        pipeline = Pipeline(
            name=name,
            topics=("t",),
            value=Json(changes.pop("columns", "id int")),
            sink=changes.pop("sink", Append("public.p")),
            **changes,
        )
        batches = Batches(connection, pipeline)
        for number in range(count):
            batches.run(*((10 * number + row, *more) for row in range(3)), partition=number % 2)
        return batches

    return make


def query(connection: Any, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with transaction(connection) as cursor:
        cursor.execute(statement, parameters)
        return [tuple(row) for row in cursor.fetchall()]


def coverage(connection: Any) -> list[tuple[Any, ...]]:
    return query(
        connection,
        "select partition, lower(offsets), upper(offsets), kind, coalesce(batch_id, newest_batch_id) "
        "from exactbatch.coverage order by 1, 2",
    )


def rows(connection: Any) -> list[tuple[Any, ...]]:
    return query(connection, "select kafka_partition, kafka_offset, id, batch_id from public.p order by 1, 2")


def pruned(connection: Any) -> list[tuple[Any, ...]]:
    return query(connection, "select batch_id, pruned from exactbatch.batch order by 1")


def ranges_left(connection: Any) -> list[int]:
    return [
        row[0] for row in query(connection, "select distinct batch_id from exactbatch.batch_range order by 1")
    ]


def test_old_batches_become_one_row_of_coverage_in_each_partition(connection, make):
    batches = make(6)
    committed = query(connection, "select committed_at from exactbatch.batch where batch_id = 5")[0][0]
    before = rows(connection)
    preview = preview_pruning(connection, batches.pipeline, before=committed)
    assert (preview.batches, preview.ranges, preview.newest) == (4, 4, 4)
    assert pruned(connection) == [(each, None) for each in range(1, 7)]
    progress: list[int] = []
    done = prune_history(connection, batches.pipeline, before=committed, progress=progress.append)
    assert (done, progress) == (preview, [4])
    assert coverage(connection) == [
        (0, 0, 6, "pruned", 3),
        (0, 6, 9, "batch", 5),
        (1, 0, 6, "pruned", 4),
        (1, 6, 9, "batch", 6),
    ]
    assert pruned(connection) == [*((each, "whole") for each in range(1, 5)), (5, None), (6, None)]
    assert ranges_left(connection) == [5, 6]
    assert rows(connection) == before
    # What comes later joins what is there.
    assert prune_history(connection, batches.pipeline, before=EVER).batches == 2
    assert coverage(connection) == [(0, 0, 9, "pruned", 5), (1, 0, 9, "pruned", 6)]
    assert prune_history(connection, batches.pipeline, before=EVER).batches == 0
    batches.run((99,))
    assert coverage(connection)[1] == (0, 9, 10, "batch", 7)


def test_folded_offsets_are_replayed_exactly(connection, make):
    batches = make(4)
    other = make(2, name="other")
    prune_history(connection, batches.pipeline, before=EVER)
    prune_history(connection, other.pipeline, before=EVER)
    before = rows(connection)
    batches.log[0][4] = (1000,)
    history = History(batches.pipeline, 6, partitions=2, size=1)
    request = ReplayRequest(ranges=(RequestedRange("t", 0, 2, 5),))
    preview = preview_replay(connection, history.log(0), batches.pipeline, request)
    assert [(part.batch_ids, part.rows) for part in preview.retracted] == [((1, 3), 3)]
    batches.replay((0, 2, 5))
    expected = [row for row in before if row[0] or row[3] in (5, 6) or row[1] not in (2, 3, 4)]
    expected += [(0, 2, 2, 7), (0, 3, 20, 7), (0, 4, 1000, 7)]
    assert sorted(rows(connection)) == sorted(expected)
    mine = [row for row in coverage(connection) if row[4] not in (5, 6)]
    assert mine == [
        (0, 0, 2, "pruned", 3),
        (0, 2, 5, "batch", 7),
        (0, 5, 6, "pruned", 3),
        (1, 0, 6, "pruned", 4),
    ]
    assert [row for row in pruned(connection) if row[0] in (1, 2, 3)] == [
        (1, "part"),
        (2, "whole"),
        (3, "part"),
    ]


def test_replaced_batches_are_folded_as_such(connection, make):
    batches = make(4)
    batches.replay((0, 0, 4))
    prune_history(connection, batches.pipeline, before=EVER)
    assert pruned(connection) == [(1, "none"), (2, "whole"), (3, "part"), (4, "whole"), (5, "whole")]
    assert coverage(connection) == [(0, 0, 6, "pruned", 5), (1, 0, 6, "pruned", 4)]


def test_rejects_of_folded_batches_are_retracted(connection, make):
    batches = make(2)
    query(
        connection,
        "insert into exactbatch.rejected_record select 'p', %s, 0, 1, 't', null, null, '[]', 'x', 1 returning 1",
        str(ID),
    )
    query(connection, "delete from public.p where kafka_partition = 0 returning 1")
    prune_history(connection, batches.pipeline, before=EVER)
    batches.replay((0, 0, 3))
    assert query(connection, "select count(*) from exactbatch.rejected_record") == [(0,)]
    assert len([row for row in rows(connection) if row[0] == 0]) == 3


def test_upsert_takes_back_changes_of_folded_batches(connection, make):
    batches = make(4, more=(False,), sink=Upsert("public.p", key=("id",)))
    prune_history(connection, batches.pipeline, before=EVER)
    batches.log[0][0] = (77, False)
    batches.replay((0, 0, 3))
    ids = [row[0] for row in query(connection, "select id from public.p order by 1")]
    assert ids == sorted([77, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32])


def test_whole_batches_cannot_be_replayed_below(connection, make):
    batches = make(4, sink=Append("public.p", lineage="batch"))
    planned: list[int] = []
    with transaction(connection):
        planned.append(
            Ledger(connection).plans.write_replay(
                batches.pipeline, [OffsetRange("t", 0, 0, 3, ID)], origin="cli", run=None
            )
        )
    with pytest.raises(PruneRefused, match=r"batch 5 \(replay\) was planned at .* Nothing was folded"):
        preview_pruning(connection, batches.pipeline, before=EVER)
    with pytest.raises(PruneRefused, match=r"batch 5 \(replay\)"):
        prune_history(connection, batches.pipeline, before=EVER)
    # Planned by a program that does not know of it.
    query(connection, "update exactbatch.batch set status = 'superseded' where batch_id = 5 returning 1")
    prune_history(connection, batches.pipeline, before=EVER)
    history = History(batches.pipeline, 6, partitions=2, size=1)
    for requested in (
        ReplayRequest(ranges=(RequestedRange("t", 0, 2, 5),)),
        ReplayRequest(ranges=(RequestedRange("t", 0, 2, 5),), available_only=True),
    ):
        with pytest.raises(
            ReplayRefused, match=r"t\[0\] 2\.\.5: exactbatch prune has folded the batches of offsets 2 to 5"
        ):
            preview_replay(connection, history.log(0), batches.pipeline, requested)
    before = query(connection, "select * from public.p order by id")
    with pytest.raises(Fenced, match="was planned to replace whole batches, but exactbatch prune has folded"):
        batches.replay((0, 0, 3))
    assert query(connection, "select * from public.p order by id") == before


def test_a_folded_batch_is_not_replayed_by_its_number(connection, make):
    batches = make(2)
    prune_history(connection, batches.pipeline, before=EVER)
    history = History(batches.pipeline, 3, partitions=2, size=1)
    with pytest.raises(ReplayRefused, match="batch 1: exactbatch prune has folded it"):
        preview_replay(connection, history.log(0), batches.pipeline, ReplayRequest(batch_ids=(1,)))


def test_a_planned_replay_blocks_until_it_is_overtaken(connection, make):
    batches = make(4)
    with transaction(connection):
        early = Ledger(connection).plans.write_replay(
            batches.pipeline, [OffsetRange("t", 0, 1, 4, ID)], origin="cli", run=None
        )
    with pytest.raises(PruneRefused):
        prune_history(connection, batches.pipeline, before=EVER)
    assert ranges_left(connection) == [1, 2, 3, 4, 5]
    batches.replay((0, 1, 4))
    assert prune_history(connection, batches.pipeline, before=EVER).batches == 6
    assert query(connection, "select status, pruned from exactbatch.batch where batch_id = 5") == [
        ("superseded", "none")
    ]
    with pytest.raises(Fenced):
        batches.process(early)


def test_a_planned_replay_blocks_until_it_is_withdrawn(connection, settings, make, tmp_path):
    batches = make(4)
    with transaction(connection):
        early = Ledger(connection).plans.write_replay(
            batches.pipeline, [OffsetRange("t", 0, 1, 4, ID)], origin="cli", run=None
        )
    withdraw = ("replay", batches.pipeline, "--withdraw", str(early), "--yes")
    killed = start_command(settings, tmp_path, *withdraw, failpoints="withdraw.before_commit=kill")
    killed.communicate(timeout=60)
    with pytest.raises(PruneRefused, match=f"withdraw it: `exactbatch replay p --withdraw {early}`"):
        prune_history(connection, batches.pipeline, before=EVER)
    done = start_command(settings, tmp_path, *withdraw)
    assert "Replay 5 is withdrawn" in done.communicate(timeout=60)[0]
    assert done.returncode == 0
    with pytest.raises(
        Fenced, match="batch 5 of pipeline 'p' was withdrawn, or later replays have processed"
    ):
        batches.process(early)
    for wrong, what in ((early, "a replay that is superseded"), (4, "an advance that is committed")):
        with pytest.raises(
            ReplayRefused, match=f"batch {wrong} of pipeline 'p' is {what}: only a planned replay"
        ):
            withdraw_replay(connection, batches.pipeline, wrong)
    assert prune_history(connection, batches.pipeline, before=EVER).batches == 5


def test_an_old_replay_does_not_overwrite_folded_results(connection, make):
    batches = make(4)
    with transaction(connection):
        early = Ledger(connection).plans.write_replay(
            batches.pipeline, [OffsetRange("t", 0, 0, 4, ID)], origin="cli", run=None
        )
    batches.replay((0, 0, 2))
    # Nothing that exactbatch does: it folds nothing that a planned replay may replace.
    forged = "set local session_replication_role = replica; update exactbatch.batch set status = %s where batch_id = %s"
    with transaction(connection) as cursor:
        cursor.execute(forged, ("superseded", early))
    prune_history(connection, batches.pipeline, before=EVER)
    with transaction(connection) as cursor:
        cursor.execute(forged, ("planned", early))
        cursor.execute(
            "set local session_replication_role = replica; insert into exactbatch.batch_range "
            "(batch_id, topic, partition, from_offset, until_offset, topic_id) values (%s, 't', 0, 0, 4, %s)",
            (early, str(ID)),
        )
    before = rows(connection)
    with pytest.raises(Fenced, match=r"t\[0\] 0\.\.4 are those of batch 6"):
        batches.process(early)
    assert rows(connection) == before


def test_a_replay_that_is_planned_between_two_portions_blocks_the_second(connection, make, monkeypatch):
    monkeypatch.setattr(pruning, "_BATCHES", 1)
    batches = make(4)

    def plan(done: int) -> None:
        if done == 2:
            with transaction(connection):
                Ledger(connection).plans.write_replay(
                    batches.pipeline, [OffsetRange("t", 0, 0, 1, ID)], origin="cli", run=None
                )

    with pytest.raises(PruneRefused, match="2 batches were folded before this and stay folded"):
        prune_history(connection, batches.pipeline, before=EVER, progress=plan)
    assert [row for row in pruned(connection) if row[1]] == [(1, "whole"), (2, "whole")]
    assert coverage(connection)[1] == (0, 3, 6, "batch", 3)


def test_unannounced_and_uncommitted_batches_stay(connection, make):
    batches = make(2)
    query(connection, "set session_replication_role = replica; select 1")
    query(
        connection,
        "update exactbatch.batch set dag_id = 'd', run_id = 'r', announced_at = null where batch_id = 1 returning 1",
    )
    query(connection, "set session_replication_role = origin; select 1")
    with transaction(connection):
        from exactbatch.model import Plan

        plan = Plan(seeds=(), losses=(), ranges=(OffsetRange("t", 0, 3, 5, ID),))
        Ledger(connection).plans.write_advance(batches.pipeline, plan, origin="cli", run=None)
    assert prune_history(connection, batches.pipeline, before=EVER).batches == 1
    assert ranges_left(connection) == [1, 3]


def test_runs_that_found_nothing_are_forgotten_in_portions(connection, make, monkeypatch):
    batches, other = make(2), make(1, name="other")
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.empty_run (pipeline, dag_id, run_id, clear_number, planned_at) "
            "select p, p, n::text, 0, timestamptz '2026-01-01' + n * interval '1 minute' "
            "from unnest(array['p', 'other']) p, generate_series(0, 9) n"
        )
    before = datetime(2026, 1, 1, 0, 7, tzinfo=UTC)
    monkeypatch.setattr(pruning, "_EMPTY_RUNS", 3)
    preview = preview_pruning(connection, batches.pipeline, before=before)
    assert (preview.batches, preview.empty_runs) == (0, 7)
    assert prune_history(connection, batches.pipeline, before=before) == preview
    left = "select pipeline, count(*), min(run_id) from exactbatch.empty_run group by 1 order by 1"
    assert query(connection, left) == [("other", 10, "0"), ("p", 3, "7")]
    assert prune_history(connection, other.pipeline, before=EVER).empty_runs == 10


def test_the_past_changes_in_no_other_way(connection, make):
    make(2)
    for statement, message in (
        ("update exactbatch.batch set pruned = 'part', rows = 9 where batch_id = 1", "batch 1 is committed"),
        ("delete from exactbatch.batch_range where batch_id = 1", "its ranges can not be changed"),
    ):
        with pytest.raises(StatementRefused, match=message), transaction(connection) as cursor:
            cursor.execute(statement)
    with transaction(connection) as cursor:
        cursor.execute("update exactbatch.batch set pruned = 'part' where batch_id = 1")
    for value in ("'whole'", "null", "'none'"):
        with pytest.raises(StatementRefused, match="batch 1 is committed"), transaction(connection) as cursor:
            cursor.execute(f"update exactbatch.batch set pruned = {value} where batch_id = 1")
    with pytest.raises(StatementRefused), transaction(connection) as cursor:
        cursor.execute("update exactbatch.batch_range set records = 5 where batch_id = 1")


def test_a_trigger_that_swallows_a_row_fails_the_portion(connection, make):
    batches = make(2)
    query(
        connection,
        "create function swallow() returns trigger language plpgsql as $$ begin return null; end $$; "
        "create trigger swallow before insert on exactbatch.coverage for each row execute function swallow(); "
        "select 1",
    )
    before = coverage(connection)
    with pytest.raises(
        TargetMismatch, match="batches 1 to 2: 6 offsets were covered, and 0 are after folding"
    ):
        prune_history(connection, batches.pipeline, before=EVER)
    assert coverage(connection) == before


@pytest.fixture
def command(settings, tmp_path):
    """Start `exactbatch prune` for a pipeline, as a process of its own."""

    return partial(start_command, settings, tmp_path, "prune")


@pytest.mark.parametrize("moment", ["prune.after_fold", "prune.before_commit", "prune.after_commit"])
def test_pruning_that_is_killed_leaves_whole_portions(connection, make, command, moment):
    batches = make(4)
    before = coverage(connection), ranges_left(connection)
    killed = command(batches.pipeline, "--all", "--yes", failpoints=f"{moment}=kill")
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    if moment == "prune.after_commit":
        assert coverage(connection) == [(0, 0, 6, "pruned", 3), (1, 0, 6, "pruned", 4)]
    else:
        assert (coverage(connection), ranges_left(connection)) == before
    batches.replay((0, 1, 5))
    assert prune_history(connection, batches.pipeline, before=EVER).batches in (1, 5)
    assert coverage(connection) == [(0, 0, 6, "pruned", 5), (1, 0, 6, "pruned", 4)]
    assert len(rows(connection)) == 12


def test_a_publish_waits_for_a_portion_and_then_goes_on(connection, make, command, tmp_path, settings):
    batches = make(4)
    go = tmp_path / "go"
    pruning_process = command(
        batches.pipeline, "--all", "--yes", "--json", failpoints=f"prune.before_commit=hold:{go}"
    )
    wait_for(Path(f"{go}.held").exists)
    thread = threading.Thread(target=batches.run, args=((50,),))
    thread.start()
    thread.join(1)
    assert thread.is_alive()
    go.touch()
    told, problems = pruning_process.communicate(timeout=60)
    thread.join(60)
    assert json.loads(told)["batches"] == 4, problems
    assert coverage(connection)[1] == (0, 6, 7, "batch", 5)


def test_the_command_says_what_is_not_possible_afterwards(connection, make, command):
    batches = make(2)
    told, problems = command(batches.pipeline, "--keep", "90 minutes", "--dry-run").communicate(timeout=60)
    assert "no batch from before" in told, problems
    told, _ = command(batches.pipeline, "--all", "--dry-run").communicate(timeout=60)
    assert "2 batches with 2 ranges" in told
    assert "Replays by --batch" in told
    assert "which of these batches covers an offset" in told
    assert pruned(connection) == [(1, None), (2, None)]
    wrong = command(batches.pipeline, "--all", "--keep", "1 day")
    _, problems = wrong.communicate(timeout=60)
    assert wrong.returncode == WRONG_USAGE
    assert "expected one of --before, --keep and --all" in problems
    told, _ = command(batches.pipeline, "--all", "--yes").communicate(timeout=60)
    assert "Folded 2 batches" in told
    later = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%MZ}"
    told, _ = command(replace(batches.pipeline), "--before", later, "--json").communicate(timeout=60)
    assert json.loads(told)["batches"] == 0


def test_folded_batches_are_compared_offset_by_offset(connection, settings, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(*[record(number) for number in range(6)])
    target = AuditedTarget(connection, settings, make_pipeline(topic, max_rejects=9))
    target.load(rejects=(1,))
    topic.produce(*[record(number) for number in range(6, 9)])
    target.load()
    pruned = prune_history(connection, target.pipeline, before=EVER)
    assert pruned.batches == 2
    topic.produce(record(9))
    target.load()
    assert findings(target.audit()) == {}
    # Which of the folded batches wrote a row is not known any more.
    target.execute("update {t} set batch_id = 3 - batch_id where kafka_offset in (0, 7)")
    assert findings(target.audit()) == {}
    target.execute("update {t} set batch_id = 3 where kafka_offset = 0")
    assert findings(target.audit()) == {"unexpected": (1, [0]), "miscounted": (2, [])}
    target.execute("update {t} set batch_id = 2 where kafka_offset = 0")
    target.execute("delete from {t} where kafka_offset in (3, 4)")
    assert findings(target.audit()) == {"missing": (2, [3, 4]), **COUNT}
    target.execute("insert into {t} select 1, 'x', %s, 0, 5, null, 1", topic.name)
    assert findings(target.audit()) == {"missing": (2, [3, 4]), "duplicated": (1, [5]), **COUNT}


def test_markers_of_folded_batches_are_replaced_and_compacted(connection, make):
    sink = Upsert("public.p", key=("id",), version="version", history=False)
    batches = make(0, sink=sink, columns="id int, version int")
    batches.run((1, 900, True), (2, 5, True), (3, 1, False))
    prune_history(connection, batches.pipeline, before=EVER)
    batches.log[0][0] = (1, 9, False)
    batches.replay((0, 0, 1))
    assert query(connection, "select id, version, batch_id from public.p order by 1") == [
        (1, 9, 2),
        (3, 1, 1),
    ]
    assert query(connection, "select id from public.p_deleted") == [(2,)]
    prune_history(connection, batches.pipeline, before=EVER)
    ranges, ledger = [OffsetRange("t", 0, 0, 3, ID)], Ledger(connection)
    with transaction(connection) as cursor:
        parts = find_parts(cursor, batches.pipeline, ranges, ledger.coverage.read_all(batches.pipeline))
        assert writer_of(sink).compactor.compact(cursor, parts) == {("t", 0): (1, 0)}
    assert query(connection, "select id from public.p_deleted") == []
