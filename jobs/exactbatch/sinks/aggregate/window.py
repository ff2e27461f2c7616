"""Tumbling windows of event time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types
from exactbatch.time_text import Duration, parse_duration

TIMESTAMPTZ: Final = "timestamp with time zone"


@dataclass(frozen=True)
class Window:
    """A tumbling window of event time: windows of one width follow one another without a gap.

    column    the column with the time of the event, a timestamptz, or "kafka_timestamp", the record's timestamp
              in Kafka
    width     "1 hour", "15 minutes", "1 day", …, or a timedelta
    name      the name of the column with the start of the window; `<column>_window` by default

    Windows begin at 1970-01-01 00:00 UTC plus multiples of the width: hours and days are in UTC. Windows of whole
    weeks begin on Mondays.
    """

    column: str
    width: Duration
    name: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.length:
            raise ConfigurationError(
                f"window of {self.column!r}: expected a width greater than zero, found {self.width!r}"
            )

    @property
    def length(self) -> timedelta:
        """The width."""
        return parse_duration(self.width, what=f"width of the window of {self.column!r}")

    @property
    def origin(self) -> datetime:
        """The start of one of the windows, in UTC: a Monday for windows of whole weeks."""
        return datetime(1970, 1, 5) if self._is_weekly else datetime(1970, 1, 1)

    @property
    def rule(self) -> str:
        """The width and the origin, as the ledger registers them: rows of other windows must not meet in a target."""
        return f"{self.length} from Monday" if self._is_weekly else str(self.length)

    @property
    def _is_weekly(self) -> bool:
        return not self.length % timedelta(weeks=1)

    @property
    def start(self) -> Column:
        """The column of the window's start."""
        return Column(self.name or f"{self.column}_window", TIMESTAMPTZ)
