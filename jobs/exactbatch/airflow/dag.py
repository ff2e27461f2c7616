"""A pipeline as a DAG: plan_batch → process_batch or process_replay → report_batch.

A DAG file is parsed again and again, so nothing heavy is imported here and nothing is asked of a server:
that happens inside the tasks.
"""

import html
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from airflow.sdk import DAG, Asset, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from exactbatch.airflow.batches import check_committed, check_own, named_batch
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import errors_of_airflow
from exactbatch.airflow.operator import ProcessBatchOperator
from exactbatch.airflow.options import checked_schedule, dag_options
from exactbatch.airflow.parameters import parameters, replay_of
from exactbatch.discovery import reference_of
from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.errors.translation import all_errors_own
from exactbatch.pipeline import Pipeline

if TYPE_CHECKING:
    from exactbatch.ledger import Batch
    from exactbatch.ledger.ledger import Origin
    from exactbatch.settings import Settings

# Airflow's run types; every other one is some kind of schedule.
_ORIGINS: Final["dict[str, Origin]"] = {"manual": "manual", "backfill": "backfill"}
_BATCH_ID: Final = "{{ ti.xcom_pull('plan_batch', key='batch_id') or '' }}"
# A run that was planned before there were plan ids has none.
_PLAN_ID: Final = "{{ ti.xcom_pull('plan_batch', key='plan_id') or '' }}"
_MISSED: Final = "{{ ti.xcom_pull('plan_batch', key='missed') or '' }}"
# Of batches whose own report may still be under way, no other one tells: seconds.
_UNANNOUNCED_AFTER: Final = 300.0
_MISSED_AT_A_TIME: Final = 100
_TOLD: Final = "told"  # an XCom of report_batch: the plans that its event tells of
# What `airflow tasks test` calls its runs.
_OF_TASKS_TEST: Final = "__airflow_temporary_run_"
_DEFAULT_POOL: Final = "default_pool"

log = logging.getLogger(__name__)


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
    anything else that Airflow's DAG takes. `pool` and `replay_pool` are pools for the batches that move the
    pipeline forward and for replays; Airflow's default_pool unless given. Airflow waits for ever for a pool that
    is not there: create it first.

    Further arguments go to the DAG: default_args, tags, params and doc_md are merged with its own.

    A run that is triggered with parameters processes ranges again; so do the runs of a backfill, each over its
    data interval, and a run that is cleared after its batch had committed.

    Raises ConfigurationError for arguments that cannot work.
    """
    reference = reference_of(pipeline)
    options = dag_options(
        pipeline.name,
        dag_arguments,
        retries=retries,
        retry_delay=retry_delay,
        documentation=_documentation(pipeline, pool or _DEFAULT_POOL, replay_pool or _DEFAULT_POOL),
    )
    try:
        dag = DAG(
            dag_id=pipeline.name,
            schedule=checked_schedule(pipeline.name, schedule),
            start_date=start_date,
            **options,
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"pipeline {pipeline.name!r}: Airflow refuses its DAG: {error}") from error
    with dag:
        pools = {"process_batch": pool, "process_replay": replay_pool}
        planned = _plan_task(reference, connections, pools, options["params"].keys() - parameters().keys())
        processed = [
            ProcessBatchOperator(
                task_id=task_id,
                connections=connections,
                name=f"exactbatch-{pipeline.name}",
                conf={"spark.log.level": "WARN", **pipeline.spark_conf},
                pipeline=reference,
                batch_id=_BATCH_ID,
                plan_id=_PLAN_ID,
                pool=its_pool or _DEFAULT_POOL,
            )
            for task_id, its_pool in pools.items()
        ]
        reported = _report_task(reference, connections, pipeline, options["default_args"])
        # By the second way, a run with nothing to process tells of batches that no report has told of.
        planned >> processed >> reported
        planned >> reported
    return dag


def pipeline_asset(pipeline: Pipeline) -> Asset:
    """The asset that report_batch updates: schedule what reads the target on it."""
    return Asset(name=f"exactbatch.{pipeline.name}", extra={"target": pipeline.sink.target})


def _plan_task(
    reference: str, connections: Connections, pools: dict[str, str | None], others: Collection[str]
) -> Any:
    @task.branch
    def plan_batch(dag_run: Any = None, params: Any = None, ti: Any = None) -> str:
        """Plan the run's batch and freeze it in the ledger; skip the run when there is nothing to process."""
        from exactbatch.discovery import load_pipeline
        from exactbatch.kafka.broker import KafkaBroker
        from exactbatch.kafka.client import check_properties
        from exactbatch.ledger import Ledger, Run, check_schema, ledger_session
        from exactbatch.planning.run import plan_run
        from exactbatch.postgres.connection import transaction

        _check_no_test(dag_run)
        with errors_of_airflow():
            pipeline, settings = load_pipeline(reference), connections.settings()
            check_properties(settings.kafka)
            request = replay_of(dag_run, params, others)
            with ledger_session(settings.postgres, "exactbatch plan", pipeline) as connection:
                check_schema(connection)
                found = plan_run(
                    connection,
                    KafkaBroker(settings.kafka),
                    pipeline,
                    Run(dag_run.dag_id, dag_run.run_id, dag_run.clear_number, dag_run.start_date),
                    request,
                    origin=_ORIGINS.get(dag_run.run_type, "schedule"),
                )
                with transaction(connection):
                    missed = Ledger(connection).unannounced(
                        pipeline, age=_UNANNOUNCED_AFTER, limit=_MISSED_AT_A_TIME
                    )
            next_task = _next_task(found.batch, missed, found.because)
            batch = found.batch or missed[-1]
            if (pool := pools.get(next_task)) is not None:
                connections.check_pool(pool)
        ti.xcom_push(key="batch_id", value=batch.batch_id)
        ti.xcom_push(key="plan_id", value=str(batch.plan_id))
        ti.xcom_push(key="missed", value=",".join(str(each.plan_id) for each in missed))
        ti.xcom_push(key="beyond_stored", value=list(map(str, found.beyond)))
        return next_task

    return plan_batch()


def _check_no_test(dag_run: Any) -> None:
    if dag_run.run_id.startswith(_OF_TASKS_TEST):
        raise AirflowFailException(
            "`airflow tasks test` would plan a real batch and take the place of the one that is planned. "
            "`exactbatch plan` shows what the next run would do, and changes nothing; `airflow dags test` runs it."
        )


def _next_task(batch: "Batch | None", missed: "Sequence[Batch]", because: str) -> str:
    """What follows plan_batch. Raises AirflowSkipException where nothing does."""
    if batch is None and not missed:
        raise AirflowSkipException(because)
    if batch is None:
        log.info("%s; batches that no report has told of: %s", because, [each.batch_id for each in missed])
        return "report_batch"
    if batch.origin == "clear":
        log.info(
            "batch %s is processed by process_replay: where that was not cleared with plan_batch, clear it, too",
            batch.batch_id,
        )
    return "process_batch" if batch.kind == "advance" else "process_replay"


def _report_task(
    reference: str, connections: Connections, pipeline: Pipeline, default_args: Mapping[str, Any]
) -> Any:
    asset = pipeline_asset(pipeline)

    def announced(context: Any) -> None:
        """Note what the event has told of, now that Airflow has it; else the next run tells it again."""
        told = context["ti"].xcom_pull(task_ids="report_batch", key=_TOLD)
        _announce(connections.settings(), [UUID(each) for each in told])

    given = default_args.get("on_success_callback") or []

    @task(
        outlets=[asset],
        trigger_rule="none_failed_min_one_success",
        on_success_callback=[*(given if isinstance(given, list | tuple) else [given]), announced],
    )
    def report_batch(
        batch_id: Any, plan_id: Any, missed: Any = "", ti: Any = None, outlet_events: Any = None
    ) -> None:
        """Log what the batch did, tell it to whoever waits for the asset, and show progress to lag tools.

        The ledger says whether the batch is committed: Airflow's states may have been set by hand.
        """
        from exactbatch.discovery import load_pipeline
        from exactbatch.kafka.broker import KafkaBroker
        from exactbatch.operations.report import Report, load_report

        with errors_of_airflow():
            number, plan = named_batch(batch_id, plan_id)
            plans = [UUID(each) for each in str(missed).split(",") if each]
            pipeline, settings = load_pipeline(reference), connections.settings()
            kafka = KafkaBroker(settings.kafka)
            report: Report = load_report(settings.postgres, kafka, pipeline, number, plan, plans)
            if report.batch.plan_id not in plans:
                check_own(report.batch, ti)
                if (later := report.overtaken_by) is not None:
                    raise AirflowSkipException(
                        f"batch {number} was to process ranges again that batch {later}, which was planned "
                        f"later, has processed: that one is announced"
                    )
                check_committed(report.batch)
            print(report.as_table())  # noqa: T201 - a task's output is its log
            beyond = ti.xcom_pull(task_ids="plan_batch", key="beyond_stored") or []
            outlet_events[asset].extra = {**report.as_json(), "beyond_stored": beyond}
            ti.xcom_push(key=_TOLD, value=list(map(str, [report.batch.plan_id, *plans])))
            _show_progress(kafka, pipeline, report)

    return report_batch(_BATCH_ID, _PLAN_ID, _MISSED)


def _announce(settings: "Settings", plans: Sequence[UUID]) -> None:
    from exactbatch.ledger import Ledger, ledger_session
    from exactbatch.postgres.connection import transaction

    with ledger_session(settings.postgres, "exactbatch report") as connection, transaction(connection):
        Ledger(connection).announce(plans)


def _show_progress(kafka: Any, pipeline: Pipeline, report: Any) -> None:
    """Commit to the consumer group that lag tools look at. Nothing reads it, so nothing fails with it."""
    try:
        with all_errors_own():
            stored = {where: offset for where, offset in report.stored.items() if where[0] in pipeline.topics}
            kafka.commit_group(f"exactbatch.{pipeline.name}", stored)
    except ExactbatchError as error:
        log.warning("lag tools do not see this batch yet: %s: %s", type(error).__name__, error)


def _documentation(pipeline: Pipeline, pool: str, replay_pool: str) -> str:
    columns = "\n".join(
        f"| {_cell(column.name)} | {_cell(column.type)} |" for column in pipeline.value.columns
    )
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

`exactbatch status`, `exactbatch audit` and the tables of the schema `exactbatch` tell the state. Batches wait for
a slot of the pool `{pool}`, replays of `{replay_pool}`.

| column | type |
| --- | --- |
{columns}
"""


def _cell(text: str) -> str:
    """A name in a table of Markdown, which may hold HTML."""
    return html.escape(text).replace("|", "\\|").replace("\n", " ")
