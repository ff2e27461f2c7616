"""The links of a task to the Pipelines page and to Spark's history server."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from exactbatch import ledger
from exactbatch.airflow import Connections
from exactbatch.airflow.connections import application_url
from exactbatch.airflow.launch import BatchLink, SparkApplicationLink, build_links
from exactbatch.airflow.page.dags import stored_in
from exactbatch.airflow.versions import AirflowFailException
from exactbatch.errors import ConfigurationError
from exactbatch.settings import Settings

KEY = SimpleNamespace(dag_id="a b", run_id="manual__2026-01-05T00:00:00+00:00")


def operator(batch_id, connections=None):
    return SimpleNamespace(batches=f'["a b:{batch_id}:"]', connections=connections)


def test_the_link_to_the_page_is_relative_and_names_the_batch():
    assert BatchLink().get_link(operator("17"), ti_key=KEY) == (
        "exactbatch/?dag=a+b&run=manual__2026-01-05T00%3A00%3A00%2B00%3A00&batch=17"
    )
    with pytest.raises(AirflowFailException, match="plan_batch has left no batch"):
        BatchLink().get_link(operator(""), ti_key=KEY)


@pytest.mark.parametrize(
    ("address", "application", "expected"),
    [
        ("https://h/spark/", "app-1", "https://h/spark/history/app-1/"),
        ("http://h:18080", "a/../b", "http://h:18080/history/a%2F..%2Fb/"),
        ("http://h", None, None),
        (None, "app-1", None),
    ],
)
def test_an_application_has_a_page_if_both_are_known(monkeypatch, address, application, expected):
    assert application_url(address, application) == expected
    connections = Connections(spark_history_url=address)
    monkeypatch.setattr(Connections, "settings", lambda _: Settings(kafka={}, postgres=""))
    connection = SimpleNamespace(cursor=nullcontext)
    monkeypatch.setattr(ledger, "ledger_session", lambda *_: nullcontext(connection))
    monkeypatch.setattr("exactbatch.airflow.launch.transaction", lambda _: nullcontext())
    monkeypatch.setattr(
        "exactbatch.ledger.batches.Batches.read", lambda *_: SimpleNamespace(application_id=application)
    )
    assert SparkApplicationLink().get_link(operator(17, connections), ti_key=KEY) == (expected or "")


@pytest.mark.parametrize("address", ["javascript:alert(1)", "history:18080", "https://", "", "//h"])
def test_only_a_web_address_becomes_a_link(address):
    with pytest.raises(ConfigurationError, match=f"expected spark_history_url as .* found '{address[:4]}"):
        Connections(spark_history_url=address)
    task = {
        "task_id": "process_batch",
        "kafka_conn_id": "k",
        "postgres_conn_id": "p",
        "spark_history_url": address,
    }
    stored = {"dag": {"tasks": [{"__var": task}]}}
    assert stored_in(stored) == [("k", "p", False, None, False, "")]
    task["spark_history_url"] = "https://h"
    assert stored_in(stored) == [("k", "p", False, "https://h", False, "")]


def test_a_task_has_a_link_to_spark_only_with_a_history_server():
    assert [link.name for link in build_links(Connections())] == ["Batch in exactbatch"]
    assert [link.name for link in build_links(Connections(spark_history_url="http://h"))] == [
        "Batch in exactbatch",
        "Spark application",
    ]
