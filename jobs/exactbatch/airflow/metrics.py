"""Send metrics with Airflow's own: to StatsD, DogStatsD or OpenTelemetry, as Airflow is configured."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from exactbatch.airflow.connections import Connections

if TYPE_CHECKING:
    from exactbatch.operations.metrics import Metric

_BACKENDS: Final = ("statsd_on", "statsd_datadog_enabled", "otel_on")


def metrics_are_on() -> bool:
    """True if Airflow sends metrics: without that, nothing is measured."""
    return any(conf.getboolean("metrics", name, fallback=False) for name in _BACKENDS)


def send(metrics: "Iterable[Metric]") -> None:
    """Send metrics under their tagged names and, like Airflow's own unless legacy_names_on is off, untagged ones.

    Airflow logs a name that its backend does not take, and sends the others.
    """
    names_are_doubled = conf.getboolean("metrics", "legacy_names_on", fallback=True)
    for metric in metrics:
        if names_are_doubled:
            _send(metric, metric.untagged, None)
        _send(metric, metric.tagged, dict(metric.names))


def _send(metric: "Metric", name: str, tags: dict[str, Any] | None) -> None:
    if metric.kind == "gauge":
        stats.gauge(name, metric.value, tags=tags)
    elif metric.kind == "counter":
        stats.incr(name, int(metric.value), tags=tags)
    else:
        stats.timing(name, timedelta(seconds=metric.value), tags=tags)


def send_gauges(pipeline: str, connections: Connections) -> None:
    """Measure a pipeline and send its gauges, if Airflow sends metrics.

    This is called after a task has ended: it delays no batch, and Airflow logs its errors, which fail nothing.
    """
    if not metrics_are_on():
        return
    from exactbatch.kafka.broker import KafkaBroker
    from exactbatch.ledger import ledger_session
    from exactbatch.operations.measurement import measure

    settings = connections.settings()
    with ledger_session(settings.postgres, "exactbatch metrics") as connection:
        send(measure(connection, KafkaBroker(settings.kafka), pipeline))
