"""A pipeline, or many tables, as a task group of your own DAG."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, TaskGroup

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.task_definitions import Engine, add_tasks
from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline
from exactbatch.tables import Tables


class PipelineTaskGroup(TaskGroup):
    """The task group of a pipeline.

    output  the result of report_batch: the asset event of the batch, with its ranges and counts. A task that takes it,
            or an item such as output["batch_id"], follows report_batch
    """

    output: Any = None


def pipeline_task_group(
    pipeline: Pipeline | Tables,
    *,
    connections: Connections = Connections(),  # noqa: B008 - frozen, so one shared instance is safe
    retries: int = 3,
    retry_delay: timedelta = timedelta(seconds=30),
    pool: str | None = None,
    replay_pool: str | None = None,
    engine: Engine = "spark-submit",
) -> PipelineTaskGroup:
    """Add the tasks of pipeline_dag to the DAG in whose block this is called, in a group of the pipeline's name.

    The arguments are those of pipeline_dag, and precede the DAG's default_args. If there is nothing new, the tasks of
    the group are skipped, and with them what follows by Airflow's default trigger rule.

    The runs of a backfill process the offsets of their data intervals again, and so does a run whose plan_batch is
    cleared after its batch was committed; what follows the group then runs again, too. The parameters of a run are the
    DAG's own, so that they request no replay: `exactbatch replay` does.

    Raises ConfigurationError outside of a DAG, in a DAG whose max_active_runs is not 1, and for invalid arguments.
    """
    # The trigger rule of the author's own tasks would let ours run out of order.
    default_args: Any = {"retries": retries, "retry_delay": retry_delay, "trigger_rule": "all_success"}
    try:
        group = PipelineTaskGroup(
            group_id=pipeline.name.replace(".", "_"),
            default_args=default_args,
            tooltip=f"Exactly-once batches from {pipeline.topics_text}",
        )
    except RuntimeError:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: pipeline_task_group was called outside of a DAG. Call it in a block "
            f"`with DAG(…):`, or in a function with @dag."
        ) from None
    dag = group.dag
    _check_active_runs(pipeline.name, dag)
    with group:
        group.output = add_tasks(
            pipeline,
            connections,
            {"process_batch": pool, "process_replay": replay_pool},
            engine,
            default_args=dag.default_args,
            other_parameters=dag.params.keys(),
            group=group.group_id,
        )
    # The Pipelines page finds DAGs by this tag.
    dag.tags.add("exactbatch")
    return group


def _check_active_runs(pipeline: str, dag: DAG) -> None:
    """Raise ConfigurationError unless one run at a time moves the pipeline forward."""
    if dag.max_active_runs != 1:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: the DAG {dag.dag_id!r} has max_active_runs={dag.max_active_runs}, but the plan "
            f"of a newer run replaces the one of an older run that has not committed. Give the DAG max_active_runs=1; "
            f"a backfill has a separate limit."
        )
