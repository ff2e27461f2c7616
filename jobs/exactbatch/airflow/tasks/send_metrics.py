"""Send metrics with Airflow's own: to StatsD, DogStatsD or OpenTelemetry, as Airflow is configured."""

import logging
import random
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.versions import Stats, conf
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import ledger_session
from exactbatch.operations.measurement import measure
from exactbatch.operations.metrics import Metric

logger = logging.getLogger(__name__)

_BACKENDS: Final = ("statsd_on", "statsd_datadog_enabled", "otel_on")


def metrics_are_on() -> bool:
    """True if Airflow sends metrics: without that, nothing is measured."""
    return any(conf.getboolean("metrics", name, fallback=False) for name in _BACKENDS)


def send(metrics: Iterable[Metric]) -> None:
    """Send metrics under their tagged names and, like Airflow's own unless legacy_names_on is off, untagged ones.

    Airflow logs a name that its backend does not take, and sends the others.
    """
    names_are_doubled = conf.getboolean("metrics", "legacy_names_on", fallback=True)
    for metric in metrics:
        if names_are_doubled:
            _send(metric, metric.untagged, None)
        _send(metric, metric.tagged, dict(metric.names))


def _send(metric: Metric, name: str, tags: dict[str, Any] | None) -> None:
    if metric.kind == "gauge":
        Stats.gauge(name, metric.value, tags=tags)
    elif metric.kind == "counter":
        Stats.incr(name, int(metric.value), tags=tags)
    else:
        Stats.timing(name, timedelta(seconds=metric.value), tags=tags)


def send_gauges(pipelines: Iterable[str], connections: Connections) -> None:
    """Measure pipelines and send their gauges, if Airflow sends metrics; raise the first error when all are done.

    This is called after a task has ended: it delays no batch, and Airflow logs its errors, which fail nothing. Airflow
    also ends it, after [core] task_success_overtime: in random order, no pipeline is always left out.
    """
    if not metrics_are_on():
        return
    settings = connections.settings()
    broker, errors = KafkaBroker(settings.kafka), list[ExactbatchError]()
    with ledger_session(settings.postgres, "exactbatch metrics") as connection:
        pipelines = list(pipelines)
        random.shuffle(pipelines)
        for pipeline in pipelines:
            try:
                send(measure(connection, broker, pipeline))
            except ExactbatchError as error:
                logger.warning("%s: %s: %s", pipeline, type(error).__name__, error)
                errors.append(error)
    if errors:
        raise errors[0]
