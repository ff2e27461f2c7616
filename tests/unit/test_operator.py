"""What the operator hands to spark-submit."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from exactbatch.airflow import operator as module
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.settings import Settings

PLAN = UUID(int=17)


@dataclass(frozen=True)
class Given:
    """Stands for the connections of Airflow."""

    spark: str = "spark_default"

    def settings(self) -> Settings:
        return Settings(kafka={}, postgres="dbname=x")


@pytest.mark.parametrize(
    ("plan_id", "arguments"),
    [
        (str(PLAN), ["--pipeline", "p:p", "--batch-id", "17", "--plan-id", str(PLAN)]),
        # The XCom of a run that was planned before there were plan ids.
        ("", ["--pipeline", "p:p", "--batch-id", "17"]),
    ],
    ids=["with a plan", "planned before"],
)
def test_a_batch_is_named_with_its_plan(
    monkeypatch: pytest.MonkeyPatch, plan_id: str, arguments: list[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "_committed_at", lambda _, *batch: asked.append(batch))
    monkeypatch.setattr(module.BaseHook, "get_connection", lambda _: None)
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda *_: None)
    operator = ProcessBatchOperator(
        task_id="process_batch",
        connections=Given(),  # type: ignore[arg-type]
        pipeline="p:p",
        batch_id="17",
        plan_id=plan_id,
    )
    monkeypatch.setattr(operator, "_get_hook", lambda: SimpleNamespace(_connection={"deploy_mode": None}))
    operator.execute({})
    assert operator.application_args == arguments
    assert asked == [(17, PLAN if plan_id else None)]
