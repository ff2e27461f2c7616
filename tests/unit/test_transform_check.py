"""What is refused of a transform before its rows are computed, without Spark."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from exactbatch import Append, Json, Pipeline
from exactbatch.batch.transform import transform_plan
from exactbatch.errors import TransformRefused

PIPELINE = Pipeline(
    name="p",
    topics=("t",),
    value=Json("id int"),
    sink=Append("public.t", lineage="batch"),
    transform="select * from records",
)


def frame(*columns: str) -> Any:
    return SimpleNamespace(columns=list(columns), schema=[])


def test_columns_that_are_one_name_to_spark_are_refused():
    with pytest.raises(
        TransformRefused, match="returns the columns Total and total, x and x, which are the same name"
    ):
        transform_plan.check_transform(PIPELINE, frame("Total", "x", "total", "y", "x"))


def raising(error: Exception) -> Any:
    def findings(*_: Any, **__: Any) -> Any:
        raise error

    return findings


def test_a_plan_that_cannot_be_examined_is_refused(monkeypatch):
    monkeypatch.setattr(transform_plan, "findings", raising(Py4JError("Method plan([]) does not exist")))
    with pytest.raises(TransformRefused, match=r"cannot be examined .* Method plan\(\[\]\) does not exist"):
        transform_plan.check_transform(PIPELINE, frame("x"))
    monkeypatch.setattr(transform_plan, "findings", raising(Py4JNetworkError("gone")))
    with pytest.raises(Py4JNetworkError):
        transform_plan.check_transform(PIPELINE, frame("x"))
