"""The Pipelines page in a real Airflow: its routes, and who may use which of them."""

import json
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from importlib.metadata import distributions, version
from operator import itemgetter
from types import SimpleNamespace
from urllib.parse import quote, urljoin
from uuid import UUID

import httpx
import psycopg2.errors
import pytest
from airflow.sdk import Connection
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch import Append, Json, Pipeline, ToTopic
from exactbatch.airflow import Connections
from exactbatch.airflow.launch import BatchLink
from exactbatch.airflow.page.airflow_versions import browsers_send_session
from exactbatch.airflow.page.databases import Databases
from exactbatch.airflow.versions import BaseHook
from exactbatch.errors import PostgresUnavailable
from exactbatch.ledger import migrate
from exactbatch.local import LocalStackError
from exactbatch.local.airflow import LocalAirflow
from exactbatch.local.child_process import HOST
from exactbatch.postgres.connection import connect, transaction
from support.logins import password_of
from support.page_airflow import client_of, serving_airflow
from support.page_ledger import SIZE, fail_newest, fill_story, tell_story

pytestmark = pytest.mark.timeout(900)
GROUP = "airflow.plugins"
IS_3_0 = version("apache-airflow").startswith("3.0.")
NAMES = ("story", "failing", "cut_off", "unknown")
OURS = {"content-type": "application/json", "sec-fetch-site": "same-origin"}
RANGE = {"ranges": [{"topic": "story", "partition": 0, "from_offset": 10, "until_offset": 30}]}


@pytest.fixture(scope="module")
def airflow(stack, make_topic_once, tmp_path_factory):
    pipelines = [
        Pipeline(
            name=name,
            topics=(name,),
            value=Json("id int, name text"),
            sink=Append(f"public.{name}"),
            freshness=timedelta(microseconds=1) if name == "failing" else None,
            forward=ToTopic("late_flights") if name == "cut_off" else None,
        )
        for name in NAMES
    ]
    connection = connect(stack.postgres_dsn, application="tests", timeout=10)
    migrate(connection)
    for pipeline in pipelines[:2]:
        tell_story(stack, connection, make_topic_once, pipeline)
    fail_newest(connection, "failing", "column id holds 'secret'. Change the column.", retryable=False)
    fill_story(connection, pipelines[2], UUID(int=9))
    connection.close()
    nobody = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    folder = tmp_path_factory.mktemp("page")
    with serving_airflow(
        stack, pipelines, folder, connections={"kafka_cut_off": nobody}, path="/team/airflow"
    ) as airflow:
        yield airflow


@pytest.fixture(scope="module")
def viewer(airflow):
    return client_of(airflow, "viewer")


@pytest.fixture(scope="module")
def user(airflow):
    return client_of(airflow, "user")


PATHS = (
    "/exactbatch/",
    "/exactbatch/static/page.js",
    "/exactbatch/data/pipelines",
    "/exactbatch/data/pipelines/story",
    "/exactbatch/data/pipelines/story/strips",
    "/exactbatch/data/pipelines/story/gaps",
    "/exactbatch/data/pipelines/story/batches",
    "/exactbatch/data/pipelines/story/lag",
    "/exactbatch/data/pipelines/story/rejects",
    "/exactbatch/data/pipelines/story/rejects/list",
)


@pytest.mark.parametrize("path", PATHS)
def test_anonymous_gets_nothing_and_a_viewer_sees(airflow, viewer, path):
    is_open = "/data/" not in path and not browsers_send_session()
    assert httpx.get(f"{airflow.url}{path}").status_code == (200 if is_open else 401)
    assert viewer.get(path).status_code == 200


def test_there_is_no_other_route_than_those_that_are_tested(airflow, viewer):
    for path in ("/exactbatch/docs", "/exactbatch/openapi.json", "/exactbatch/static/..%2fapp.py"):
        assert viewer.get(path).status_code == 404


def test_all_pipelines(viewer):
    listed = wait_for_kafka(lambda: viewer.get("/exactbatch/data/pipelines").json()["pipelines"])
    rows = {row["dag_id"]: row for row in listed}
    assert set(NAMES) <= set(
        rows
    )  # a worker of the tests may have used its database for other pipelines before
    assert rows["unknown"]["state"] == "not registered"
    assert rows["failing"]["state"] == "failing"
    assert rows["failing"]["error"]["message"].startswith("column id")
    assert rows["story"]["state"] == "processing"
    assert rows["story"]["lag"] == 3 * (SIZE + 20)
    assert rows["story"]["newest"]["records"] == SIZE // 2
    assert rows["story"]["retention_seconds"] > 86400


def test_a_pipeline_whose_records_wait_for_too_long_is_overdue(viewer):
    def overdue():
        listed = viewer.get("/exactbatch/data/pipelines").json()["pipelines"]
        return {row["dag_id"]: row.get("overdue") for row in listed if row["dag_id"] in NAMES}

    deadline = datetime.now(UTC).timestamp() + 60
    while not overdue()["failing"]:  # the timestamp is read in a thread
        assert datetime.now(UTC).timestamp() < deadline
    assert overdue() == {"failing": True, "story": None, "cut_off": None, "unknown": None}
    state = viewer.get("/exactbatch/data/pipelines/failing").json()
    assert (state["state"], state["overdue"]) == ("failing", True)
    assert state["oldest_seconds"] > state["freshness_seconds"] == 1e-6


def test_one_pipeline_and_its_strips(viewer):
    state = viewer.get("/exactbatch/data/pipelines/story").json()
    assert state["may"] == {"read_logs": True, "trigger": False, "see_records": False}
    answer = viewer.get("/exactbatch/data/pipelines/story/strips", params={"steps": 900}).json()
    assert (answer["first"], answer["until"], answer["all"]) == (0, 41 * SIZE + 20, 3)
    kinds = {segment[2] for segment in answer["strips"][0]["segments"] + answer["strips"][0]["exceptions"]}
    assert kinds == {"batch", "loss", "replay", "backfill"}
    assert answer["strips"][0]["in_flight"][0][:3] == [40 * SIZE, 41 * SIZE, "batch"]


def test_a_pipeline_that_forwards_shows_its_unsent_results_and_their_age(airflow, viewer, stack):
    path = "/exactbatch/data/pipelines/cut_off"
    sent = {"topic": "late_flights", "sent_sequence": 0, "unsent": 0, "unsent_seconds": None, "sent_at": None}
    assert viewer.get(path).json()["forwarding"] == sent
    with (
        closing(connect(stack.postgres_dsn, application="tests")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "insert into exactbatch.outbox (stream_id, sequence, batch_id, change) "
            "select stream_id, n, (select min(batch_id) from exactbatch.batch where pipeline = 'cut_off' "
            "and status = 'committed' and records > 0), 'row' from exactbatch.forward, generate_series(1, 3) n "
            "where pipeline = 'cut_off'; "
            "update exactbatch.forward set last_sequence = 3 where pipeline = 'cut_off'"
        )
        connection.commit()
    found = viewer.get(path).json()["forwarding"]
    assert found["unsent"] == 3
    assert found["unsent_seconds"] == pytest.approx(40 * 300 - 8, abs=600)  # that old is the first batch
    assert viewer.get("/exactbatch/data/pipelines/story").json()["forwarding"] is None


def test_batches_and_lag(viewer):
    listed = viewer.get("/exactbatch/data/pipelines/story/batches").json()["batches"]
    assert [batch["kind"] for batch in listed[:3]] == ["advance", "backfill", "replay"]
    series = wait_for_kafka(lambda: viewer.get("/exactbatch/data/pipelines/story/lag").json()["series"][1])
    assert series[-1] == 3 * (SIZE + 20)


def test_only_who_may_edit_the_dag_sees_a_rejected_record(viewer, user):
    [reject, *_] = viewer.get("/exactbatch/data/pipelines/story/rejects/list").json()["rejects"]
    place = {name: reject[name] for name in ("topic_id", "partition", "offset")}
    path = "/exactbatch/data/pipelines/story/rejects/record"
    assert viewer.get(path, params=place).status_code == 403
    record = user.get(path, params=place).json()
    assert record["value"] == {"text": "<script>alert(1)</script>", "bytes": 25, "is_cut": False}


def test_a_preview_counts_the_rows_and_writes_nothing(user, viewer):
    path = "/exactbatch/data/pipelines/story/preview"
    assert viewer.post(path, json=RANGE, headers=OURS).status_code == 403
    answer = user.post(path, json=RANGE, headers=OURS)
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == 20
    listed = user.get("/exactbatch/data/pipelines/story/batches", params={"limit": 300}).json()["batches"]
    assert answer.json()["ranges"][0]["batches"] == [listed[-1]["batch_id"]]
    batch = listed[5]
    answer = user.post(path, json={"batch_ids": [batch["batch_id"]]}, headers=OURS).json()
    assert answer["rows"] == answer["offsets"] == 3 * SIZE
    refused = user.post(path, json={"ranges": [{**RANGE["ranges"][0], "until_offset": 10**6}]}, headers=OURS)
    assert refused.status_code == 409
    assert "ends above the stored offset" in refused.json()["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json", "sec-fetch-site": "cross-site"},
        {"content-type": "application/json", "sec-fetch-site": "same-site"},
        {"content-type": "application/json"},
        {"content-type": "text/plain", "sec-fetch-site": "same-origin"},
    ],
)
def test_a_request_of_another_site_is_refused(user, headers):
    path = "/exactbatch/data/pipelines/story/preview"
    answer = user.post(path, content='{"batch_ids": [1]}', headers=headers)
    assert answer.status_code == 403


def test_the_page_runs_and_embeds_nothing_foreign(viewer):
    for path in PATHS[:3]:
        headers = viewer.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_dag_of_a_versioned_bundle_is_found_with_its_pipeline_s_module(airflow, viewer, stack):
    rows = viewer.get("/exactbatch/data/pipelines").json()["pipelines"]
    assert "not registered" in [row["state"] for row in rows if row["dag_id"] == "bundled"]
    with closing(psycopg2.connect(make_dsn(stack.postgres_dsn, dbname="airflow"))) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "select data from serialized_dag where dag_id = 'bundled' order by created_at desc limit 1"
        )
        [(data,)] = cursor.fetchall()
    assert "shop.orders:bundled" in json.dumps(data)
    links = {
        each["task_id"]: each.get("_operator_extra_links")
        for each in (task.get("__var", task) for task in data["dag"]["tasks"])
    }
    assert links["process_batch"] == {
        "Batch in exactbatch": "_link_BatchLink",
        "Spark application": "_link_SparkApplicationLink",
    }


def test_links_and_notes_work_below_the_path_of_airflow(airflow, viewer, user, monkeypatch):
    run = user.post("/api/v2/dags/story/dagRuns", json={"logical_date": None, "conf": RANGE}).json()[
        "dag_run_id"
    ]
    task = f"/dags/story/dagRuns/{quote(run)}/taskInstances/process_batch"
    # A task pushes this when it has ended.
    key = SimpleNamespace(dag_id="story", run_id=run)
    pushed = BatchLink().get_link(SimpleNamespace(batches='["story:7:"]'), ti_key=key)
    airflow.request("POST", f"{task}/xcomEntries", json={"key": BatchLink().xcom_key, "value": pushed})
    links = viewer.get(f"/api/v2{task}/links").json()["extra_links"]
    # What a browser makes of it on any page of Airflow.
    base = re.search(r'<base href="([^"]*)"', viewer.get("/").text)[1]
    shown = urljoin(urljoin(airflow.url, base), links["Batch in exactbatch"])
    assert shown.startswith(f"{airflow.url}/exactbatch/?dag=story&run=manual__")
    assert shown.endswith("&batch=7")
    assert "<title>Pipelines · exactbatch</title>" in viewer.get(shown).text
    own = Connection(conn_id="own", conn_type="http", host=f"http://{HOST}/team/airflow", port=airflow.port,
                     login=airflow.user, password=airflow.password)  # fmt: skip
    monkeypatch.setattr(BaseHook, "get_connection", lambda _: own)
    ti = SimpleNamespace(dag_id="story", run_id=run, task_id="process_batch")
    Connections(airflow="own").note(ti, "the batch was committed before")
    assert airflow.request("GET", task)["note"] == "the batch was committed before"


def test_a_trigger_through_airflow_s_api_is_what_a_viewer_may_not(viewer, user):
    path = "/api/v2/dags/story/dagRuns"
    body = {"logical_date": None, "conf": RANGE, "note": "why"}
    assert viewer.post(path, json=body).status_code == 403
    answer = user.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["conf"]["ranges"] == RANGE["ranges"]


def test_the_page_is_registered_once(airflow):
    plugins = airflow.request("GET", "/plugins")["plugins"]
    [ours] = [each for each in plugins if each["name"] == "exactbatch"]
    if IS_3_0:  # has no views of plugins, and does not tell what it could not import
        return
    assert {view["destination"] for view in ours["external_views"]} == {
        *("nav", "dag", "dag_run", "task", "task_instance")
    }
    # Airflow loads the entry point of each distribution that it finds; an editable one may be there twice.
    found = [
        each
        for each in distributions()
        if each.name == "exactbatch" and each.entry_points.select(group=GROUP)
    ]
    errors = airflow.request("GET", "/plugins/importErrors")["import_errors"]
    assert len(errors) == max(0, len(found) - 1), errors
    assert not [each for each in errors if "PLUGINS_FOLDER" in each["source"]]


def wait_for_kafka(call):
    """Ask until Kafka's answer is in."""
    deadline = datetime.now(UTC).timestamp() + 60
    while datetime.now(UTC).timestamp() < deadline:
        answer = call()
        if (
            answer
            and answer[-1] is not None
            and not (isinstance(answer[0], dict) and answer[-2].get("lag") is None)
        ):
            return answer
    raise AssertionError(answer)


def test_without_kafka_the_page_shows_the_ledger_and_says_so(viewer):
    path = "/exactbatch/data/pipelines/cut_off"
    states = [viewer.get(path).json() for _ in range(2)]
    assert {state["state"] for state in states} == {"processing"}
    assert {state["lag"] for state in states} == {None}
    strip = viewer.get(f"{path}/strips").json()["strips"][0]
    assert (strip["high_watermark"], strip["next_offset"]) == (None, 40 * SIZE)
    assert strip["segments"]
    deadline = datetime.now(UTC).timestamp() + 90
    while (error := viewer.get(path).json()["kafka_error"]) is None:
        assert datetime.now(UTC).timestamp() < deadline
    assert "127.0.0.1:1" in error


@pytest.fixture
def databases(connection, database, monkeypatch):
    """The page's connections; that of Airflow to the ledger is "ledger"."""
    dsn = parse_dsn(database)
    parts = {"host": dsn["host"], "port": int(dsn["port"]), "login": dsn["user"], "schema": dsn["dbname"]}
    parts["password"] = password_of(database)
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "postgres", **parts}))
    return Databases()


def test_when_postgres_has_restarted_one_request_fails_at_most(connection, databases):
    with ExitStack() as stack:
        idle = [stack.enter_context(databases.connection("ledger", time.monotonic() + 60)) for _ in range(3)]
        pids = [each.info.backend_pid for each in idle]
    with connection.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(pid, 60000) from unnest(%s) pid", (pids,))
        assert [row[0] for row in cursor.fetchall()] == [True, True, True]
    outcomes = []
    for _ in range(4):
        try:
            with databases.connection("ledger", time.monotonic() + 60) as read, transaction(read) as cursor:
                cursor.execute("select 1")
            outcomes.append("answered")
        except PostgresUnavailable:
            outcomes.append("failed")
    assert outcomes == ["failed", "answered", "answered", "answered"]


def sleep_often(connection):
    for _ in range(1000):
        with transaction(connection) as cursor:
            cursor.execute("select pg_sleep(0.01)")


def sleep_long(connection):
    with transaction(connection) as cursor:
        cursor.execute("select pg_sleep(9)")


@pytest.mark.parametrize("work", [sleep_often, sleep_long])
def test_many_short_statements_end_with_the_time_of_their_request_as_a_long_one_does(
    connection, databases, work
):
    began = time.monotonic()
    with (
        pytest.raises(PostgresUnavailable, match="the request exceeded the page's time limit"),
        databases.connection("ledger", began + 3) as read,
    ):
        work(read)
    assert 3 <= time.monotonic() - began < 8
    with (
        pytest.raises(PostgresUnavailable, match="the request exceeded the page's time limit"),
        databases.connection("ledger", began + 3) as read,
    ):
        work(read)  # it gets no connection any more
    with databases.connection("ledger", time.monotonic() + 60) as read, transaction(read) as cursor:
        cursor.execute("select 1")


def test_the_page_cannot_write(databases):
    for _ in range(2):
        with (
            pytest.raises(psycopg2.errors.ReadOnlySqlTransaction),
            databases.connection("ledger", time.monotonic() + 60) as read,
            read.cursor() as cursor,
        ):
            cursor.execute("delete from exactbatch.batch")


@pytest.fixture(scope="module")
def long_reasons(airflow, stack):
    """10,000 rejects of the pipeline "failing", each with another reason, as long as a reason can be."""
    reasons = [f"column id: {n}" + f"'{n}a'b\"" * 100 for n in range(10_000)]
    with (
        closing(connect(stack.postgres_dsn, application="tests")) as connection,
        transaction(connection) as cursor,
    ):
        cursor.execute(
            'insert into exactbatch.rejected_record (pipeline, topic_id, partition, "offset", topic, headers, '
            "reason, batch_id) select 'failing', %s, 0, n, 'failing', '[]', left(reason, 500), "
            "(select min(batch_id) from exactbatch.batch where pipeline = 'failing') "
            "from unnest(%s) with ordinality r (reason, n)",
            (str(UUID(int=8)), reasons),
        )


def seconds(call):
    began = time.monotonic()
    answer = call()
    return time.monotonic() - began, answer


def test_rejects_with_long_reasons_are_grouped_in_a_moment(long_reasons, viewer):
    path = "/exactbatch/data/pipelines/failing/rejects"
    took, answer = min((seconds(lambda: viewer.get(path)) for _ in range(5)), key=itemgetter(0))
    groups = answer.json()["groups"]
    assert groups[0]["sampled"] == 10_000
    assert took < 0.3
    listed = {"kind": groups[0]["kind"]}
    took, answer = min(
        (seconds(lambda: viewer.get(f"{path}/list", params=listed)) for _ in range(5)), key=itemgetter(0)
    )
    assert answer.json()["rejects"]
    assert took < 0.3


def test_what_many_ask_of_the_page_at_once_leaves_airflow_its_threads(airflow, long_reasons, user):
    """They ask for previews that are refused, previews that are not, and rejects."""
    page = "/exactbatch/data/pipelines"
    listed = user.get(f"{page}/story/batches", params={"limit": 300}).json()["batches"]
    ids = [each["batch_id"] for each in listed if each["status"] == "committed"][:30]
    hostile = (
        lambda client: client.post(f"{page}/story/preview", json={"batch_ids": ids[:1] * 4000}, headers=OURS),
        lambda client: client.post(f"{page}/story/preview", json={"batch_ids": ids}, headers=OURS),
        lambda client: client.get(f"{page}/failing/rejects"),
    )
    clients = [client_of(airflow, "user") for _ in range(45)]

    def answer():
        took, answered = seconds(lambda: user.get("/api/v2/dags"))
        assert answered.status_code == 200
        return took

    def meanwhile(*asks):
        """Airflow's longest answer while 45 ask twice, and how often the page answered with which status."""
        together = threading.Barrier(len(clients) + 1)

        def ask(number, client):
            together.wait(60)
            return [asks[number % len(asks)](client).status_code for _ in range(2)]

        with ThreadPoolExecutor(len(clients)) as pool:
            asked = [pool.submit(ask, *each) for each in enumerate(clients)]
            together.wait(60)
            took = [answer() for _ in iter(lambda: all(each.done() for each in asked), True)]
        return max(took, default=0), Counter(status for each in asked for status in each.result())

    # What so many connections at once cost, whatever they ask for, is no matter of the page.
    idle, _ = meanwhile(lambda client: client.get("/exactbatch/static/page.js"))
    took, statuses = meanwhile(*hostile)
    assert statuses.keys() <= {200, 422, 503}, statuses
    assert statuses[422] + statuses[503] >= 30, statuses
    assert took <= 2 * max(idle, answer()) + 1, (took, idle, statuses)


@pytest.mark.slow
def test_a_dag_processor_of_another_folder_stops_when_airflow_is_brought_up_again(airflow, stack, tmp_path):
    (tmp_path / "dags").mkdir()
    other = LocalAirflow(stack, tmp_path / "dags", path="/team/airflow")
    other.start("dag-processor")
    assert airflow.up(parts=["api-server"]) is False
    with pytest.raises(LocalStackError, match="does not run"):
        airflow.pid("dag-processor")
    assert "story" in airflow.dags()
