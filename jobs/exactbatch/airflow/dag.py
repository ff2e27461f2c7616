"""A pipeline as a DAG: plan_batch → process_batch or process_replay → report_batch, and forward_results beside it.

Airflow parses DAG files again and again. Parsing imports nothing heavy and connects to no server: the tasks do.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from airflow.sdk import DAG, Asset

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.documentation import documentation
from exactbatch.airflow.forward_task import forward_task
from exactbatch.airflow.options import callbacks, dag_options, keep_params_once, new_dag
from exactbatch.airflow.parameters import parameters
from exactbatch.airflow.plan_task import plan_task
from exactbatch.airflow.report_task import report_task
from exactbatch.connect_limits import check_pipeline
from exactbatch.discovery import reference_of
from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

# plan_batch leaves these. A run that was planned by a version without plan IDs has none.
_BATCH_ID: Final = "{{ ti.xcom_pull('plan_batch', key='batch_id') or '' }}"
_PLAN_ID: Final = "{{ ti.xcom_pull('plan_batch', key='plan_id') or '' }}"
_MISSED: Final = "{{ ti.xcom_pull('plan_batch', key='missed') or '' }}"
_DEFAULT_POOL: Final = "default_pool"
Engine = Literal["spark-submit", "connect"]


def pipeline_dag(
    pipeline: Pipeline,
    *,
    schedule: Any = None,
    start_date: datetime = datetime(2024, 1, 1, tzinfo=UTC),
    connections: Connections = Connections(),  # noqa: B008 - frozen, so one shared instance is safe
    retries: int = 3,
    retry_delay: timedelta = timedelta(seconds=30),
    pool: str | None = None,
    replay_pool: str | None = None,
    engine: Engine = "spark-submit",
    **dag_arguments: Any,
) -> DAG:
    """Return the DAG of a pipeline. Its dag_id is the pipeline's name.

    `schedule` is a cron expression in UTC, which gives each run the data interval from one time to the next, or any
    other schedule that Airflow's DAG takes. `pool` is the pool of the batches that move the pipeline forward,
    `replay_pool` the pool of replays; without them, Airflow's default_pool. Create a pool before you name it here:
    Airflow lets a task wait forever for a missing pool.

    `engine` is what processes a batch: a driver that spark-submit starts, or, with "connect", a Spark Connect server
    that runs already, whose address is the connection `spark`. A pipeline with a transform needs spark-submit.

    Further arguments go to the DAG. default_args, tags, params and doc_md are merged with the DAG's own.

    These runs process ranges again: a run that is triggered with parameters, the runs of a backfill, each for its
    data interval, and a run that is cleared after its batch was committed.

    Raises ConfigurationError for invalid arguments.
    """
    reference = reference_of(pipeline)
    _check_engine(pipeline, engine)
    options = dag_options(
        pipeline.name,
        dag_arguments,
        retries=retries,
        retry_delay=retry_delay,
        documentation=documentation(pipeline, pool or _DEFAULT_POOL, replay_pool or _DEFAULT_POOL),
    )
    dag = new_dag(pipeline.name, "pipeline", schedule=schedule, start_date=start_date, options=options)
    pools = {"process_batch": pool, "process_replay": replay_pool}
    with dag:
        planned = plan_task(
            pipeline.name,
            reference,
            connections,
            pools,
            options["params"].keys() - parameters().keys(),
            options["default_args"],
        )
        processed = [
            _process_task(
                pipeline, reference, connections, engine, task_id=task_id, pool=task_pool or _DEFAULT_POOL
            )
            for task_id, task_pool in pools.items()
        ]
        reported = report_task(
            pipeline.name,
            reference,
            connections,
            pipeline_asset(pipeline),
            (_BATCH_ID, _PLAN_ID, _MISSED),
            on_success=callbacks(options["default_args"], "on_success_callback"),
        )
        planned >> processed >> reported
        # A run with nothing to process goes this way to announce batches that no report has announced.
        planned >> reported
        if pipeline.forward is not None:
            processed >> forward_task(reference, connections)
    keep_params_once(dag)
    return dag


def pipeline_asset(pipeline: Pipeline) -> Asset:
    """Return the asset that report_batch updates, to schedule DAGs that read the target."""
    return Asset(name=f"exactbatch.{pipeline.name}", extra={"target": pipeline.sink.target})


def _check_engine(pipeline: Pipeline, engine: str) -> None:
    """Raise ConfigurationError unless the engine exists and can process the pipeline."""
    if engine not in get_args(Engine):
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: expected engine to be one of {', '.join(get_args(Engine))}, found {engine!r}"
        )
    if engine == "connect":
        check_pipeline(pipeline)


def _process_task(
    pipeline: Pipeline, reference: str, connections: Connections, engine: str, **arguments: Any
) -> "BaseOperator":
    """Return the task of an engine. Each task's process imports only what the engine needs."""
    batch: dict[str, Any] = {
        "connections": connections,
        "pipeline": reference,
        "batch_id": _BATCH_ID,
        "plan_id": _PLAN_ID,
        "replays_compacted": pipeline.replays_compacted,
    }
    if engine == "connect":
        from exactbatch.airflow.connect_operator import ProcessBatchOnServerOperator

        return ProcessBatchOnServerOperator(**batch, **arguments)
    # Its provider takes longer to import than the rest of a DAG file.
    from exactbatch.airflow.operator import ProcessBatchOperator

    return ProcessBatchOperator(
        **batch,
        is_transformed=pipeline.is_transformed,
        name=f"exactbatch-{pipeline.name}",
        conf={"spark.log.level": "WARN", **pipeline.spark_conf},
        **arguments,
    )
