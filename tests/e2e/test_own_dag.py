"""The DAG of the page about task groups, in a real Airflow: run, skipped, cleared in the middle, and backfilled."""

import json
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.audit.run_audit import audit
from exactbatch.local.airflow import LocalAirflow
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from support.one_airflow import GROUPED, register

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DAY = datetime(2026, 1, 5, tzinfo=UTC)
ENDED = {"success", "failed", "skipped"}


@pytest.fixture(scope="module")
def settings(airflow_settings):
    return airflow_settings


@pytest.fixture(scope="module")
def airflow(one_airflow, settings, hold):
    """Airflow with the page's DAG, and two hours of records."""
    hold.touch()
    admin = AdminClient(dict(settings.kafka))
    # The records are old: retention must not take them.
    admin.create_topics([NewTopic("grouped", 1, 1, config={"retention.ms": "-1"})])["grouped"].result(30)
    _send(settings, [(number, DAY + number * timedelta(minutes=30)) for number in range(4)])
    register(settings, GROUPED)
    one_airflow.wait_for_dag("departures")
    yield one_airflow
    one_airflow.request("PATCH", "/dags/departures", json={"is_paused": True})


@pytest.fixture(scope="module")
def first_run(airflow, settings):
    """The run_id of the scheduled run, which loads all records; unpausing the DAG has started it."""
    deadline = time.monotonic() + 300
    while not (runs := _runs(airflow, "scheduled")):
        assert time.monotonic() < deadline, "no scheduled run"
        time.sleep(0.5)
    run_id: str = runs[0]["dag_run_id"]
    assert airflow.wait_for_run("departures", run_id) == "success", airflow.task_states("departures", run_id)
    return run_id


def test_what_follows_the_group_checks_the_batch(airflow, first_run, settings):
    states = _states(airflow, first_run)
    assert states == {
        "grouped.plan_batch": "success",
        "grouped.process_batch": "success",
        "grouped.process_replay": "skipped",
        "grouped.report_batch": "success",
        "check": "success",
    }
    output = _output(airflow, first_run)
    assert (output["rows"], output["ranges"][0]["until_offset"]) == (4, 4)
    assert _kinds(settings) == ["advance"]


def test_a_run_with_nothing_new_skips_what_follows(airflow, first_run):
    run_id = airflow.trigger("departures")
    airflow.wait_for_run("departures", run_id)
    assert set(_states(airflow, run_id).values()) == {"skipped"}


def test_the_page_lists_the_pipeline_with_its_dag(airflow, first_run):
    login = {"username": airflow.user, "password": airflow.password}
    token = (
        httpx.post(f"{airflow.url}/auth/token", json=login, timeout=30)
        .raise_for_status()
        .json()["access_token"]
    )
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(
        f"{airflow.url}/exactbatch/data/pipelines", headers=headers, timeout=30
    ).raise_for_status()
    (row,) = [each for each in answer.json()["pipelines"] if each["pipeline"] == "grouped"]
    assert (row["dag_id"], row["error"]) == ("departures", None)


def test_a_check_that_is_cleared_runs_again_and_the_batch_stays(airflow, first_run, settings):
    _clear(airflow, first_run, "check")
    assert airflow.wait_for_run("departures", first_run) == "success"
    assert airflow.task_states("departures", first_run)["check"] == ("success", 2)
    assert _kinds(settings) == ["advance"]


def test_a_plan_that_is_cleared_processes_its_ranges_again_and_checks_them(airflow, first_run, settings):
    _clear(airflow, first_run, "grouped.plan_batch")
    assert airflow.wait_for_run("departures", first_run) == "success"
    assert airflow.task_states("departures", first_run)["check"] == ("success", 3)
    assert _states(airflow, first_run)["grouped.process_replay"] == "success"
    assert _kinds(settings) == ["advance", "replay"]
    assert _output(airflow, first_run)["kind"] == "replay"


def test_a_backfill_processes_and_checks_each_interval(airflow, first_run, settings):
    span = ["--from-date", DAY.isoformat(), "--to-date", (DAY + timedelta(hours=1)).isoformat()]
    airflow.command("backfill", "create", "--dag-id", "departures", "--max-active-runs", "1", *span)
    deadline = time.monotonic() + 400
    runs = list[dict[str, Any]]()
    while len(runs) < 2 or any(each["state"] not in ENDED for each in runs):
        assert time.monotonic() < deadline, runs
        time.sleep(1)
        runs = _runs(airflow, "backfill")
    assert [each["state"] for each in runs] == ["success", "success"]
    for run in runs:
        assert _states(airflow, run["dag_run_id"])["check"] == "success"
        assert _output(airflow, run["dag_run_id"])["records"] == 2
    assert _kinds(settings) == ["advance", "replay", "replay", "replay"]
    found = audit(GROUPED, settings, values=True)
    assert (found.is_exact, found.rows) == (True, 4)


def test_a_check_that_fails_leaves_the_batch_committed(airflow, first_run, settings):
    _send(settings, [(None, DAY)])
    run_id = airflow.trigger("departures")
    deadline = time.monotonic() + 300
    while _states(airflow, run_id).get("check") not in ("failed", "up_for_retry"):
        assert time.monotonic() < deadline, _states(airflow, run_id)
        time.sleep(1)
    assert "has 1 flights without an origin" in _log(airflow, run_id, "check")
    assert _output(airflow, run_id)["rows"] == 1


def test_parameters_of_a_replay_are_refused_by_name(airflow, first_run, settings):
    before = _kinds(settings)
    run_id = airflow.trigger("departures", {"batch_ids": [1]})
    assert airflow.wait_for_run("departures", run_id) == "failed"
    assert airflow.task_states("departures", run_id)["grouped.plan_batch"] == ("failed", 1)
    assert "triggered with batch_ids, but only DAGs of pipeline_dag" in _log(
        airflow, run_id, "grouped.plan_batch"
    )
    assert _kinds(settings) == before


def _send(settings: Settings, records: list[tuple[int | None, datetime]]) -> None:
    producer = Producer({**settings.kafka, "linger.ms": 5})
    for origin, at in records:
        value = json.dumps({"origin": origin}).encode()
        producer.produce("grouped", value, partition=0, timestamp=int(at.timestamp() * 1000))
    assert producer.flush(30) == 0


def _states(airflow: LocalAirflow, run_id: str) -> dict[str, str]:
    return {task: state for task, (state, _) in airflow.task_states("departures", run_id).items()}


def _output(airflow: LocalAirflow, run_id: str) -> dict[str, Any]:
    path = f"/dags/departures/dagRuns/{run_id}/taskInstances/grouped.report_batch/xcomEntries/return_value"
    found: Any = airflow.request("GET", path, params={"stringify": "false"})["value"]
    return json.loads(found) if isinstance(found, str) else found  # text in Airflow 3.0


def _log(airflow: LocalAirflow, run_id: str, task_id: str) -> str:
    path = f"/dags/departures/dagRuns/{run_id}/taskInstances/{task_id}/logs/1"
    return json.dumps(airflow.request("GET", path), ensure_ascii=False)


def _runs(airflow: LocalAirflow, run_type: str) -> list[dict[str, Any]]:
    answer = airflow.request("GET", "/dags/departures/dagRuns", params={"run_type": run_type})
    runs: list[dict[str, Any]] = answer["dag_runs"]
    return runs


def _clear(airflow: LocalAirflow, run_id: str, task_id: str) -> None:
    body = {
        "dag_run_id": run_id,
        "task_ids": [task_id],
        "include_downstream": True,
        "dry_run": False,
        "reset_dag_runs": True,
        "only_failed": False,
    }
    airflow.request("POST", "/dags/departures/clearTaskInstances", json=body)


def _kinds(settings: Settings) -> list[str]:
    """The kinds of the committed batches, oldest first."""
    with (
        closing(connect(settings.postgres, application="tests")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "select kind from exactbatch.batch where pipeline = 'grouped' and status = 'committed' order by batch_id"
        )
        return [kind for (kind,) in cursor.fetchall()]
