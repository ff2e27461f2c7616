"""Whoever answers instead of a Spark Connect server runs no code in the process that asks it."""

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from exactbatch.batch.by_partition.partition_commit import Committed
from exactbatch.batch.engines.connect_engine import ConnectEngine
from exactbatch.batch.engines.connect_server import ARTIFACT_ISOLATION
from exactbatch.batch.staging.outcomes import dump
from exactbatch.errors import ConfigurationError
from exactbatch.offsets import OffsetRange
from pipelines.flights import flights


class Impostor(base_pb2_grpc.SparkConnectServiceServicer):
    """Answers as a server does; `answers` are the parts of its answer to a plan, and a record batch of `outcome`."""

    def __init__(self, outcome: bytes, answers: list[dict[str, Any]]) -> None:
        self._outcome, self._answers = outcome, answers

    def _ids(self, request: Any) -> dict[str, str]:
        return {"session_id": request.session_id, "server_side_session_id": "life"}

    def Config(self, request: Any, _: Any) -> Any:
        known = {ARTIFACT_ISOLATION: "false", "spark.default.parallelism": "2", "spark.app.id": "app"}
        asked = [*request.operation.get.keys, *request.operation.get_option.keys]
        pairs = [base_pb2.KeyValue(key=key, value=known.get(key, "")) for key in asked]
        return base_pb2.ConfigResponse(pairs=pairs, **self._ids(request))

    def AnalyzePlan(self, request: Any, _: Any) -> Any:
        assert request.WhichOneof("analyze") == "spark_version", request
        version = base_pb2.AnalyzePlanResponse.SparkVersion(version=pyspark.__version__)
        return base_pb2.AnalyzePlanResponse(spark_version=version, **self._ids(request))

    def ExecutePlan(self, request: Any, _: Any) -> Iterator[Any]:
        batch = pa.record_batch({"outcome": pa.array([self._outcome], pa.binary())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        arrow = base_pb2.ExecutePlanResponse.ArrowBatch(row_count=1, data=sink.getvalue().to_pybytes())
        complete = base_pb2.ExecutePlanResponse.ResultComplete()
        parts: list[dict[str, Any]] = [*self._answers, {"arrow_batch": arrow}, {"result_complete": complete}]
        for number, part in enumerate(parts):
            yield base_pb2.ExecutePlanResponse(
                operation_id=request.operation_id, response_id=str(number), **part, **self._ids(request)
            )

    def Interrupt(self, request: Any, _: Any) -> Any:
        return base_pb2.InterruptResponse(**self._ids(request))

    def ReleaseExecute(self, request: Any, _: Any) -> Any:
        return base_pb2.ReleaseExecuteResponse(**self._ids(request))

    def ReleaseSession(self, request: Any, _: Any) -> Any:
        return base_pb2.ReleaseSessionResponse(**self._ids(request))


class Task:
    range = OffsetRange("t", 0, 0, 9, UUID(int=0))


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


def outcomes(outcome: bytes, *answers: dict[str, Any]) -> list[Any]:
    """What a batch receives from the impostor."""
    server = grpc.server(ThreadPoolExecutor(4))
    base_pb2_grpc.add_SparkConnectServiceServicer_to_server(Impostor(outcome, list(answers)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with ConnectEngine(f"sc://localhost:{port}").executors(flights, "batch 1") as executors:
            return executors.run([Task()], lambda *_: [], limit=1, verb="stage")
    finally:
        server.stop(None)


def test_an_outcome_that_would_run_code_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="which is not a task outcome"):
        outcomes(pickle.dumps(Planted(tmp_path / "planted")))
    assert not list(tmp_path.iterdir())


def test_what_spark_s_client_would_unpickle_or_import_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_type.py").write_text(f"import os; os.mkdir({str(tmp_path / 'imported')!r})\n")
    metrics = base_pb2.ExecutePlanResponse.ObservedMetrics(name="__python_accumulator__")
    metrics.values.add().binary = pickle.dumps(Planted(tmp_path / "unpickled"))
    schema = base_pb2.ExecutePlanResponse().schema
    udt = schema.struct.fields.add(name="x").data_type.udt
    udt.type, udt.python_class = "udt", "planted_type.Type"
    assert outcomes(dump(Committed(5)), {"observed_metrics": [metrics]}, {"schema": schema}) == [Committed(5)]
    assert {each.name for each in tmp_path.iterdir()} == {"planted_type.py"}
