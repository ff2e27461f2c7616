"""The rows that a statement is to write, with the records that they come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.values.cast import Cast

# The record of a row; null for a row that no record of the batch gives. No column of a target has these names.
PLACE: Final = ("exactbatch topic", "exactbatch partition", "exactbatch offset")
_LINEAGE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")
PLACE_OF_LINEAGE: Final = sql.SQL(", ").join(
    sql.SQL("{} as {}").format(sql.Identifier(lineage), sql.Identifier(place))
    for lineage, place in zip(_LINEAGE, PLACE, strict=True)
)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The rows that a statement is to write into a table.

    rows      a query for them, with the columns of `names` in the table's types and those of PLACE
    names     the columns that are written
    identity  columns that tell these rows from each other, unless a record gives several
    replaces  True if a row takes the place of the table's row with the same identity
    """

    rows: sql.Composable
    names: Sequence[str]
    identity: Sequence[str]
    replaces: bool


def appended(casts: Sequence[Cast], lineage: Sequence[str], staged: StagedRows) -> Candidates:
    """Return staged rows that are inserted with their lineage, which names their records."""
    values = [
        sql.SQL("{} as {}").format(staged.value(cast), sql.Identifier(cast.column.name)) for cast in casts
    ]
    query = sql.SQL(
        "select {values}, {lineage}, {batch_id}::bigint as batch_id, {place} from {staging} where {accepted}"
    )
    return Candidates(
        query.format(
            values=sql.SQL(", ").join(values),
            lineage=sql.SQL(", ").join(map(sql.Identifier, lineage)),
            batch_id=sql.Literal(staged.batch_id),
            place=PLACE_OF_LINEAGE,
            staging=staged.table,
            accepted=staged.accepted,
        ),
        names=(*(cast.column.name for cast in casts), *lineage, "batch_id"),
        identity=_LINEAGE,
        replaces=False,
    )
