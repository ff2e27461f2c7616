"""The tasks plan_batch, report_batch and check_tables of many tables.

The DAG file imports this module whenever Airflow parses it, so heavy imports are inside the tasks.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset, task

from exactbatch.airflow.batches import check_committed, check_own, missed_plans, named_batches
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.metrics import send_gauges
from exactbatch.airflow.options import callbacks
from exactbatch.airflow.parameters import TABLES, replay_of, tables_of
from exactbatch.airflow.plan_task import MISSED_LIMIT, ORIGINS, UNANNOUNCED_AFTER, check_not_tasks_test
from exactbatch.airflow.report_task import ANNOUNCED, announce, show_progress
from exactbatch.airflow.versions import AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from exactbatch.ledger import Ledger
    from exactbatch.operations.report import Report
    from exactbatch.pipeline import Pipeline
    from exactbatch.planning.plan_tables import MemberPlan

logger = logging.getLogger(__name__)

_SHOWN = 5
_MEMBERS: Final = "members"  # an XCom of plan_batch: the names of the members that it has looked at


def plan_tables_task(
    reference: str,
    connections: Connections,
    pools: Mapping[str, str | None],
    other_parameters: Collection[str],
    default_args: Mapping[str, Any],
) -> Any:
    """Return the task plan_batch, for the DAG in whose block this is called; the arguments are those of plan_task()."""

    def send_progress(context: Any) -> None:
        """Send the gauges of the members, even if there is nothing new, or if members fail."""
        send_gauges(context["ti"].xcom_pull(task_ids="plan_batch", key=_MEMBERS) or (), connections)

    @task.branch(
        on_success_callback=[*callbacks(default_args, "on_success_callback"), send_progress],
        on_skipped_callback=[*callbacks(default_args, "on_skipped_callback"), send_progress],
        on_failure_callback=[*callbacks(default_args, "on_failure_callback"), send_progress],
    )
    def plan_batch(dag_run: Any = None, params: Any = None, ti: Any = None) -> str:
        """Plan a batch of each table and freeze it in the ledger. Skip the run if there is nothing to process."""
        from exactbatch.discovery import load_tables
        from exactbatch.errors import TablesUnfinished
        from exactbatch.kafka.broker import KafkaBroker
        from exactbatch.kafka.client_properties import check_properties
        from exactbatch.ledger import Ledger, Run, check_schema, ledger_session
        from exactbatch.planning.plan_tables import plan_tables
        from exactbatch.postgres.connection import transaction
        from exactbatch.tables import listed_errors, tables_failed

        check_not_tasks_test(dag_run)
        with airflow_errors():
            tables, settings = load_tables(reference), connections.settings()
            check_properties(settings.kafka)
            request = replay_of(dag_run, params, {*other_parameters, TABLES})
            only = tables_of(dag_run, params)
            with ledger_session(settings.postgres, "exactbatch plan") as connection:
                check_schema(connection)
                plans = plan_tables(
                    connection,
                    KafkaBroker(settings.kafka),
                    tables,
                    Run(dag_run.dag_id, dag_run.run_id, dag_run.clear_number, dag_run.start_date),
                    request,
                    origin=ORIGINS.get(dag_run.run_type, "schedule"),
                    only=only,
                )
                with transaction(connection):
                    missed = _missed(Ledger(connection), plans)
            ti.xcom_push(key=_MEMBERS, value=[plan.name for plan in plans if plan.pipeline is not None])
            failed = {plan.name: plan.error for plan in plans if plan.error is not None}
            for name, error in failed.items():
                logger.error("%s: %s: %s", name, type(error).__name__, error)
            kinds = {plan.batch.kind for plan in plans if plan.batch is not None}
            if not kinds and not missed and failed:
                raise tables_failed(tables.name, failed, others=len(plans) - len(failed))
            is_repetition = request is not None or dag_run.clear_number > 0
            has_tries = ti.try_number <= ti.max_tries
            if is_repetition and has_tries and any(error.retryable for error in failed.values()):
                raise TablesUnfinished(
                    f"{listed_errors(failed)}. The next try plans them, and keeps the plans of the others."
                )
            if not kinds and not missed:
                raise AirflowSkipException(_nothing(plans))
            # With no batch at all, process_batch only leads to report_batch, for batches that were not announced.
            next_task = "process_replay" if kinds == {"replay"} else "process_batch"
            if (pool := pools.get(next_task)) is not None:
                connections.check_pool(pool)
        logger.info(
            "%s of %s tables have something to process", sum(p.batch is not None for p in plans), len(plans)
        )
        batches = [
            [plan.topic, plan.batch.batch_id, str(plan.batch.plan_id)]
            for plan in plans
            if plan.batch is not None
        ]
        ti.xcom_push(key="batches", value=json.dumps(batches))
        ti.xcom_push(key="failed", value=listed_errors(failed) + _remedy(is_repetition) if failed else "")
        ti.xcom_push(key="missed", value=json.dumps(missed))
        ti.xcom_push(key="beyond_stored", value=[str(each) for plan in plans for each in plan.beyond])
        return next_task

    return plan_batch()


def report_tables_task(
    reference: str,
    connections: Connections,
    asset: Asset,
    batches: Sequence[str],
    *,
    on_success: Sequence[Callable[[Any], None]],
) -> Any:
    """Return the task report_batch, for the DAG in whose block this is called.

    `batches` are the templates of the batches and of the missed ones. `on_success` are callbacks of the DAG's author.
    """

    def note_announced(context: Any) -> None:
        """Note in the ledger which batches the event lists, now that Airflow has it; else the next run repeats them."""
        announced = context["ti"].xcom_pull(task_ids="report_batch", key=ANNOUNCED)
        announce(connections.settings(), chain.from_iterable(announced.values()))

    def send_progress(context: Any) -> None:
        """Send the gauges of the announced members again, after their commits."""
        send_gauges(context["ti"].xcom_pull(task_ids="report_batch", key=ANNOUNCED), connections)

    @task(
        outlets=[asset],
        # Of the two tasks before it, one is skipped. Tables that fail hold no event back; a run with nothing to
        # process skips both tasks, and then starts no process for this one.
        trigger_rule="one_done",
        # Airflow ends the task [core] task_success_overtime after its success, whatever is left of these.
        on_success_callback=[note_announced, *on_success, send_progress],
    )
    def report_batch(batches: Any, missed: Any = "", ti: Any = None, outlet_events: Any = None) -> None:
        """Log what the committed batches did, announce them in one event of the asset, and show progress to lag tools.

        Skipped if the ledger has none that is not announced yet: nothing was planned, or this is a repetition.
        """
        from exactbatch.discovery import load_tables
        from exactbatch.errors import ConfigurationError
        from exactbatch.kafka.broker import KafkaBroker
        from exactbatch.ledger import Ledger, ledger_session
        from exactbatch.operations.report import as_one_table, report_from_ledger
        from exactbatch.postgres.connection import transaction

        if batches in (None, ""):
            raise AirflowSkipException("plan_batch has left no batches")
        with airflow_errors():
            tables, settings = load_tables(reference), connections.settings()
            announced: dict[str, list[str]] = {}
            reports: list[tuple[Pipeline, Report]] = []
            own = {batch.topic: batch for batch in named_batches(batches)}
            plans = missed_plans(missed)
            for batch in own.values():
                plans.setdefault(batch.topic, []).append(batch.plan_id)
            with ledger_session(settings.postgres, "exactbatch report") as connection:
                with transaction(connection):
                    found = Ledger(connection).unannounced_of_plans(chain.from_iterable(plans.values()))
                waiting = {batch.plan_id: batch for batch in found}
                for topic in sorted(plans):
                    try:
                        pipeline = tables.member(topic)
                    except ConfigurationError as error:
                        # It holds no event of the others back; its batch is announced when it can be made again.
                        logger.error("%s: %s: %s", tables.name_of(topic), type(error).__name__, error)
                        continue
                    if pipeline is None:
                        continue  # the function has since left the topic out
                    new = [waiting[plan] for plan in plans[topic] if plan in waiting]
                    if not new:
                        logger.info("%s: every committed batch has been announced", pipeline.name)
                        continue
                    if topic in own and new[-1].plan_id == own[topic].plan_id:
                        check_own(new[-1], ti, pipeline=pipeline.name)
                    new_plans = [batch.plan_id for batch in new]
                    report = report_from_ledger(
                        connection, pipeline, new[-1].batch_id, new_plans[-1], new_plans[:-1]
                    )
                    reports.append((pipeline, report))
                    announced[pipeline.name] = list(map(str, new_plans))
            if not reports:
                raise AirflowSkipException("every committed batch has been announced")
            print(as_one_table([report for _, report in reports]))  # noqa: T201 - a task's output is its log
            beyond = ti.xcom_pull(task_ids="plan_batch", key="beyond_stored") or []
            events = [report.as_json() for _, report in reports]
            outlet_events[asset].extra = {"tables": tables.name, "batches": events, "beyond_stored": beyond}
            ti.xcom_push(key=ANNOUNCED, value=announced)
            broker = KafkaBroker(settings.kafka)
            for pipeline, report in reports:
                if not show_progress(broker, pipeline, report):
                    break  # the others would wait in vain

    return report_batch(*batches)


def check_tables_task(name: str, connections: Connections, planned: Sequence[str]) -> Any:
    """Return the task check_tables, for the DAG in whose block this is called.

    `name` names the tables. `planned` are the templates of the batches and of the tables that were not planned.
    """

    @task(trigger_rule="none_failed_min_one_success")
    def check_tables(batches: Any, failed: Any) -> None:
        """Fail the run if a table could not be planned, or if a batch is not committed.

        The ledger decides whether a batch is committed: somebody may have set Airflow's states by hand.
        """
        from exactbatch.ledger import Ledger, ledger_session
        from exactbatch.postgres.connection import transaction

        with (
            airflow_errors(),
            ledger_session(connections.settings().postgres, "exactbatch check") as connection,
            transaction(connection),
        ):
            ledger = Ledger(connection)
            for named in named_batches(batches):
                batch = ledger.batch(named.batch_id, named.plan_id)
                if ledger.overtaken_by(batch) is None:
                    check_committed(batch)
        if failed:
            raise AirflowFailException(
                f"all planned batches are committed, but tables of {name!r} could not be planned: {failed}"
            )

    return check_tables(*planned)


def _missed(ledger: "Ledger", plans: "Sequence[MemberPlan]") -> list[tuple[str, list[str]]]:
    """Return batches that no report has announced, as (topic, plan IDs)."""
    missed = []
    for plan in plans:
        if plan.pipeline is None:
            continue
        found = ledger.unannounced(plan.pipeline, age=UNANNOUNCED_AFTER, limit=MISSED_LIMIT)
        if found:
            missed.append((plan.topic, [str(each.plan_id) for each in found]))
    return missed


def _remedy(is_repetition: bool) -> str:
    """Say how the members that could not be planned get their batches."""
    if is_repetition:
        return ". No later run repeats this replay: clear plan_batch with its downstream tasks."
    return ". The next run plans them again."


def _nothing(plans: "Sequence[MemberPlan]") -> str:
    """Say why no table has anything to process."""
    reasons = [plan.because for plan in plans if plan.because]
    more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return "; ".join(reasons[:_SHOWN]) + more
