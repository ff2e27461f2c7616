"""What an aggregate measures, first over the rows of a batch and then over the partial results of batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types

# A sum has the type that Postgres's own sum() has, but for real, whose sum would keep six digits.
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
    """How many rows; with a column, how many rows in which it is not null."""

    column: str | None = None

    def __post_init__(self) -> None:
        check_types(self)

    def __str__(self) -> str:
        return f"count({self.column or '*'})"

    def type_of(self, columns: Mapping[str, Column]) -> str:
        """The type of the count. Raises ConfigurationError when the column is not there."""
        if self.column is not None:
            _column(self.column, columns, str(self))
        return "bigint"

    def over_rows(self, value: sql.Composable, _type: str) -> sql.Composable:
        """The partial result, over the value of the column in staged rows."""
        return sql.SQL("count({})").format(value)

    def over_partials(self, partial: sql.Composable, _type: str) -> sql.Composable:
        """The result, over partial ones."""
        return sql.SQL("sum({})").format(partial)


@dataclass(frozen=True)
class Sum:
    """The sum of a column of numbers; null where there is none.

    It is exact, a bigint for smallint and integer and a numeric for bigint and numeric, but for floating point
    numbers, whose sum is a double precision and depends on their order in its last digits.
    """

    column: str

    def __post_init__(self) -> None:
        check_types(self)

    def __str__(self) -> str:
        return f"sum({self.column})"

    def type_of(self, columns: Mapping[str, Column]) -> str:
        """The type of the sum. Raises ConfigurationError when the column is not there, or holds no numbers."""
        found = _column(self.column, columns, str(self))
        if (type_ := _SUMS.get(_plain(found))) is None:
            raise _refused(str(self), found, "numbers")
        return type_

    def over_rows(self, value: sql.Composable, type_: str) -> sql.Composable:
        """The partial result, over the value of the column in staged rows."""
        # Postgres adds integers up in 64 bits without a look at overflow, but bigints in 128.
        return sql.SQL("sum({}::{})").format(value, sql.SQL(type_))

    def over_partials(self, partial: sql.Composable, type_: str) -> sql.Composable:
        """The result, over partial ones."""
        # The same partial results have to give the same sum, to the last digit, whenever it is computed.
        return sql.SQL("sum({} order by batch_id)" if type_ == "double precision" else "sum({})").format(
            partial
        )


@dataclass(frozen=True)
class _Extreme:
    function: ClassVar[str]

    column: str

    def __post_init__(self) -> None:
        check_types(self)

    def __str__(self) -> str:
        return f"{self.function}({self.column})"

    def type_of(self, columns: Mapping[str, Column]) -> str:
        """The type of the value. Raises ConfigurationError when the column is not there, or has no order."""
        found = _column(self.column, columns, str(self))
        if _plain(found) not in _ORDERED:
            raise _refused(str(self), found, "numbers, dates, times or text")
        return found.type

    def over_rows(self, value: sql.Composable, type_: str) -> sql.Composable:
        """The partial result, over the value of the column in staged rows."""
        parts = {"function": sql.SQL(self.function), "value": value, "type": sql.SQL(type_)}
        # Among equal values it must not be the order of the rows that decides: 1.0 or 1.00, 0 or -0.
        if type_ == "numeric":
            return sql.SQL(
                "(({function}(array[{value}, scale({value})::numeric]) filter (where {value} is not null)))[1]"
            ).format(**parts)
        if type_ in ("real", "double precision"):
            return sql.SQL("({function}({value}) + 0::{type})").format(**parts)
        return sql.SQL("{function}({value})").format(**parts)

    def over_partials(self, partial: sql.Composable, type_: str) -> sql.Composable:
        """The result, over partial ones."""
        return self.over_rows(partial, type_)


@dataclass(frozen=True)
class Min(_Extreme):
    """The least value of a column: a number, a date, a time or a text; null where there is none."""

    function: ClassVar[str] = "min"


@dataclass(frozen=True)
class Max(_Extreme):
    """The greatest value of a column: a number, a date, a time or a text; null where there is none."""

    function: ClassVar[str] = "max"


Measure = Count | Sum | Min | Max


def _column(name: str, columns: Mapping[str, Column], measure: str) -> Column:
    if name not in columns:
        raise ConfigurationError(
            f"{measure}: expected one of the pipeline's columns, {', '.join(columns)}, found {name!r}"
        )
    return columns[name]


def _plain(column: Column) -> str:
    """The type without precision and scale."""
    return "numeric" if column.type.startswith("numeric(") and column.element is None else column.type


def _refused(measure: str, found: Column, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"{measure}: expected a column of {expected}, found {found.name} of type {found.type}"
    )
