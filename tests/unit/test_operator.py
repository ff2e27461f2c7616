"""What the operator hands to spark-submit, and when it hands nothing."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.providers.apache.spark.operators import spark_submit
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection

from exactbatch.airflow.check_batches import check_committed, check_own, read_named_batches
from exactbatch.airflow.operator import ProcessBatchOperator, search_path
from exactbatch.airflow.tasks import uncommitted_batches as launch
from exactbatch.airflow.versions import AirflowException, AirflowFailException, BaseHook
from exactbatch.batch.spark.class_archive import archive_file
from exactbatch.errors.exit_status import TERMINAL
from exactbatch.model import PlannedBatch
from exactbatch.settings import Settings

PLAN = UUID(int=17)
CLUSTER = '{"deploy-mode": "cluster"}'
NOTE = """
echo "$@" > {0}/arguments
env > {0}/environment
file="${{HADOOP_TOKEN_FILE_LOCATION##*,}}"
if test "$file"; then stat -c %a "$file" > {0}/mode; cp "$file" {0}/credentials; fi
"""
TI = SimpleNamespace(dag_id="p", run_id="r", task_id="process_batch")


@dataclass(frozen=True)
class Given:
    """Stands for the connections of Airflow."""

    kafka, postgres = "kafka_default", "postgres_default"
    spark: str = "spark_default"
    spark_history_url: str | None = None
    noted: list[str] = field(default_factory=list)

    def settings(self) -> Settings:
        return Settings(kafka={}, postgres="dbname=x")

    def note(self, _: Any, text: str) -> None:
        self.noted.append(text)


class Launches:
    """An operator whose launches are played; the ledger answers one after the other of `done`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *done: str | None, returncode: int = 0) -> None:
        self.asked: list[Any] = []
        self.launched = 0
        answers = list(done) or [None]
        self.connections = Given()

        def ask(_: Settings, batches: list[PlannedBatch], ti: Any) -> dict[PlannedBatch, str]:
            (batch,) = batches
            self.asked.append((batch, ti))
            answer = answers.pop(0)
            return {} if answer is None else {batch: answer}

        def submit(operator: Any, _: Any) -> None:
            self.launched += 1
            operator._hook = self.hook
            if returncode:
                raise AirflowException("spark-submit failed")

        monkeypatch.setattr(launch, "done_already", ask)
        monkeypatch.setattr(launch, "planned_offsets", lambda *_: 1_000)
        monkeypatch.setattr(BaseHook, "get_connection", lambda _: None)
        monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
        self.hook = SimpleNamespace(
            _connection={"deploy_mode": None}, _submit_sp=SimpleNamespace(returncode=returncode)
        )

    def execute(self, batch_id: Any, plan_id: Any = "", **named: Any) -> ProcessBatchOperator:
        operator = ProcessBatchOperator(
            task_id="process_batch",
            connections=self.connections,  # type: ignore[arg-type]
            pipeline="p:p",
            batches=f'["p:{batch_id}:{plan_id}"]',
            **named,
        )
        operator._get_hook = lambda: self.hook  # type: ignore[method-assign]
        operator.execute({"ti": TI})
        return operator


@pytest.mark.parametrize(
    ("batch_id", "plan_id", "arguments"),
    [
        ("17", str(PLAN), ["--pipeline", "p:p", "--batches", f"p:17:{PLAN}"]),
        # The XCom of a run that was planned before there were plan ids.
        ("17", "", ["--pipeline", "p:p", "--batches", "p:17:"]),
        # With render_template_as_native_obj.
        (17, str(PLAN), ["--pipeline", "p:p", "--batches", f"p:17:{PLAN}"]),
    ],
    ids=["with a plan", "planned before", "as a number"],
)
def test_a_batch_is_named_with_its_plan(monkeypatch, batch_id, plan_id, arguments):
    launches = Launches(monkeypatch)
    operator = launches.execute(batch_id, plan_id)
    assert operator.application_args == arguments
    assert launches.asked == [(PlannedBatch("p", 17, PLAN if plan_id else None), TI)]
    assert launches.launched == 1


@pytest.mark.parametrize("nothing", ["", "None", None])
def test_task_without_batch_says_that_plan_batch_has_left_none(monkeypatch, nothing):
    launches = Launches(monkeypatch)
    with pytest.raises(AirflowFailException, match="plan_batch has left no batch.*marked as success.*Clear"):
        launches.execute(nothing)
    assert launches.launched == 0


def test_batch_that_is_done_is_not_launched_and_note_says_why(monkeypatch):
    launches = Launches(monkeypatch, "Batch 17 was committed")
    launches.execute("17")
    assert (launches.launched, launches.connections.noted) == (0, ["Batch 17 was committed"])


def test_a_replay_that_a_later_one_has_overtaken_is_done(monkeypatch):
    launches = Launches(monkeypatch, None, "Batch 18 has processed all ranges", returncode=TERMINAL)
    launches.execute("17")
    assert launches.launched == 1
    launches = Launches(monkeypatch, None, None, returncode=TERMINAL)
    with pytest.raises(AirflowFailException, match="cannot succeed by trying again"):
        launches.execute("17")
    launches = Launches(monkeypatch, None, returncode=1)
    with pytest.raises(AirflowException, match="spark-submit failed"):
        launches.execute("17")


@pytest.fixture
def real_hook(monkeypatch, tmp_path):
    """An operator with the provider's own hook: real_hook(exit_status=42, host="yarn", extra="{}").

    What it starts writes into files of tmp_path what it was given.
    """

    def make(*, exit_status: int = 0, host: str = "local[1]", extra: str = "{}") -> ProcessBatchOperator:
        spark = Connection(conn_id="spark_default", conn_type="spark", host=host, extra=extra)
        monkeypatch.setattr(BaseHook, "get_connection", lambda *_: spark)
        monkeypatch.setattr(launch, "done_already", lambda *_: {})
        monkeypatch.setattr(launch, "planned_offsets", lambda *_: 1_000)
        # A name that the provider allows, and that no other folder of PATH has.
        binary = tmp_path / "spark3-submit"
        binary.write_text(f"#!/bin/sh\n{NOTE.format(tmp_path)}\nexit {exit_status}\n")
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return ProcessBatchOperator(
            task_id="process_batch",
            connections=Given(),  # type: ignore[arg-type]
            pipeline="p:p",
            batches='["p:17:"]',
            spark_binary=binary.name,
        )

    return make


def test_the_driver_finds_a_pipeline_whose_module_is_in_the_bundle_of_its_dag(monkeypatch, tmp_path):
    """Airflow appends the bundle's folder, whose name may be a version, to the search path of its own process only."""
    bundle = tmp_path / "versions" / "3f2a"
    (bundle / "shop").mkdir(parents=True)
    (bundle / "shop" / "__init__.py").touch()
    (bundle / "orders.py").touch()
    monkeypatch.syspath_prepend(str(bundle))
    monkeypatch.setenv("PYTHONPATH", "/first")
    for reference in ("orders:orders", "shop.orders:orders"):
        assert search_path(reference) == {"PYTHONPATH": f"/first{os.pathsep}{bundle}"}
    monkeypatch.setenv("PYTHONPATH", str(bundle))
    assert search_path("orders:orders") == {}
    monkeypatch.delenv("PYTHONPATH")
    assert search_path("orders:orders") == {"PYTHONPATH": str(bundle)}
    assert search_path("there_is_no_such_module:x") == {}
    assert search_path("pytest:x") == {}  # it is installed: the driver finds it


def test_properties_that_the_provider_adds_for_openlineage_reach_spark_submit(real_hook, monkeypatch):
    monkeypatch.setattr(
        spark_submit,
        "inject_parent_job_information_into_spark_properties",
        lambda properties, _: {**properties, "spark.openlineage.parentJobName": "p.process_batch"},
    )
    operator = real_hook()
    operator._openlineage_inject_parent_job_info = True
    operator.execute({"ti": TI})
    assert operator._hook._conf["spark.openlineage.parentJobName"] == "p.process_batch"


def test_the_exit_status_is_the_one_that_the_hook_has_seen(real_hook):
    real_hook().execute({"ti": TI})
    with pytest.raises(AirflowFailException, match="cannot succeed by trying again"):
        real_hook(exit_status=TERMINAL).execute({"ti": TI})
    with pytest.raises(AirflowException) as caught:
        real_hook(exit_status=1).execute({"ti": TI})
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.parametrize("host", ["local[1]", "spark://master:7077"])
def test_cluster_mode_is_refused_before_anything_starts_except_on_yarn(real_hook, tmp_path, host):
    with pytest.raises(
        AirflowFailException, match="deploy-mode cluster.*only YARN keeps.*Remove deploy-mode"
    ):
        real_hook(host=host, extra=CLUSTER).execute({"ti": TI})
    assert not (tmp_path / "arguments").exists()


def test_secrets_reach_a_driver_in_cluster_mode_through_a_file_of_this_account(
    real_hook, tmp_path, monkeypatch
):
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", "/of/the/site")
    real_hook(host="yarn", extra=CLUSTER).execute({"ti": TI})
    assert "--deploy-mode cluster" in (tmp_path / "arguments").read_text()
    given = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines())
    assert not {"EXACTBATCH_KAFKA", "EXACTBATCH_POSTGRES"} & given.keys()
    first, file = given["HADOOP_TOKEN_FILE_LOCATION"].split(",")
    assert first == "/of/the/site"
    assert (tmp_path / "mode").read_text() == "600\n"
    assert b"dbname=x" in (tmp_path / "credentials").read_bytes()
    assert not Path(file).exists()


def test_without_a_deploy_mode_the_driver_runs_in_client_mode_whatever_other_settings_say(
    real_hook, tmp_path
):
    real_hook().execute({"ti": TI})
    assert "--deploy-mode client" in (tmp_path / "arguments").read_text()
    assert "EXACTBATCH_POSTGRES=dbname=x\n" in (tmp_path / "environment").read_text()
    assert not (tmp_path / "mode").exists()


def batch(**changes: Any) -> Any:
    found = {"batch_id": 17, "pipeline": "p", "dag_id": "p", "run_id": "r", "status": "committed"}
    return SimpleNamespace(**{**found, **changes})


def test_a_batch_of_another_run_is_not_this_ones():
    check_own(batch(), TI, pipeline="p")
    for name in ("pipeline", "dag_id", "run_id"):
        with pytest.raises(AirflowFailException, match="batch 17 is one of pipeline .* Clear plan_batch"):
            check_own(batch(**{name: "other"}), TI, pipeline="p")
    check_committed(batch())
    for status in ("planned", "superseded"):
        with pytest.raises(AirflowFailException, match=f"batch 17 is {status}, not committed: .* by hand"):
            check_committed(batch(status=status))
    assert read_named_batches('["p:17:"]') == [PlannedBatch("p", 17, None)]


def test_a_note_that_airflow_refuses_fails_nothing(monkeypatch, caplog):
    from exactbatch.airflow import connections
    from exactbatch.airflow.connections import Connections

    def refuse(_: str) -> Any:
        raise RuntimeError("401 Unauthorized")

    monkeypatch.setattr(connections, "_api", refuse)
    with caplog.at_level(logging.WARNING):
        Connections(airflow="airflow_bad").note(TI, "text")
    assert "the task's note was not written: RuntimeError: 401" in caplog.text


@pytest.mark.parametrize(
    ("offsets", "named", "is_quick"),
    [(99_999, {}, True), (100_000, {}, False), (100_000, {"is_transformed": False}, True)],
    ids=["small", "large", "without a transform"],
)
def test_a_driver_uses_the_archive_and_the_quick_compiler_where_there_is_little_to_compile(
    monkeypatch, tmp_path, offsets, named, is_quick
):
    file = archive_file(tmp_path)
    assert file is not None
    file.touch()
    monkeypatch.setenv("EXACTBATCH_ARCHIVES", str(tmp_path))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    launches = Launches(monkeypatch)
    monkeypatch.setattr(launch, "planned_offsets", lambda *_: offsets)
    seen: list[str] = []
    monkeypatch.setattr(
        SparkSubmitOperator, "execute", lambda *_: seen.append(os.environ["SPARK_SUBMIT_OPTS"])
    )
    launches.execute("17", **named)
    assert f"-XX:SharedArchiveFile={file} " in seen[0]
    assert ("TieredStopAtLevel=1" in seen[0]) == is_quick
    assert "SPARK_SUBMIT_OPTS" not in os.environ
