"""Tuning: how long a batch waits, and how many connections it opens."""

from dataclasses import dataclass

from exactbatch.errors import ConfigurationError
from exactbatch.options import check_types, names_options
from exactbatch.time_text import Duration, parse_duration

_LEAST_LAUNCH_TIMEOUT = 30  # seconds; executors report every 10 s (spark.executor.heartbeatInterval)


@names_options
@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What an operator sets to fit a pipeline to its servers. Durations are a timedelta, or text such as "90 seconds".

    max_connections    how many connections to Postgres the tasks of a batch may have open at a time: at most this
                       many Spark tasks share its ranges, with one connection each; the driver has up to 3
    read_timeout       the time without progress after which reading a range fails
    lock_timeout       how long publish waits for a lock (Postgres's lock_timeout), and how long Postgres lets it be
                       idle in its transaction (idle_in_transaction_session_timeout): the longest time for which a
                       driver that hangs can block the pipeline
    statement_timeout  the time within which Postgres must answer a statement of the batch, or accept the next rows;
                       after that, the statement fails
    launch_timeout     how long a job of the batch waits for Spark to run a task, because the cluster may have no free
                       executor: at least 30 seconds

    Raises ConfigurationError for values that cannot work.
    """

    max_connections: int = 8
    read_timeout: Duration = "60 seconds"
    lock_timeout: Duration = "60 seconds"
    statement_timeout: Duration = "1 hour"
    launch_timeout: Duration = "10 minutes"

    def __post_init__(self) -> None:
        check_types(self)
        if self.max_connections < 1:
            raise ConfigurationError(
                f"Tuning: expected max_connections to be 1 or more, found {self.max_connections}"
            )
        for name in ("read_timeout", "lock_timeout", "statement_timeout", "launch_timeout"):
            if not self._seconds(name):
                raise ConfigurationError(
                    f"Tuning: expected {name} to be more than 0, found {getattr(self, name)!r}"
                )
        if self.launch_seconds < _LEAST_LAUNCH_TIMEOUT:
            raise ConfigurationError(
                f"Tuning: launch_timeout is {self.launch_seconds:g} s. Make it {_LEAST_LAUNCH_TIMEOUT} or more: Spark "
                f"reports up to 10 s late which tasks run."
            )

    @property
    def read_seconds(self) -> float:
        """The read_timeout in seconds."""
        return self._seconds("read_timeout")

    @property
    def lock_seconds(self) -> float:
        """The lock_timeout in seconds."""
        return self._seconds("lock_timeout")

    @property
    def statement_seconds(self) -> float:
        """The statement_timeout in seconds."""
        return self._seconds("statement_timeout")

    @property
    def launch_seconds(self) -> float:
        """The launch_timeout in seconds."""
        return self._seconds("launch_timeout")

    def _seconds(self, name: str) -> float:
        return parse_duration(getattr(self, name), what=f"Tuning: {name}").total_seconds()
