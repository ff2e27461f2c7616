"""Show a sample in `exactbatch new` and `exactbatch try`: columns, rows, and records that are rejected."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from exactbatch.cli.table_layout import create_text_table, short
from exactbatch.columns import LINEAGE
from exactbatch.kafka.sample import Sample
from exactbatch.postgres.arrow_values import as_dicts
from exactbatch.sampling.proposal import Proposal

ROWS: Final = 10
_COLUMNS: Final = 8  # of a row that are shown side by side
_CHARACTERS: Final = 24  # of a value
_BROKEN: Final = 3


def sample_text(found: Sample) -> str:
    """Say how much of the log was read."""
    topics = sorted({each.topic for each in found.partitions})
    text = f"{len(found):,} records of {', '.join(topics[:3])}{' …' if len(topics) > 3 else ''}"
    text += f", of {found.offsets:,} offsets in {len(found.partitions):,} partition{'s' * (len(found.partitions) != 1)}"
    if len(found.read) < sum(each.last_stable > each.earliest for each in found.partitions):
        text += f"; {len(found.read)} partitions were read, evenly spread"
    if found.ended_by is not None:
        text += f"; sampling stopped at the limit of {found.ended_by}"
    return text


def find_place(found: Sample, index: int) -> tuple[str, int, int]:
    """Return topic, partition and offset of a record of a sample."""
    for range_, records in found.parts:
        if index < len(records):
            return range_.topic, range_.partition, int(records.offset_array[index])
        index -= len(records)
    raise IndexError(index)


def proposal_view(proposal: Proposal, found: Sample) -> RenderableType:
    """Show the proposed table, decoded rows, and what was decided."""
    traits = proposal.pipeline.traits
    table = create_text_table(
        f"{traits.target}, as the first batch creates it",
        text=("column", "type", "null in", "why"),
        numbers=(),
    )
    drafted = {column.name: column for column in proposal.columns}
    for column in proposal.pipeline.value.columns:
        draft = drafted.get(column.name)
        nulls = f"{draft.nulls:,}" if draft is not None and draft.nulls else ""
        from_ = f"from {draft.path}" if draft is not None and draft.path is not None else ""
        why = "; ".join(filter(None, (from_, draft.reasons if draft is not None else "")))
        key = " (key)" if column.name in traits.key_columns else ""
        table.add_row(escape(column.name + key), column.type, nulls, escape(why))
    lineage = ", ".join(column.name for column in LINEAGE)
    where = "in its table of changes" if traits.is_derived else "in each row"
    lines: list[RenderableType] = [
        Text(f"Sampled {sample_text(found)}. The values are {proposal.label}.\n"),
        table,
        Text(f"Lineage {where}: {lineage}.\n"),
        build_rows_table(proposal.decoded.rows, "decoded rows"),
    ]
    lines += [Text.assemble(("· ", "bold"), note) for note in proposal.notes]
    if proposal.broken:
        lines.append(
            Text(
                f"no schema fits {len(proposal.broken):,} of the sampled records; a batch that reads them fails unless "
                f"max_rejects allows for them:",
                "yellow",
            )
        )
    for index, reason in proposal.broken[:_BROKEN]:
        topic, partition, offset = find_place(found, index)
        lines.append(Text(f"  {topic}[{partition}] offset {offset}: {reason}"))
    return Group(*lines)


def build_rows_table(rows: pa.RecordBatch, title: str) -> RenderableType:
    """Show the first rows, with as many columns as fit side by side."""
    names = [name for name in rows.schema.names if name not in ("deleted", "unchanged_columns")]
    shown = names[:_COLUMNS]
    table = create_text_table(f"{min(len(rows), ROWS)} {title}", text=tuple(map(escape, shown)), numbers=())
    for row in as_dicts(rows.slice(0, ROWS).select(shown)):
        table.add_row(*(escape(short(value, _CHARACTERS)) for value in row.values()))
    if len(names) == len(shown):
        return table
    return Group(table, Text(f"and {len(names) - len(shown):,} more columns\n"))


def proposal_as_json(
    proposal: Proposal, found: Sample, contents: Mapping[Path, str], *, is_written: bool
) -> dict[str, Any]:
    """Return what proposal_view() shows, for --json."""
    traits = proposal.pipeline.traits
    drafted = {column.name: column for column in proposal.columns}
    columns = [
        {
            "name": column.name,
            "type": column.type,
            "from": _path(drafted.get(column.name)),
            "nulls": drafted[column.name].nulls if column.name in drafted else None,
            "why": drafted[column.name].reasons if column.name in drafted else "",
        }
        for column in proposal.pipeline.value.columns
    ]
    return {
        "pipeline": proposal.pipeline.name,
        "topics": list(proposal.pipeline.known_topics(())),
        "format": proposal.label,
        "target": traits.target,
        "sink": traits.sink.kind.name,
        "key": list(traits.key_columns),
        "columns": columns,
        "rows": as_dicts(proposal.decoded.rows.slice(0, ROWS)),
        "notes": list(proposal.notes),
        "sampled": len(found),
        "offsets": found.offsets,
        "broken": [_broken(found, index, reason) for index, reason in islice(proposal.broken, 100)],
        "files": {str(path): text for path, text in contents.items()},
        "written": is_written,
    }


def _path(column: Any) -> str | None:
    return None if column is None or column.path is None else str(column.path)


def _broken(found: Sample, index: int, reason: str) -> dict[str, Any]:
    topic, partition, offset = find_place(found, index)
    return {"topic": topic, "partition": partition, "offset": offset, "reason": reason}
