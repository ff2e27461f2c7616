"""The task plan_batch: plan a run's batches, freeze them in the ledger, and choose the task that processes them."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from exactbatch.airflow.check_batches import name_beside
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.parameters import TRIGGERED, find_replay, find_tables
from exactbatch.airflow.versions import AirflowFailException, AirflowSkipException
from exactbatch.discovery import load_object
from exactbatch.errors import TablesUnfinished
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client_properties import check_properties
from exactbatch.ledger import Batch, DagRun, Ledger, Origin, check_schema, ledger_session
from exactbatch.model import PlannedBatch
from exactbatch.pipeline import Pipeline
from exactbatch.planning.plan_tables import plan_tables
from exactbatch.planning.request import ReplayRequest
from exactbatch.planning.run import RunPlan, plan_run
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from exactbatch.tables import Tables, build_failure, listed_errors

# By Airflow's type of a run; all other types are kinds of schedules.
ORIGINS: Final[dict[str, Origin]] = {**dict.fromkeys(TRIGGERED, "manual"), "backfill": "backfill"}
# The report of a batch that was committed more recently may still be running.
UNANNOUNCED_AFTER: Final = 300.0  # seconds
MISSED_LIMIT: Final = 100  # of each pipeline
_SHOWN: Final = 5
_TASKS_TEST_PREFIX: Final = "__airflow_temporary_run_"  # of the runs of `airflow tasks test`

logger = logging.getLogger(__name__)


def plan_batch(
    reference: str,
    connections: Connections,
    pools: Mapping[str, str | None],
    other_parameters: Collection[str],
    *,
    in_group: bool,
    dag_run: Any,
    params: Any,
    ti: Any,
) -> str:
    """Plan a batch of each pipeline and freeze it in the ledger; return the ID of the task that follows.

    `reference` names a pipeline or Tables. `pools` has the pool of each task that may follow. `other_parameters` are
    the names of the author's DAG parameters, which are all of them in a task group. The other arguments are Airflow's.
    XComs have what the tasks that follow need.

    Raises AirflowSkipException if there is nothing to process or to announce, AirflowFailException for a terminal
    error, and a retryable error of exactbatch.
    """
    _check_not_tasks_test(dag_run)
    with airflow_errors():
        found, settings = load_object(reference), connections.settings()
        check_properties(settings.kafka)
        is_one = isinstance(found, Pipeline)
        request = find_replay(dag_run, params, other_parameters, in_group=in_group)
        plans, missed = _plan(found, settings, request, dag_run, params)
        names = [plan.pipeline.name for plan in plans if plan.pipeline is not None]
        ti.xcom_push(key="pipelines", value=names)
        batches = [plan.batch for plan in plans if plan.batch is not None]
        failed = {plan.name: plan.error for plan in plans if plan.error is not None}
        is_repetition = request is not None or dag_run.clear_number > 0
        for name, error in failed.items():
            logger.error("%s: %s: %s", name, type(error).__name__, error)
        if not batches and not missed and failed:
            raise build_failure(found, failed, others=len(plans) - len(failed))
        has_tries = ti.try_number <= ti.max_tries
        if is_repetition and has_tries and any(error.retryable for error in failed.values()):
            raise TablesUnfinished(
                f"{listed_errors(failed)}. The next try plans them, and keeps the plans of the others."
            )
        because = _reasons(plans)
        if not batches and not missed:
            raise AirflowSkipException(because)
        if not batches:
            logger.info(
                "%s; announcing batches that no report has announced: %s",
                because,
                [b.batch_id for b in missed],
            )
        next_task = _next_task(batches, is_one=is_one)
        if (pool := pools.get(next_task)) is not None:
            connections.check_pool(pool)
    if is_one:
        batch = batches[0] if batches else missed[-1]
        ti.xcom_push(key="batch_id", value=batch.batch_id)
        ti.xcom_push(key="plan_id", value=str(batch.plan_id))
    else:
        logger.info("%s of %s tables have something to process", len(batches), len(plans))
        named = [str(PlannedBatch(batch.pipeline, batch.batch_id, batch.plan_id)) for batch in batches]
        ti.xcom_push(key="batches", value=json.dumps(named))
        ti.xcom_push(key="failed", value=listed_errors(failed) + _remedy(is_repetition) if failed else "")
    ti.xcom_push(key="missed", value=",".join(str(batch.plan_id) for batch in missed))
    ti.xcom_push(key="beyond_stored", value=[str(each) for plan in plans for each in plan.beyond])
    return name_beside(ti, next_task)


def _plan(
    found: Pipeline | Tables, settings: Settings, request: ReplayRequest | None, dag_run: Any, params: Any
) -> tuple[Sequence[RunPlan], list[Batch]]:
    """Plan each pipeline, and return the plans, and the batches of the pipelines that no report has announced."""
    run = DagRun(dag_run.dag_id, dag_run.run_id, dag_run.clear_number, dag_run.start_date)
    origin = ORIGINS.get(dag_run.run_type, "schedule")
    pipeline = found if isinstance(found, Pipeline) else None
    with ledger_session(settings.postgres, "exactbatch plan", pipeline) as connection:
        check_schema(connection)
        broker = KafkaBroker(settings.kafka)
        plans: Sequence[RunPlan]
        if isinstance(found, Pipeline):
            plans = [plan_run(connection, broker, found, run, request, origin=origin)]
        else:
            only = find_tables(dag_run, params)
            plans = plan_tables(connection, broker, found, run, request, origin=origin, only=only)
        with transaction(connection):
            find = partial(
                Ledger(connection).batches.find_unannounced, age=UNANNOUNCED_AFTER, limit=MISSED_LIMIT
            )
            pipelines = [plan.pipeline for plan in plans if plan.pipeline is not None]
            return plans, list(chain.from_iterable(map(find, pipelines)))


def _check_not_tasks_test(dag_run: Any) -> None:
    """Raise AirflowFailException in a run of `airflow tasks test`."""
    if dag_run.run_id.startswith(_TASKS_TEST_PREFIX):
        raise AirflowFailException(
            "`airflow tasks test` would plan a real batch and replace the planned one. To see what the next run "
            "would do, use `exactbatch plan`, which changes nothing. To run the DAG, use `airflow dags test`."
        )


def _next_task(batches: Sequence[Batch], *, is_one: bool) -> str:
    """Return the ID of the task that follows plan_batch.

    Without a batch, process_batch of many tables only leads to report_batch, which a pipeline's run reaches at once.
    """
    if not batches and is_one:
        return "report_batch"
    next_task = "process_replay" if {batch.kind for batch in batches} == {"replay"} else "process_batch"
    if cleared := [str(batch.batch_id) for batch in batches if batch.origin == "clear"]:
        logger.info(
            "%s processes batch %s. If you cleared plan_batch alone, clear %s, too",
            next_task,
            ", ".join(cleared),
            next_task,
        )
    return next_task


def _remedy(is_repetition: bool) -> str:
    """Say how the members that could not be planned get their batches."""
    if is_repetition:
        return ". No later run repeats this replay: clear plan_batch with its downstream tasks."
    return ". The next run plans them again."


def _reasons(plans: Sequence[RunPlan]) -> str:
    """Say why pipelines have nothing to process."""
    reasons = [plan.because for plan in plans if plan.because]
    more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return "; ".join(reasons[:_SHOWN]) + more
