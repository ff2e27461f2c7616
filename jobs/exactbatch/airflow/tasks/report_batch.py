"""The tasks after the batches: report_batch logs what they did and announces them, check_tables says whether a run of
many tables has failed, and forward_results sends what they have committed to the pipeline's topic.

Metrics go out with Airflow's own: to StatsD, DogStatsD or OpenTelemetry, as Airflow is configured.
"""

import logging
import random
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import chain, groupby
from typing import Any, Final
from uuid import UUID

from airflow.sdk import Asset

from exactbatch.airflow.check_batches import (
    check_committed,
    check_own,
    name_beside,
    read_missed_plans,
    read_named_batches,
)
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.versions import AirflowFailException, AirflowSkipException, Stats, conf
from exactbatch.discovery import load_object, load_pipeline
from exactbatch.errors import ConfigurationError, ExactbatchError, Fenced, KafkaUnavailable
from exactbatch.errors.translation import translate_all_errors
from exactbatch.forwarding.forward import forward_results as send_results
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client_properties import check_properties
from exactbatch.ledger import Ledger, check_schema, ledger_session
from exactbatch.model import PlannedBatch
from exactbatch.operations.metrics import Metric, count, measure
from exactbatch.operations.report import Report, as_one_table, report_from_ledger, with_logs
from exactbatch.pipeline import Pipeline
from exactbatch.planning.members import find_member
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.settings import Settings
from exactbatch.tables import Tables

logger = logging.getLogger(__name__)

_BACKENDS: Final = ("statsd_on", "statsd_datadog_enabled", "otel_on")
ANNOUNCED: Final = "announced"  # an XCom of report_batch: the plan IDs in its asset event, by pipeline


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


def report_batch(
    reference: str,
    connections: Connections,
    asset: Asset,
    batches: Any,
    missed: Any,
    *,
    ti: Any,
    outlet_events: Any,
) -> dict[str, Any]:
    """Log what the batches did, announce them in an event of the asset, and show progress to lag tools.

    Returns the event.

    `reference` names a pipeline or Tables. `batches` and `missed` are what plan_batch has left. The ledger decides
    whether a batch is committed: somebody may have set Airflow's states by hand.

    Raises AirflowSkipException if there is nothing to announce, AirflowFailException for a batch that is not committed
    or of another run, and a retryable error of exactbatch.
    """
    if batches in (None, ""):
        raise AirflowSkipException("plan_batch has left no batches")
    with airflow_errors():
        own, plans = read_named_batches(batches), read_missed_plans(missed)
        found, settings = load_object(reference), connections.settings()
        broker = KafkaBroker(settings.kafka)
        beyond = ti.xcom_pull(task_ids=name_beside(ti, "plan_batch"), key="beyond_stored") or []
        with ledger_session(settings.postgres, "exactbatch report") as connection:
            if isinstance(found, Pipeline):
                report = _own_report(connection, found, own[0], plans, ti)
                reports, event = [(found, report)], report.as_json()
                text = with_logs(broker, found, report).as_table()
            else:
                reports = _new_reports(connection, found, own, plans, ti)
                event = {"tables": found.name, "batches": [report.as_json() for _, report in reports]}
                text = as_one_table([report for _, report in reports])
        print(text)  # noqa: T201 - a task's output is its log
        event["beyond_stored"] = beyond
        outlet_events[asset].extra = event
        announced = {pipeline.name: list(map(str, report.plans)) for pipeline, report in reports}
        ti.xcom_push(key=ANNOUNCED, value=announced)
        for pipeline, report in reports:
            if not show_progress(broker, pipeline, report):
                break  # the others would wait in vain
    return event


def _own_report(
    connection: Connection, pipeline: Pipeline, own: PlannedBatch, missed: Sequence[UUID], ti: Any
) -> Report:
    """Return the report of a run's batch and of the missed ones. If the run has none, its batch is a missed one, too.

    It is the same if the task is repeated. Raises AirflowFailException for a batch that is not committed or of another
    run, and AirflowSkipException if a later replay has processed all ranges of the batch.
    """
    report = report_from_ledger(connection, pipeline, own.batch_id, own.plan_id, missed)
    if report.batch.plan_id not in missed:
        check_own(report.batch, ti, pipeline=own.pipeline)
        _check_not_overtaken(report)
        check_committed(report.batch)
    return report


def _new_reports(
    connection: Connection, tables: Tables, own: Sequence[PlannedBatch], missed: Sequence[UUID], ti: Any
) -> list[tuple[Pipeline, Report]]:
    """Return the reports of the committed batches that no event has announced, one for each member.

    check_tables fails for the others. Raises AirflowFailException for a batch of another run, and AirflowSkipException
    if there are none: nothing was planned, or this is a repetition.
    """
    planned = {batch.plan_id: batch for batch in own}
    with transaction(connection):
        found = Ledger(connection).batches.find_unannounced_plans([*missed, *filter(None, planned)])
    waiting = sorted(found, key=lambda batch: (batch.pipeline, batch.plan_id in planned))
    reports = []
    for name, batches in groupby(waiting, key=lambda batch: batch.pipeline):
        *late, last = batches
        if last.plan_id in planned:
            check_own(last, ti, pipeline=planned[last.plan_id].pipeline)
        try:
            pipeline = find_member(connection, tables, last)
        except ConfigurationError as error:
            # It holds no event of the others back; its batch is announced when it can be made again.
            logger.error("%s: %s: %s", name, type(error).__name__, error)
            continue
        plans = [batch.plan_id for batch in late]
        report = report_from_ledger(connection, pipeline, last.batch_id, last.plan_id, plans)
        reports.append((pipeline, report))
    if not reports:
        raise AirflowSkipException("every committed batch has been announced")
    return reports


def _check_not_overtaken(report: Report) -> None:
    """Raise AirflowSkipException if a later replay has processed all ranges of the batch."""
    if report.overtaken_by is not None:
        raise AirflowSkipException(
            f"batch {report.batch.batch_id}, a replay, was overtaken: batch {report.overtaken_by}, which was planned "
            f"later, has processed all of its ranges and is announced instead"
        )


def note_announced(connections: Connections, ti: Any) -> None:
    """Note in the ledger which batches the event lists, now that Airflow has it; else the next run repeats them."""
    announced = ti.xcom_pull(task_ids=ti.task_id, key=ANNOUNCED)
    announce(connections.settings(), chain.from_iterable(announced.values()))


def announce(settings: Settings, plans: Iterable[str]) -> None:
    """Record that batches were announced, and count those that had not been: each counts once, even in a new try."""
    with ledger_session(settings.postgres, "exactbatch report") as connection:
        with transaction(connection):
            announced = Ledger(connection).batches.announce(map(UUID, plans))
        if metrics_are_on():
            send(count(connection, announced))


def show_progress(broker: KafkaBroker, pipeline: Pipeline, report: Report) -> bool:
    """Commit to the consumer group that lag tools read. exactbatch does not read it, so an error is only logged.

    Returns false if Kafka cannot be reached.
    """
    try:
        with translate_all_errors():
            stored = {key: offset for key, offset in report.stored.items() if pipeline.loads(key[0])}
            broker.commit_group(f"exactbatch.{pipeline.name}", stored)
    except ExactbatchError as error:
        logger.warning("lag tools do not see this batch yet: %s: %s", type(error).__name__, error)
        return not isinstance(error, KafkaUnavailable)
    return True


def check_tables(name: str, connections: Connections, batches: Any, failed: Any) -> None:
    """Fail the run of the tables `name` if one could not be planned, or if a batch is not committed.

    `batches` and `failed` are what plan_batch has left. The ledger decides whether a batch is committed: somebody may
    have set Airflow's states by hand.

    Raises AirflowFailException, and a retryable error of exactbatch.
    """
    with (
        airflow_errors(),
        ledger_session(connections.settings().postgres, "exactbatch check") as connection,
        transaction(connection),
    ):
        ledger = Ledger(connection)
        for named in read_named_batches(batches):
            batch = ledger.batches.read(named.batch_id, named.plan_id)
            if ledger.coverage.find_overtaking(batch) is None:
                check_committed(batch)
    if failed:
        raise AirflowFailException(
            f"all planned batches are committed, but tables of {name!r} could not be planned: {failed}"
        )


def forward_results(reference: str, connections: Connections) -> None:
    """Send the results that wait in the outbox of the pipeline that `reference` names.

    Raises AirflowSkipException if there are none, or if another forwarder sends them, AirflowFailException for a
    terminal error, and a retryable error of exactbatch.
    """
    with airflow_errors():
        pipeline, settings = load_pipeline(reference), connections.settings()
        check_properties(settings.kafka)
        with ledger_session(settings.postgres, "exactbatch forward", pipeline) as connection:
            check_schema(connection)
            try:
                forwarded = send_results(connection, settings, pipeline)
            except Fenced as error:
                # Nothing has failed: the other one, which began later, also sends what this run has committed.
                raise AirflowSkipException(str(error)) from None
        if not forwarded.sent:
            raise AirflowSkipException(f"the topic {forwarded.topic!r} has all results")
        print(forwarded)  # noqa: T201 - a task's output is its log
