"""Find the batches that the results of ranges come from, also where batches were folded."""

from collections.abc import Sequence

from exactbatch.coverage import Coverage, covered_parts
from exactbatch.ledger.ledger import Ledger
from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import KeepsLatest
from exactbatch.sinks.staged_rows import Part
from exactbatch.sinks.writers import find_writer


def find_parts(
    cursor: Cursor, pipeline: Pipeline, ranges: Sequence[OffsetRange], covered: Sequence[Covered]
) -> list[Part]:
    """Return each range with the batches that its results come from, ascending; `covered` is its coverage.

    Where batches were folded, these are the folded batches of the pipeline that have rows or rejects in the range.
    With lineage="batch", rows do not tell: folded batches are left out.
    """
    parts: list[Part] = [*covered_parts(ranges, covered)]
    folded = Coverage(row for row in covered if row.kind == "pruned")
    positions = [position for position, range_ in enumerate(ranges) if folded.overlapping(range_)]
    if not positions or pipeline.traits.lineage == "batch":
        return parts
    over_folded = [ranges[position] for position in positions]
    writer = find_writer(pipeline.traits)
    tables = [writer.lineage_table, *([writer.markers] if isinstance(writer, KeepsLatest) else [])]
    with_rows = zip(*(table.batches_in(cursor, over_folded) for table in tables), strict=True)
    ledger = Ledger(cursor.connection)
    with_rejects = ledger.rejects.find_batches(pipeline, over_folded)
    found = [with_rejects.get(number, set()).union(*ids) for number, ids in enumerate(with_rows)]
    known = ledger.batches.find_folded(pipeline, set().union(*found))
    for position, ids in zip(positions, found, strict=True):
        range_, named = parts[position]
        parts[position] = range_, tuple(sorted({*named, *(ids & known)}))
    return parts
