"""Which metrics a pipeline and its batches have, and what reaches a StatsD server and an OpenTelemetry collector."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.tasks.report_batch import metrics_are_on, send, send_gauges
from exactbatch.errors import TopicMissing
from exactbatch.ledger import Batch, PartlyCommitted
from exactbatch.model import Retention, StoredOffset
from exactbatch.operations.doctor.topic_checks import check_freshness
from exactbatch.operations.lag import PartitionLag, PipelineLag
from exactbatch.operations.metrics import Metric, measure_batch, measure_ledger, measure_logs
from exactbatch.operations.unprocessed import first_unprocessed
from support.airflow_versions import start_metrics
from support.environment import TESTS
from support.logs import ID, log
from support.statsd_listener import listening

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = Retention(3_600_000, None)
FOR_EVER = Retention(None, None)


def partition(number: int = 0, *, stored: int | None = 5, oldest: datetime | None = None) -> PartitionLag:
    """A partition whose log spans 2 to 9, of a topic that keeps records for an hour."""
    offset = StoredOffset(topic="t", partition=number, next_offset=stored or 0, leader_epoch=0, topic_id=ID)
    there = log(number, earliest=2, last_stable=9)
    return PartitionLag(there, None if stored is None else offset, oldest, HOUR)


def values(metrics: list[Metric]) -> dict[str, float]:
    return {metric.tagged.removeprefix("exactbatch."): metric.value for metric in metrics}


def progress(*partitions: PartitionLag, **retention: Retention) -> dict[str, float]:
    return values(measure_logs(PipelineLag("p", NOW, partitions), retention))


def test_a_thousand_partitions_have_one_lag_and_one_headroom():
    behind = [partition(each, oldest=NOW - MINUTE) for each in range(999)]
    oldest = partition(999, oldest=NOW - 50 * MINUTE)
    metrics = measure_logs(PipelineLag("p", NOW, (*behind, oldest)), {})
    assert values(metrics) == {"lag": 4000, "retention_headroom": 600}
    assert {tuple(metric.names.items()) for metric in metrics} == {(("pipeline", "p"),)}


def test_headroom_of_a_pipeline_that_has_caught_up_is_the_retention_of_new_records():
    """StatsD keeps the last value: without another one, an alert would stay."""
    assert progress(partition(stored=9), t=HOUR) == {"lag": 0, "retention_headroom": 3600}
    longer = Retention(7_200_000, None)
    assert progress(partition(stored=9), t=HOUR, u=longer, v=FOR_EVER)["retention_headroom"] == 3600
    assert progress(partition(stored=9), t=FOR_EVER) == {"lag": 0}
    assert progress(partition(stored=9)) == {"lag": 0}  # an ACL hides the topic's settings


def test_headroom_is_not_known_while_no_partition_says_what_its_oldest_record_is():
    unanswered = replace(partition(1), answered=False)
    assert progress(partition(stored=9), unanswered, t=HOUR) == {"lag": 4}
    assert progress(partition(oldest=NOW), unanswered)["retention_headroom"] == 3600
    assert progress(partition(1), t=HOUR)["retention_headroom"] == 3600  # only markers are left


def test_partitions_that_do_not_answer_are_told_from_those_without_a_record():
    def first_timestamps(asked: dict[Any, int], *, uncommitted: bool) -> dict[Any, int | None]:
        return {place: None if place[1] == 2 else 1_000 for place in asked if place[1] != 1}

    broker: Any = SimpleNamespace(first_timestamps=first_timestamps)
    logs = [log(number, earliest=2, last_stable=9) for number in range(3)]
    found = first_unprocessed(broker, logs, {})
    assert set(found.times) == {("t", 0)}
    assert found.unanswered == {("t", 1)}


def test_headroom_ends_where_retention_has_overtaken_the_stored_offset():
    assert progress(partition(stored=1), partition(1, oldest=NOW))["retention_headroom"] == 0
    assert progress(partition(oldest=NOW - 70 * MINUTE))["retention_headroom"] == -600
    # Without a stored offset, nothing that was removed was to be processed.
    assert progress(partition(stored=None, oldest=NOW))["retention_headroom"] == 3600


@pytest.mark.parametrize(("freshness", "overdue"), [(None, None), (30, 1), (90, 0)])
def test_a_pipeline_with_a_freshness_says_whether_it_is_overdue(freshness, overdue):
    waiting = PipelineLag(
        "p", NOW, (partition(oldest=NOW - MINUTE),), freshness=freshness and timedelta(seconds=freshness)
    )
    assert values(measure_logs(waiting, {})).get("overdue") == overdue


@pytest.mark.parametrize(("oldest", "overdue"), [(NOW - MINUTE, 1), (NOW, None), (None, None)])
def test_a_pipeline_is_not_on_time_while_a_partition_does_not_say_what_its_oldest_record_is(oldest, overdue):
    there = (partition(oldest=oldest), replace(partition(1), answered=False))
    waiting = PipelineLag("p", NOW, there, freshness=timedelta(seconds=30))
    assert values(measure_logs(waiting, {})).get("overdue") == overdue
    assert waiting.as_json()["overdue"] is (None if overdue is None else True)
    (found,) = check_freshness([waiting])
    assert (found.level, "may be overdue" in found.found) == ("warning", overdue is None)


def test_a_pipeline_without_a_topic_or_a_commit_has_no_such_gauge():
    assert measure_logs(PipelineLag("p", NOW, (), (TopicMissing("gone"),)), {}) == []
    assert measure_ledger("p", None, NOW) == []
    assert values(measure_ledger("p", NOW - MINUTE, NOW)) == {"last_commit_age": 60}


BATCH = Batch(
    batch_id=7, plan_id=UUID(int=7), pipeline="shop.eu", kind="replay", origin="manual", dag_id="shop.eu", run_id="r",
    generation=0, clear_number=0, run_started_at=NOW, status="committed", records=12, rows=10, rejected=2,
    tombstones=0, dropped=0, planned_at=NOW, committed_at=NOW + timedelta(seconds=1.5),
    stages=None, application_id=None,
)  # fmt: skip


def test_a_batch_counts_its_rows_and_rejects_by_pipeline_and_kind():
    metrics = measure_batch([BATCH])
    assert values(metrics) == {"rows": 10, "rejects": 2, "batch.duration": 1.5}
    assert {metric.untagged for metric in metrics} == {
        "exactbatch.shop__eu.replay.rows",
        "exactbatch.shop__eu.replay.rejects",
        "exactbatch.shop__eu.replay.batch.duration",
    }
    assert dict(metrics[0].names) == {"pipeline": "shop.eu", "kind": "replay"}


def test_ranges_that_a_superseded_batch_has_committed_count():
    superseded = replace(BATCH, status="superseded", committed_at=None, rows=None, rejected=None)
    partly = PartlyCommitted(7, ranges=2, committed=1, records=6, rows=5, rejected=1, tombstones=0)
    assert values(measure_batch([superseded], [partly])) == {"rows": 5, "rejects": 1}


@pytest.fixture
def statsd(monkeypatch):
    """Airflow's StatsD client sends to this listener."""
    with listening() as listener:
        for name, value in listener.environment().items():
            monkeypatch.setenv(name, value)
        yield listener
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
        start_metrics()


SENT = [*measure_logs(PipelineLag("shop.eu", NOW, (partition(),)), {"t": HOUR}), *measure_batch([BATCH])]


def test_statsd_receives_names_with_the_pipeline_and_names_without(statsd):
    start_metrics()
    send(SENT)
    short = {
        ("airflow.exactbatch.lag", "4|g"),
        ("airflow.exactbatch.retention_headroom", "3600.0|g"),
        ("airflow.exactbatch.rows", "10|c"),
        ("airflow.exactbatch.rejects", "2|c"),
        ("airflow.exactbatch.batch.duration", "1500.000000|ms"),
    }
    long = {
        ("airflow.exactbatch.shop__eu.lag", "4|g"),
        ("airflow.exactbatch.shop__eu.retention_headroom", "3600.0|g"),
        ("airflow.exactbatch.shop__eu.replay.rows", "10|c"),
        ("airflow.exactbatch.shop__eu.replay.rejects", "2|c"),
        ("airflow.exactbatch.shop__eu.replay.batch.duration", "1500.000000|ms"),
    }
    received = statsd.take()
    assert set(received) == short | long
    assert len(received) == len(SENT) * 2


def test_statsd_with_tags_of_influxdb_and_without_untagged_names(statsd, monkeypatch):
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    start_metrics()
    send(SENT[:1] + SENT[2:3])
    assert statsd.take() == [
        ("airflow.exactbatch.lag,pipeline=shop.eu", "4|g"),
        ("airflow.exactbatch.rows,pipeline=shop.eu,kind=replay", "10|c"),
    ]


def test_a_name_that_is_too_long_is_logged_and_the_others_are_sent(statsd, caplog):
    start_metrics()
    send([Metric("gauge", "lag", 4, {"pipeline": "." * 200})])
    assert statsd.take() == [("airflow.exactbatch.lag", "4|g")]
    assert "Invalid stat name" in caplog.text


def test_without_metrics_in_airflow_nothing_is_measured(monkeypatch):
    def measured(_: Any) -> Any:
        raise AssertionError("the connections were read")

    monkeypatch.setattr(Connections, "settings", measured)
    assert not metrics_are_on()
    send_gauges(["p"], Connections())
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_DATADOG_ENABLED", "True")
    with pytest.raises(AssertionError, match="were read"):
        send_gauges(["p"], Connections())


# A process of its own, as a task is: it exports when it ends.
_TASK = """
from datetime import UTC, datetime, timedelta
from support.airflow_versions import start_metrics
start_metrics()
from exactbatch.airflow.tasks.report_batch import metrics_are_on, send
from exactbatch.operations.metrics import Metric
assert metrics_are_on()
names = {"pipeline": "shop.eu", "kind": "advance"}
send([
    Metric("gauge", "lag", 4, {"pipeline": "shop.eu"}),
    Metric("counter", "rows", 10, names),
    Metric("timer", "batch.duration", 1.5, names),
])
"""


class Collector(BaseHTTPRequestHandler):
    """Keeps what is exported to it."""

    received: list[ExportMetricsServiceRequest]

    def do_POST(self) -> None:
        request = ExportMetricsServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append(request)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.skipif(
    version("apache-airflow").startswith("3.0."), reason="Airflow 3.0 sends nothing when a process ends"
)
def test_a_collector_of_opentelemetry_receives_tags_as_attributes(tmp_path):
    handler = type("Handler", (Collector,), {"received": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            [sys.executable, "-c", _TASK],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
                "AIRFLOW_HOME": str(tmp_path),
                "AIRFLOW__METRICS__OTEL_ON": "True",
                # Airflow 3.0 and 3.1 ask for these.
                "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
                "AIRFLOW__METRICS__OTEL_PORT": str(server.server_port),
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
                "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
                "NO_PROXY": "127.0.0.1",
            },
            capture_output=True,
            text=True,
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    points = {
        (metric.name, tuple(sorted((each.key, each.value.string_value) for each in point.attributes))): point
        for request in handler.received  # type: ignore[attr-defined]
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    }
    pipeline, batch = (("pipeline", "shop.eu"),), (("kind", "advance"), ("pipeline", "shop.eu"))
    assert points["airflow.exactbatch.lag", pipeline].as_int == 4
    assert points["airflow.exactbatch.rows", batch].as_int == 10
    duration = points["airflow.exactbatch.batch.duration", batch]
    kept_as = "sum" if hasattr(duration, "sum") else "as_double"  # a gauge in Airflow 3.1
    assert getattr(duration, kept_as) == 1500
    assert ("airflow.exactbatch.shop__eu.lag", ()) in points
