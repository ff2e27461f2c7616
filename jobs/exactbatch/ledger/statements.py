"""Load the ledger's SQL by name, and convert between rows and dataclasses."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib import resources
from typing import Any, Final, TypeVar

import aiosql

from exactbatch.ledger.definition import Definition
from exactbatch.ledger.row_types import Batch, JoinedTopic, Stream
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import Connection

Row = TypeVar("Row")

# In a query, the name of a class in braces stands for the columns that are its fields, and "Covered" for these
# expressions.
_COLUMNS: Final = {
    row.__name__: ", ".join(field.name for field in fields(row))
    for row in (Batch, Definition, JoinedTopic, OffsetRange, Stream)
} | {
    "Covered": "c.topic, c.topic_id, c.partition, lower(c.offsets) as from_offset, "
    "upper(c.offsets) as until_offset, c.kind, c.batch_id, c.newest_batch_id",
}


def load_queries(name: str) -> Any:
    """Load the statements of queries/<name>.sql, as an object with a method for each."""
    text = (resources.files("exactbatch.ledger") / "queries" / f"{name}.sql").read_text(encoding="utf-8")
    for row, names in _COLUMNS.items():
        text = text.replace(f"{{{row}}}", names)
    return aiosql.from_str(text, "psycopg2", mandatory_parameters=False)


def read_row(type_: type[Row], row: Any) -> Row:
    """Convert a named tuple into a dataclass with the same fields."""
    return type_(**row._asdict())


def read_rows(type_: type[Row], rows: Iterable[Any]) -> list[Row]:
    """Convert named tuples into dataclasses with the same fields."""
    return [read_row(type_, row) for row in rows]


def columns(rows: Sequence[Any], *names: str) -> dict[str, list[Any]]:
    """Return the fields `names` of all rows as lists, which a statement takes apart with unnest()."""
    return {name: [getattr(row, name) for row in rows] for name in names}


class Store:
    """Base of the stores: calls on one connection, whose transactions the caller begins and ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
