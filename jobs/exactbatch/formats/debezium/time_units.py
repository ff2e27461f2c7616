"""The units in which a connector writes times, as a pipeline declares them."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError

Times = Literal[
    "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
]

TIMESTAMP: Final = "timestamp without time zone"
TIMESTAMPS: Final = (TIMESTAMP, "timestamp with time zone")
TIME: Final = "time without time zone"
TEMPORAL: Final = (*TIMESTAMPS, "date", TIME, "time with time zone")
# The unit that a mode gives all timestamps, and all times of day; adaptive modes give each column its own.
UNITS: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "connect": ("ms", "ms"),
    "microseconds": ("us", "us"),
    "nanoseconds": ("ns", "ns"),
    "adaptive": (None, None),
    "adaptive_time_microseconds": (None, "us"),
}


def check_units(epoch: Mapping[str, str], times: str | None, columns: Sequence[Column]) -> None:
    """Raise ConfigurationError for a unit that does not suit its column, and for a column that the mode gives none."""
    types = {column.name: column.type for column in columns}
    for name, unit in epoch.items():
        type_ = types.get(name, "which is not a column")
        units = ("d",) if type_ == "date" else ("ms", "us", "ns") if type_ in (*TIMESTAMPS, TIME) else ()
        if unit not in units:
            raise ConfigurationError(
                f"epoch: expected one of the units ms, us and ns for a column of type timestamp or time, or d for a "
                f"date, found {unit!r} for {name!r}, {type_}"
            )
    if times not in ("adaptive", "adaptive_time_microseconds"):
        return
    of_moments, of_clocks = UNITS[times]
    for name, type_ in types.items():
        lacks = (type_ == TIMESTAMP and of_moments is None) or (type_ == TIME and of_clocks is None)
        if lacks and name not in epoch:
            raise ConfigurationError(
                f"times={times!r}: the unit of column {name!r} depends on its precision at the source, which an event "
                f"without a schema does not say. Add it to epoch: ms for a precision of 0 to 3 digits, us for 4 to 6, "
                f"ns for 7 to 9, as in epoch={{{name!r}: 'us'}}. Events with a schema need neither option."
            )
