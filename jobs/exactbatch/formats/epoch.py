"""Decode timestamps and dates that are numbers of units since 1970."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

_TIMESTAMPS: Final = {"timestamp with time zone", "timestamp without time zone"}
_UNITS: Final = {"s", "ms", "us", "ns"}


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


def from_epoch(numbers: "pa.ChunkedArray", unit: str, type_: "pa.DataType") -> "pa.ChunkedArray":
    """Return numbers of units since 1970 as timestamps in microseconds, or as dates.

    Nanoseconds are rounded down to the microsecond. Raises ValueError for a number that overflows 64 bits, or a
    date's 32.
    """
    import pyarrow as pa

    if unit == "d":
        return numbers.cast(pa.int32()).cast(type_)
    if unit == "ns":
        numbers, unit = floor_divide(numbers, 1000), "us"
    return numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)


def floor_divide(numbers: "pa.ChunkedArray | pa.Array", divisor: int) -> Any:
    """Return integers divided and rounded down; Arrow's own rounding of times overflows near the lowest."""
    import pyarrow.compute as pc

    quotient = pc.divide(numbers, divisor)
    is_above = pc.less(numbers, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, is_above.cast(quotient.type))
