"""Backfills, clears and manual replays through a real Airflow: over whatever is asked for, the result is exact.

`make test-long` does the same over 24 hourly intervals instead of a few.
"""

import json
import random
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import tenacity
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.audit.run_audit import audit
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.stack_error import LocalStackError
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.environment import LONG
from support.one_airflow import HOURLY, register

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HOURS = 24 if LONG else 2
DAY = datetime(2026, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
BY_HAND = {"dag_run_id": "by_hand", "logical_date": None}


@pytest.fixture(scope="module")
def settings(airflow_settings):
    return airflow_settings


@pytest.fixture(scope="module")
def expected(settings):
    """A day of records in two partitions, some of them late; for each hour's begin the offset, by partition."""
    admin = AdminClient(dict(settings.kafka))
    # The records are old: retention must not take them.
    new = NewTopic("hourly", 2, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])["hourly"].result(30)
    chance = random.Random(4)
    begins: dict[int, list[int]] = {}
    producer = Producer({**settings.kafka, "linger.ms": 5})
    for partition in (0, 1):
        begins[partition] = []
        offset = 0
        for hour in range(HOURS):
            begins[partition].append(offset)
            # No record in some hours of the second partition: then two hours begin at the same offset.
            for number in range(0 if partition and hour % 3 == 1 else chance.randint(5, 30)):
                late = number > 0 and chance.random() < 0.1
                moment = DAY + hour * HOUR + number * timedelta(minutes=1) - (3 * HOUR if late else 0 * HOUR)
                producer.produce(
                    "hourly",
                    json.dumps({"id": offset, "name": f"p{partition}"}).encode(),
                    partition=partition,
                    timestamp=int(moment.timestamp() * 1000),
                )
                offset += 1
        begins[partition].append(offset)
    assert producer.flush(30) == 0
    return begins


@pytest.fixture(scope="module")
def airflow(one_airflow, settings, expected, hold):
    """Airflow with an hourly pipeline, whose drivers wait for nothing."""
    assert expected
    hold.touch()
    register(settings, HOURLY)
    one_airflow.wait_for_dag("hourly")
    return one_airflow


@pytest.fixture(scope="module")
def advanced(airflow, settings):
    """The run_id of the scheduled run, which loads the whole day; unpausing the DAG has started it."""
    deadline = time.monotonic() + 400
    while not (runs := _runs(airflow, "scheduled")):
        assert time.monotonic() < deadline, "no scheduled run"
        time.sleep(0.5)
    run_id: str = runs[0]["dag_run_id"]
    assert airflow.wait_for_run("hourly", run_id) == "success"
    _assert_exact(settings)
    return run_id


def test_a_backfill_of_a_day_tiles_it_and_runs_beside_others(airflow, advanced, settings, expected):
    """With a replay and an advance that are triggered while it runs."""
    before = _checksum(settings)
    airflow.command("backfill", "create", "--dag-id", "hourly", "--max-active-runs", "3", *_dates())
    asked = {"topic": "hourly", "partition": 0, "from_offset": 3, "until_offset": expected[0][-1] - 3}
    manual = [airflow.trigger("hourly", {"ranges": [asked]})]
    _send_one(airflow, settings)
    airflow.request("POST", "/dags/hourly/dagRuns", json=BY_HAND)
    manual.append("by_hand")
    runs = _finished_backfill(airflow, HOURS, generation=0)
    replayed, advanced_again = (airflow.wait_for_run("hourly", each) for each in manual)
    assert {each["state"] for each in runs} == {"success"}, runs
    assert advanced_again == "success"
    # The later plan wins: the replay was planned among those of the backfill, over the same offsets.
    if replayed == "failed":
        assert airflow.task_states("hourly", manual[0])["process_replay"] == ("failed", 1)
        assert "Fenced: batch" in _log(airflow, manual[0], "process_replay", 1)
        assert "which was planned after this replay and has committed" in _log(
            airflow, manual[0], "process_replay", 1
        )
    batches = [each for each in _batches(settings) if each["origin"] == "backfill"]
    assert _tiles(batches) == _without_empty_hours(expected)
    assert _checksum(settings) == before
    _assert_exact(settings)


@pytest.mark.long
def test_a_backfill_backwards_over_completed_runs_gives_the_same(airflow, advanced, settings, expected):
    before, newest = _checksum(settings), _batches(settings)[-1]["batch_id"]
    # Airflow refuses a backfill while it still tidies up the one before.
    tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(LocalStackError),
        stop=tenacity.stop_after_delay(60),
        wait=tenacity.wait_fixed(3),
        reraise=True,
    )(
        airflow.command,
        *("backfill", "create", "--dag-id", "hourly", "--max-active-runs", "3", *_dates()),
        *("--reprocess-behavior", "completed", "--run-backwards"),
    )
    runs = _finished_backfill(airflow, HOURS, generation=1)
    assert {each["state"] for each in runs} == {"success"}, runs
    again = [
        each for each in _batches(settings) if each["origin"] == "backfill" and each["batch_id"] > newest
    ]
    assert _tiles(again) == _without_empty_hours(expected)
    assert {each["kind"] for each in again} == {"replay"}
    assert _checksum(settings) == before
    _assert_exact(settings)


def test_clearing_only_process_batch_of_committed_batch_changes_nothing_and_says_so(
    airflow, advanced, settings
):
    batches, before = _batches(settings), _checksum(settings)
    first, *_ = [each for each in batches if each["run_id"] == advanced]
    _clear(airflow, advanced, "process_batch", downstream=False)
    assert airflow.wait_for_run("hourly", advanced) == "success"
    task = airflow.request("GET", f"/dags/hourly/dagRuns/{advanced}/taskInstances/process_batch")
    said = f"Batch {first['batch_id']} was committed at"
    assert task["note"].startswith(said)
    assert "nothing was launched or written" in task["note"]
    assert said in _log(airflow, advanced, "process_batch", task["try_number"])
    assert (_batches(settings), _checksum(settings)) == (batches, before)


def test_clearing_committed_run_processes_its_exact_ranges_again(airflow, advanced, settings):
    first, *_ = [each for each in _batches(settings) if each["run_id"] == advanced]
    before = _checksum(settings)
    _clear(airflow, advanced, "plan_batch", downstream=True)
    assert airflow.wait_for_run("hourly", advanced) == "success"
    *_, last = [each for each in _batches(settings) if each["run_id"] == advanced]
    assert (last["kind"], last["origin"], last["status"]) == ("replay", "clear", "committed")
    assert last["ranges"] == first["ranges"]
    assert _checksum(settings) == before
    _assert_exact(settings)


def test_a_run_that_was_deleted_and_created_again_is_a_new_one(airflow, advanced, settings):
    before = [each for each in _batches(settings) if each["run_id"] == "by_hand"]
    airflow.request("DELETE", "/dags/hourly/dagRuns/by_hand")
    _send_one(airflow, settings)
    airflow.request("POST", "/dags/hourly/dagRuns", json=BY_HAND)
    assert airflow.wait_for_run("hourly", "by_hand") == "success"
    *earlier, last = [each for each in _batches(settings) if each["run_id"] == "by_hand"]
    assert earlier == before
    assert (last["kind"], last["records"]) == ("advance", 1)


def test_a_replay_that_was_marked_as_success_is_not_announced(airflow, advanced, settings, hold):
    held = Path(f"{hold}.held")
    hold.unlink()
    held.unlink(missing_ok=True)
    asked = {"topic": "hourly", "partition": 0, "from_offset": 0, "until_offset": 2}
    try:
        run_id = airflow.trigger("hourly", {"ranges": [asked]})
        deadline = time.monotonic() + 300
        while not held.exists():
            assert time.monotonic() < deadline, "the driver does not hold"
            time.sleep(0.2)
        path = f"/dags/hourly/dagRuns/{run_id}/taskInstances/process_replay"
        airflow.request("PATCH", path, json={"new_state": "success"})
        assert airflow.wait_for_run("hourly", run_id) == "failed"
    finally:
        hold.touch()
    batch = _batches(settings)[-1]
    assert (batch["run_id"], batch["status"]) == (run_id, "planned")
    assert airflow.task_states("hourly", run_id)["report_batch"] == ("failed", 1)
    said = f"batch {batch['batch_id']} is planned, not committed"
    assert said in _log(airflow, run_id, "report_batch", 1)
    events = airflow.request("GET", "/assets/events", params={"limit": 100})["asset_events"]
    assert batch["batch_id"] not in [each["extra"].get("batch_id") for each in events]
    _clear(airflow, run_id, "plan_batch", downstream=True)
    assert airflow.wait_for_run("hourly", run_id) == "success"
    _assert_exact(settings)


def _wait_until_announced(connection: Any, batch_id: int) -> None:
    """The ledger learns of it a moment after Airflow has the event."""
    deadline = time.monotonic() + 60
    while True:
        with transaction(connection) as cursor:
            cursor.execute("select announced_at from exactbatch.batch where batch_id = %s", (batch_id,))
            if cursor.fetchone()[0] is not None:
                return
        assert time.monotonic() < deadline, "the event was not noted"
        time.sleep(0.2)


def test_run_with_nothing_to_process_tells_of_batch_that_was_never_announced(airflow, advanced, settings):
    newest = _batches(settings)[-1]
    connection = connect(settings.postgres, application="tests")
    with transaction(connection) as cursor:
        # As if its report had failed for good, an hour ago.
        cursor.execute("set local session_replication_role = replica")
        cursor.execute(
            "update exactbatch.batch set announced_at = null, committed_at = committed_at - interval '1 hour' "
            "where batch_id = %s",
            (newest["batch_id"],),
        )
    runs = [airflow.trigger("hourly")]
    assert airflow.wait_for_run("hourly", runs[0]) == "success"
    _wait_until_announced(connection, newest["batch_id"])
    connection.close()
    runs.append(airflow.trigger("hourly"))
    assert airflow.wait_for_run("hourly", runs[1]) == "success"
    events = airflow.request("GET", "/assets/events", params={"limit": 100})["asset_events"]
    told = [each["source_run_id"] for each in events if each["extra"].get("batch_id") == newest["batch_id"]]
    # By its own report, and then by one run more, which may be a scheduled one that comes meanwhile.
    (teller,) = set(told) - {newest["run_id"]}
    assert len(told) == 2
    states = {task: state for task, (state, _) in airflow.task_states("hourly", teller).items()}
    assert states == {
        "plan_batch": "success",
        "process_batch": "skipped",
        "process_replay": "skipped",
        "report_batch": "success",
    }
    assert airflow.task_states("hourly", runs[1])["report_batch"][0] == "skipped"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"rnages": []}, "found 'rnages': did you mean 'ranges'?"),
        ({"start": "2026-01-05T00:00:00Z"}, "both start and end, found only start"),
        ({"batch_ids": [10_000]}, "batch 10000 is not in the ledger of database"),
        (
            {"ranges": [{"topic": "hourly", "partition": 0, "from_offset": 0, "until_offset": 100_000}]},
            "the range ends above the stored offset",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistake_in_form_ends_run_at_once_with_its_reason(airflow, advanced, settings, conf, said):
    before = _batches(settings)
    run_id = airflow.trigger("hourly", conf)
    assert airflow.wait_for_run("hourly", run_id) == "failed"
    assert airflow.task_states("hourly", run_id)["plan_batch"] == ("failed", 1)
    assert said in _log(airflow, run_id, "plan_batch", 1)
    assert _batches(settings) == before


def test_what_the_form_itself_can_check_is_refused_by_airflow(airflow, advanced):
    with pytest.raises(httpx.HTTPStatusError) as caught:
        airflow.trigger("hourly", {"ranges": [{"topic": "hourly", "partition": -1}]})
    assert caught.value.response.status_code == httpx.codes.BAD_REQUEST


def _dates() -> list[str]:
    last = DAY + (HOURS - 1) * HOUR
    return ["--from-date", f"{DAY:%Y-%m-%dT%H:%M:%S}+00:00", "--to-date", f"{last:%Y-%m-%dT%H:%M:%S}+00:00"]


def _send_one(airflow: LocalAirflow, settings: Settings) -> None:
    """Send a record; around the full hour, once the run has ended that the schedule starts, which would process it."""
    while (
        (now := datetime.now(UTC)).minute == 59
        or (now.minute == 0 and now.second < 10)
        or any(run["state"] in ("queued", "running") for run in _runs(airflow, "scheduled"))
    ):
        time.sleep(1)
    producer = Producer(dict(settings.kafka))
    producer.produce("hourly", b'{"id": -1, "name": "later"}', partition=1)
    assert producer.flush(30) == 0


def _log(airflow: LocalAirflow, run_id: str, task_id: str, attempt: int) -> str:
    path = f"/dags/hourly/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
    return json.dumps(airflow.request("GET", path), ensure_ascii=False)


def _runs(airflow: LocalAirflow, run_type: str) -> list[dict[str, Any]]:
    answer = airflow.request("GET", "/dags/hourly/dagRuns", params={"run_type": run_type, "limit": 100})
    runs: list[dict[str, Any]] = answer["dag_runs"]
    return runs


def _finished_backfill(airflow: LocalAirflow, count: int, *, generation: int) -> list[dict[str, Any]]:
    """Wait until all runs of a backfill have ended."""
    deadline = time.monotonic() + 300 + 60 * count
    while True:
        backfills = airflow.request("GET", "/backfills", params={"dag_id": "hourly"})["backfills"]
        runs = _runs(airflow, "backfill")
        if (
            len(backfills) == generation + 1
            and all(each["completed_at"] for each in backfills)
            and len(runs) == count
            and {each["state"] for each in runs} <= {"success", "failed"}
        ):
            return runs
        assert time.monotonic() < deadline, [(each["dag_run_id"], each["state"]) for each in runs]
        time.sleep(1)


def _clear(airflow: LocalAirflow, run_id: str, task_id: str, *, downstream: bool) -> None:
    body = {
        "dag_run_id": run_id,
        "task_ids": [task_id],
        "include_downstream": downstream,
        "dry_run": False,
        "reset_dag_runs": True,
        "only_failed": False,
    }
    airflow.request("POST", "/dags/hourly/clearTaskInstances", json=body)


def _batches(settings: Settings) -> list[dict[str, Any]]:
    """All batches with their ranges, oldest first."""
    connection = connect(settings.postgres, application="tests")
    try:
        with transaction(connection) as cursor:
            cursor.execute(
                "select batch_id, kind, origin, run_id, status, b.records, "
                "array_agg(array[partition, from_offset, until_offset] order by partition, from_offset) as ranges "
                "from exactbatch.batch b join exactbatch.batch_range using (batch_id) where pipeline = 'hourly' "
                "group by batch_id order by batch_id"
            )
            return [row._asdict() for row in cursor.fetchall()]
    finally:
        connection.close()


def _tiles(batches: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Where the ranges of neighbouring intervals meet, by partition; an interval without records has none."""
    found: dict[int, list[int]] = {}
    for partition in (0, 1):
        ranges = sorted(tuple(r[1:]) for each in batches for r in each["ranges"] if r[0] == partition)
        assert all(one[1] == other[0] for one, other in pairwise(ranges)), ranges
        found[partition] = [ranges[0][0], *(until for _, until in ranges)]
    return found


def _without_empty_hours(expected: dict[int, list[int]]) -> dict[int, list[int]]:
    return {partition: sorted(set(begins)) for partition, begins in expected.items()}


def _checksum(settings: Settings) -> str:
    """Of the day's rows, but for the batch that wrote them."""
    connection = connect(settings.postgres, application="tests")
    try:
        with transaction(connection) as cursor:
            cursor.execute(
                "select count(*) || md5(string_agg((id, name, kafka_partition, kafka_offset)::text, '|' "
                "order by kafka_partition, kafka_offset)) from public.hourly where id >= 0"
            )
            return str(cursor.fetchone()[0])
    finally:
        connection.close()


def _assert_exact(settings: Settings) -> None:
    results = audit(HOURLY, settings)
    assert len(results.partitions) == 2
    assert results.is_exact, results
