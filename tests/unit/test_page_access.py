"""Who may do what on the Pipelines page, asked of an auth manager that is not Airflow's simple one."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.models.dag import DagModel
from fastapi.testclient import TestClient

from exactbatch.airflow.page import dags, databases, routes
from exactbatch.airflow.page.brokers import Brokers
from exactbatch.airflow.page.dags import PipelineDag, PipelineDags
from exactbatch.airflow.page.databases import Databases
from exactbatch.airflow.page.routes import create_app
from exactbatch.errors import ConfigurationError
from exactbatch.ledger import Registry
from exactbatch.ledger.overview_rows import OverviewRows, PartitionPosition
from exactbatch.operations.overview import LedgerSummary
from support.page_auth import PerDagAuthManager, session_of
from support.stored_dags import store_dags

DAGS = ("one", "two")
FIND = PipelineDags.find  # the real one
OURS = {"sec-fetch-site": "same-origin"}
RANGE = {"ranges": [{"topic": "t", "partition": 0, "from_offset": 0, "until_offset": 1}]}
RECORD = {"topic_id": str(UUID(int=1)), "partition": 0, "offset": 1}
READ, RUNS = ("GET", None), ("GET", DagAccessEntity.RUN)
LOGS, TRIGGER, EDIT = ("GET", DagAccessEntity.TASK_LOGS), ("POST", DagAccessEntity.RUN), ("PUT", None)
# What there is to do with one pipeline, and what it needs beside READ and RUNS.
ACTIONS = {
    "see": (("GET", "", {}), set()),
    "strips": (("GET", "/strips", {}), set()),
    "gaps": (("GET", "/gaps", {}), set()),
    "batches": (("GET", "/batches", {}), set()),
    "lag": (("GET", "/lag", {}), set()),
    "reasons": (("GET", "/rejects", {}), {LOGS}),
    "rejects": (("GET", "/rejects/list", {}), {LOGS}),
    "record": (("GET", "/rejects/record", {"params": RECORD}), {LOGS, EDIT}),
    "preview": (("POST", "/preview", {"json": RANGE, "headers": OURS}), {TRIGGER}),
}


@pytest.fixture
def client(monkeypatch):
    """The page's application, in an Airflow with two pipelines whose servers are not there."""

    def unreachable(conn_id):
        raise ConfigurationError(f"no {conn_id}")

    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "support.page_auth.PerDagAuthManager")
    monkeypatch.setattr(PerDagAuthManager, "grants", {})
    monkeypatch.setattr(PerDagAuthManager, "read", set())
    monkeypatch.setattr(databases, "airflow_connection", unreachable)
    # These two ask Airflow's database; an older Airflow has one or none of them.
    monkeypatch.setattr(DagModel, "get_team_name", lambda _dag_id: None, raising=False)
    monkeypatch.setattr(DagModel, "get_dag_id_to_team_name_mapping", lambda _dag_ids: {}, raising=False)
    stored = [PipelineDag(dag_id, False, "kafka", "postgres", False, None) for dag_id in DAGS]
    monkeypatch.setattr(
        PipelineDags, "find", lambda _self, wanted: [dag for dag in stored if dag.dag_id in wanted]
    )
    create_auth_manager()
    PerDagAuthManager.read.clear()  # what its constructor read
    yield TestClient(create_app(), **session_of("somebody"))
    purge_cached_app()


def grant(**granted):
    PerDagAuthManager.grants["somebody"] = {
        (dag_id, *what) for dag_id, actions in granted.items() for what in actions
    }


def permitted(client, dag_id):
    """The actions that are not forbidden: they go on to the servers, which are not there."""
    answers = {
        name: client.request(method, f"/data/pipelines/{dag_id}{path}", **arguments).status_code
        for name, ((method, path, arguments), _) in ACTIONS.items()
    }
    assert set(answers.values()) <= {403, 409}, answers
    return {name for name, status in answers.items() if status == 409}


def listed(client):
    return [row["dag_id"] for row in client.get("/data/pipelines").json()["pipelines"]]


@pytest.mark.parametrize("more", [{LOGS}, {TRIGGER}, {EDIT}, {LOGS, EDIT}, {LOGS, TRIGGER, EDIT}, set()])
def test_what_is_granted_for_one_dag_is_permitted_for_it_alone(client, more):
    grant(one={READ, RUNS, *more}, two=set())
    assert permitted(client, "one") == {name for name, (_, needed) in ACTIONS.items() if needed <= more}
    assert permitted(client, "two") == set()
    assert listed(client) == ["one"]


def test_a_pipeline_is_seen_only_with_its_runs(client):
    grant(one={READ, LOGS, TRIGGER, EDIT}, two={READ, RUNS})
    assert permitted(client, "one") == set()
    assert listed(client) == ["two"]


@pytest.mark.parametrize("stale", [(), ("shop.payroll", "shop.eu")])
def test_what_a_dag_without_permission_runs_is_no_member_of_another_dag(client, monkeypatch, stale):
    """Names are compared with all DAGs, and a name belongs to the one with the longest prefix."""
    stored = dict.fromkeys(("shop", "shop.eu", "shop.payroll"), "hash")
    store_dags(monkeypatch, stored, tables=("shop", "shop.eu"), stale=stale)
    names = ("shop.eu.orders", "shop.orders", "shop.payroll", "shop.us.orders", "shops.orders")
    monkeypatch.setattr(PipelineDags, "find", FIND)
    monkeypatch.setattr(Databases, "connection", lambda *_: nullcontext())
    monkeypatch.setattr(dags, "transaction", lambda _: nullcontext())
    monkeypatch.setattr(Registry, "read_all", lambda _: [SimpleNamespace(name=name) for name in names])
    monkeypatch.setattr(routes, "load_summaries", lambda *_, **__: {})

    def shown():
        rows = client.get("/data/pipelines").json()["pipelines"]
        return [(row["dag_id"], row["pipeline"]) for row in rows]

    ours = [("shop", "shop.orders"), ("shop", "shop.us.orders")]
    grant(**{"shop": {READ, RUNS, LOGS}})
    assert shown() == ours
    grant(**{"shop": {READ, RUNS}, "shop.eu": {READ, RUNS}, "shop.payroll": {READ}})
    assert shown() == ([] if stale else [("shop.eu", "shop.eu.orders")]) + ours


def test_the_auth_manager_is_asked_through_its_public_interface_only(client):
    grant(one={READ, RUNS, LOGS, TRIGGER, EDIT}, two={READ})
    permitted(client, "one")
    listed(client)
    asked = {name for name in PerDagAuthManager.read if not name.startswith("__")} - {"grants"}
    assert {"get_user_from_token", "is_authorized_dag", "get_authorized_dag_ids"} <= asked
    assert {name for name in asked if name.startswith("_") or not hasattr(BaseAuthManager, name)} == set()


def test_each_answer_about_a_pipeline_lets_kafka_be_asked_the_same(client, monkeypatch):
    """What one of them leaves out, such as that it can be overdue, would be forgotten until another is asked for."""
    watched = []
    definition = SimpleNamespace(
        topics=["t", "new"],
        known_topics=lambda stored: ("t", "new"),
        freshness=timedelta(hours=1),
        target="t",
        others=[],
        sink="append",
        lineage="record",
    )
    position = PartitionPosition("one", "t", UUID(int=1), 0, 0, 9, datetime.now(UTC), None)
    summary = LedgerSummary(definition, (position,), (), ())
    monkeypatch.setattr(Databases, "connection", lambda *_: nullcontext())
    monkeypatch.setattr(Brokers, "watch", lambda _, *given, **options: watched.append((given, options)))
    monkeypatch.setattr(routes, "load_summaries", lambda *_, **__: {"one": summary})
    monkeypatch.setattr(routes, "load_forwarding", lambda *_: None)
    monkeypatch.setattr(routes, "transaction", lambda _: nullcontext())
    monkeypatch.setattr(routes, "load_strips", lambda *_, **__: [])
    monkeypatch.setattr(OverviewRows, "page_of_batches", lambda *_, **__: [])
    grant(one={READ, RUNS})
    for path in ("", "/one", "/one/strips", "/one/lag"):
        assert client.get(f"/data/pipelines{path}").status_code == 200
    stored = {("t", 0): position}
    assert watched == [(("kafka", "one", ["t", "new"], stored), {"may_be_overdue": True})] * 4
