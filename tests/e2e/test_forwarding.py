"""Results that go back to a topic, through a real Airflow: a run sends them, and a cleared run sends corrections."""

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from exactbatch import Json
from exactbatch.forwarding.sent import wait_for_settled_partitions
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.topics import create_topic, send
from exactbatch.operations.status import load_status
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.forwarded import Message, check_once_in_order, committed, standing_rows
from support.one_airflow import LATE, register, write_late

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

RECORDS = 20
# The program takes the name from another member: every second record has another name there.
CORRECTED = replace(LATE, value=Json("id int, name text from 'full_name'"))


@pytest.fixture(scope="module")
def settings(airflow_settings):
    return airflow_settings


@pytest.fixture(scope="module")
def airflow(one_airflow, settings, hold):
    hold.touch()
    for topic in ("late", "late_results"):
        create_topic(settings.kafka, topic)
    send(
        settings.kafka,
        "late",
        [
            json.dumps({"id": each, "name": "n", "full_name": "n" if each % 2 else "N"}).encode()
            for each in range(RECORDS)
        ],
    )
    register(settings, LATE)
    one_airflow.wait_for_dag("late")
    yield one_airflow
    one_airflow.request("PATCH", "/dags/late", json={"is_paused": True})


@pytest.fixture(scope="module")
def first_run(airflow):
    run_id = airflow.trigger("late")
    assert airflow.wait_for_run("late", run_id) == "success", airflow.task_states("late", run_id)
    return run_id


def test_a_run_sends_its_results(airflow, first_run, settings):
    assert _forward_results(airflow, first_run) == "success"
    messages = _all_messages(settings)
    assert {(each.change, each.headers["kind"]) for each in messages} == {("row", "advance")}
    assert [each.row["id"] for each in sorted(messages, key=_by_id)] == list(range(RECORDS))
    assert {each.row["name"] for each in messages} == {"n"}


def test_a_run_without_new_records_has_nothing_to_send(airflow, first_run, settings):
    before = _all_messages(settings)
    run_id = airflow.trigger("late")
    assert airflow.wait_for_run("late", run_id) == "success"
    assert _forward_results(airflow, run_id) == "skipped"
    assert _all_messages(settings) == before


def test_a_cleared_run_sends_corrections(airflow, airflow_folder, first_run, settings):
    write_late(airflow_folder, CORRECTED)
    cleared = {"dag_run_id": first_run, "dry_run": False, "reset_dag_runs": True, "only_failed": False}
    airflow.request("POST", "/dags/late/clearTaskInstances", json=cleared)
    assert airflow.wait_for_run("late", first_run) == "success", airflow.task_states("late", first_run)
    assert _forward_results(airflow, first_run) == "success"
    messages = _all_messages(settings)
    sent = Counter((each.change, each.row["name"]) for each in messages if each.headers["kind"] == "replay")
    assert sent == {("retracted", "n"): RECORDS // 2, ("row", "N"): RECORDS // 2}
    with (
        closing(connect(settings.postgres, application="tests")) as connection,
        transaction(connection) as cursor,
    ):
        cursor.execute("select id, name from public.late")
        target = Counter(tuple(row) for row in cursor.fetchall())
    standing = standing_rows(messages).items()
    assert Counter({tuple(json.loads(value).values()): count for (_, value), count in standing}) == target
    assert sum(target.values()) == RECORDS


def _forward_results(airflow: LocalAirflow, run_id: str) -> str:
    state: str = airflow.task_states("late", run_id)["forward_results"][0]
    return state


def _by_id(message: Message) -> Any:
    return message.row["id"]


def _all_messages(settings: Settings) -> list[Message]:
    """Return what a consumer sees; nothing waits to be sent, according to `exactbatch status`."""
    with closing(connect(settings.postgres, application="tests")) as connection:
        forwarding = load_status(connection, KafkaBroker(settings.kafka), LATE).forwarding
    assert forwarding is not None
    assert (forwarding.unsent, forwarding.oldest) == (0, None)
    wait_for_settled_partitions(KafkaBroker(settings.kafka), "late_results")
    messages = committed(settings.kafka, "late_results")
    check_once_in_order(messages, forwarding.sent_sequence)
    return messages
