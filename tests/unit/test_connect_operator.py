"""engine="connect" in Airflow: the DAG, the connection, and how a batch ends."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk import Connection
from pyspark.sql.connect.client.core import DefaultChannelBuilder

from exactbatch.airflow import pipeline_dag
from exactbatch.airflow.connect_operator import ProcessBatchOnServerOperator
from exactbatch.airflow.tasks import process_on_server as module
from exactbatch.airflow.tasks import uncommitted_batches as launch
from exactbatch.airflow.tasks.process_on_server import server_url
from exactbatch.airflow.versions import AirflowFailException, BaseHook
from exactbatch.errors import BatchLost, ConfigurationError, TasksFailed
from exactbatch.model import PlannedBatch
from pipelines.flights import flights

PLAN = UUID(int=17)
TI = SimpleNamespace(dag_id="p", run_id="r", task_id="process_batch")


class Given:
    """Stands for the connections of Airflow."""

    kafka, postgres = "kafka_default", "postgres_default"
    spark_history_url = None
    spark = "spark_connect_default"

    def settings(self) -> Any:
        return SimpleNamespace()

    def note(self, *_: Any) -> None:
        pass


@pytest.fixture
def execute(monkeypatch):
    """Execute the operator: execute(error, None, "done") with what the batch raises and the ledger answers."""

    def run(error: Exception | None, *answers: str | None) -> list[Any]:
        processed: list[Any] = []

        def process(engine: Any, pipeline: Any, batch_id: int, _settings: Any, plan_id: Any) -> str:
            processed.append((engine.address, pipeline.name, batch_id, plan_id))
            if error is not None:
                raise error
            return "committed"

        left = list(answers)

        def ask(_: Any, batches: list[PlannedBatch], __: Any) -> dict[PlannedBatch, str]:
            answer = left.pop(0)
            return {} if answer is None else {batches[0]: answer}

        monkeypatch.setattr(launch, "done_already", ask)
        monkeypatch.setattr(module, "server_url", lambda _: "sc://localhost:1/;token=t0ken")
        monkeypatch.setattr(module, "process_batch", process)
        operator = ProcessBatchOnServerOperator(
            task_id="process_batch",
            connections=Given(),  # type: ignore[arg-type]
            pipeline="pipelines.flights:flights",
            batches=f'["flights:17:{PLAN}"]',
        )
        operator.execute({"ti": TI})
        return processed

    return run


def test_a_batch_is_processed_with_its_plan(execute):
    assert execute(None, None) == [("sc://localhost:1", "flights", 17, PLAN)]


def test_a_batch_that_is_done_reaches_no_server(execute):
    assert execute(None, "Batch 17 was committed") == []


def test_a_terminal_error_ends_the_task_unless_a_later_replay_has_done_its_work(execute):
    with pytest.raises(AirflowFailException, match="BatchLost: gone"):
        execute(BatchLost("gone"), None, None)
    execute(BatchLost("gone"), None, "Batch 18 has processed all ranges")
    with pytest.raises(TasksFailed, match="the server ended"):
        execute(TasksFailed("the server ended"), None)


def test_the_url_is_the_one_of_the_provider(monkeypatch):
    given = Connection(
        conn_id="c", conn_type="spark_connect", host="spark", port=15002, login="me/you", password="t/k+;= %é"
    )
    monkeypatch.setattr(BaseHook, "get_connection", lambda *_: given)
    channel = DefaultChannelBuilder(server_url("c"))
    assert (channel.endpoint, channel.userId, channel.token) == ("spark:15002", "me/you", "t/k+;= %é")
    given.login = given.password = None
    assert server_url("c").rstrip("/;") == "sc://spark:15002"
    given.conn_type = "spark"
    with pytest.raises(AirflowFailException, match="the type spark_connect, found spark"):
        server_url("c")


def test_a_dag_names_its_engine():
    dag = pipeline_dag(flights, engine="connect")
    for task_id in ("process_batch", "process_replay"):
        assert isinstance(dag.get_task(task_id), ProcessBatchOnServerOperator)


@pytest.mark.parametrize(
    ("changes", "engine", "message"),
    [
        (
            {"transform": "select * from records"},
            "connect",
            "has a transform, which Spark Connect cannot check",
        ),
        ({"spark_conf": {"spark.executor.cores": "2"}}, "connect", r"spark_conf has spark\.executor\.cores"),
        ({}, "yarn", "expected engine to be one of spark-submit, connect, found 'yarn'"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_when_the_dag_is_parsed(changes, engine, message, monkeypatch):
    from dataclasses import replace

    from exactbatch.airflow import task_definitions

    monkeypatch.setattr(task_definitions, "find_reference", lambda _: "pipelines.flights:flights")
    with pytest.raises(ConfigurationError, match=message):
        pipeline_dag(replace(flights, **changes), engine=engine)
