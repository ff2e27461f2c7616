"""What the page says of a pipeline and of a replay, from what the ledger and the log have."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from exactbatch import Append, Json, Pipeline, TopicPattern, Upsert
from exactbatch.airflow.page.brokers import LogState
from exactbatch.airflow.page.dags import PipelineDag
from exactbatch.airflow.page.first_records import FirstRecord
from exactbatch.airflow.page.views import build_overview_view, build_pipeline_view, preview_view
from exactbatch.ledger.definition import build_definition
from exactbatch.ledger.overview_rows import ListedBatch, PartitionPosition
from exactbatch.ledger.row_types import Batch, BatchFailure
from exactbatch.operations.overview import LedgerSummary
from exactbatch.operations.unprocessed import FirstOffset
from exactbatch.planning.freeze_replay import Preview
from exactbatch.planning.replay import ReplayPlan
from support.logs import ID, log

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT_END = log(last_stable=100)
DAG = PipelineDag("p", False, "kafka", "postgres", False, None)
DEFINITION = build_definition(
    Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.p"))
)
POSITION = PartitionPosition("p", "t", ID, 0, 0, 100, NOW - timedelta(minutes=1), None)


def batch(number, kind="advance", status="committed", *, minutes=1, error=None, retryable=True):
    """A batch that was planned this number of minutes ago, and has failed with an error."""
    at = NOW - timedelta(minutes=minutes)
    is_committed = status == "committed"
    planned = Batch(
        batch_id=number,
        plan_id=UUID(int=number),
        pipeline="p",
        kind=kind,
        origin="schedule",
        dag_id="p",
        run_id=f"run{number}",
        generation=0,
        clear_number=0,
        run_started_at=None,
        status=status,
        records=60 if is_committed else None,
        rows=60 if is_committed else None,
        rejected=0 if is_committed else None,
        tombstones=0 if is_committed else None,
        dropped=0 if is_committed else None,
        planned_at=at,
        committed_at=at if is_committed else None,
        stages=None,
        application_id=None,
    )
    failure = None if error is None else BatchFailure(number, 1, at, at, error, f"why {error}", retryable)
    return ListedBatch(planned, failure)


def shown(*batches, logs=(AT_END,), dag=DAG, definition=DEFINITION, positions=(POSITION,), first=None):
    """The row of a pipeline with these batches, newest first, whose stored offset is 100."""
    summary = LedgerSummary(definition, positions, batches, batches)
    state = LogState(logs={"t": tuple(logs)}, taken_at=NOW, first=first or {})
    return build_overview_view(dag, summary, state, None, NOW)


@pytest.mark.parametrize(
    ("found", "state", "text"),
    [
        (log(topic_id=UUID(int=2), last_stable=9), "cannot plan", "was deleted and created again"),
        (log(last_stable=90), "cannot plan", "the log ends at 90, below the stored offset"),
        (log(earliest=103, last_stable=110), "losing data", "retention removed 3 unprocessed offsets"),
    ],
)
@pytest.mark.parametrize(
    "batches",
    [
        [batch(1)],
        [batch(2, status="planned"), batch(1)],
        [batch(2, status="planned", error="KafkaUnavailable"), batch(1)],
    ],
)
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_log_that_contradicts_the_stored_offset_comes_before_what_passes_by_itself(
    found, state, text, batches, is_paused
):
    row = shown(*batches, logs=(found,), dag=replace(DAG, is_paused=is_paused))
    assert row["state"] == state
    assert text in row["error"]["message"]
    assert "batch_id" not in row["error"]


def test_offsets_of_another_topic_are_not_lost():
    row = shown(batch(1), logs=(log(topic_id=UUID(int=2), earliest=200, last_stable=210),))
    assert (row["state"], row["lost"]) == ("cannot plan", 0)


def test_a_failure_that_somebody_must_act_on_comes_first():
    failing = batch(2, status="planned", error="TargetMismatch", retryable=False)
    row = shown(failing, batch(1), logs=(log(last_stable=90),))
    assert (row["state"], row["error"]["error"], row["error"]["batch_id"]) == ("failing", "TargetMismatch", 2)


@pytest.mark.parametrize("kind", ["advance", "replay"])
def test_a_failure_has_the_kind_of_its_batch_which_names_its_task(kind):
    assert shown(batch(2, kind, "planned", error="TargetMismatch"), batch(1))["error"]["kind"] == kind


@pytest.mark.parametrize(
    ("end", "batches", "state"),
    [
        (100, [batch(1)], "up to date"),
        (105, [batch(1)], "behind"),
        (105, [batch(2, status="planned"), batch(1)], "processing"),
        (105, [batch(2, status="planned", error="KafkaUnavailable"), batch(1)], "retrying"),
    ],
)
def test_a_log_that_agrees_with_the_stored_offset_is_no_error(end, batches, state):
    row = shown(*batches, logs=(log(last_stable=end),))
    assert row["state"] == state
    assert (row["error"] is None) == (state != "retrying")


def test_an_offset_that_has_moved_since_kafka_was_asked_contradicts_nothing():
    row = shown(batch(1), logs=(log(last_stable=90),), positions=(replace(POSITION, updated_at=NOW),))
    assert (row["state"], row["error"]) == ("up to date", None)


def test_a_failure_that_no_retry_helps_is_not_hidden_by_one_that_passes():
    replay = batch(3, "replay", "planned", error="KafkaUnavailable")
    row = shown(replay, batch(2, status="planned", error="TargetMismatch", retryable=False), batch(1))
    assert (row["state"], row["error"]["batch_id"]) == ("failing", 2)


@pytest.mark.parametrize(
    ("kind", "minutes", "state"),
    [("replay", 59, "processing"), ("replay", 61, "behind"), ("advance", 61, "processing")],
)
def test_a_replay_that_nobody_processes_is_not_in_flight_for_ever(kind, minutes, state):
    row = shown(batch(2, kind, "planned", minutes=minutes), batch(1), logs=(log(last_stable=105),))
    assert row["state"] == state


@pytest.mark.parametrize("dag", [DAG, replace(DAG, dag_id="shop", is_tables=True, member="p")])
def test_a_pipeline_is_overdue_whether_or_not_it_has_a_dag_of_its_own(dag):
    first = {"p": {("t", 0): FirstRecord(FirstOffset(100, is_held_back=False), 0, NOW - timedelta(hours=2))}}
    definition = replace(DEFINITION, freshness=timedelta(hours=1))
    row = shown(batch(1), logs=(log(last_stable=105),), dag=dag, definition=definition, first=first)
    assert (row["pipeline"], row["overdue"], row["oldest_seconds"]) == ("p", True, 7200)


def rate(*batches):
    return shown(*batches)["records_per_second"]


def test_the_throughput_counts_the_time_that_is_known():
    """12 batches of 60 records, one every minute, are all that is known."""
    committed = [batch(13 - n, minutes=n) for n in range(1, 13)]
    assert rate(*committed) == 1
    # What is in flight, was superseded, or failed is known, too, and does not make the hour known.
    assert rate(batch(13, status="planned", minutes=0), *committed[:11]) == 1
    assert rate(*committed[:11], batch(1, status="superseded", minutes=11)) == 1


def test_the_throughput_of_a_whole_hour_is_divided_by_it():
    assert rate(batch(3, minutes=30), batch(2, minutes=40), batch(1, minutes=61)) == 120 / 3600
    assert rate(batch(2, minutes=61), batch(1, minutes=62)) is None


@pytest.mark.parametrize(("is_paused", "state"), [(False, "no topic yet"), (True, "paused")])
def test_a_pattern_that_no_topic_has_joined_is_known_to_have_nothing(is_paused, state):
    pipeline = Pipeline(name="p", topics=TopicPattern("t.*"), value=Json("id int"), sink=Append("public.p"))
    row = shown(dag=replace(DAG, is_paused=is_paused), definition=build_definition(pipeline), positions=())
    assert (row["state"], row["lag"], row["kafka_error"], row["error"]) == (state, 0, None, None)


ONE, CHANGES, LATEST = Append("public.one"), Upsert("public.now", key=("id",)), "public.latest"


@pytest.mark.parametrize(
    ("sink", "target", "others", "retracts", "is_derived"),
    [
        (ONE, "public.one", [], True, False),
        ([Append("public.two"), ONE], "public.one", ["public.two"], True, False),
        ([CHANGES, ONE], "public.now", ["public.one"], True, True),
        (Upsert(LATEST, key=("id",), history=False), LATEST, [], False, False),
    ],
)
def test_every_target_is_named_and_what_a_replay_retracts(sink, target, others, retracts, is_derived):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=sink)
    definition = build_definition(pipeline)
    preview = Preview(ReplayPlan(ranges=()), (), 0, retracts=pipeline.traits.keeps_every_row)
    view = preview_view(preview, definition)
    assert (view["target"], view["other_targets"]) == (target, others)
    assert (view["retracts"], view["is_derived"]) == (retracts, is_derived)
    summary = LedgerSummary(definition, (), (), ())
    view = build_pipeline_view(DAG, summary, LogState(), None, NOW)
    assert (view["target"], view["other_targets"]) == (target, others)
