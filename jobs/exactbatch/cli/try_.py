"""`exactbatch try`."""

from typing import Annotated, Any, Final

import pyarrow as pa
import typer
from rich.markup import escape
from rich.text import Text

from exactbatch.cli.console import AsJson, err, out, print_json
from exactbatch.cli.load_pipeline import Reference, load
from exactbatch.cli.progress import counting
from exactbatch.cli.sample_tables import ROWS, build_rows_table, sample_text
from exactbatch.cli.table_layout import short
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.formats import WithKeyAndHeaders
from exactbatch.formats.registry.frames import framed
from exactbatch.kafka.sample import Bounds
from exactbatch.operations.try_records import Trial, try_records
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow_values import as_dicts
from exactbatch.sampling.suggestions import RejectGroup, grouped, suggestion

_GROUPS: Final = 20
_VALUE: Final = 60  # characters
_REASON: Final = 160


def try_(
    reference: Reference,
    records: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many of the newest records to decode.")
    ] = 1000,
    as_json: AsJson = False,
) -> None:
    """Decode the newest records, and write nothing. Exit status 3 if some would be rejected."""
    pipeline, settings = load(reference)
    with counting(f"decoding {pipeline.name}") as update:
        trial = try_records(pipeline, settings, Bounds(records), update)
    groups = _groups(pipeline, trial)
    if as_json:
        print_json(_as_json(pipeline, trial, groups))
    else:
        _show(trial, groups)
    if trial.rejects or trial.refused:
        raise typer.Exit(CHECK_FAILED)


def _groups(pipeline: Pipeline, trial: Trial) -> list[dict[str, Any]]:
    """Return the rejects by reason, each with an example and the change that would accept it."""
    rejected = {(each.topic, each.partition, each.offset) for each in trial.rejects}
    value_format = pipeline.value.value if isinstance(pipeline.value, WithKeyAndHeaders) else pipeline.value
    values = {
        (range_.topic, range_.partition, offset): value
        for range_, records in trial.sample.parts
        for offset, value in zip(
            records.offset_array.tolist(),
            framed(value_format, "value", records.values(), records).values.to_pylist(),
            strict=True,
        )
        if value is not None
    }
    accepted = pa.array([value for place, value in values.items() if place not in rejected], pa.binary())
    found = []
    for group in grouped([each.reason for each in trial.rejects])[:_GROUPS]:
        members = [trial.rejects[index] for index in group.indexes]
        first = members[0]
        if first.by_target:
            change = _change_of_target(pipeline, group, exists=trial.target_exists)
        else:
            places = [(each.topic, each.partition, each.offset) for each in members]
            refused = pa.array([values[place] for place in places if place in values], pa.binary())
            change = suggestion(pipeline.value, group, refused, accepted)
        found.append(
            {
                "count": len(members),
                "column": group.column,
                "reason": group.reason,
                "topic": first.topic,
                "partition": first.partition,
                "offset": first.offset,
                "value": _decode_text(first.value),
                "change": change,
            }
        )
    return found


def _change_of_target(pipeline: Pipeline, group: RejectGroup, *, exists: bool) -> str:
    """Return the change for values that decode, and that the target or the column's type cannot hold."""
    column = next((each for each in pipeline.value.columns if each.name == group.column), None)
    if column is None and group.reason.startswith("check "):
        return "change the check, or correct what sends it"
    if column is None:
        return "correct what sends it, or allow for such records with max_rejects"
    if exists and column.staged_type == column.type:
        return f'alter table {pipeline.traits.target} alter column "{column.name}" type {column.type}'
    return f"declare {column.name} text" + (", in the pipeline and in the target" if exists else "")


def _decode_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _show(trial: Trial, groups: list[dict[str, Any]]) -> None:
    out.print(f"Decoded the newest {escape(sample_text(trial.sample))}. Nothing was written.")
    counts = (
        (trial.with_rows, "rows"),
        (trial.tombstones, "tombstones"),
        (trial.dropped, "without a row"),
        (len(trial.rejects), "would be rejected"),
    )
    out.print(
        ", ".join(f"{count:,} {what}" for count, what in counts if count or what == "would be rejected")
        + "\n"
    )
    if len(trial.rows):
        out.print(
            build_rows_table(
                trial.rows.select(trial.rows.schema.names[: -len(LINEAGE_NAMES)]), "decoded rows"
            )
        )
    for group in groups:
        place = f"{group['topic']}[{group['partition']}] offset {group['offset']}"
        out.print(Text.assemble((f"{group['count']:,} × ", "bold red"), short(group["reason"], _REASON)))
        out.print(Text(f"    the first: {place}: {short(group['value'], _VALUE)}"))
        out.print(Text.assemble(("    → ", "bold"), group["change"]))
    if trial.refused is not None:
        out.print(Text.assemble(("The batch would not start: ", "bold red"), trial.refused))
    if trial.unchecked is not None:
        err.print(f"[dim]Not compared with the target: {escape(trial.unchecked)}[/dim]")


def _as_json(pipeline: Pipeline, trial: Trial, groups: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "records": trial.records,
        "with_rows": trial.with_rows,
        "tombstones": trial.tombstones,
        "dropped": trial.dropped,
        "rejected": len(trial.rejects),
        "groups": groups,
        "rows": as_dicts(trial.rows.slice(0, ROWS)),
        "refused": trial.refused,
        "unchecked": trial.unchecked,
    }
