"""The task plan_batch: plan a run's batch, freeze it in the ledger, and choose the task that processes it.

The DAG file imports this module whenever Airflow parses it, so heavy imports are inside the task.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import task

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.metrics import send_gauges
from exactbatch.airflow.options import callbacks
from exactbatch.airflow.parameters import TRIGGERED, replay_of
from exactbatch.airflow.versions import AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from exactbatch.ledger import Batch, Origin

# By Airflow's type of a run; all other types are kinds of schedules.
ORIGINS: Final["dict[str, Origin]"] = {**dict.fromkeys(TRIGGERED, "manual"), "backfill": "backfill"}
# The report of a batch that was committed more recently may still be running.
UNANNOUNCED_AFTER: Final = 300.0  # seconds
MISSED_LIMIT: Final = 100
_TASKS_TEST_PREFIX: Final = "__airflow_temporary_run_"  # of the runs of `airflow tasks test`

logger = logging.getLogger(__name__)


def plan_task(
    name: str,
    reference: str,
    connections: Connections,
    pools: Mapping[str, str | None],
    other_parameters: Collection[str],
    default_args: Mapping[str, Any],
) -> Any:
    """Return the task plan_batch, for the DAG in whose block this is called.

    `name` is the pipeline's. `pools` has the pool of each task that may follow. `other_parameters` are the names of DAG
    parameters that do not concern exactbatch. `default_args` are the DAG's, with callbacks of its author.
    """

    def send_progress(_: Any) -> None:
        """Send the pipeline's gauges, even if there is nothing new, or if batches fail and no report follows."""
        send_gauges([name], connections)

    @task.branch(
        on_success_callback=[*callbacks(default_args, "on_success_callback"), send_progress],
        on_skipped_callback=[*callbacks(default_args, "on_skipped_callback"), send_progress],
    )
    def plan_batch(dag_run: Any = None, params: Any = None, ti: Any = None) -> str:
        """Plan the run's batch and freeze it in the ledger. Skip the run if there is nothing to process."""
        from exactbatch.discovery import load_pipeline
        from exactbatch.kafka.broker import KafkaBroker
        from exactbatch.kafka.client_properties import check_properties
        from exactbatch.ledger import Ledger, Run, check_schema, ledger_session
        from exactbatch.planning.run import plan_run
        from exactbatch.postgres.connection import transaction

        check_not_tasks_test(dag_run)
        with airflow_errors():
            pipeline, settings = load_pipeline(reference), connections.settings()
            check_properties(settings.kafka)
            request = replay_of(dag_run, params, other_parameters)
            with ledger_session(settings.postgres, "exactbatch plan", pipeline) as connection:
                check_schema(connection)
                planned = plan_run(
                    connection,
                    KafkaBroker(settings.kafka),
                    pipeline,
                    Run(dag_run.dag_id, dag_run.run_id, dag_run.clear_number, dag_run.start_date),
                    request,
                    origin=ORIGINS.get(dag_run.run_type, "schedule"),
                )
                with transaction(connection):
                    missed = Ledger(connection).unannounced(
                        pipeline, age=UNANNOUNCED_AFTER, limit=MISSED_LIMIT
                    )
            next_task = _next_task(planned.batch, missed, planned.because)
            batch = planned.batch or missed[-1]
            if (pool := pools.get(next_task)) is not None:
                connections.check_pool(pool)
        ti.xcom_push(key="batch_id", value=batch.batch_id)
        ti.xcom_push(key="plan_id", value=str(batch.plan_id))
        ti.xcom_push(key="missed", value=",".join(str(batch.plan_id) for batch in missed))
        ti.xcom_push(key="beyond_stored", value=list(map(str, planned.beyond)))
        return next_task

    return plan_batch()


def check_not_tasks_test(dag_run: Any) -> None:
    """Raise AirflowFailException in a run of `airflow tasks test`."""
    if dag_run.run_id.startswith(_TASKS_TEST_PREFIX):
        raise AirflowFailException(
            "`airflow tasks test` would plan a real batch and replace the planned one. To see what the next run "
            "would do, use `exactbatch plan`, which changes nothing. To run the DAG, use `airflow dags test`."
        )


def _next_task(batch: "Batch | None", missed: "Sequence[Batch]", because: str) -> str:
    """Return the ID of the task that follows plan_batch. Raises AirflowSkipException if none has anything to do."""
    if batch is None and not missed:
        raise AirflowSkipException(because)
    if batch is None:
        logger.info(
            "%s; announcing batches that no report has announced: %s", because, [b.batch_id for b in missed]
        )
        return "report_batch"
    if batch.origin == "clear":
        logger.info(
            "process_replay processes batch %s. If you cleared plan_batch alone, clear process_replay, too",
            batch.batch_id,
        )
    return "process_batch" if batch.kind == "advance" else "process_replay"
