"""Many tables through a real Airflow: one DAG, one plan and one driver, which is killed in the middle."""

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exactbatch import Json, Pipeline, Tables, TableTopic, TopicPattern, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.topics import create_topic, send
from exactbatch.operations.status import load_tables_status
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from support.one_airflow import register

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NAMES = ("customers", "lines", "orders")


def table(t: TableTopic) -> Pipeline:
    """Make the same pipeline as the module of the DAG."""
    sink = Upsert(f"public.{t.table}", key=("id",))
    return Pipeline(name=t.name, topics=(t.topic,), value=Json("id int, name text"), sink=sink)


TABLES = Tables(name="shop", topics=TopicPattern(r"shop\.public\.(?P<table>.+)"), pipeline=table)
MEMBERS = TABLES.members(f"shop.public.{name}" for name in NAMES)


@pytest.fixture(scope="module")
def settings(airflow_settings):
    return airflow_settings


@pytest.fixture(scope="module")
def airflow(one_airflow, settings):
    for member in MEMBERS:
        create_topic(settings.kafka, member.known_topics(())[0])
        _send(settings, member, range(10))
        register(settings, member)
    one_airflow.wait_for_dag("shop")
    yield one_airflow
    one_airflow.request("PATCH", "/dags/shop", json={"is_paused": True})


@pytest.fixture(scope="module")
def killed_run(airflow, hold):
    """A run whose driver is killed when it has staged the first table."""
    held = Path(f"{hold}.held")
    hold.unlink(missing_ok=True)
    before = _lines(held)
    run_id = airflow.trigger("shop")
    deadline = time.monotonic() + 300
    while _lines(held) == before:
        states = airflow.task_states("shop", run_id)
        assert states.get("plan_batch", ("", 0))[0] != "failed", _log(airflow, run_id, "plan_batch")
        assert time.monotonic() < deadline, states
        time.sleep(0.5)
    os.kill(int(_lines(held)[-1]), signal.SIGKILL)
    hold.touch()
    assert airflow.wait_for_run("shop", run_id) == "success", airflow.task_states("shop", run_id)
    return run_id


def test_a_driver_that_is_killed_is_tried_again_and_all_tables_are_exact(airflow, killed_run, settings):
    assert airflow.task_states("shop", killed_run)["process_batch"] == ("success", 2)
    for member in MEMBERS:
        found = audit(member, settings, values=True)
        assert (found.is_exact, found.rows) == (True, 10)
    with closing(connect(settings.postgres, application="tests")) as connection:
        status = load_tables_status(connection, KafkaBroker(settings.kafka), TABLES)
    assert (status.lag, status.troubles) == (0, [])


def test_one_event_announces_all_tables(airflow, killed_run):
    events = airflow.request("GET", "/assets/events")["asset_events"]
    (extra,) = (each["extra"] for each in events if each["extra"].get("tables") == "shop")
    assert sorted(each["pipeline"] for each in extra["batches"]) == [member.name for member in MEMBERS]
    assert sum(each["rows"] for each in extra["batches"]) == 30


def test_a_run_with_nothing_new_starts_only_plan_batch(airflow, killed_run):
    run_id = airflow.trigger("shop")
    assert airflow.wait_for_run("shop", run_id) == "success"
    states = airflow.task_states("shop", run_id)
    assert {task for task, (_, tries) in states.items() if tries} == {"plan_batch"}
    assert {state for state, _ in states.values()} == {"skipped"}


def test_a_bad_table_fails_the_run_in_which_the_others_are_announced(airflow, killed_run, settings):
    for member in MEMBERS:
        _send(settings, member, range(10, 12))
    send(settings.kafka, "shop.public.lines", [b"bad"])
    run_id = airflow.trigger("shop")
    assert airflow.wait_for_run("shop", run_id) == "failed"
    states = airflow.task_states("shop", run_id)
    assert states["process_batch"] == ("failed", 1)
    assert (states["report_batch"][0], states["check_tables"][0]) == ("success", "upstream_failed")
    extra = airflow.request("GET", "/assets/events?order_by=-timestamp")["asset_events"][0]["extra"]
    assert [each["pipeline"] for each in extra["batches"]] == ["shop.customers", "shop.orders"]
    log = _log(airflow, run_id, "process_batch")
    assert (
        "TablesFailed: 1 of 3 tables of 'shop' failed; the others are done: shop.lines: TooManyRejects" in log
    )
    assert [audit(member, settings).rows for member in MEMBERS] == [12, 10, 12]


def test_a_run_with_ranges_replays_one_table_and_a_new_table_joins(airflow, killed_run, settings):
    asked = {"topic": "shop.public.orders", "partition": 0, "from_offset": 0, "until_offset": 1}
    run_id = airflow.trigger("shop", {"ranges": [asked]})
    assert airflow.wait_for_run("shop", run_id) == "success"
    states = airflow.task_states("shop", run_id)
    assert (states["process_batch"][0], states["process_replay"][0]) == ("skipped", "success")
    (returns,) = TABLES.members(["shop.public.returns"])
    create_topic(settings.kafka, "shop.public.returns")
    _send(settings, returns, range(5))
    run_id = airflow.trigger("shop", {"tables": ["returns"]})
    assert airflow.wait_for_run("shop", run_id) == "success"
    assert audit(returns, settings).rows == 5
    assert audit(MEMBERS[2], settings, values=True).is_exact


def _send(settings: Settings, member: Pipeline, ids: range) -> None:
    values = [json.dumps({"id": each, "name": member.name}).encode() for each in ids]
    send(settings.kafka, member.known_topics(())[0], values)


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _log(airflow: LocalAirflow, run_id: str, task_id: str) -> str:
    answer: Any = airflow.request("GET", f"/dags/shop/dagRuns/{run_id}/taskInstances/{task_id}/logs/1")
    return json.dumps(answer, ensure_ascii=False)
