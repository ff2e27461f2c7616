"""Decode timestamps and dates that are numbers of units since 1970."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

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
    import pyarrow.compute as pc

    if unit == "d":
        return numbers.cast(pa.int32()).cast(type_)
    times = numbers.cast(pa.timestamp(unit))
    if unit == "ns":
        times = pc.floor_temporal(times, unit="microsecond")
    return times.cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)
