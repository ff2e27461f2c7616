"""Compare values as Postgres compares them, where that depends on nothing but the values."""

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.testing.loaded import Row

_ORDERED: Final = {
    "smallint",
    "integer",
    "bigint",
    "real",
    "double precision",
    "boolean",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
}
# Postgres writes a uuid like this; another text may be the same uuid.
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def needs_postgres(fact: str) -> ConfigurationError:
    """Return the error for what load() cannot know without a database. The fact is a clause without a full stop."""
    return ConfigurationError(
        f"{fact}. Give load() the connection string of a database for tests: load(…, postgres='host=… dbname=…')."
    )


def equal_as(column: Column, value: Any) -> Hashable:
    """Return what is equal for two values of a column if Postgres calls them equal. Raises ConfigurationError if
    Postgres alone knows it."""
    if value is None:
        return None
    if column.type == "uuid" and _UUID.fullmatch(value):
        return str(value)
    if column.type.startswith("character varying("):
        return str(value)
    if column.element is not None or column.staged_type != column.type:
        raise needs_postgres(
            f"column {column.name!r}: whether two values of type {column.type} are equal is known to Postgres alone"
        )
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0  # -0 is 0
    return value  # type: ignore[no-any-return]


def ordered_as(column: Column, value: Any) -> tuple[Any, ...]:
    """Return what orders the values of a column as Postgres does, null being the least. Raises ConfigurationError if
    Postgres alone knows the order, as of text, which a collation decides."""
    decimal = column.type.startswith("numeric(") and column.staged_type == column.type
    if column.type not in _ORDERED and not decimal:
        raise needs_postgres(
            f"column {column.name!r}: the order of values of type {column.type} is known to Postgres alone"
        )
    if isinstance(value, str):
        raise needs_postgres(f"column {column.name!r}: Python cannot hold the time {value}")
    if value is None:
        return (0,)
    if isinstance(value, float) and value != value:
        return (2,)
    return (1, value)


def sorted_by(names: Sequence[str], rows: Iterable[Row]) -> list[Row]:
    """Return rows in an order that depends on these columns alone, null first."""
    return sorted(rows, key=lambda row: [_sortable(row[name]) for name in names])


def _sortable(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float) and value != value:
        return (3,)
    return (2 if isinstance(value, str) else 1, value)
