"""`exactbatch batches`."""

from enum import StrEnum
from typing import Annotated, cast

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import (
    RegisteredName,
    find_registered_name,
    ledger_connection,
    load_settings,
    typed_names,
)
from exactbatch.cli.table_layout import create_text_table, format_duration, format_partition, time_text
from exactbatch.ledger import BatchStatus
from exactbatch.ledger import Kind as BatchKind
from exactbatch.operations.batch_history import PastBatch, load_batches


class Status(StrEnum):
    """The choices of --status."""

    planned = "planned"
    committed = "committed"
    superseded = "superseded"


class Kind(StrEnum):
    """The choices of --kind."""

    advance = "advance"
    replay = "replay"


def batches(
    reference: RegisteredName,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="How many batches to show.")
    ] = 20,
    status: Annotated[Status | None, typer.Option(help="Only batches with this status.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only batches of this kind.")] = None,
    below: Annotated[
        int | None, typer.Option(metavar="ID", help="Only batches with a lower ID: the next page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the batches of a pipeline, newest first: counts, duration, origin, ranges and failures."""
    name = find_registered_name(reference)
    with ledger_connection(load_settings()) as connection, typed_names([reference]):
        past = load_batches(
            connection,
            name,
            kind=cast("BatchKind | None", kind and kind.value),
            status=cast("BatchStatus | None", status and status.value),
            before=below,
            limit=limit,
        )
    if as_json:
        print_json({"pipeline": name, "batches": [each.as_json() for each in past]})
        return
    out.print(_table(name, past))
    for each in past:
        if each.failure is not None:
            out.print(Text.assemble(("! ", "yellow"), _failure(each)))
    if len(past) == limit:
        out.print(f"[dim]older ones: --below {past[-1].batch.batch_id}[/dim]")


def _table(name: str, past: list[PastBatch]) -> Table:
    table = create_text_table(
        f"batches of {name}, newest first",
        text=("batch", "kind", "status"),
        numbers=("records", "rows", "rejected", "took", "planned (UTC)"),
    )
    table.add_column("origin and ranges", overflow="fold")
    for each in past:
        batch, partly = each.batch, each.partly_committed
        counted = partly or batch
        state = str(batch.status)
        if partly is not None:
            state += f", {partly.committed} of {partly.ranges} ranges committed"
        counts = [
            "–" if count is None else str(count)
            for count in (counted.records, counted.rows, counted.rejected)
        ]
        numbers = (*counts, _seconds(batch.seconds), time_text(batch.planned_at))
        table.add_row(str(batch.batch_id), batch.kind, state, *numbers, f"{_origin(each)}: {_ranges(each)}")
    return table


def _seconds(seconds: float | None) -> str:
    return f"{seconds:.1f} s" if seconds is not None and seconds < 60 else format_duration(seconds)


def _origin(past: PastBatch) -> str:
    batch = past.batch
    return batch.origin if batch.run_id is None else f"{batch.origin} {escape(batch.run_id)}"


def _ranges(past: PastBatch) -> str:
    if past.ranges is None:
        return "ranges folded by exactbatch prune"
    shown = [f"{format_partition(each)} {each.from_offset}–{each.until_offset}" for each in past.ranges.shown]
    more = past.ranges.ranges - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _failure(past: PastBatch) -> str:
    failure = past.failure
    assert failure is not None
    times = "once" if failure.failures == 1 else f"{failure.failures} times"
    advice = {True: " A retry may succeed.", False: " A retry does not help: correct the cause.", None: ""}
    return (
        f"batch {failure.batch_id} ({past.batch.status}) has failed {times}, last at {failure.failed_at:%m-%d %H:%M} "
        f"UTC, with {failure.error}: {failure.message}{advice[past.retry_helps]}"
    )
