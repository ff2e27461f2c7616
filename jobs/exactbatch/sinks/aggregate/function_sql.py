"""The SQL of an Aggregate's functions: over the rows of a batch, over the partial results of batches, of two results.

Not all functions can add a partial result to the result of the earlier ones: a floating-point sum depends on their
order, and of texts that a collation considers equal the order decides as well.
"""

from typing import Final

from psycopg2 import sql

from exactbatch.sinks.aggregate.functions import AggregateFunction, Count, Max, Min, Sum

# For two values: the function, and how the scales of equal numerics compare if the first is the result.
_OF_TWO: Final = {
    Min: (sql.SQL("least"), sql.SQL("<=")),
    Max: (sql.SQL("greatest"), sql.SQL(">=")),
}


def over_rows(function: AggregateFunction, value: sql.Composable, type_: str) -> sql.Composable:
    """Return the partial result over staged rows; `value` is the column's value in one."""
    if isinstance(function, Count):
        return sql.SQL("count({})").format(value)
    if isinstance(function, Sum):
        # Postgres sums integers in 64 bits without checking for overflow, but bigints in 128.
        return sql.SQL("sum({}::{})").format(value, sql.SQL(type_))
    parts = {"function": sql.SQL(function.function), "value": value, "type": sql.SQL(type_)}
    # Among equal values, such as 1.0 and 1.00, or 0 and -0, the order of the rows must not decide.
    if type_ == "numeric":
        return sql.SQL(
            "(({function}(array[{value}, scale({value})::numeric]) filter (where {value} is not null)))[1]"
        ).format(**parts)
    if type_ in ("real", "double precision"):
        return sql.SQL("({function}({value}) + 0::{type})").format(**parts)
    return sql.SQL("{function}({value})").format(**parts)


def over_partials(function: AggregateFunction, partial: sql.Composable, type_: str) -> sql.Composable:
    """Return the result over partial results."""
    if isinstance(function, Count):
        return sql.SQL("sum({})").format(partial)
    if isinstance(function, Sum):
        # The same partial results must give the same sum, to the last digit, whenever it is computed.
        return sql.SQL("sum({} order by batch_id)" if type_ == "double precision" else "sum({})").format(
            partial
        )
    return over_rows(function, partial, type_)


def can_add(function: AggregateFunction, type_: str) -> bool:
    """True if add() gives the same as over_partials()."""
    if isinstance(function, Count):
        return True
    return type_ != ("double precision" if isinstance(function, Sum) else "text")


def add(
    function: AggregateFunction, result: sql.Composable, partial: sql.Composable, type_: str
) -> sql.Composable:
    """Return the result of earlier partial results and of one more."""
    if isinstance(function, Count | Sum):
        # As sum() has it: nulls do not count.
        return sql.SQL("coalesce({0} + {1}, {0}, {1})").format(result, partial)
    of_two, first = _OF_TWO[type(function)]
    parts = {"a": result, "b": partial, "of_two": of_two}
    if type_ == "numeric":
        return sql.SQL(
            "case when {a} = {b} then case when scale({a}) {first} scale({b}) then {a} else {b} end "
            "else {of_two}({a}, {b}) end"
        ).format(**parts, first=first)
    return sql.SQL("{of_two}({a}, {b})").format(**parts)  # no result has a negative zero
