"""A pipeline, or many tables, as a DAG or a task group: plan_batch → process_batch or process_replay → report_batch.

Beside report_batch, forward_results sends the results of a pipeline to a topic. The report of many tables also follows
a failure, and check_tables, which comes last, fails the run.

Airflow parses DAG files again and again. Parsing imports nothing heavy and connects to no server: the tasks do.

Also the documentation that Airflow shows with the DAG.
"""

import html
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from airflow.sdk import DAG, TaskGroup

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.parameters import keep_params_once, merge_dag_options, new_dag, parameters
from exactbatch.airflow.task_definitions import DEFAULT_POOL, Engine, add_tasks
from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline
from exactbatch.tables import Tables


def documentation(found: Pipeline | Tables, pool: str, replay_pool: str) -> str:
    """Return the Markdown text about a pipeline, its tasks and its columns, or about many tables and their tasks."""
    if isinstance(found, Pipeline):
        return _describe_pipeline(found, pool, replay_pool)
    return _describe_tables(found, pool, replay_pool)


def _describe_pipeline(pipeline: Pipeline, pool: str, replay_pool: str) -> str:
    columns = "\n".join(
        f"| {_cell(column.name)} | {_cell(column.type)} |" for column in pipeline.value.columns
    )
    # Relative to the address of Airflow, which may be below a path.
    page = "exactbatch/?" + urlencode({"dag": pipeline.name})
    return f"""\
### {pipeline.name}

Exactly-once batches from **{html.escape(pipeline.topics_text)}** to **{pipeline.traits.target}**.

1. **plan_batch** reads the stored offsets, asks Kafka for the latest ones, and freezes the ranges in the ledger. If
   there is nothing new, the run is skipped.
2. **process_batch** reads exactly these ranges with Spark and commits rows, rejects and offsets in one Postgres
   transaction. **process_replay** processes ranges again: the same transaction also retracts their earlier results.
3. **report_batch** logs the batch and updates the asset `exactbatch.{pipeline.name}`.

A retry processes the same ranges. A committed batch is never written twice.

**[Open {pipeline.name} in exactbatch]({page})**: what covers each offset, batches and rejects. To process data again,
select offsets, a batch or rejects there and choose *Replay…*, which shows first what would be replaced. Or:

- trigger a run with a time window, batch IDs or offset ranges;
- start a backfill, whose runs process the offsets of their data intervals; or
- clear plan_batch with its downstream tasks, in a run that has committed.

None of this moves the stored offsets, and scheduled runs go on.

`exactbatch status`, `exactbatch audit` and the tables of the schema `exactbatch` show the state. Batches run in the
pool `{pool}`, replays in `{replay_pool}`.

| column | type |
| --- | --- |
{columns}
"""


def _describe_tables(tables: Tables, pool: str, replay_pool: str) -> str:
    return f"""\
### {tables.name}

Exactly-once batches from **{html.escape(tables.topics_text)}**, each topic into a table of its own by a pipeline
`{tables.name}.TABLE`.

1. **plan_batch** plans a batch of each table and freezes its ranges in the ledger. Topics that have come to match join.
   If there is nothing new for any table, the run is skipped.
2. **process_batch** processes all of them with one Spark driver, {tables.at_a_time} at a time; each commits in its own
   Postgres transaction. **process_replay** does so for ranges that are processed again.
3. **report_batch** logs the batches that are committed and updates the asset `exactbatch.{tables.name}`.
4. **check_tables** fails if a table could not be planned, or if a batch is not committed.

A table that fails does not stop the others: the task fails at its end and names it. A retry processes only the rest.

To process data again, trigger a run with a time window, batch IDs or offset ranges, start a backfill, or clear
plan_batch with its downstream tasks; `tables` limits a run to some tables. `exactbatch status {tables.name}` and
`exactbatch audit {tables.name}` show all tables. Batches run in the pool `{pool}`, replays in `{replay_pool}`.
"""


def _cell(text: str) -> str:
    """Escape a name for a Markdown table, in which HTML is allowed."""
    return html.escape(text).replace("|", "\\|").replace("\n", " ")


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
    options = merge_dag_options(
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

    The arguments mean the same as for pipeline_dag, and precede the DAG's default_args. If there is nothing new, the
    tasks of the group are skipped, and with them what follows by Airflow's default trigger rule.

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
