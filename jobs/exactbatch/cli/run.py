"""`exactbatch run`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from exactbatch.batch.engines.connect_url import is_connect
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import (
    LOCAL_MASTER,
    Master,
    Reference,
    find_planned,
    ledger_connection,
    load_any,
)
from exactbatch.cli.table_layout import create_text_table
from exactbatch.errors import WrongUsage
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.model import PlannedBatch
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.plan_tables import plan_tables
from exactbatch.planning.run import RunPlan
from exactbatch.settings import Settings
from exactbatch.tables import Tables, build_failure

if TYPE_CHECKING:
    from exactbatch.batch.process_batches import Outcome


def run(reference: Reference, master: Master = LOCAL_MASTER, as_json: AsJson = False) -> None:
    """Plan the next batch and process it, without Airflow. `exactbatch forward` then sends its results."""
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        run_tables(pipeline, settings, master, as_json=as_json)
        return
    with ledger_connection(settings, pipeline) as connection:
        batch_id = freeze_advance(connection, KafkaBroker(settings.kafka), pipeline, origin="cli")
        planned = None if batch_id is None else find_planned(connection, batch_id)
    if planned is None:
        print_json({"batch_id": None}) if as_json else out.print("Nothing new.")
        return
    # It imports Spark, which takes long, and is needed only for a batch.
    from exactbatch.cli.processing import process_planned

    process_planned(pipeline, settings, planned, master, as_json=as_json)


def run_tables(tables: Tables, settings: Settings, master: str, *, as_json: bool) -> None:
    """Plan the next batch of each member, and process them with one Spark driver.

    Raises TablesFailed or TablesUnfinished, which name the members that failed, after all others are committed, and
    WrongUsage if `master` is a Spark Connect server.
    """
    if is_connect(master):
        raise WrongUsage(
            f"a Spark Connect server processes one pipeline at a time, and {tables.name!r} stands for many. Give a "
            f"Spark master, or name one table: {tables.name}.TABLE"
        )
    with ledger_connection(settings) as connection:
        plans = plan_tables(
            connection, KafkaBroker(settings.kafka), tables, run=None, request=None, origin="cli"
        )
    batches = [
        PlannedBatch(plan.name, plan.batch.batch_id, plan.batch.plan_id)
        for plan in plans
        if plan.batch is not None
    ]
    outcomes = []
    if batches:
        # It imports Spark, which takes long, and is needed only for a batch.
        from exactbatch.cli.processing import process_tables

        outcomes = process_tables(tables, settings, batches, master)
    unplanned = [plan for plan in plans if plan.error is not None]
    if as_json:
        print_json(
            {
                "tables": tables.name,
                "members": [*map(_outcome_json, outcomes), *map(_plan_json, unplanned)],
            }
        )
    elif outcomes:
        out.print(_outcomes_table(tables, outcomes))
    elif not unplanned:
        out.print("Nothing new.")
    failed = {plan.name: plan.error for plan in unplanned if plan.error is not None}
    failed |= {each.batch.pipeline: each.error for each in outcomes if each.error is not None}
    if failed:
        raise build_failure(tables, failed, others=len(plans) - len(failed))


def _outcome_json(outcome: "Outcome") -> dict[str, Any]:
    batch = outcome.published and outcome.published.batch
    return {
        "pipeline": outcome.batch.pipeline,
        "batch_id": outcome.batch.batch_id,
        **{
            name: batch and getattr(batch, name)
            for name in ("records", "rows", "rejected", "tombstones", "dropped")
        },
        "error": outcome.error and f"{type(outcome.error).__name__}: {outcome.error}",
    }


def _plan_json(plan: RunPlan) -> dict[str, Any]:
    return {
        "pipeline": plan.name,
        "batch_id": None,
        "error": f"{type(plan.error).__name__}: {plan.error}",
    }


def _outcomes_table(tables: Tables, outcomes: "Sequence[Outcome]") -> Table:
    table = create_text_table(
        f"run of {tables.name}", text=("pipeline", "state"), numbers=("batch", "records", "rows", "rejected")
    )
    for outcome in outcomes:
        batch = outcome.published and outcome.published.batch
        counts = [str(getattr(batch, name)) if batch else "–" for name in ("records", "rows", "rejected")]
        state = "committed" if batch else f"[red]{type(outcome.error).__name__}[/red]"
        table.add_row(escape(outcome.batch.pipeline), state, str(outcome.batch.batch_id), *counts)
    return table
