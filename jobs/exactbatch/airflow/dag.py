"""A pipeline as a DAG: plan_batch → process_batch or process_replay → report_batch.

A DAG file is parsed again and again, so nothing heavy is imported here and nothing is asked of a server:
that happens inside the tasks.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, task
from airflow.sdk.exceptions import AirflowSkipException

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import errors_of_airflow
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.airflow.parameters import parameters, replay_of
from exactbatch.pipeline import Pipeline, reference_of

if TYPE_CHECKING:
    from exactbatch.ledger.ledger import Origin

# Airflow's run types; every other one is some kind of schedule.
_ORIGINS: Final["dict[str, Origin]"] = {"manual": "manual", "backfill": "backfill"}
_BATCH_ID: Final = "{{ ti.xcom_pull('plan_batch', key='batch_id') }}"
# A run that was planned before there were plan ids has none.
_PLAN_ID: Final = "{{ ti.xcom_pull('plan_batch', key='plan_id') or '' }}"


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
    **dag_arguments: Any,
) -> DAG:
    """The DAG of a pipeline; its dag_id is the pipeline's name.

    `schedule` is a cron text in UTC, whose runs then have the data interval from one time to the next, or
    anything else that Airflow's DAG takes. `pool` is a pool with one slot, `exactbatch_<name>` unless given,
    for the batches that move the pipeline forward; `replay_pool`, `exactbatch_<name>_replay`, has as many
    slots as replays may run at a time. Create both once: `exactbatch init` says how.

    A run that is triggered with parameters processes ranges again; so do the runs of a backfill, each over its
    data interval, and a run that is cleared after its batch had committed.
    """
    reference = reference_of(pipeline)
    pool = pool or f"exactbatch_{pipeline.name}"
    replay_pool = replay_pool or f"exactbatch_{pipeline.name}_replay"
    with DAG(
        dag_id=pipeline.name,
        schedule=CronDataIntervalTimetable(schedule, timezone="UTC")
        if isinstance(schedule, str)
        else schedule,
        start_date=start_date,
        catchup=False,
        # One advance at a time: a newer plan supersedes an older one that has not committed. Backfills are
        # counted apart.
        max_active_runs=1,
        default_args={"retries": retries, "retry_delay": retry_delay},
        doc_md=_documentation(pipeline, pool, replay_pool),
        params=parameters(),
        tags=["exactbatch"],
        **dag_arguments,
    ) as dag:
        planned = _plan_task(reference, connections)
        processed = [
            ProcessBatchOperator(
                task_id=task_id,
                connections=connections,
                name=f"exactbatch-{pipeline.name}",
                conf={"spark.log.level": "WARN", **pipeline.spark_conf},
                pipeline=reference,
                batch_id=_BATCH_ID,
                plan_id=_PLAN_ID,
                pool=its_pool,
            )
            for task_id, its_pool in (("process_batch", pool), ("process_replay", replay_pool))
        ]
        planned >> processed >> _report_task(reference, connections, pipeline)
    return dag


def pipeline_asset(pipeline: Pipeline) -> Asset:
    """The asset that report_batch updates: schedule what reads the target on it."""
    return Asset(name=f"exactbatch.{pipeline.name}", extra={"target": pipeline.sink.target})


def _plan_task(reference: str, connections: Connections) -> Any:
    @task.branch
    def plan_batch(dag_run: Any = None, params: Any = None, ti: Any = None) -> str:
        """Plan the run's batch and freeze it in the ledger; skip the run when there is nothing to process."""
        from exactbatch import replay
        from exactbatch.kafka_client import check_properties
        from exactbatch.kafka_log import KafkaLog
        from exactbatch.ledger import Run, check_schema, connect
        from exactbatch.pipeline import load_pipeline

        with errors_of_airflow():
            pipeline, settings = load_pipeline(reference), connections.settings()
            check_properties(settings.kafka)
            request = replay_of(dag_run, params)
            connection = connect(
                settings.postgres,
                application="exactbatch plan",
                timeout=pipeline.publish_timeout,
                statement_timeout=pipeline.statement_timeout,
            )
            try:
                check_schema(connection)
                batch = replay.plan_run(
                    connection,
                    KafkaLog(settings.kafka),
                    pipeline,
                    Run(dag_run.dag_id, dag_run.run_id, dag_run.clear_number, dag_run.start_date),
                    request,
                    origin=_ORIGINS.get(dag_run.run_type, "schedule"),
                )
            finally:
                connection.close()
        if batch is None:
            raise AirflowSkipException(
                f"nothing new in {', '.join(pipeline.topics)}: every offset up to the last stable one is stored"
                if request is None
                else "nothing to process again: no offset below the stored ones belongs to what is asked for"
            )
        ti.xcom_push(key="batch_id", value=batch.batch_id)
        ti.xcom_push(key="plan_id", value=str(batch.plan_id))
        return "process_batch" if batch.kind == "advance" else "process_replay"

    return plan_batch()


def _report_task(reference: str, connections: Connections, pipeline: Pipeline) -> Any:
    asset = pipeline_asset(pipeline)

    @task(outlets=[asset], trigger_rule="none_failed_min_one_success")
    def report_batch(batch_id: str, plan_id: str, outlet_events: Any = None) -> None:
        """Log what the batch did, tell it to whoever waits for the asset, and show progress to lag tools.

        The batch is committed by now: whatever fails here, it stays so.
        """
        from exactbatch.kafka_log import KafkaLog
        from exactbatch.pipeline import load_pipeline
        from exactbatch.report import Report, load_report

        with errors_of_airflow():
            pipeline, settings = load_pipeline(reference), connections.settings()
            kafka = KafkaLog(settings.kafka)
            report: Report = load_report(
                settings.postgres, kafka, pipeline, int(batch_id), UUID(plan_id) if plan_id else None
            )
            print(report.as_table())  # noqa: T201 - a task's output is its log
            outlet_events[asset].extra = report.as_json()
            kafka.commit_group(f"exactbatch.{pipeline.name}", report.stored)

    return report_batch(_BATCH_ID, _PLAN_ID)


def _documentation(pipeline: Pipeline, pool: str, replay_pool: str) -> str:
    columns = "\n".join(f"| {column.name} | {column.type} |" for column in pipeline.value.columns)
    return f"""\
### {pipeline.name}

Exactly-once batches from **{", ".join(pipeline.topics)}** to **{pipeline.sink.target}**.

1. **plan_batch** reads the stored offsets, asks Kafka for the latest and freezes the ranges in the ledger;
   nothing new, and the run is skipped.
2. **process_batch** reads exactly these ranges with Spark and commits rows, rejects and offsets in one
   Postgres transaction. For ranges that are processed again **process_replay** does the same, and takes back
   in that transaction what they had given before.
3. **report_batch** logs the batch and updates the asset `exactbatch.{pipeline.name}`.

A retry processes the same ranges; a batch that is committed is never written twice.

To process again: trigger a run with offset ranges, a time window or batch ids; start a backfill, each of whose
runs takes the offsets of its data interval; or clear plan_batch (with downstream tasks) of a run that has
committed. The stored offsets never move by it, and scheduled runs go on.

`exactbatch status`, `exactbatch audit` and the tables of the schema `exactbatch` tell the state. Pools:
`{pool}` with one slot, and `{replay_pool}` with as many as replays may run at a time.

| column | type |
| --- | --- |
{columns}
"""
