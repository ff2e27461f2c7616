"""The functions of an Aggregate, and the types of their results. function_sql.py has their SQL."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types

# A sum has the type of Postgres's sum(), except for real, whose sum would keep only six digits.
_SUMS: Final = {
    "smallint": "bigint",
    "integer": "bigint",
    "bigint": "numeric",
    "numeric": "numeric",
    "real": "double precision",
    "double precision": "double precision",
}
_ORDERED: Final = {*_SUMS, "text", "date", "timestamp without time zone", "timestamp with time zone"}


@dataclass(frozen=True)
class Count:
    """The number of rows; with a column, the number of rows in which it is not null."""

    column: str | None = None

    def __post_init__(self) -> None:
        check_types(self)

    def __str__(self) -> str:
        return f"count({self.column or '*'})"

    def find_type(self, columns: Mapping[str, Column]) -> str:
        """Return the type of the count. Raises ConfigurationError if the column is missing."""
        if self.column is not None:
            _column(self.column, columns, str(self))
        return "bigint"


@dataclass(frozen=True)
class Sum:
    """The sum of a column of numbers; null if all are null.

    The sum is exact: a bigint for smallint and integer, a numeric for bigint and numeric. Only the sum of floating
    point numbers is a double precision, whose last digits depend on their order.
    """

    column: str

    def __post_init__(self) -> None:
        check_types(self)

    def __str__(self) -> str:
        return f"sum({self.column})"

    def find_type(self, columns: Mapping[str, Column]) -> str:
        """Return the type of the sum. Raises ConfigurationError if the column is missing or not numeric."""
        column = _column(self.column, columns, str(self))
        if (type_ := _SUMS.get(_plain(column))) is None:
            raise _refused(str(self), column, "numbers")
        return type_


@dataclass(frozen=True)
class _Extreme:
    function: ClassVar[str]

    column: str

    def __post_init__(self) -> None:
        check_types(self)

    def __str__(self) -> str:
        return f"{self.function}({self.column})"

    def find_type(self, columns: Mapping[str, Column]) -> str:
        """Return the type of the value. Raises ConfigurationError if the column is missing or has no order."""
        column = _column(self.column, columns, str(self))
        if _plain(column) not in _ORDERED:
            raise _refused(str(self), column, "numbers, dates, times or text")
        return column.type


@dataclass(frozen=True)
class Min(_Extreme):
    """The least value of a column of numbers, dates, times or text; null if all are null."""

    function: ClassVar[str] = "min"


@dataclass(frozen=True)
class Max(_Extreme):
    """The greatest value of a column of numbers, dates, times or text; null if all are null."""

    function: ClassVar[str] = "max"


AggregateFunction = Count | Sum | Min | Max


def _column(name: str, columns: Mapping[str, Column], function: str) -> Column:
    if name not in columns:
        raise ConfigurationError(
            f"{function}: expected one of the pipeline's columns, {', '.join(columns)}, found {name!r}"
        )
    return columns[name]


def _plain(column: Column) -> str:
    """Return the type without precision and scale."""
    return "numeric" if column.type.startswith("numeric(") and column.element is None else column.type


def _refused(function: str, column: Column, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"{function}: expected a column of {expected}, found {column.name} of type {column.type}"
    )
