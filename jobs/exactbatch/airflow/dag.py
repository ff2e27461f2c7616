"""A pipeline, or many tables, as a DAG: plan_batch → process_batch or process_replay → report_batch.

Beside report_batch, forward_results sends the results of a pipeline to a topic. The report of many tables also follows
a failure, and check_tables, which comes last, fails the run.

Airflow parses DAG files again and again. Parsing imports nothing heavy and connects to no server: the tasks do.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.dag_arguments import dag_options, keep_params_once, new_dag
from exactbatch.airflow.documentation import documentation
from exactbatch.airflow.parameters import parameters
from exactbatch.airflow.task_definitions import DEFAULT_POOL, Engine, add_tasks
from exactbatch.pipeline import Pipeline
from exactbatch.tables import Tables


def pipeline_dag(
    pipeline: Pipeline | Tables,
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
    """Return the DAG of a pipeline, or the one DAG of many tables. Its dag_id is their name.

    `schedule` is a cron expression in UTC, which gives each run the data interval from one time to the next, or any
    other schedule that Airflow's DAG takes. `pool` is the pool of the batches that move the pipeline forward,
    `replay_pool` the pool of replays; without them, Airflow's default_pool. Create a pool before you name it here:
    Airflow lets a task wait forever for a missing pool.

    `engine` is what processes a batch: a driver that spark-submit starts, or, with "connect", a Spark Connect server
    that runs already, whose address is the connection `spark`. A pipeline with a transform, and many tables, need
    spark-submit.

    Further arguments go to the DAG. default_args, tags, params and doc_md are merged with the DAG's own.

    These runs process ranges again: a run that is triggered with parameters, the runs of a backfill, each for its
    data interval, and a run that is cleared after its batch was committed.

    With many tables, plan_batch plans a batch of each member, process_batch processes all of them with one Spark
    driver, and report_batch announces those that are committed. A member that fails does not stop the others: the task
    fails at its end and names it, and its next try processes only what is left. check_tables fails if a member could
    not be planned. A run that is triggered with ranges or batch IDs concerns the members to which these belong. One
    with a time window, and a backfill, concern all members, or those that the parameter `tables` names.

    Raises ConfigurationError for invalid arguments.
    """
    own = parameters(is_tables=isinstance(pipeline, Tables))
    options = dag_options(
        pipeline.name,
        dag_arguments,
        retries=retries,
        retry_delay=retry_delay,
        documentation=documentation(pipeline, pool or DEFAULT_POOL, replay_pool or DEFAULT_POOL),
        own=own,
    )
    dag = new_dag(pipeline.name, schedule=schedule, start_date=start_date, options=options)
    with dag:
        add_tasks(
            pipeline,
            connections,
            {"process_batch": pool, "process_replay": replay_pool},
            engine,
            default_args=options["default_args"],
            # `tables` requests no replay by itself.
            other_parameters=options["params"].keys() - parameters().keys(),
        )
    keep_params_once(dag)
    return dag
