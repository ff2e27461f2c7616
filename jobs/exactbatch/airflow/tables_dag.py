"""Many tables as one DAG, each task for all members.

plan_batch → process_batch or process_replay → report_batch, also after a failure → check_tables, which fails the run.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.sdk import DAG, Asset

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.documentation import documentation_of_tables
from exactbatch.airflow.options import callbacks, dag_options, keep_params_once, new_dag
from exactbatch.airflow.parameters import parameters_of_tables
from exactbatch.airflow.tables_tasks import check_tables_task, plan_tables_task, report_tables_task
from exactbatch.discovery import reference_of
from exactbatch.tables import Tables

# plan_batch leaves these.
_BATCHES: Final = "{{ ti.xcom_pull('plan_batch', key='batches') or '' }}"
_FAILED: Final = "{{ ti.xcom_pull('plan_batch', key='failed') or '' }}"
_MISSED: Final = "{{ ti.xcom_pull('plan_batch', key='missed') or '' }}"
_DEFAULT_POOL: Final = "default_pool"


def tables_dag(
    tables: Tables,
    *,
    schedule: Any = None,
    start_date: datetime = datetime(2024, 1, 1, tzinfo=UTC),
    connections: Connections = Connections(),  # noqa: B008 - frozen, so one shared instance is safe
    retries: int = 3,
    retry_delay: timedelta = timedelta(seconds=30),
    pool: str | None = None,
    replay_pool: str | None = None,
    **dag_arguments: Any,
) -> DAG:
    """Return the one DAG of many tables. Its dag_id is their name.

    The arguments are those of pipeline_dag. plan_batch plans a batch of each member, process_batch processes all of
    them with one Spark driver, and report_batch announces those that are committed. A member that fails does not stop
    the others: the task fails at its end and names it, and its next try processes only what is left. check_tables
    fails if a member could not be planned.

    A run that is triggered with ranges or batch IDs concerns the members to which these belong. One with a time
    window, and a backfill, concern all members, or those that the parameter `tables` names.

    Raises ConfigurationError for invalid arguments.
    """
    # Its provider takes longer to import than the rest of a DAG file, and other DAG files import this module, too.
    from exactbatch.airflow.tables_operator import ProcessTablesOperator

    reference = reference_of(tables)
    options = dag_options(
        tables.name,
        dag_arguments,
        retries=retries,
        retry_delay=retry_delay,
        documentation=documentation_of_tables(tables, pool or _DEFAULT_POOL, replay_pool or _DEFAULT_POOL),
        own=parameters_of_tables(),
    )
    dag = new_dag(tables.name, "tables", schedule=schedule, start_date=start_date, options=options)
    pools = {"process_batch": pool, "process_replay": replay_pool}
    with dag:
        planned = plan_tables_task(
            reference,
            connections,
            pools,
            options["params"].keys() - parameters_of_tables().keys(),
            options["default_args"],
        )
        processed = [
            ProcessTablesOperator(
                task_id=task_id,
                pool=task_pool or _DEFAULT_POOL,
                connections=connections,
                tables=reference,
                batches=_BATCHES,
                name=f"exactbatch-{tables.name}",
                conf={"spark.log.level": "WARN", **tables.spark_conf},
            )
            for task_id, task_pool in pools.items()
        ]
        reported = report_tables_task(
            reference,
            connections,
            tables_asset(tables),
            (_BATCHES, _MISSED),
            on_success=callbacks(options["default_args"], "on_success_callback"),
        )
        checked = check_tables_task(tables.name, connections, (_BATCHES, _FAILED))
        planned >> processed >> reported
        # Airflow takes no event of a task that fails: report_batch succeeds, and this task says if the run has failed.
        [planned, *processed, reported] >> checked
    keep_params_once(dag)
    return dag


def tables_asset(tables: Tables) -> Asset:
    """Return the asset that report_batch updates when any of the tables has new rows."""
    return Asset(name=f"exactbatch.{tables.name}", extra={"tables": tables.name})
