"""Plans, states and audits as tables that fit a terminal."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from exactbatch.ledger import PartlyCommitted, Reject, RejectReasons, TimeOffset
from exactbatch.model import LogPartition, Plan, StoredOffset
from exactbatch.offsets import OffsetRange
from exactbatch.operations.status import Status
from exactbatch.pipeline import Pipeline
from exactbatch.planning.window import beyond_text

if TYPE_CHECKING:
    from exactbatch.audit.report import AuditReport, Finding, PartitionAudit
    from exactbatch.operations.compact import CompactedPartition, Compaction
    from exactbatch.planning.freeze_replay import Preview

_BATCHES_SHOWN = 4
_REASON_SHOWN = 200  # characters


def plan_table(pipeline: Pipeline, plan: Plan, log: Sequence[LogPartition]) -> Table:
    """What the next run would do; `left` counts the offsets that limits leave for later runs."""
    total = sum(map(len, plan.ranges))
    what = f"{total} offsets" if plan.ranges else "nothing new, the run would be skipped"
    table = _table(
        f"next batch of {pipeline.name}: {what}",
        text=("partition", "what"),
        numbers=("from", "until", "offsets", "left"),
    )
    stable = {(each.topic, each.partition): each.last_stable for each in log}
    starts = defaultdict(
        lambda: "starts", dict.fromkeys(plan.unnamed, "starts at its earliest: start has no offset for it")
    )
    for seed in plan.seeds:
        table.add_row(_partition(seed), starts[seed.topic, seed.partition], str(seed.next_offset), "", "", "")
    for loss in plan.losses:
        table.add_row(
            _partition(loss), "lost", str(loss.from_offset), str(loss.until_offset), str(len(loss)), ""
        )
    for each in plan.ranges:
        left = stable[each.topic, each.partition] - each.until_offset
        numbers = (each.from_offset, each.until_offset, len(each), left)
        table.add_row(_partition(each), "processes", *map(str, numbers))
    return table


def replay_table(pipeline: Pipeline, preview: "Preview") -> Table:
    """What a replay would take back and write again, range by range."""
    total = sum(map(len, preview.plan.ranges))
    what = f"{total} offsets, {preview.rows} rows to take back" if total else "nothing to process again"
    table = _table(
        f"replay of {pipeline.name} → {pipeline.sink.target}: {what}",
        text=("partition",),
        numbers=("from", "until", "offsets", "rows taken back", "rejects taken back"),
    )
    table.add_column("of batches", overflow="fold")
    for each in preview.taken_back:
        rows = "–" if each.rows is None else str(each.rows)
        numbers = (each.range.from_offset, each.range.until_offset, len(each.range), rows, each.rejects)
        table.add_row(_partition(each.range), *map(str, numbers), _batch_ids(each.batch_ids))
    return table


def replay_notes(preview: "Preview") -> list[str]:
    """What else one should know of a replay: what it leaves out, and what it takes in."""
    notes = [
        f"{each}: removed from the log by retention; its results stay as they are"
        for each in preview.plan.removed
    ]
    notes += [
        f"{each}: below the horizon of exactbatch compact; its results stay as they are"
        for each in preview.plan.compacted
    ]
    if preview.plan.beyond:
        notes.append(f"{beyond_text(preview.plan.beyond)}. They are for the next advance")
    notes += [
        f"{each.range}: taken in, because batch {each.batch_id} can only be replayed as a whole (lineage='batch')"
        for each in preview.plan.widened
    ]
    if preview.missing_index is not None:
        notes.append(index_note(preview.missing_index))
    return notes


def index_note(statement: str) -> str:
    """What to do so that replays need not read a whole table."""
    return f"no index finds the rows of a replay, so it reads the whole table; to create one: {statement}"


def boundaries_table(pipeline: Pipeline, boundaries: Sequence[TimeOffset]) -> Table:
    """The offsets that times were resolved to."""
    table = _table(
        f"times of {pipeline.name} that are resolved: {len(boundaries)}",
        text=("time (UTC)", "partition"),
        numbers=("offset", "resolved (UTC)"),
    )
    for each in boundaries:
        at, resolved = (f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for when in (each.at, each.resolved_at))
        table.add_row(at, escape(f"{each.topic}[{each.partition}]"), str(each.offset), resolved)
    return table


def compaction_table(pipeline: Pipeline, compaction: "Compaction") -> Table:
    """The changes that are dropped and kept below the horizon of each partition."""
    table = _table(
        f"changes of {pipeline.name} → {pipeline.sink.target}: {compaction.dropped} to drop, "
        f"{compaction.kept} to keep below the horizons",
        text=("partition",),
        numbers=("horizon before", "horizon", "dropped", "kept below it"),
    )
    for each in compaction.partitions:
        before = str(each.previous_horizon) if each.previous_horizon else "–"
        table.add_row(_partition(each), before, *map(str, (each.horizon, each.dropped, each.kept)))
    return table


def reasons_table(pipeline: Pipeline, found: RejectReasons) -> Table:
    """Why records were rejected."""
    table = _table(
        f"rejected records of {pipeline.name}: {found.records}",
        text=("reason", "first"),
        numbers=("records",),
    )
    for each in found.shown:
        table.add_row(escape(_short(each.reason)), escape(each.first), str(each.records))
    if more := found.reasons - len(found.shown):
        rest = found.records - sum(each.records for each in found.shown)
        table.add_row(f"{more} more reasons", "", str(rest))
    return table


def rejects_table(rejects: Sequence[Reject]) -> Table:
    """Rejected records, one a line."""
    table = _table(f"the first {len(rejects)}", text=("partition",), numbers=("offset", "bytes", "batch"))
    table.add_column("reason", overflow="fold")
    for each in rejects:
        size = "null" if each.bytes is None else str(each.bytes)
        where = escape(f"{each.topic}[{each.partition}]")
        table.add_row(where, str(each.offset), size, str(each.batch_id), escape(_short(each.reason)))
    return table


def _short(text: str) -> str:
    return text if len(text) <= _REASON_SHOWN else f"{text[: _REASON_SHOWN - 1]}…"


def status_table(status: Status) -> Table:
    """Where the pipeline stands in each partition; its horizons where it has some."""
    horizon = ("horizon",) if any(each.horizon is not None for each in status.partitions) else ()
    table = _table(
        f"pipeline {status.pipeline.name} → {status.pipeline.sink.target}",
        text=("partition",),
        numbers=("stored", "last stable", "high watermark", "lag", "earliest", *horizon, "committed (UTC)"),
    )
    for each in status.partitions:
        log, stored = each.log, str(each.stored.next_offset) if each.stored else "–"
        numbers = (log.last_stable, log.high_watermark, each.lag, log.earliest)
        shown = ["–" if each.horizon is None else str(each.horizon) for _ in horizon]
        table.add_row(_partition(log), stored, *map(str, numbers), *shown, _time(each.committed_at))
    return table


def batches_table(status: Status) -> Table:
    """The newest batches."""
    table = _table(
        "newest batches",
        text=("batch", "kind", "origin", "status"),
        numbers=("records", "rows", "rejected", "planned (UTC)"),
    )
    partly = {each.batch_id: each for each in status.partly_committed}
    for each in status.batches:
        counted, state = partly.get(each.batch_id, each), str(each.status)
        if isinstance(counted, PartlyCommitted):
            state += f", {counted.committed} of {counted.ranges} ranges committed"
        counts = (counted.records, counted.rows, counted.rejected)
        shown = ["–" if count is None else str(count) for count in counts]
        table.add_row(str(each.batch_id), each.kind, each.origin, state, *shown, _time(each.planned_at))
    return table


def audit_table(pipeline: Pipeline, report: "AuditReport") -> Table:
    """The comparison of log and target. Columns that are usually zero are left out if they are."""
    usual = ("records", "rows")
    rare = tuple(
        name
        for name in ("rejected", "tombstones", "lost", "removed", "compacted")
        if any(getattr(partition, name) for partition in report.partitions)
    )
    kinds = [
        kind for kind in ("missing", "duplicated", "unexpected", "gaps", "changed") if _is_shown(report, kind)
    ]
    table = _table(
        f"audit of {pipeline.name} → {pipeline.sink.target}",
        text=("partition",),
        numbers=("from", "until", *usual, *rare, *kinds),
    )
    for partition in report.partitions:
        counts = [getattr(partition, name) for name in ("from_offset", "until_offset", *usual, *rare)]
        differences = [_finding(partition.findings[kind]) for kind in kinds]
        table.add_row(_partition(partition), *map(str, counts), *differences)
    return table


def verdict(report: "AuditReport") -> Text:
    """The audit in a few lines: exact, or where it differs."""
    differences = ", ".join(
        f"{count} {kind}" for kind, count in report.findings.items() if _is_shown(report, kind)
    )
    summary = f"{report.records} records in the log, {report.rows} rows: {differences}"
    if report.target.not_ours:
        summary += f"; another {report.target.not_ours} rows were not written by exactbatch"
    notes = report.target.notes
    if report.is_exact:
        return Text("\n".join([f"exact: {summary}", *notes]), style="bold green")
    lines = [
        f"{partition.topic}[{partition.partition}] {kind}: {finding.count}{_at(finding)}"
        for partition in report.partitions
        for kind, finding in partition.findings.items()
        if finding.count
    ]
    lines += [f"{kind}: {count}" for kind, count in report.target.findings.items() if count]
    return Text("\n".join([f"NOT exact: {summary}", *lines, *notes]), style="bold red")


def _is_shown(report: "AuditReport", kind: str) -> bool:
    """True for the kinds that every audit shows, and for differences."""
    return kind in ("missing", "duplicated", "unexpected") or report.findings[kind] > 0


def _at(finding: "Finding") -> str:
    return f", at offset {', '.join(map(str, finding.first))}" if finding.first else ""


def _batch_ids(batch_ids: Sequence[int]) -> str:
    """The first few, and how many more."""
    shown = ", ".join(map(str, batch_ids[:_BATCHES_SHOWN]))
    more = len(batch_ids) - _BATCHES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown or "none: not covered yet"


def _finding(finding: "Finding") -> str:
    return f"[bold red]{finding.count}[/]" if finding.count else "0"


def _partition(
    each: "LogPartition | OffsetRange | StoredOffset | PartitionAudit | CompactedPartition",
) -> str:
    return escape(f"{each.topic}[{each.partition}]")


def _time(when: datetime | None) -> str:
    return f"{when:%m-%d %H:%M}" if when else "–"


def _table(title: str, *, text: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table that fits 80 characters: no frame, and headers that may break at a space."""
    table = Table(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        min_width=70,
    )
    for name in text:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", min_width=max(map(len, name.split())))
    return table
