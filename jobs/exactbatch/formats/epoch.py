"""Moments that are written as a number of units since 1970."""

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
                f"expected epoch to give a column of type timestamp or timestamptz one of the units s, ms, us and "
                f"ns, or one of type date the unit d, found {unit!r} for {name!r}, "
                f"{types.get(name, 'which is no column')}"
            )


def from_epoch(numbers: "pa.ChunkedArray", unit: str, type_: "pa.DataType") -> "pa.ChunkedArray":
    """Integers, each a number of units since 1970, as timestamps in microseconds or as dates.

    Nanoseconds are cut down to the microsecond before. Raises ValueError for what 64 bits, or a date's 32, do
    not hold.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if unit == "d":
        return numbers.cast(pa.int32()).cast(type_)
    moments = numbers.cast(pa.timestamp(unit))
    if unit == "ns":
        moments = pc.floor_temporal(moments, unit="microsecond")
    return moments.cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)
