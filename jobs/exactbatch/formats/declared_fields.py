"""Check what specifications declare: columns, what their paths and types imply, units, addresses."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from exactbatch.columns import Column, Field, is_vector, parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.member_paths import Path

BinaryText = Literal["base64", "base64-url-safe", "hex"]

_JSON: Final = {"json", "jsonb"}
_PAYLOAD: Final = "payload"
_UNFINDABLE: Final = re.compile(r'[\\"\x00-\x1f]')
_TIMESTAMPS: Final = {"timestamp with time zone", "timestamp without time zone"}
_UNITS: Final = {"s", "ms", "us", "ns"}


def one_column(text: str, type_: str) -> Column:
    """Parse the name of a column, which then has the type `type_`, or its name and type, such as `"id bigint"`.

    Raises ConfigurationError for several columns, and what parse_columns() raises.
    """
    if len(text.split()) <= 1:
        return Column(text, type_)
    columns = parse_columns(text)
    if len(columns) > 1:
        raise ConfigurationError(
            f'expected one column, as in "id bigint", found {len(columns)} in {text!r}. Use Csv or Json for several.'
        )
    return columns[0]


def check_arrays(fields: Iterable[Field]) -> None:
    """Raise ConfigurationError unless the arrays that give rows are one array, or arrays inside of one another."""
    deepest = deepest_path(fields)
    for each in fields:
        arrays = each.path.arrays
        if arrays != deepest.arrays[: len(arrays)]:
            raise ConfigurationError(
                f"column {each.column.name!r}, from '{each.path}': its array is separate from that of "
                f"'{deepest}': neither is inside the other, so their elements cannot form rows together. Load "
                f"them with two pipelines, or take one of the arrays as jsonb."
            )


def check_whole(fields: Iterable[Field]) -> None:
    """Raise ConfigurationError for a column that takes the whole value and cannot hold any JSON."""
    for each in fields:
        if each.path.parts == ((),) and each.column.type not in ("json", "jsonb"):
            raise ConfigurationError(
                f"column {each.column.name!r}, {each.column.type}, from '$': only json and jsonb take the whole value. "
                f"Declare the column as jsonb, or name a member."
            )


def deepest_path(fields: Iterable[Field]) -> Path:
    """Return the path with the most arrays that give rows."""
    return max((each.path for each in fields), key=lambda path: len(path.parts))


def gives_rows_of_elements(fields: Iterable[Field]) -> bool:
    """True if an object gives a row for each element of an array."""
    return any(each.path.arrays for each in fields)


def is_kept_as_text(column: Column) -> bool:
    """True if a column takes the text of its field: json, jsonb, vectors, and numeric beyond Arrow's decimals."""
    element = column.element or column.type
    is_numeric = element.startswith("numeric") and Column(column.name, element).staged_type == "text"
    return is_numeric or element in _JSON or is_vector(element)


def check_member_names(fields: Iterable[Field]) -> None:
    """Raise ConfigurationError for a column that is kept as text, or has a default, and takes a member whose name
    msgspec cannot look up."""
    for field in fields:
        column = field.column
        names = [step for steps in field.path.parts for step in steps if isinstance(step, str)]
        if (is_kept_as_text(column) or field.default is not None) and any(map(_UNFINDABLE.search, names)):
            raise ConfigurationError(
                f"column {column.name!r}, {column.type}: a name with backslashes, double quotes or control characters "
                f"is not supported for this type, or with a default. Rename the field, or decode the values with "
                f"Custom."
            )


def check_epoch(epoch: Mapping[str, str], columns: Sequence[Column]) -> None:
    """Raise ConfigurationError unless `epoch` gives timestamp columns one of the units s, ms, us, ns, and date
    columns d."""
    types = {column.name: column.type for column in columns}
    for name, unit in epoch.items():
        units = _UNITS if types.get(name) in _TIMESTAMPS else {"d"} if types.get(name) == "date" else set()
        if unit not in units:
            raise ConfigurationError(
                f"epoch: expected one of the units s, ms, us and ns for a column of type timestamp or timestamptz, or "
                f"d for a date, found {unit!r} for {name!r}, {types.get(name, 'which is not a column')}"
            )


def reads_payloads(fields: Sequence[Field]) -> bool:
    """True if a column takes a member of the payload, and not only the payload."""
    paths = [each.path.parts for each in fields]
    return any(parts[0][:1] == (_PAYLOAD,) and (len(parts) > 1 or len(parts[0]) > 1) for parts in paths)
