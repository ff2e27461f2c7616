"""What commands do that name Tables: each acts on all members, even if one fails."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from exactbatch.cli import render
from exactbatch.cli.console import out, print_json
from exactbatch.cli.pipeline import ledger_connection
from exactbatch.cli.tables import new_table, time_text
from exactbatch.cli.upgrade import create_or_upgrade
from exactbatch.connect_url import is_connect
from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.errors.translation import translate_all_errors
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.operations.tables_status import TablesStatus, load_tables_status
from exactbatch.planning.members import find_members, joined_by
from exactbatch.planning.plan_tables import MemberPlan, plan_tables, preview_tables
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from exactbatch.tables import Tables, tables_failed

if TYPE_CHECKING:
    from exactbatch.batch.process_tables import Outcome


def init_tables(tables: Tables, settings: Settings, *, yes: bool, as_json: bool) -> None:
    """Create or upgrade the ledger as create_or_upgrade() does, and register all members that exist now.

    Raises TablesFailed or TablesUnfinished, which name the members that failed, after all others are registered.
    """
    with ledger_connection(settings, may_be_new=True) as connection:
        versions = create_or_upgrade(connection, yes=yes)
        members, unmade = find_members(connection, KafkaBroker(settings.kafka), tables)
        failed: dict[str, ExactbatchError] = dict(unmade)
        ledger, registered = Ledger(connection), []
        with transaction(connection):
            known = {each.name for each in ledger.registered()}
        for member in members:
            try:
                with translate_all_errors(), transaction(connection):
                    is_new = ledger.register(member, joined_by=joined_by(tables, member.name, known))
            except ExactbatchError as error:
                failed[member.name] = error
            else:
                if is_new:
                    registered.append(member.name)
    members = [member for member in members if member.name not in failed]
    if as_json:
        names = [member.name for member in members]
        print_json(
            {"tables": tables.name, "migrated_to": versions, "members": names, "registered": registered}
        )
    else:
        if versions:
            out.print(render.ledger_note(versions))
        for member in members:
            state = "is registered" if member.name in registered else "was registered already"
            out.print(f"Pipeline [bold]{member.name}[/bold] → {escape(member.sink.target)} {state}.")
        out.print(f"{len(members)} tables, of {escape(tables.topics_text)}.")
    if failed:
        raise tables_failed(tables.name, failed, others=len(members))


def plan_of_tables(tables: Tables, settings: Settings, *, as_json: bool) -> None:
    """Show what the next run would process. Changes nothing."""
    with ledger_connection(settings) as connection:
        planned = preview_tables(connection, KafkaBroker(settings.kafka), tables)
    if as_json:
        members = [
            {"pipeline": name, "error": f"{type(each).__name__}: {each}"}
            if isinstance(each, ExactbatchError)
            else {"pipeline": name, **asdict(each)}
            for name, each in planned.items()
        ]
        print_json({"tables": tables.name, "members": members})
        return
    table = new_table(f"next run of {tables.name}", text=("pipeline",), numbers=("partitions", "offsets"))
    table.add_column("", overflow="fold")
    for name, each in planned.items():
        if isinstance(each, ExactbatchError):
            table.add_row(escape(name), "–", "–", escape(f"{type(each).__name__}: {each}"))
        else:
            offsets = sum(map(len, each.ranges))
            table.add_row(escape(name), str(len(each.ranges)), str(offsets), "starts" if each.joining else "")
    out.print(table)


def status_of_tables(tables: Tables, settings: Settings, *, as_json: bool) -> None:
    """Show one line for each member."""
    with ledger_connection(settings) as connection:
        status = load_tables_status(connection, KafkaBroker(settings.kafka), tables)
    print_json(status.as_json()) if as_json else out.print(_shown(status))


def run_tables(tables: Tables, settings: Settings, master: str, *, as_json: bool) -> None:
    """Plan the next batch of each member, and process them with one Spark driver.

    Raises TablesFailed or TablesUnfinished, which name the members that failed, after all others are committed, and
    ConfigurationError if `master` is a Spark Connect server.
    """
    if is_connect(master):
        raise ConfigurationError(
            f"a Spark Connect server processes one pipeline at a time, and {tables.name!r} stands for many. Give a "
            f"Spark master, or name one table: {tables.name}.TABLE"
        )
    with ledger_connection(settings) as connection:
        plans = plan_tables(
            connection, KafkaBroker(settings.kafka), tables, run=None, request=None, origin="cli"
        )
    outcomes = _processed(tables, settings, [plan for plan in plans if plan.batch is not None], master)
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
    failed |= {each.batch.pipeline.name: each.error for each in outcomes if each.error is not None}
    if failed:
        raise tables_failed(tables.name, failed, others=len(plans) - len(failed))


def audit_tables(tables: Tables, settings: Settings, *, values: bool, as_json: bool) -> None:
    """Audit each member; exit with 3 if one of them is not exact or cannot be audited."""
    # Imported here: the auditor loads pyarrow and a Postgres driver that no other command needs.
    from exactbatch.audit.audit import audit

    with ledger_connection(settings) as connection:
        members, unmade = find_members(connection, KafkaBroker(settings.kafka), tables)
    found: list[dict[str, Any]] = []
    lines: list[RenderableType] = []

    def note(name: str, error: ExactbatchError) -> None:
        text = f"{type(error).__name__}: {error}"
        found.append({"pipeline": name, "exact": False, "error": text})
        lines.append(Text.assemble((f"{name}: not audited: ", "bold red"), text))

    for name, unmade_because in unmade.items():
        note(name, unmade_because)
    for member in members:
        try:
            with translate_all_errors():
                report = audit(member, settings, values=values)
        except ExactbatchError as error:
            note(member.name, error)
        else:
            found.append({"pipeline": member.name, "exact": report.is_exact, **asdict(report)})
            lines.append(Text.assemble(f"{member.name}: ", render.verdict(report)))
    exact = sum(each["exact"] for each in found)
    if as_json:
        print_json({"tables": tables.name, "exact": exact == len(found), "members": found})
    else:
        out.print(Group(*lines, f"{exact} of {len(found)} tables are exact."))
    if exact < len(found):
        raise typer.Exit(CHECK_FAILED)


def _processed(
    tables: Tables, settings: Settings, plans: Sequence[MemberPlan], master: str
) -> "list[Outcome]":
    if not plans:
        return []
    # Imported here: Spark takes a long time to import, and no other command needs it.
    from exactbatch.batch.engines.driver_engine import DriverEngine
    from exactbatch.batch.process_tables import MemberBatch, process_tables
    from exactbatch.batch.spark.session import spark_session

    batches = [
        MemberBatch(plan.pipeline, plan.batch.batch_id, plan.batch.plan_id)
        for plan in plans
        if plan.pipeline is not None and plan.batch is not None
    ]
    with spark_session(tables, master=master) as spark:
        return process_tables(DriverEngine(spark), batches, settings, at_a_time=tables.at_a_time)


def _outcome_json(outcome: "Outcome") -> dict[str, Any]:
    batch = outcome.published and outcome.published.batch
    return {
        "pipeline": outcome.batch.pipeline.name,
        "batch_id": outcome.batch.batch_id,
        **{
            name: batch and getattr(batch, name)
            for name in ("records", "rows", "rejected", "tombstones", "dropped")
        },
        "error": outcome.error and f"{type(outcome.error).__name__}: {outcome.error}",
    }


def _plan_json(plan: MemberPlan) -> dict[str, Any]:
    return {
        "pipeline": plan.name,
        "batch_id": None,
        "error": f"{type(plan.error).__name__}: {plan.error}",
    }


def _outcomes_table(tables: Tables, outcomes: "Sequence[Outcome]") -> Table:
    table = new_table(
        f"run of {tables.name}", text=("pipeline", "state"), numbers=("batch", "records", "rows", "rejected")
    )
    for outcome in outcomes:
        batch = outcome.published and outcome.published.batch
        counts = [str(getattr(batch, name)) if batch else "–" for name in ("records", "rows", "rejected")]
        state = "committed" if batch else f"[red]{type(outcome.error).__name__}[/red]"
        table.add_row(escape(outcome.batch.pipeline.name), state, str(outcome.batch.batch_id), *counts)
    return table


def _shown(status: TablesStatus) -> RenderableType:
    table = new_table(
        f"tables {status.tables.name}: lag {status.lag}",
        text=("pipeline", "newest batch"),
        numbers=("partitions", "lag", "committed (UTC)"),
    )
    for member in status.members:
        newest = f"{member.batches[0].batch_id} {member.batches[0].status}" if member.batches else "–"
        times = [each.committed_at for each in member.partitions if each.committed_at is not None]
        lag = sum(each.lag for each in member.partitions)
        table.add_row(
            escape(member.pipeline.name),
            newest,
            str(len(member.partitions)),
            str(lag),
            time_text(max(times, default=None)),
        )
    for name in status.new:
        table.add_row(escape(name), "joins at the next run", "–", "–", "–")
    troubles = [Text.assemble(("! ", "yellow"), trouble) for trouble in status.troubles]
    return Group(table, *troubles)
