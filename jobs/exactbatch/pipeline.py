"""A pipeline, as its user writes it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Format, WithMessage
from exactbatch.model import Limits, OnLoss
from exactbatch.options import check_types
from exactbatch.sinks import Sink
from exactbatch.sinks.lineage_table import LINEAGE
from exactbatch.sinks.target_definition import Evolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Kafka's own rule for topic names fits Airflow's dag ids and pools as well.
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_NAME_LENGTH = 200
_LEAST_LAUNCH_TIMEOUT = 30  # seconds; executors report every 10 s (spark.executor.heartbeatInterval)
# Beside the records of a pipeline with a transform there is what the tasks did, in a column of its own.
OUTCOME: Final = "exactbatch_outcome"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Topics, how their values are decoded, and where the rows go.

    key            how message keys are decoded: an Upsert takes from it which row a null value deletes
    start          where topics without a stored offset begin: "earliest", "latest", "group:NAME" (what that
                   consumer group has committed) or {topic: {partition: offset}}; partitions that a group or
                   mapping does not name begin at their earliest offset
    limits         how many offsets one batch may span
    on_loss        when retention removed offsets that were not processed: "fail", or "record" them as lost
    transform      a function from a Spark DataFrame of the decoded records to one of the rows to store
    sql            the same as a query over the view `records`
    allow_nondeterministic  names of Spark expressions that may give other results on a retry, and that the
                   transform may use all the same: ("now",)
    evolve         what to do with columns that the target does not have: "refuse" the batch, or "add" them
    commit         "batch": all of a batch in one transaction; "partition": each range of an advance in one of its
                   own, for big catch-ups into an Append
    max_rejects    how many records of a batch may be rejected, as a number, or as a share of its records between
                   0 and 1; one more, and the batch fails; of each range, with commit="partition"
    read_timeout   seconds without progress after which reading a range is given up
    max_connections  how many connections to Postgres the tasks of a batch have open at a time, at most: so many
                   Spark tasks share its ranges, each with one; the driver has two of its own
    publish_timeout  seconds that publish waits for a lock, and that Postgres lets it sit idle in its
                   transaction: the longest time for which a driver that hangs can hold the pipeline
    statement_timeout  seconds in which Postgres must have answered a statement of the batch, or have taken the
                   next rows: a server that says nothing is given up then, and so is a statement that takes longer
    launch_timeout  seconds that a job of the batch waits for Spark to run a task before it is given up: the
                   cluster may have no executor to give
    spark_conf     Spark properties of the batch job

    Raises ConfigurationError for what cannot work.
    """

    name: str
    topics: tuple[str, ...]
    value: Format | WithMessage
    sink: Sink
    key: Format | None = None
    start: str | Mapping[str, Mapping[int, int]] = "earliest"
    limits: Limits = field(default_factory=Limits)
    on_loss: OnLoss = "fail"
    transform: "Callable[[DataFrame], DataFrame] | None" = None
    sql: str | None = None
    allow_nondeterministic: tuple[str, ...] = ()
    evolve: Evolve = "refuse"
    commit: Literal["batch", "partition"] = "batch"
    max_rejects: int | float = 0
    max_connections: int = 32
    read_timeout: float = 60.0
    publish_timeout: float = 60.0
    statement_timeout: float = 3600.0
    launch_timeout: float = 600.0
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        if not self.name or len(self.name) > _NAME_LENGTH or not _NAME_CHARACTERS.issuperset(self.name):
            raise ConfigurationError(
                f"expected a pipeline name of 1 to {_NAME_LENGTH} letters, digits, '.', '_' and '-', "
                f"found {self.name!r}"
            )
        if not self.topics:
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected topics as a tuple of one or more names, "
                f'found {self.topics!r}; write topics=("flights",)'
            )
        if not isinstance(self.start, str):
            _check_start(self.name, self.topics, self.start)
        elif not (
            self.start in ("earliest", "latest") or self.start.removeprefix("group:") not in ("", self.start)
        ):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected start to be 'earliest', 'latest', 'group:NAME' or "
                f"{{topic: {{partition: offset}}}}, found {self.start!r}"
            )
        share = isinstance(self.max_rejects, float)
        if self.max_rejects < 0 or (share and not 0 <= self.max_rejects <= 1):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected max_rejects to be a whole number of 0 or more, or a share "
                f"from 0.0 to 1.0, found {self.max_rejects}"
            )
        for name in ("read_timeout", "publish_timeout", "statement_timeout", "launch_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(
                    f"pipeline {self.name!r}: expected {name} to be more than 0 seconds, found "
                    f"{getattr(self, name)}"
                )
        if self.launch_timeout < _LEAST_LAUNCH_TIMEOUT:
            raise ConfigurationError(
                f"pipeline {self.name!r}: launch_timeout is {self.launch_timeout:g} s. Make it "
                f"{_LEAST_LAUNCH_TIMEOUT} or more: Spark tells up to 10 s late which tasks run."
            )
        if self.max_connections < 1:
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected max_connections to be 1 or more, found {self.max_connections}"
            )
        self._check_transform()
        if self.key is not None:
            self._check_key(self.key)
        if self.commit == "partition" and (found := self._needs_one_transaction()):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected rows that one range gives alone and that are copied as they "
                f"are, which commit='partition' needs, found {found}. Use commit='batch'."
            )

    def _needs_one_transaction(self) -> str | None:
        """What makes it impossible to commit each range by itself; None where it is possible."""
        if self.sink.not_copyable is not None:
            return self.sink.not_copyable
        if self.is_transformed:
            return "a transform, which sees the records of all ranges"
        for column in self.value.columns:
            if column.staged_type != column.type:
                return (
                    f"the column {column.name} of type {column.type}, whose values Postgres casts from "
                    f"{column.staged_type}"
                )
        return None

    def rejects_allowed(self, records: int) -> int:
        """How many of so many records may be rejected."""
        if isinstance(self.max_rejects, float):
            return int(self.max_rejects * records)
        return self.max_rejects

    def too_many_rejects(self, rejected: int, records: int) -> str:
        """How many of the records that were read are rejects, beside how many of so many may be.

        Reading and checking end once there are too many, so `rejected` may be less than there are.
        """
        share = f"{float(f'{100 * rejected / records:.2g}'):.9f}".rstrip("0").rstrip(".") + " %"
        return (
            f"{rejected:,} or more of the {records:,} records read were rejected ({share}); "
            f"max_rejects={self.max_rejects} allows {self.rejects_allowed(records):,}"
        )

    @property
    def is_transformed(self) -> bool:
        """Whether rows are what a transform makes of the decoded records."""
        return self.transform is not None or self.sql is not None

    def _check_transform(self) -> None:
        if not self.is_transformed:
            self.sink.check(self.value.columns)
            return
        if self.transform is not None and self.sql is not None:
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected a transform or sql, found both: let the function run the query"
            )
        # What the sink gets is not known before Spark has seen the transform; what the transform gets is.
        own = (
            {column.name for column in LINEAGE}
            | {OUTCOME}
            | ({"deleted"} if self.sink.keeps_deletes else set())
        )
        there = {each.lower(): each for each in own}
        for column in self.value.columns:
            other = there.setdefault(column.name.lower(), column.name)
            if column.name in own:
                raise ConfigurationError(
                    f"pipeline {self.name!r}: the value has a column {column.name!r}, and a transform gets one of "
                    f"that name with each record. Rename the value's."
                )
            if other != column.name:
                raise ConfigurationError(
                    f"pipeline {self.name!r}: the columns {other!r} and {column.name!r} that the transform gets "
                    f"are one name to Spark, which does not tell capitals from small letters. Rename "
                    + ("the value's." if other in own else "one of them.")
                )

    def _check_key(self, key: Format) -> None:
        key_columns = self.sink.key_columns if self.sink.keeps_deletes else ()
        if {column.name for column in key.columns} != set(key_columns):
            raise ConfigurationError(
                f"pipeline {self.name!r}: expected key to give the key columns of the sink, "
                f"({', '.join(key_columns)}), found ({', '.join(column.name for column in key.columns)})"
                + ("" if self.sink.keeps_deletes else ": only an Upsert has a key")
            )
        for column in key.columns:
            if column not in self.value.columns:
                other = {each.name: each.type for each in self.value.columns}.get(
                    column.name, "no such column"
                )
                raise ConfigurationError(
                    f"pipeline {self.name!r}, column {column.name}: expected one type in key and value, found "
                    f"{column.type} and {other}"
                )


def _check_start(name: str, topics: tuple[str, ...], start: Mapping[str, Mapping[int, int]]) -> None:
    """A topic that is misspelt here would begin at its earliest offset instead."""
    for topic, offsets in start.items():
        if topic not in topics:
            raise ConfigurationError(
                f"pipeline {name!r}: expected start to name topics of the pipeline, {', '.join(topics)}, "
                f"found {topic!r}"
            )
        for partition, offset in offsets.items():
            if min(partition, offset) < 0:
                raise ConfigurationError(
                    f"pipeline {name!r}: start has {{{partition}: {offset}}} for topic {topic!r}: partitions and "
                    f"offsets must be 0 or more"
                )
