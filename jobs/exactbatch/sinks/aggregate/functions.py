"""The functions of an Aggregate: over the rows of a batch, over the partial results of batches, and of two results.

Not all functions can add a partial result to the result of the earlier ones: a floating-point sum depends on their
order, and of texts that a collation considers equal the order decides as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from psycopg2 import sql

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

    def type_of(self, columns: Mapping[str, Column]) -> str:
        """Return the type of the count. Raises ConfigurationError if the column is missing."""
        if self.column is not None:
            _column(self.column, columns, str(self))
        return "bigint"

    def over_rows(self, value: sql.Composable, _type: str) -> sql.Composable:
        """Return the partial result over staged rows; `value` is the column's value in one."""
        return sql.SQL("count({})").format(value)

    def over_partials(self, partial: sql.Composable, _type: str) -> sql.Composable:
        """Return the result over partial results."""
        return sql.SQL("sum({})").format(partial)

    def can_add(self, _type: str) -> bool:
        """True if added() gives the same as over_partials()."""
        return True

    def added(self, result: sql.Composable, partial: sql.Composable, _type: str) -> sql.Composable:
        """Return the result of earlier partial results and of one more."""
        return _sum_of(result, partial)


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

    def type_of(self, columns: Mapping[str, Column]) -> str:
        """Return the type of the sum. Raises ConfigurationError if the column is missing or not numeric."""
        column = _column(self.column, columns, str(self))
        if (type_ := _SUMS.get(_plain(column))) is None:
            raise _refused(str(self), column, "numbers")
        return type_

    def over_rows(self, value: sql.Composable, type_: str) -> sql.Composable:
        """Return the partial result over staged rows; `value` is the column's value in one."""
        # Postgres sums integers in 64 bits without checking for overflow, but bigints in 128.
        return sql.SQL("sum({}::{})").format(value, sql.SQL(type_))

    def over_partials(self, partial: sql.Composable, type_: str) -> sql.Composable:
        """Return the result over partial results."""
        # The same partial results must give the same sum, to the last digit, whenever it is computed.
        return sql.SQL("sum({} order by batch_id)" if type_ == "double precision" else "sum({})").format(
            partial
        )

    def can_add(self, type_: str) -> bool:
        """True if added() gives the same as over_partials()."""
        return type_ != "double precision"

    def added(self, result: sql.Composable, partial: sql.Composable, _type: str) -> sql.Composable:
        """Return the result of earlier partial results and of one more."""
        return _sum_of(result, partial)


@dataclass(frozen=True)
class _Extreme:
    function: ClassVar[str]
    # The function for two values, and how the scales of equal numerics compare if the first is the result.
    of_two: ClassVar[sql.SQL]
    first: ClassVar[sql.SQL]

    column: str

    def __post_init__(self) -> None:
        check_types(self)

    def __str__(self) -> str:
        return f"{self.function}({self.column})"

    def type_of(self, columns: Mapping[str, Column]) -> str:
        """Return the type of the value. Raises ConfigurationError if the column is missing or has no order."""
        column = _column(self.column, columns, str(self))
        if _plain(column) not in _ORDERED:
            raise _refused(str(self), column, "numbers, dates, times or text")
        return column.type

    def over_rows(self, value: sql.Composable, type_: str) -> sql.Composable:
        """Return the partial result over staged rows; `value` is the column's value in one."""
        parts = {"function": sql.SQL(self.function), "value": value, "type": sql.SQL(type_)}
        # Among equal values, such as 1.0 and 1.00, or 0 and -0, the order of the rows must not decide.
        if type_ == "numeric":
            return sql.SQL(
                "(({function}(array[{value}, scale({value})::numeric]) filter (where {value} is not null)))[1]"
            ).format(**parts)
        if type_ in ("real", "double precision"):
            return sql.SQL("({function}({value}) + 0::{type})").format(**parts)
        return sql.SQL("{function}({value})").format(**parts)

    def over_partials(self, partial: sql.Composable, type_: str) -> sql.Composable:
        """Return the result over partial results."""
        return self.over_rows(partial, type_)

    def can_add(self, type_: str) -> bool:
        """True if added() gives the same as over_partials()."""
        return type_ != "text"

    def added(self, result: sql.Composable, partial: sql.Composable, type_: str) -> sql.Composable:
        """Return the result of earlier partial results and of one more."""
        parts = {"a": result, "b": partial, "of_two": self.of_two}
        if type_ == "numeric":
            return sql.SQL(
                "case when {a} = {b} then case when scale({a}) {first} scale({b}) then {a} else {b} end "
                "else {of_two}({a}, {b}) end"
            ).format(**parts, first=self.first)
        return sql.SQL("{of_two}({a}, {b})").format(**parts)  # no result has a negative zero


@dataclass(frozen=True)
class Min(_Extreme):
    """The least value of a column of numbers, dates, times or text; null if all are null."""

    function: ClassVar[str] = "min"
    of_two: ClassVar[sql.SQL] = sql.SQL("least")
    first: ClassVar[sql.SQL] = sql.SQL("<=")


@dataclass(frozen=True)
class Max(_Extreme):
    """The greatest value of a column of numbers, dates, times or text; null if all are null."""

    function: ClassVar[str] = "max"
    of_two: ClassVar[sql.SQL] = sql.SQL("greatest")
    first: ClassVar[sql.SQL] = sql.SQL(">=")


AggregateFunction = Count | Sum | Min | Max


def _sum_of(one: sql.Composable, other: sql.Composable) -> sql.Composable:
    """Return the sum of two numbers as sum() has it: nulls do not count."""
    return sql.SQL("coalesce({0} + {1}, {0}, {1})").format(one, other)


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
