"""`exactbatch coverage`: which batches cover which offsets, as a strip for each partition."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.text import Text

from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import (
    RegisteredName,
    find_registered_name,
    ledger_connection,
    load_settings,
    typed_names,
)
from exactbatch.errors import WrongUsage
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.ledger import Ledger
from exactbatch.ledger.overview_rows import OverviewRows, PartitionPosition
from exactbatch.operations.coverage_strip import DrawnStrip, find_gaps, load_strips
from exactbatch.postgres.connection import transaction

_WIDEST: Final = 120  # steps
_NARROWEST: Final = 20
_MOST: Final = 50  # partitions that are shown unless some are named
# Kinds in the order in which one of them stands for a step that has several: sign, style, and name in the legend.
_SIGNS: Final = {
    "gap": ("!", "bold red", "gap"),
    "loss": ("x", "red", "lost"),
    "rejects": ("r", "yellow", "with rejects"),
    "in flight": ("·", "cyan", "in flight"),
    "backfill": ("B", "magenta", "backfill"),
    "replay": ("R", "magenta", "replay"),
    "batch": ("█", "green", "batch"),
    "pruned": ("▒", "green", "folded"),
}


def coverage(
    reference: RegisteredName,
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="TOPIC:PARTITION", help="Only this partition. Repeatable."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, metavar="OFFSET", help="The first offset. Without it: where the pipeline began."
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="OFFSET", help="The end, not included. Without it: the highest stored offset."
        ),
    ] = None,
    gaps: Annotated[
        bool,
        typer.Option(
            "--gaps", help="Also find gaps that are too narrow to show. Exit status 3 if there is a gap."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which offsets are processed, replayed, folded or lost: a strip for each partition."""
    name = find_registered_name(reference)
    with ledger_connection(load_settings()) as connection:
        with transaction(connection), typed_names([reference]):
            Ledger(connection).registry.read(name)
            known = OverviewRows(connection).positions([name])
        chosen = _chosen(known, partitions or ())
        positions = chosen if partitions else chosen[:_MOST]
        begin = min((each.first_offset for each in positions), default=0) if first is None else first
        end = max((each.next_offset for each in positions), default=0) if until is None else until
        if (first is not None or until is not None) and positions and begin >= end:
            raise WrongUsage(
                f"expected --from to be below --until, found {begin} and {end}. Without --until, a strip ends at the "
                f"highest stored offset."
            )
        steps = max(_NARROWEST, min(_WIDEST, out.width - 2))
        strips = load_strips(connection, name, positions, begin, end, steps=steps)
        found = find_gaps(connection, name, chosen) if gaps else []
    topics = {each.topic_id: each.topic for each in known}
    if as_json:
        listed = [{"topic": topics[gap.topic_id], **asdict(gap)} for gap in found]
        print_json({"pipeline": name, "strips": list(map(asdict, strips)), "gaps": listed})
    else:
        _print(name, strips, left_out=len(chosen) - len(positions))
        for gap in found:
            place = escape(f"{topics[gap.topic_id]}[{gap.partition}]")
            out.print(f"[red]gap[/] in {place}: {gap.from_offset} to {gap.until_offset}", soft_wrap=True)
        if gaps and not found:
            out.print("no gap")
    if found:
        raise typer.Exit(CHECK_FAILED)


def signs(strip: DrawnStrip) -> Iterator[str]:
    """Yield what stands for each step of a strip, a key of _SIGNS; empty for a step that was not processed. Pure."""
    drawn = strip.strip
    ranges: list[tuple[str, int, int]] = [
        *((each.kind, each.from_offset, each.until_offset) for each in (*strip.segments, *strip.exceptions)),
        *(("in flight", each.from_offset, each.until_offset) for each in strip.in_flight),
        *(("rejects", first, until) for first, until, _ in strip.rejects),
    ]
    for first in range(drawn.first, drawn.until, drawn.step):
        until = min(first + drawn.step, drawn.until)
        kinds = {kind for kind, begin, end in ranges if begin < until and end > first}
        yield next((kind for kind in _SIGNS if kind in kinds), "")


def _chosen(known: Sequence[PartitionPosition], names: Sequence[str]) -> list[PartitionPosition]:
    """Return the partitions that are named as topic:partition, or all. Raises WrongUsage."""
    if not names:
        return list(known)
    by_name = {f"{each.topic}:{each.partition}": each for each in known}
    for name in names:
        if name not in by_name:
            raise WrongUsage(
                f"--partition {name}: the pipeline has no stored offset for it. It has stored offsets for: "
                f"{', '.join(list(by_name)[:_MOST]) or 'no partition'}."
            )
    return [by_name[name] for name in names]


def _print(name: str, strips: Sequence[DrawnStrip], *, left_out: int) -> None:
    if not strips:
        out.print(f"{name}: nothing is processed yet.", markup=False)
        return
    step = strips[0].strip.step
    out.print(
        f"coverage of {name}: offsets {strips[0].strip.first} to {strips[0].strip.until}, {step} in each step",
        markup=False,
    )
    shown = set()
    for strip in strips:
        kinds = list(signs(strip))
        shown |= set(kinds)
        out.print(Text(f"{strip.strip.topic}[{strip.strip.partition}]", style="bold"))
        out.print(Text.assemble(*((_SIGNS[kind][0], _SIGNS[kind][1]) if kind else " " for kind in kinds)))
    legend = [(f"{sign} {text}   ", style) for kind, (sign, style, text) in _SIGNS.items() if kind in shown]
    out.print(Text.assemble(*legend))
    if left_out:
        out.print(f"{left_out} more partitions: name them with --partition TOPIC:PARTITION")
