"""The task report_batch: log what a batch did, and announce it.

The DAG file imports this module whenever Airflow parses it, so heavy imports are inside the task.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from airflow.sdk import Asset, task

from exactbatch.airflow.batches import check_committed, check_own, named_batch
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.metrics import metrics_are_on, send, send_gauges
from exactbatch.airflow.versions import AirflowSkipException
from exactbatch.errors import ExactbatchError, KafkaUnavailable
from exactbatch.errors.translation import translate_all_errors
from exactbatch.pipeline import Pipeline

if TYPE_CHECKING:
    from exactbatch.kafka.broker import KafkaBroker
    from exactbatch.operations.report import Report
    from exactbatch.settings import Settings

ANNOUNCED: Final = "announced"  # an XCom of report_batch: the plan IDs in its asset event

logger = logging.getLogger(__name__)


def report_task(
    name: str,
    reference: str,
    connections: Connections,
    asset: Asset,
    batch: Sequence[str],
    *,
    on_success: Sequence[Callable[[Any], None]],
) -> Any:
    """Return the task report_batch, for the DAG in whose block this is called.

    `name` is the pipeline's. `batch` are the templates of the batch ID, the plan ID and the missed plan IDs.
    `on_success` are callbacks of the DAG's author.
    """

    def note_announced(context: Any) -> None:
        """Note in the ledger which batches the event lists, now that Airflow has it; else the next run repeats them."""
        plans = context["ti"].xcom_pull(task_ids="report_batch", key=ANNOUNCED)
        announce(connections.settings(), plans)

    def send_progress(_: Any) -> None:
        """Send the pipeline's gauges again, after the commit."""
        send_gauges([name], connections)

    @task(
        outlets=[asset],
        trigger_rule="none_failed_min_one_success",
        # Airflow ends the task [core] task_success_overtime after its success, whatever is left of these.
        on_success_callback=[note_announced, *on_success, send_progress],
    )
    def report_batch(
        batch_id: Any, plan_id: Any, missed: Any = "", ti: Any = None, outlet_events: Any = None
    ) -> None:
        """Log what the batch did, announce it in an event of the asset, and show progress to lag tools.

        The ledger decides whether the batch is committed: somebody may have set Airflow's states by hand.
        """
        from exactbatch.discovery import load_pipeline
        from exactbatch.kafka.broker import KafkaBroker
        from exactbatch.operations.report import load_report

        with airflow_errors():
            number, plan = named_batch(batch_id, plan_id)
            missed_plans = [UUID(text) for text in str(missed).split(",") if text]
            pipeline, settings = load_pipeline(reference), connections.settings()
            broker = KafkaBroker(settings.kafka)
            report = load_report(settings.postgres, broker, pipeline, number, plan, missed_plans)
            if report.batch.plan_id not in missed_plans:
                check_own(report.batch, ti)
                _check_not_overtaken(report)
                check_committed(report.batch)
            print(report.as_table())  # noqa: T201 - a task's output is its log
            beyond = ti.xcom_pull(task_ids="plan_batch", key="beyond_stored") or []
            outlet_events[asset].extra = {**report.as_json(), "beyond_stored": beyond}
            ti.xcom_push(key=ANNOUNCED, value=list(map(str, [report.batch.plan_id, *missed_plans])))
            show_progress(broker, pipeline, report)

    return report_batch(*batch)


def _check_not_overtaken(report: "Report") -> None:
    """Raise AirflowSkipException if a later replay has processed all ranges of the batch."""
    if report.overtaken_by is not None:
        raise AirflowSkipException(
            f"batch {report.batch.batch_id}, a replay, was overtaken: batch {report.overtaken_by}, which was planned "
            f"later, has processed all of its ranges and is announced instead"
        )


def announce(settings: "Settings", plans: Iterable[str]) -> None:
    """Record that batches were announced, and count those that had not been: each counts once, even in a new try."""
    from exactbatch.ledger import Ledger, ledger_session
    from exactbatch.operations.measurement import count
    from exactbatch.postgres.connection import transaction

    with ledger_session(settings.postgres, "exactbatch report") as connection:
        with transaction(connection):
            announced = Ledger(connection).announce(map(UUID, plans))
        if metrics_are_on():
            send(count(connection, announced))


def show_progress(broker: "KafkaBroker", pipeline: Pipeline, report: "Report") -> bool:
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
