"""Tables of plans, states and audits for a terminal."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from exactbatch.audit.audit_result import AuditReport, Differences
from exactbatch.cli.table_layout import create_text_table, format_partition, short, time_text
from exactbatch.ledger import PartlyCommitted, RejectReasons, StoredReject, TimeBoundary
from exactbatch.model import LogPartition, Plan
from exactbatch.operations.compact import Compaction
from exactbatch.operations.merge_partitions import MergedPartition
from exactbatch.operations.prune import Pruning
from exactbatch.operations.status import PipelineStatus
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_replay import Preview
from exactbatch.planning.request import beyond_text
from exactbatch.topic_pattern import TopicPattern

_BATCHES_SHOWN = 4
_REASON_SHOWN = 200  # characters


def plan_table(pipeline: Pipeline, plan: Plan, partitions: Sequence[LogPartition]) -> Table:
    """Show what the next run would do. `remaining` counts the offsets that limits leave to later runs."""
    total = sum(map(len, plan.ranges))
    size = f"{total} offsets" if plan.ranges else "nothing new, the run would be skipped"
    table = create_text_table(
        f"next batch of {pipeline.name}: {size}",
        text=("partition", "action"),
        numbers=("from", "until", "offsets", "remaining"),
    )
    last_stable = {partition.topic_partition: partition.last_stable for partition in partitions}
    starts = defaultdict(
        lambda: "starts", dict.fromkeys(plan.unnamed, "starts at its earliest: start has no offset for it")
    )
    if isinstance(pipeline.topic_names, TopicPattern):
        joining = {topic for topic, _ in plan.joining}
        starts |= {seed.topic_partition: "joins" for seed in plan.seeds if seed.topic in joining}
    for seed in plan.seeds:
        table.add_row(format_partition(seed), starts[seed.topic_partition], str(seed.next_offset), "", "", "")
    for loss in plan.losses:
        table.add_row(
            format_partition(loss), "lost", str(loss.from_offset), str(loss.until_offset), str(len(loss)), ""
        )
    for range_ in plan.ranges:
        remaining = last_stable[range_.topic_partition] - range_.until_offset
        numbers = (range_.from_offset, range_.until_offset, len(range_), remaining)
        table.add_row(format_partition(range_), "processes", *map(str, numbers))
    return table


def replay_table(pipeline: Pipeline, preview: Preview) -> Table:
    """Show the results that a replay would retract, range by range."""
    total = sum(map(len, preview.plan.ranges))
    size = f"{total} offsets, {preview.rows} rows to retract" if total else "nothing to process again"
    table = create_text_table(
        f"replay of {pipeline.name} → {pipeline.traits.target}: {size}",
        text=("partition",),
        numbers=("from", "until", "offsets", "rows retracted", "rejects retracted"),
    )
    table.add_column("of batches", overflow="fold")
    for part in preview.retracted:
        rows = "–" if part.rows is None else str(part.rows)
        numbers = (part.range.from_offset, part.range.until_offset, len(part.range), rows, part.rejects)
        table.add_row(format_partition(part.range), *map(str, numbers), _batch_ids(part.batch_ids))
    return table


def replay_notes(preview: Preview) -> list[str]:
    """Name the ranges that a replay leaves out, those that it adds, and a missing index."""
    notes = [
        f"{range_}: retention has removed it from the log; its results stay as they are"
        for range_ in preview.plan.removed
    ]
    notes += [
        f"{range_}: below the horizon of exactbatch compact; its results stay as they are"
        for range_ in preview.plan.compacted
    ]
    if preview.plan.beyond:
        notes.append(f"{beyond_text(preview.plan.beyond)}. The next advance processes them")
    notes += [
        f"{widened.range}: added, because batch {widened.batch_id} can only be replayed as a whole (lineage='batch')"
        for widened in preview.plan.widened
    ]
    if not preview.retracts:
        notes.append(
            "without a history, a replay applies its records again and retracts no rows: a row that its records no "
            "longer produce stays"
        )
    if preview.missing_index is not None:
        notes.append(recommend_index(preview.missing_index))
    return notes


def recommend_index(statement: str) -> str:
    """Recommend the index without which a replay reads the whole table."""
    return f"without an index on lineage, a replay reads the whole table. To create one: {statement}"


def describe_migration(versions: Sequence[int]) -> str:
    """Say to which versions the ledger was migrated."""
    if versions[0] == 1:
        return f"Created the ledger, version {versions[-1]}."
    return f"Upgraded the ledger from version {versions[0] - 1} to {versions[-1]}."


def build_boundaries_table(pipeline: Pipeline, boundaries: Sequence[TimeBoundary]) -> Table:
    """Show the offsets that times were resolved to."""
    table = create_text_table(
        f"time boundaries of {pipeline.name}: {len(boundaries)}",
        text=("time (UTC)", "partition"),
        numbers=("offset", "resolved (UTC)"),
    )
    for boundary in boundaries:
        at, resolved = (
            f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for time in (boundary.at, boundary.resolved_at)
        )
        table.add_row(at, format_partition(boundary), str(boundary.offset), resolved)
    return table


def build_compaction_table(pipeline: Pipeline, compaction: Compaction) -> Table:
    """Show how many changes below the horizon of each partition are dropped and kept."""
    table = create_text_table(
        f"changes of {pipeline.name} → {pipeline.traits.target}: {compaction.dropped} to drop, "
        f"{compaction.kept} to keep below the horizons",
        text=("partition",),
        numbers=("old horizon", "horizon", "dropped", "kept below it"),
    )
    for partition in compaction.partitions:
        previous = str(partition.previous_horizon) if partition.previous_horizon else "–"
        numbers = (partition.horizon, partition.dropped, partition.kept)
        table.add_row(format_partition(partition), previous, *map(str, numbers))
    return table


def merge_table(pipeline: Pipeline, merged: Sequence[MergedPartition], *, dry_run: bool) -> Table:
    """Show which partitions were merged, or would be."""
    before = sum(len(partition.partitions) for partition in merged)
    verb = "to merge" if dry_run else "merged"
    table = create_text_table(
        f"partitions of {pipeline.traits.target}: {before} {verb} into {len(merged)}",
        text=("batches",),
        numbers=("partitions", "MB", "rows"),
    )
    for partition in merged:
        rows = "" if partition.rows is None else str(partition.rows)
        table.add_row(
            f"{partition.lower} to {partition.upper - 1}",
            str(len(partition.partitions)),
            f"{partition.bytes / 1024**2:.1f}",
            rows,
        )
    return table


def pruning_lines(pipeline: Pipeline, pruning: Pruning) -> list[str]:
    """Say how many batches are folded, and what is not possible afterwards."""
    before = f"{pruning.before.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    forgotten = [_empty_runs(pruning, before)] if pruning.empty_runs else []
    if not pruning.batches:
        return [f"{pipeline.name}: no batch from before {before} is left to fold.", *forgotten]
    replays = (
        "Replays of any of their offsets: they need whole batches (lineage='batch')."
        if pipeline.traits.lineage == "batch"
        else "Replays by --batch, and by clearing their DAG runs. Replays by offsets and by time stay possible."
    )
    return [
        f"{pipeline.name}: {describe_batches(pruning)} with {describe_ranges(pruning)} "
        f"{'is' if pruning.batches == 1 else 'are'} to be folded, up to batch {pruning.newest}: committed before "
        f"{before}, or planned before then and superseded.",
        "Not possible after they are folded:",
        f"- {replays}",
        "- Finding out from the ledger which of these batches covers an offset, and the ranges of each.",
        "Their counts, rejects and resolved times stay, and audits compare their offsets as before.",
        *forgotten,
    ]


def _empty_runs(pruning: Pruning, before: str) -> str:
    have = "has" if pruning.empty_runs == 1 else "have"
    return (
        f"{describe_runs(pruning)} from before {before} {have} found nothing to process. The ledger forgets this: a "
        f"run that is cleared afterwards processes what is new."
    )


def describe_runs(pruning: Pruning) -> str:
    """Say how many DAG runs are forgotten."""
    return f"{pruning.empty_runs} {'DAG run' if pruning.empty_runs == 1 else 'DAG runs'}"


def describe_batches(pruning: Pruning) -> str:
    """Say how many batches there are."""
    return f"{pruning.batches} {'batch' if pruning.batches == 1 else 'batches'}"


def describe_ranges(pruning: Pruning) -> str:
    """Say how many ranges the batches had."""
    return f"{pruning.ranges} {'range' if pruning.ranges == 1 else 'ranges'}"


def build_reasons_table(pipeline: Pipeline, reasons: RejectReasons) -> Table:
    """Show why records were rejected, and how many for each reason."""
    table = create_text_table(
        f"rejected records of {pipeline.name}: {reasons.records}",
        text=("reason", "first"),
        numbers=("records",),
    )
    for reason in reasons.shown:
        table.add_row(escape(short(reason.reason, _REASON_SHOWN)), escape(reason.first), str(reason.records))
    if more := reasons.reasons - len(reasons.shown):
        others = reasons.records - sum(reason.records for reason in reasons.shown)
        table.add_row(f"{more} more reasons", "", str(others))
    return table


def build_rejects_table(rejects: Sequence[StoredReject]) -> Table:
    """Show rejected records, one per line."""
    table = create_text_table(
        f"the first {len(rejects)}", text=("partition",), numbers=("offset", "bytes", "batch")
    )
    table.add_column("reason", overflow="fold")
    for reject in rejects:
        size = "null" if reject.bytes is None else str(reject.bytes)
        numbers = (str(reject.offset), size, str(reject.batch_id))
        table.add_row(format_partition(reject), *numbers, escape(short(reject.reason, _REASON_SHOWN)))
    return table


def build_status_table(status: PipelineStatus) -> Table:
    """Show the stored offset and the log of each partition, and horizons if there are any."""
    horizon = ("horizon",) if any(partition.horizon is not None for partition in status.partitions) else ()
    table = create_text_table(
        f"pipeline {status.pipeline.name} → {status.pipeline.traits.target}",
        text=("partition",),
        numbers=("stored", "last stable", "high watermark", "lag", "earliest", *horizon, "committed (UTC)"),
    )
    for partition in status.partitions:
        log, stored = partition.log, str(partition.stored.next_offset) if partition.stored else "–"
        numbers = (log.last_stable, log.high_watermark, partition.lag, log.earliest)
        horizons = ["–" if partition.horizon is None else str(partition.horizon) for _ in horizon]
        table.add_row(
            format_partition(log), stored, *map(str, numbers), *horizons, time_text(partition.committed_at)
        )
    return table


def build_batches_table(status: PipelineStatus) -> Table:
    """Show the newest batches."""
    table = create_text_table(
        "newest batches",
        text=("batch", "kind", "origin", "status"),
        numbers=("records", "rows", "rejected", "planned (UTC)"),
    )
    partly = {batch.batch_id: batch for batch in status.partly_committed}
    for batch in status.batches:
        counted, state = partly.get(batch.batch_id, batch), str(batch.status)
        if isinstance(counted, PartlyCommitted):
            state += f", {counted.committed} of {counted.ranges} ranges committed"
        counts = (counted.records, counted.rows, counted.rejected)
        cells = ["–" if count is None else str(count) for count in counts]
        table.add_row(
            str(batch.batch_id), batch.kind, batch.origin, state, *cells, time_text(batch.planned_at)
        )
    return table


def audit_tables(pipeline: Pipeline, report: AuditReport) -> list[Table]:
    """Show the comparison of the log with each target. Columns that are usually zero appear only if they are not."""
    usual = ("records", "rows")
    tables = []
    for part in pipeline.traits.parts:
        partitions = [each for each in report.partitions if each.target in (None, part.target)]
        rare = tuple(
            name
            for name in ("rejected", "tombstones", "elsewhere", "lost", "removed", "compacted")
            if any(getattr(partition, name) for partition in partitions)
        )
        kinds = [
            kind
            for kind in ("missing", "duplicated", "unexpected", "gaps", "changed")
            if _is_shown(report, kind)
        ]
        table = create_text_table(
            f"audit of {pipeline.name} → {part.target}",
            text=("partition",),
            numbers=("from", "until", *usual, *rare, *kinds),
        )
        for partition in partitions:
            counts = [getattr(partition, name) for name in ("from_offset", "until_offset", *usual, *rare)]
            differences = [_finding(partition.findings[kind]) for kind in kinds]
            table.add_row(format_partition(partition), *map(str, counts), *differences)
        tables.append(table)
    return tables


def verdict(report: AuditReport) -> Text:
    """Summarize an audit: exact, or the differences."""
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


def _is_shown(report: AuditReport, kind: str) -> bool:
    """True for the kinds that every audit shows, and for differences."""
    return kind in ("missing", "duplicated", "unexpected") or report.findings[kind] > 0


def _at(finding: Differences) -> str:
    return f", at offset {', '.join(map(str, finding.first))}" if finding.first else ""


def _batch_ids(batch_ids: Sequence[int]) -> str:
    """List the first few, and count the others."""
    shown = ", ".join(map(str, batch_ids[:_BATCHES_SHOWN]))
    more = len(batch_ids) - _BATCHES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown or "none: not covered yet"


def _finding(finding: Differences) -> str:
    return f"[bold red]{finding.count}[/]" if finding.count else "0"
