"""What pipelines with one target may not do to the rows of each other."""

from collections.abc import Sequence

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.sink import EPOCH, UNCHANGED, SinkTraits
from exactbatch.sinks.tables.lineage_table import LineageTable


def check_shared_columns(
    cursor: Cursor,
    traits: SinkTraits,
    lineage_table: LineageTable,
    columns: Sequence[Column],
    pipelines: Sequence[str],
) -> None:
    """Raise TargetMismatch if the changes have columns that only other pipelines with this target write.

    A replay would write the changes of its records without these columns.
    """
    own_columns = {
        column.name
        for column in (*traits.staged_columns(columns), *lineage_table.lineage_columns, UNCHANGED, EPOCH)
    }
    if pipelines and (extra := sorted(lineage_table.table.columns(cursor).keys() - own_columns)):
        raise TargetMismatch(
            f"table {lineage_table.table.spec}: this pipeline does not write the columns "
            f"{', '.join(extra)}. It shares the target {traits.target} with {', '.join(pipelines)}: rows would "
            f"lose the values of these columns. Nothing was written. Let all of these pipelines write the "
            f"same columns, or give them different targets."
        )
