"""`exactbatch plan`."""

from dataclasses import asdict

from rich.markup import escape

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load_any
from exactbatch.cli.table_layout import create_text_table
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.planning.freeze_advance import preview_advance
from exactbatch.planning.plan_tables import preview_tables
from exactbatch.settings import Settings
from exactbatch.tables import Tables


def plan(reference: Reference, as_json: AsJson = False) -> None:
    """Show what the next run would process. Changes nothing."""
    pipeline, settings = load_any(reference)
    if isinstance(pipeline, Tables):
        _plan_tables(pipeline, settings, as_json=as_json)
        return
    with ledger_connection(settings, pipeline) as connection:
        planned, partitions = preview_advance(connection, KafkaBroker(settings.kafka), pipeline)
    if as_json:
        print_json({"pipeline": pipeline.name, **asdict(planned)})
    else:
        out.print(render.plan_table(pipeline, planned, partitions))


def _plan_tables(tables: Tables, settings: Settings, *, as_json: bool) -> None:
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
    table = create_text_table(
        f"next run of {tables.name}", text=("pipeline",), numbers=("partitions", "offsets")
    )
    table.add_column("", overflow="fold")
    for name, each in planned.items():
        if isinstance(each, ExactbatchError):
            table.add_row(escape(name), "–", "–", escape(f"{type(each).__name__}: {each}"))
        else:
            offsets = sum(map(len, each.ranges))
            table.add_row(escape(name), str(len(each.ranges)), str(offsets), "starts" if each.joining else "")
    out.print(table)
