"""One pipeline through a real Airflow: killed, skipped, failed and reported, with secrets planted, and users of
each role."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import psycopg2
import pytest

from exactbatch import Pipeline
from exactbatch.airflow.openlineage_facets import OFFSET_RANGES
from exactbatch.audit.run_audit import audit
from exactbatch.ledger import Ledger
from exactbatch.local import LocalStack
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.demo.flights import flights
from exactbatch.local.topics import create_topic, send
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from pipelines.flights import flights as pipeline
from support.certificates import Authority
from support.environment import HOME
from support.listening import listening
from support.logins import superuser_login
from support.one_airflow import HOURLY, KEY_PASSWORD, PASSWORD, QUICK, register
from support.secure_broker import secure_broker

SENT = 2000
WRONG_PASSWORD = "planted-wr0ngword"
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def settings(airflow_settings):
    return airflow_settings


@pytest.fixture(scope="module")
def airflow(one_airflow, settings):
    """Airflow with the flights pipeline, and SENT records in its topic."""
    create_topic(settings.kafka, "flights")
    send(settings.kafka, "flights", [value for value, _ in zip(flights(), range(SENT), strict=False)])
    register(settings, pipeline)
    one_airflow.wait_for_dag("flights")
    yield one_airflow
    one_airflow.request("PATCH", "/dags/flights", json={"is_paused": True})


@pytest.fixture(scope="module")
def killed_run(airflow, hold):
    """A run whose driver is killed after staging; what could be seen of it while it was alive."""
    run_id = airflow.trigger("flights")
    _wait(Path(f"{hold}.held").exists, "the driver to hold after staging", airflow)
    seen = {
        "arguments": [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])],
        "listening": set().union(*(listening(each.pid) for each in _drivers(airflow))),
    }
    hold.touch()
    for driver in _drivers(airflow):
        driver.kill()
    return {**seen, "state": airflow.wait_for_run("flights", run_id), "run_id": run_id}


def test_a_killed_driver_is_tried_again_and_the_result_is_exact(airflow, killed_run, settings):
    batch = _newest_batch(settings)
    assert killed_run["state"] == "success"
    assert airflow.task_states("flights", batch.run_id)["process_batch"] == ("success", 2)
    results = audit(pipeline, settings)
    assert results.is_exact, results
    assert results.rows == SENT
    assert (batch.records, batch.rows, batch.rejected) == (SENT, SENT, 0)


def test_the_asset_event_holds_the_ranges(airflow, killed_run, settings):
    assert killed_run["state"] == "success"
    events = airflow.request("GET", "/assets/events")["asset_events"]
    batch = _newest_batch(settings)
    extra = next(each["extra"] for each in events if each["extra"].get("batch_id") == batch.batch_id)
    assert extra["plan_id"] == str(batch.plan_id)
    assert extra["rows"] == SENT
    assert {(r["partition"], r["from_offset"], r["until_offset"]) for r in extra["ranges"]} == {
        (partition, 0, SENT // 4) for partition in range(4)
    }


@pytest.fixture(scope="module")
def quick_runs(airflow, killed_run, settings):
    """The IDs of two runs of small batches on a Spark Connect server, of 100 and 50 records."""
    assert killed_run["state"] == "success"  # drivers wait no more
    create_topic(settings.kafka, "quick")
    register(settings, QUICK)
    airflow.wait_for_dag("quick")
    runs = []
    for records in (100, 50):
        send(
            settings.kafka,
            "quick",
            [json.dumps({"id": each, "name": "x"}).encode() for each in range(records)],
        )
        run_id = airflow.trigger("quick")
        assert airflow.wait_for_run("quick", run_id) == "success"
        assert airflow.task_states("quick", run_id)["process_batch"] == ("success", 1)
        batch = _newest_batch(settings, QUICK)
        assert (batch.run_id, batch.rows) == (run_id, records)
        runs.append(run_id)
    airflow.request("PATCH", "/dags/quick", json={"is_paused": True})
    return runs


@pytest.mark.slow
def test_small_batches_run_on_a_server_of_spark_connect(airflow, quick_runs, settings, stack):
    """In Airflow's task: no driver is started. The second run finds the server as the first has left it."""
    results = audit(QUICK, settings)
    assert results.is_exact, results
    batch = _newest_batch(settings, QUICK)
    path = f"/dags/quick/dagRuns/{quick_runs[-1]}/taskInstances/process_batch/logs/1"
    seen = json.dumps(airflow.request("GET", path)) + stack.connect.log_file.read_text()
    assert f"batch {batch.batch_id} committed: 50 records" in seen
    for secret in (PASSWORD, KEY_PASSWORD, stack.connect.token):
        assert secret not in seen


def test_a_dag_in_a_bundle_with_versions_runs_and_its_tasks_have_links(airflow, quick_runs, settings):
    batch, run_id = _newest_batch(settings, QUICK), quick_runs[-1]
    task = airflow.request("GET", f"/dags/quick/dagRuns/{run_id}/taskInstances/process_batch")
    assert task["dag_version"]["bundle_name"] == "versioned"
    links = airflow.request("GET", f"/dags/quick/dagRuns/{run_id}/taskInstances/process_batch/links")
    assert links["extra_links"] == {
        "Batch in exactbatch": f"exactbatch/?dag=quick&run={quote(run_id)}&batch={batch.batch_id}",
        "Spark application": f"http://history.example.org/history/{batch.application_id}/",
    }


def test_tasks_send_metrics_to_statsd(airflow, quick_runs, statsd):
    """A task sends them after Airflow has its state, so they may come after the run has ended."""
    prefix, sent = "airflow.exactbatch.quick", defaultdict(list)

    def all_arrived() -> bool:
        for name, value in statsd.take():
            sent[name].append(value)
        # The last gauge of each plan and each report: the retention of this broker is unlimited.
        return len(sent[f"{prefix}.lag"]) >= 2 * len(quick_runs)

    _wait(all_arrived, "the metrics of two batches", airflow)
    assert sent[f"{prefix}.advance.rows"] == ["100|c", "50|c"]
    assert sent[f"{prefix}.advance.rejects"] == ["0|c", "0|c"]
    assert len(sent[f"{prefix}.advance.batch.duration"]) == 2
    assert sent[f"{prefix}.lag"][-1] == "0|g"
    assert len(sent[f"{prefix}.last_commit_age"]) == 3  # there was no commit before the first plan


def test_openlineage_receives_start_and_complete_of_each_batch(airflow, quick_runs, settings, lineage):
    batch = _newest_batch(settings, QUICK)

    def events() -> list[dict[str, Any]]:
        lines = lineage.read_text().splitlines(keepends=True) if lineage.exists() else []
        every = [json.loads(line) for line in lines if line.endswith("\n")]
        return [
            each
            for each in every
            if each["job"]["name"] == "quick.process_batch"
            and [source["inputFacets"][OFFSET_RANGES]["batchId"] for source in each["inputs"]]
            == [batch.batch_id]
        ]

    _wait(lambda: len(events()) >= 2, "two events", airflow)
    start, complete = events()
    assert [each["eventType"] for each in (start, complete)] == ["START", "COMPLETE"]
    server = psycopg2.extensions.parse_dsn(settings.postgres)
    for each in (start, complete):
        (source,), (target,) = each["inputs"], each["outputs"]
        assert source["namespace"] == f"kafka://{settings.kafka['bootstrap.servers']}"
        assert source["name"] == "quick"
        assert source["inputFacets"][OFFSET_RANGES]["offsets"] == 50
        assert target["namespace"] == f"postgres://127.0.0.1:{server['port']}"
        assert target["name"] == "exactbatch.public.quick"
    assert complete["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 50
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 50
    text = lineage.read_text()
    for secret in (PASSWORD, KEY_PASSWORD):
        assert secret not in text


KILLED = [
    # What is killed, and as which try the replay succeeds.
    (("scheduler", "task"), 2),
    (("scheduler",), 1),
    (("task",), 2),
    (("supervisor",), 2),
    (("supervisor", "task"), 2),
]


@pytest.mark.long
@pytest.mark.parametrize(("victims", "tries"), KILLED)
def test_replay_whose_part_of_airflow_is_killed_in_mid_batch_is_written_once(
    airflow, killed_run, settings, hold, victims, tries
):
    """The driver goes on as an orphan and commits, and the next try finds that it did."""
    assert killed_run["state"] == "success"
    held = Path(f"{hold}.held")
    hold.unlink()
    held.unlink()
    asked = {"topic": "flights", "partition": 0, "from_offset": 100, "until_offset": 300}
    run_id = airflow.trigger("flights", {"ranges": [asked]})
    _wait(held.exists, "the driver to hold after staging", airflow)
    parts = _parts_above(_drivers(airflow)[0], airflow.pid("scheduler"))
    orphans = parts["scheduler"].children(recursive=True)
    try:
        for victim in victims:
            parts[victim].kill()
        psutil.wait_procs([parts[victim] for victim in victims], timeout=30)
        batch = _newest_batch(settings)
        assert (batch.kind, batch.status) == ("replay", "planned")
        hold.touch()
        _wait(lambda: _newest_batch(settings).status == "committed", "the orphan to commit", airflow)
        if "scheduler" in victims:
            _end_sessions_of_the_dead(settings)
            airflow.start("scheduler")
        assert airflow.wait_for_run("flights", run_id) == "success"
    finally:
        hold.touch()
        for each in orphans if "scheduler" in victims else []:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    assert airflow.task_states("flights", run_id)["process_replay"] == ("success", tries)
    batch = _newest_batch(settings)
    assert (batch.run_id, batch.rows, batch.status) == (run_id, 200, "committed")
    results = audit(pipeline, settings)
    assert results.is_exact, results
    assert results.rows == SENT


def _end_sessions_of_the_dead(settings: Settings) -> None:
    """End transactions that nobody goes on with. The children of a killed scheduler have inherited its connection,
    so that Postgres does not notice, and the next scheduler would wait for its locks."""
    time.sleep(6)  # of what goes on, no transaction idles for longer than the 5 seconds below
    dsn = psycopg2.extensions.make_dsn(settings.postgres, dbname="airflow")
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                "and state = 'idle in transaction' and state_change < now() - interval '5 seconds'"
            )


def _parts_above(driver: psutil.Process, scheduler: int) -> dict[str, psutil.Process]:
    """The processes of Airflow that have led to a driver, by way of the JVM of spark-submit."""
    above = driver.parents()
    at = [each.pid for each in above].index(scheduler)
    return {"task": above[at - 2], "supervisor": above[at - 1], "scheduler": above[at]}


def test_a_run_with_nothing_new_is_skipped_without_a_jvm(airflow, killed_run, settings):
    assert killed_run["state"] == "success"
    before = _newest_batch(settings)
    run_id = airflow.trigger("flights")
    airflow.wait_for_run("flights", run_id)
    states = airflow.task_states("flights", run_id)
    assert states["plan_batch"][0] == "skipped"
    assert states["process_batch"] == ("skipped", 0)  # never tried, so nothing was launched
    assert _newest_batch(settings) == before


def test_terminal_error_ends_task_after_one_try_and_names_record(airflow, killed_run, settings):
    assert killed_run["state"] == "success"
    offset = SENT // 4
    send(settings.kafka, "flights", [b"not json"], partitions=1)
    run_id = airflow.trigger("flights")
    assert airflow.wait_for_run("flights", run_id) == "failed"
    batch = _newest_batch(settings)
    assert airflow.task_states("flights", batch.run_id)["process_batch"] == ("failed", 1)
    log = airflow.request("GET", f"/dags/flights/dagRuns/{batch.run_id}/taskInstances/process_batch/logs/1")
    text = json.dumps(log)
    assert "TooManyRejects" in text
    assert f"flights[0] offset {offset}" in text
    assert batch.status == "planned"
    assert audit(pipeline, settings).rows == SENT


def test_a_driver_listens_on_loopback_only(killed_run):
    assert {address for address, _ in killed_run["listening"]} == {"127.0.0.1"}


def test_secrets_are_in_no_argument_log_xcom_template_table_or_event_log(
    airflow, killed_run, stack, event_log
):
    assert killed_run["state"] == "success"
    assert any("process_batch.py" in " ".join(each or ()) for each in killed_run["arguments"])
    places = {
        "arguments": json.dumps(killed_run["arguments"]),
        "logs": "".join(path.read_text(errors="replace") for path in airflow.home.rglob("*.log")),
        "api": _everything_the_api_tells(airflow, "flights"),
        "tables": _everything_in_airflow_s_database(stack),
        "event log": "".join(path.read_text() for path in event_log.rglob("*") if path.is_file()),
    }
    assert "batch_id" in places["api"]
    assert "--batches" in places["tables"]  # rendered templates
    assert "plan_id" in places["tables"]
    assert "SparkListenerTaskEnd" in places["event log"]
    for place, text in places.items():
        assert len(text) > 100, place
        for secret in (PASSWORD, KEY_PASSWORD):
            assert secret not in text, place
            assert secret.encode().hex() not in text, place  # as Postgres shows bytes


@pytest.fixture
def refused(airflow, settings, tmp_path):
    """Connections to servers that ask for another password; what they say to this one."""
    dsn = psycopg2.extensions.parse_dsn(settings.postgres)
    with (
        secure_broker(HOME, f"secure-{os.getpid()}", Authority(tmp_path, "authority")) as broker,
        superuser_login(settings.postgres, "planted", "another"),
    ):
        kafka = {"conn_type": "kafka", "extra": json.dumps(broker.scram(sasl_password=WRONG_PASSWORD))}
        where = {"host": dsn["host"], "port": int(dsn["port"]), "schema": dsn["dbname"]}
        postgres = {"conn_type": "postgres", **where, "login": "planted", "password": WRONG_PASSWORD}
        for name, connection in (("kafka_refused", kafka), ("postgres_refused", postgres)):
            airflow.request("POST", "/connections", json={"connection_id": name, **connection})
        yield {
            "refused_by_kafka": "sasl.mechanism, sasl.username and sasl.password",
            "refused_by_postgres": "password authentication failed",
        }


def test_wrong_password_ends_run_with_message_that_does_not_hold_it(airflow, settings, refused):
    runs = {}
    for dag in refused:
        register(settings, replace(HOURLY, name=dag))
        airflow.wait_for_dag(dag)
        runs[dag] = airflow.trigger(dag)
    for dag, said in refused.items():
        assert airflow.wait_for_run(dag, runs[dag]) == "failed"
        assert airflow.task_states(dag, runs[dag])["plan_batch"] == ("failed", 1)
        log = airflow.request("GET", f"/dags/{dag}/dagRuns/{runs[dag]}/taskInstances/plan_batch/logs/1")
        assert said in json.dumps(log)
        assert WRONG_PASSWORD not in _everything_the_api_tells(airflow, dag)
    assert WRONG_PASSWORD not in "".join(
        path.read_text(errors="replace") for path in airflow.home.rglob("*.log")
    )


SEE = [
    ("GET", path, None)
    for path in (
        "",
        "/dagRuns",
        "/dagRuns/{run_id}",
        "/dagRuns/{run_id}/taskInstances",
        "/dagRuns/{run_id}/taskInstances/plan_batch/logs/1",
        "/dagRuns/{run_id}/taskInstances/plan_batch/xcomEntries",
    )
]
# Each of these is harmless where it is permitted: refused for its content, or said to be a trial.
ACT = [
    ("POST", "/dagRuns", {"logical_date": None, "conf": {"ranges": "no list"}}),
    ("POST", "/clearTaskInstances", {"dry_run": True, "dag_run_id": "{run_id}"}),
    ("PATCH", "/dagRuns/{run_id}", {"state": "no state"}),
    ("PATCH", "/dagRuns/{run_id}/taskInstances/plan_batch", {"new_state": "no state"}),
    ("DELETE", "/dagRuns/no_such_run", None),
    ("PATCH", "", {"is_paused": False}),
]
BACKFILL = (
    "POST",
    "/backfills",
    {
        "dag_id": "flights",
        "from_date": "2026-01-02T00:00:00Z",
        "to_date": "2026-01-01T00:00:00Z",
    },
)
MAY = {
    None: (),
    "viewer": ("see",),
    "user": ("see", "act"),
    "op": ("see", "act", "operate"),
    "admin": ("see", "act", "operate"),
}
# Later, who may trigger a DAG may also start its backfill.
BACKFILL_IS = "operate" if version("apache-airflow").startswith("3.0.") else "act"
# A backfill that ends before it begins is an error of Airflow 3.2 itself, after it has let it pass.
OWN_ERRORS = ("/backfills",) if version("apache-airflow").startswith("3.2.") else ()


@pytest.mark.parametrize("role", MAY)
def test_who_may_see_trigger_and_replay_is_what_airflow_permits(airflow, killed_run, role):
    run_id = killed_run["run_id"]
    dag = "/dags/flights"
    requests = {
        "see": [(method, f"{dag}{path}", body) for method, path, body in SEE],
        "act": [(method, f"{dag}{path}", body) for method, path, body in ACT],
        "operate": [("GET", "/connections", None)],
    }
    requests[BACKFILL_IS].append(BACKFILL)
    manual = {"run_type": "manual"}  # the schedule goes on meanwhile
    before = airflow.request("GET", f"{dag}/dagRuns", params=manual)["total_entries"]
    headers = {} if role is None else {"Authorization": f"Bearer {_token(airflow, role)}"}
    for what, them in requests.items():
        for method, path, body in them:
            url = f"{airflow.url}/api/v2{path.replace('{run_id}', run_id)}"
            sent = json.loads(json.dumps(body).replace("{run_id}", run_id))
            answer = httpx.request(method, url, headers=headers, json=sent, timeout=60)
            where = f"{role} {method} {path}: {answer.status_code} {answer.text[:300]}"
            if role is None:
                assert answer.status_code == httpx.codes.UNAUTHORIZED, where
            elif what in MAY[role]:
                assert answer.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN), where
                assert path in OWN_ERRORS or answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR, where
                assert what != "see" or answer.status_code == httpx.codes.OK, where
            else:
                assert answer.status_code == httpx.codes.FORBIDDEN, where
    assert airflow.request("GET", f"{dag}/dagRuns", params=manual)["total_entries"] == before


def test_a_route_of_the_page_is_as_closed_as_airflow_s_own(airflow):
    """tests/integration/test_page.py tries each of them; here it is the plugin of a real start."""
    plugins = airflow.request("GET", "/plugins")["plugins"]
    assert [each["fastapi_apps"][0]["url_prefix"] for each in plugins if each["name"] == "exactbatch"] == [
        "/exactbatch"
    ]
    data = f"{airflow.url}/exactbatch/data/pipelines"
    assert httpx.get(data, timeout=30).status_code == httpx.codes.UNAUTHORIZED
    bearer = {"Authorization": f"Bearer {_token(airflow, 'viewer')}"}
    assert httpx.get(data, headers=bearer, timeout=30).status_code == httpx.codes.OK


def _token(airflow: LocalAirflow, role: str) -> str:
    """Airflow makes a password for each user that has none."""
    passwords = json.loads((airflow.home / "passwords.json").read_text())
    login = {"username": role, "password": passwords[role]}
    answer = httpx.post(f"{airflow.url}/auth/token", json=login, timeout=30).raise_for_status()
    return str(answer.json()["access_token"])


def _everything_in_airflow_s_database(stack: LocalStack) -> str:
    """Every row of every table, as text."""
    connection = psycopg2.connect(psycopg2.extensions.make_dsn(stack.postgres_dsn, dbname="airflow"))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("select tablename from pg_tables where schemaname = 'public' order by 1")
            rows: list[str] = []
            for (table,) in cursor.fetchall():
                cursor.execute(f'select t::text from "{table}" t')
                rows += [row for (row,) in cursor.fetchall()]
            return "\n".join(rows)
    finally:
        connection.close()


def _everything_the_api_tells(airflow: LocalAirflow, dag: str) -> str:
    """Runs, task instances with their rendered templates, and XComs."""
    told: list[Any] = [airflow.request("GET", "/assets/events")]
    for run in airflow.request("GET", f"/dags/{dag}/dagRuns")["dag_runs"]:
        path = f"/dags/{dag}/dagRuns/{run['dag_run_id']}/taskInstances"
        told.append(tasks := airflow.request("GET", path)["task_instances"])
        for each in tasks:
            entries = airflow.request("GET", f"{path}/{each['task_id']}/xcomEntries")["xcom_entries"]
            told += [
                airflow.request("GET", f"{path}/{each['task_id']}/xcomEntries/{entry['key']}")
                for entry in entries
            ]
    return json.dumps(told)


def _drivers(airflow: LocalAirflow) -> list[psutil.Process]:
    """The processes of jobs that this Airflow has submitted: the JVM of spark-submit, and Python below it."""
    below = psutil.Process(airflow.pid("scheduler")).children(recursive=True)
    lines = [(each, each.as_dict(["cmdline"])["cmdline"] or ()) for each in below]  # none of a zombie
    return [each for each, line in lines if any(part.endswith("/process_batch.py") for part in line)]


def _newest_batch(settings: Settings, of: Pipeline = pipeline) -> Any:
    connection = connect(settings.postgres, application="tests")
    try:
        with transaction(connection):
            return Ledger(connection).batches.read_page(of.name, limit=1)[0]
    finally:
        connection.close()


def _wait(condition: Callable[[], bool], what: str, airflow: LocalAirflow) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline, f"expected {what} within 400 s; logs are in {airflow.home}"
        time.sleep(0.1)
