"""The tasks of a pipeline, or of many tables, and their order. What they do is in exactbatch.airflow.tasks.

Airflow parses DAG files all the time: the modules that clients of Kafka and Postgres, and with them a second or more of
imports, belong to are imported by a task that runs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from airflow.sdk import Asset, BaseOperator, task

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.parameters import callbacks
from exactbatch.batch.engines.connect_url import check_pipeline
from exactbatch.discovery import find_reference
from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline
from exactbatch.tables import Tables

DEFAULT_POOL: Final = "default_pool"
Engine = Literal["spark-submit", "connect"]


def add_tasks(
    found: Pipeline | Tables,
    connections: Connections,
    pools: Mapping[str, str | None],
    engine: Engine,
    *,
    default_args: Mapping[str, Any],
    other_parameters: Collection[str],
    group: str | None = None,
) -> Any:
    """Add the tasks of a pipeline to the DAG, or to the task group, in whose block this is called; return the report.

    `pools` has the pool of process_batch and of process_replay, or None for Airflow's default. `default_args` are
    the arguments of the DAG's author, with the callbacks. `other_parameters` are the names of parameters that are the
    author's. `group` is the ID of the task group.

    Raises ConfigurationError for an engine that does not exist or cannot process the pipeline.
    """
    _check_engine(found, engine)
    reference, asset = find_reference(found), pipeline_asset(found)
    is_one = isinstance(found, Pipeline)
    prefix = f"{group}." if group else ""
    planned = _plan_task(
        reference, connections, pools, other_parameters, default_args, is_one=is_one, in_group=bool(group)
    )
    batches = (
        f'["{found.name}:{_left(prefix, "batch_id")}:{_left(prefix, "plan_id")}"]'
        if is_one
        else _left(prefix, "batches")
    )
    processed = [
        _process_task(
            found,
            reference,
            connections,
            engine,
            batches=batches,
            task_id=task_id,
            pool=pool or DEFAULT_POOL,
            member=found.name if group else "",
        )
        for task_id, pool in pools.items()
    ]
    reported = _report_task(
        reference,
        connections,
        asset,
        (batches, _left(prefix, "missed")),
        is_one=is_one,
        in_group=bool(group),
        on_success=callbacks(default_args, "on_success_callback"),
    )
    planned >> processed >> reported
    if isinstance(found, Pipeline):
        # A run with nothing to process goes this way to announce batches that no report has announced.
        planned >> reported
        if found.forward is not None:
            processed >> forward_task(reference, connections)
    else:
        checked = _check_tables_task(found.name, connections, (batches, _left(prefix, "failed")))
        # Airflow takes no event of a task that fails: report_batch succeeds, and this task says if the run has failed.
        [planned, *processed, reported] >> checked
    return reported


def pipeline_asset(pipeline: Pipeline | Tables) -> Asset:
    """Return the asset that report_batch updates, to schedule DAGs that read the target.

    The asset of many tables is updated when any of them has new rows.
    """
    extra: dict[str, Any] = (
        {"target": pipeline.traits.target} if isinstance(pipeline, Pipeline) else {"tables": pipeline.name}
    )
    return Asset(name=f"exactbatch.{pipeline.name}", extra=extra)


def _left(prefix: str, key: str) -> str:
    """Return the template of what plan_batch leaves; a run that an older version planned may have left nothing."""
    return f"{{{{ ti.xcom_pull('{prefix}plan_batch', key='{key}') or '' }}}}"


def _check_engine(found: Pipeline | Tables, engine: str) -> None:
    """Raise ConfigurationError unless the engine exists and can process the pipeline."""
    if engine not in get_args(Engine):
        raise ConfigurationError(
            f"{found.name}: expected engine to be one of {', '.join(get_args(Engine))}, found {engine!r}"
        )
    if engine != "connect":
        return
    if isinstance(found, Tables):
        raise ConfigurationError(
            f"tables {found.name!r}: one Spark driver processes all of them, so engine='connect' is for single "
            f"pipelines. Remove engine."
        )
    check_pipeline(found)


def _process_task(
    found: Pipeline | Tables, reference: str, connections: Connections, engine: Engine, **arguments: Any
) -> BaseOperator:
    """Return the task of an engine. Each task's process imports only what the engine needs."""
    arguments |= {"connections": connections, "pipeline": reference}
    if isinstance(found, Pipeline):
        arguments["replays_compacted"] = found.replays_compacted
    if engine == "connect":
        # A DAG imports the operator of its engine alone.
        from exactbatch.airflow.connect_operator import ProcessBatchOnServerOperator

        return ProcessBatchOnServerOperator(**arguments)
    # Its provider takes longer to import than the rest of a DAG file.
    from exactbatch.airflow.operator import ProcessBatchOperator

    return ProcessBatchOperator(
        is_tables=isinstance(found, Tables),
        is_transformed=isinstance(found, Tables) or found.is_transformed,
        name=f"exactbatch-{found.name}",
        conf={"spark.log.level": "WARN", **found.spark_conf},
        **arguments,
    )


def _plan_task(
    reference: str,
    connections: Connections,
    pools: Mapping[str, str | None],
    other_parameters: Collection[str],
    default_args: Mapping[str, Any],
    *,
    is_one: bool,
    in_group: bool,
) -> Any:
    """Return the task plan_batch.

    `reference` names a pipeline if `is_one`, and Tables otherwise. The other arguments are the same as for add_tasks().
    """
    # Even if there is nothing new, or if batches fail and no report follows.
    send_progress = _gauges_callback("pipelines", connections)

    @task.branch(
        on_success_callback=[*callbacks(default_args, "on_success_callback"), send_progress],
        on_skipped_callback=[*callbacks(default_args, "on_skipped_callback"), send_progress],
        # A plan of many tables may fail for some of them.
        on_failure_callback=[
            *callbacks(default_args, "on_failure_callback"),
            *([] if is_one else [send_progress]),
        ],
    )
    def plan_batch(dag_run: Any = None, params: Any = None, ti: Any = None) -> str:
        """Plan a batch of each pipeline and freeze it in the ledger. Skip the run if there is nothing to process."""
        # Only a task that runs needs what it imports.
        from exactbatch.airflow.tasks import plan_batch as work

        return work.plan_batch(
            reference,
            connections,
            pools,
            other_parameters,
            in_group=in_group,
            dag_run=dag_run,
            params=params,
            ti=ti,
        )

    return plan_batch()


def _report_task(
    reference: str,
    connections: Connections,
    asset: Asset,
    batches: Sequence[str],
    *,
    is_one: bool,
    in_group: bool,
    on_success: Sequence[Callable[[Any], None]],
) -> Any:
    """Return the task report_batch, whose result in a task group is the event of the asset.

    `reference` names a pipeline if `is_one`, and Tables otherwise. `batches` are the templates of the batches and of
    the missed plan IDs. `on_success` are callbacks of the DAG's author.
    """

    def note_announced(context: Any) -> None:
        """Note in the ledger which batches the event lists, now that Airflow has it; else the next run repeats them."""
        _after_batches().note_announced(connections, context["ti"])

    # After the commits of the announced pipelines.
    send_progress = _gauges_callback("announced", connections)

    @task(
        outlets=[asset],
        # Of the two tasks before it, one is skipped. Tables that fail hold no event of the others back; a run of theirs
        # with nothing to process skips both tasks, and then starts no process for this one.
        trigger_rule="none_failed_min_one_success" if is_one else "one_done",
        # Airflow ends the task [core] task_success_overtime after its success, whatever is left of these.
        on_success_callback=[note_announced, *on_success, send_progress],
        # Only tasks that follow a group use the result; the event of the asset, of many partitions, is large enough.
        do_xcom_push=in_group,
        show_return_value_in_logs=False,  # its log has the same as a table
    )
    def report_batch(
        batches: Any, missed: Any = "", ti: Any = None, outlet_events: Any = None
    ) -> dict[str, Any]:
        """Log what the batches did, announce them in an event of the asset, and show progress to lag tools."""
        reported: dict[str, Any] = _after_batches().report_batch(
            reference, connections, asset, batches, missed, ti=ti, outlet_events=outlet_events
        )
        return reported

    return report_batch(*batches)


def _check_tables_task(name: str, connections: Connections, planned: Sequence[str]) -> Any:
    """Return the task check_tables.

    `name` names the tables. `planned` are the templates of the batches and of the tables that were not planned.
    """

    @task(trigger_rule="none_failed_min_one_success")
    def check_tables(batches: Any, failed: Any) -> None:
        """Fail the run if a table could not be planned, or if a batch is not committed."""
        _after_batches().check_tables(name, connections, batches, failed)

    return check_tables(*planned)


def forward_task(reference: str, connections: Connections) -> Any:
    """Return the task forward_results.

    It also runs if there was no batch to process: results of earlier runs may wait.
    """

    @task(trigger_rule="none_failed")
    def forward_results() -> None:
        """Send the results that wait in the outbox. Skip if there are none, or if another forwarder sends them."""
        _after_batches().forward_results(reference, connections)

    return forward_results()


def _gauges_callback(key: str, connections: Connections) -> Callable[[Any], None]:
    """Return a callback that sends the gauges of the pipelines whose names an XCom of the task has."""

    def send_progress(context: Any) -> None:
        ti = context["ti"]
        _after_batches().send_gauges(ti.xcom_pull(task_ids=ti.task_id, key=key) or (), connections)

    return send_progress


def _after_batches() -> Any:
    """Return what the tasks after the batches do."""
    # Only a task that runs needs what it imports.
    from exactbatch.airflow.tasks import report_batch

    return report_batch
