"""A pipeline as its user defines it: one class, because many of its options depend on others."""

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Format, WithMessage
from exactbatch.formats.format import (
    LeavesValuesOut,
    gives_several_rows,
    position_columns,
    truncate_order,
    unordered_columns,
)
from exactbatch.formats.replaced_text import why_not_replaced
from exactbatch.model import Limits, OnLoss, StoredOffset
from exactbatch.options import check_types
from exactbatch.sinks import Sink
from exactbatch.sinks.tables.lineage_table import LINEAGE
from exactbatch.sinks.tables.target_definition import Evolve
from exactbatch.to_topic import ToTopic
from exactbatch.topic_pattern import TopicPattern, known_topics, loads, topics_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Kafka's rule for topic names also suits Airflow's DAG ids and pools.
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_NAME_LENGTH = 200
_LEAST_LAUNCH_TIMEOUT = 30  # seconds; executors report every 10 s (spark.executor.heartbeatInterval)
# With a transform, a separate column carries the outcomes of the tasks next to the records.
OUTCOME: Final = "exactbatch_outcome"


def check_name(name: str) -> None:
    """Raise ConfigurationError unless a pipeline can have this name."""
    if not name or len(name) > _NAME_LENGTH or not _NAME_CHARACTERS.issuperset(name):
        raise ConfigurationError(
            f"expected a pipeline name of 1 to {_NAME_LENGTH} letters, digits, '.', '_' and '-', found {name!r}"
        )


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Topics, the format of their values, and the sink that the rows go to.

    topics         names, or a TopicPattern: topics that match it join when a batch is planned
    key            the format of message keys; an Upsert deletes the row with this key when a value is null
    forward        the topic to which the committed results go back, exactly once: ToTopic("late_flights"); None: they
                   stay in Postgres
    start          where topics without a stored offset start: "earliest", "latest", "group:NAME" (the offsets that
                   this consumer group has committed) or {topic: {partition: offset}}; partitions that the group or
                   the mapping does not name start at their earliest offset. A topic that joins by a pattern after
                   the first plan starts at its earliest offset, too, unless the mapping names it
    limits         how many offsets one batch may span
    on_loss        if retention removed unprocessed offsets: "fail", or "record" them as lost
    transform      a function from a Spark DataFrame of the decoded records to a DataFrame of the rows to store
    sql            the same as a query over the view `records`
    allow_nondeterministic  names of Spark expressions that may return other results on a retry, and that the
                   transform may use nevertheless: ("now",)
    checks         SQL expressions over the columns of a row, such as ("amount >= 0",): a record for which one is
                   false is a reject, and null passes. With a transform, they see the rows that it makes
    evolve         if the target lacks columns of the pipeline: "refuse" the batch, or "add" the columns
    commit         "batch": a batch in one transaction; "partition": each range of an advance in its own
                   transaction, for large catch-ups into an Append
    max_rejects    how many records of a batch may be rejected, as a number, or as a share of its records from
                   0.0 to 1.0; one more fails the batch; with commit="partition", of each range
    replace_unstorable  text for each U+0000, half surrogate pair and byte that is no UTF-8; None: these are rejects
    freshness      the age from which an unprocessed record makes the pipeline overdue, which status, lag, doctor,
                   dashboards and the page in Airflow show; None: it never is. They read it from the ledger:
                   `exactbatch init` stores it there
    read_timeout   seconds without progress after which reading a range fails
    max_connections  how many connections to Postgres the tasks of a batch may have open at a time: at most
                   this many Spark tasks share its ranges, with one connection each; the driver has up to 3
    publish_timeout  seconds that publish waits for a lock, and that Postgres lets it be idle in its
                   transaction: the longest time for which a driver that hangs can block the pipeline
    statement_timeout  seconds in which Postgres must answer a statement of the batch, or accept the next
                   rows; after that, the statement fails
    launch_timeout  seconds that a job of the batch waits for Spark to run a task: the cluster may have no free
                   executor
    spark_conf     Spark properties of the batch job

    Raises ConfigurationError for values that cannot work.
    """

    name: str
    topics: tuple[str, ...] | TopicPattern
    value: Format | WithMessage
    sink: Sink
    key: Format | None = None
    forward: ToTopic | None = None
    start: str | Mapping[str, Mapping[int, int]] = "earliest"
    limits: Limits = field(default_factory=Limits)
    on_loss: OnLoss = "fail"
    transform: "Callable[[DataFrame], DataFrame] | None" = None
    sql: str | None = None
    allow_nondeterministic: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    evolve: Evolve = "refuse"
    commit: Literal["batch", "partition"] = "batch"
    max_rejects: int | float = 0
    replace_unstorable: str | None = None
    freshness: timedelta | None = None
    max_connections: int = 32
    read_timeout: float = 60.0
    publish_timeout: float = 60.0
    statement_timeout: float = 3600.0
    launch_timeout: float = 600.0
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        check_name(self.name)
        self._expect(
            bool(self.topics),
            'topics as a tuple of one or more names, such as ("flights",)',
            repr(self.topics),
        )
        self._check_start()
        self._expect(
            self.max_rejects >= 0 and (isinstance(self.max_rejects, int) or self.max_rejects <= 1),
            "max_rejects to be a whole number of 0 or more, or a share from 0.0 to 1.0",
            self.max_rejects,
        )
        self._expect(
            self.freshness is None or self.freshness > timedelta(0),
            "freshness to be more than 0, such as timedelta(hours=1), or None",
            repr(self.freshness),
        )
        for name in ("read_timeout", "publish_timeout", "statement_timeout", "launch_timeout"):
            seconds = getattr(self, name)
            self._expect(0 < seconds < math.inf, f"{name} to be more than 0 seconds", seconds)
        if self.launch_timeout < _LEAST_LAUNCH_TIMEOUT:
            raise self._error(
                f"launch_timeout is {self.launch_timeout:g} s. Make it {_LEAST_LAUNCH_TIMEOUT} or more: Spark "
                f"reports up to 10 s late which tasks run."
            )
        self._expect(
            all(check.strip() for check in self.checks), "checks that are not empty", repr(self.checks)
        )
        if reason := why_not_replaced(self.replace_unstorable, self.value, self.key):
            raise self._error(reason)
        self._expect(self.max_connections >= 1, "max_connections to be 1 or more", self.max_connections)
        if isinstance(self.value, LeavesValuesOut) and not self.is_transformed:
            object.__setattr__(self, "sink", self.sink.keeping_unchanged())
        if not self.is_transformed:
            object.__setattr__(self, "sink", self.sink.with_positions(position_columns(self.value)))
        if (order := truncate_order(self.value)) is not None:
            object.__setattr__(self, "sink", self._applying_truncates(order))
        self._check_transform()
        if self.key is not None:
            self._check_key(self.key)
        if self.forward is not None:
            self._check_forward(self.forward)
        if self.commit == "partition" and (obstacle := self._needs_one_transaction()):
            raise self._error(
                f"commit='partition' needs rows that each come from one range and are copied as they are, found "
                f"{obstacle}. Use commit='batch'."
            )

    def _error(self, fact: str) -> ConfigurationError:
        return ConfigurationError(f"pipeline {self.name!r}: {fact}")

    def _expect(self, condition: bool, expected: str, found: object) -> None:
        """Raise ConfigurationError unless the condition holds."""
        if not condition:
            raise self._error(f"expected {expected}, found {found}")

    def _needs_one_transaction(self) -> str | None:
        """Return what prevents committing each range in its own transaction; None if it is possible."""
        if self.forward is not None:
            return "forward, which sends the results of a batch in one order"
        if self.sink.not_copyable is not None:
            return self.sink.not_copyable
        if self.is_transformed:
            return "a transform, which sees the records of all ranges"
        if gives_several_rows(self.value):
            return "values that give any number of rows each"
        if self.checks:
            return "checks, which Postgres evaluates before rows are in the target"
        for column in self.value.columns:
            if column.staged_type != column.type:
                return (
                    f"the column {column.name} of type {column.type}, whose values Postgres casts from "
                    f"{column.staged_type}"
                )
        return None

    def rejects_allowed(self, records: int) -> int:
        """Return how many of this number of records may be rejected."""
        if isinstance(self.max_rejects, float):
            return int(Fraction(str(self.max_rejects)) * records)  # 0.29 * 100 is 28.999…96
        return self.max_rejects

    def too_many_rejects(self, rejected: int, records: int) -> str:
        """Say how many records were rejected, and how many may be.

        Reading and checking end once there are too many, so there may be more than `rejected`.
        """
        share = f"{float(f'{100 * rejected / records:.2g}'):.9f}".rstrip("0").rstrip(".") + " %"
        return (
            f"{rejected:,} or more of the {records:,} records read were rejected ({share}); "
            f"max_rejects={self.max_rejects} allows {self.rejects_allowed(records):,}"
        )

    def loads(self, topic: str) -> bool:
        """True if a topic is one of the pipeline's."""
        return loads(self.topics, topic)

    def known_topics(self, stored: Iterable[StoredOffset]) -> tuple[str, ...]:
        """Return the named topics; with a pattern, those that have joined: they have stored offsets."""
        return known_topics(self.topics, (offset.topic for offset in stored))

    def for_part(self, part: Sink) -> "Pipeline":
        """Return the pipeline with one part of its sink, as a batch uses this part."""
        # replace() would let the Upsert of a Together keep unchanged values, which a Together rejects.
        pipeline = copy(self)
        object.__setattr__(pipeline, "sink", part)
        return pipeline

    @property
    def topics_text(self) -> str:
        """The topics, for a sentence."""
        return topics_text(self.topics)

    @property
    def is_transformed(self) -> bool:
        """True if a transform makes the rows from the decoded records."""
        return self.transform is not None or self.sql is not None

    @property
    def has_row_per_record(self) -> bool:
        """True if a record that is neither a reject nor a tombstone gives exactly one row."""
        return not (self.is_transformed or gives_several_rows(self.value))

    @property
    def replays_compacted(self) -> bool:
        """True if the records that compaction keeps, the last one of each message key, restore all rows.

        They do if the message key is the key of the row, and its last record alone determines the row. That of a
        Debezium event does not: its tombstone says nothing about the delete before it. Nor does a record that may lack
        values that have not changed.
        """
        return (
            self.sink.needs_last_records_only
            and self.key is not None
            and self.value.tombstone_deletes
            and not self.sink.keeps_unchanged
            and self.has_row_per_record
        )

    def _applying_truncates(self, order: tuple[str, ...]) -> Sink:
        if self.is_transformed:
            raise self._error("a transform sees rows, and no truncates. Leave out truncate='apply'.")
        self._expect(
            isinstance(self.topics, tuple) and len(self.topics) == 1,
            "one topic, the topic of the table whose truncates are applied (truncate='apply')",
            self.topics_text,
        )
        return self.sink.applying_truncates(order)

    def _check_transform(self) -> None:
        if not self.is_transformed:
            self.sink.check(self.value.columns)
            self._check_versions()
            return
        if self.transform is not None and self.sql is not None:
            raise self._error("it has both a transform and sql. Let the function run the query.")
        # The columns that the sink gets are not known before Spark has analyzed the transform. The transform gets
        # those of the value and these:
        own = (
            {column.name for column in LINEAGE}
            | {OUTCOME}
            | ({"deleted"} if self.sink.keeps_deletes else set())
        )
        names = {name.lower(): name for name in own}
        for column in self.value.columns:
            other = names.setdefault(column.name.lower(), column.name)
            if column.name in own:
                raise self._error(
                    f"the value has a column {column.name!r}, and a transform gets another column of that name "
                    f"with each record. Rename the value's."
                )
            if other != column.name:
                raise self._error(
                    f"the columns {other!r} and {column.name!r} that the transform gets have one name in Spark, "
                    f"which ignores case. Rename " + ("the value's." if other in own else "one of them.")
                )

    def _check_versions(self) -> None:
        unordered = unordered_columns(self.value)
        for part in self.sink.parts:
            if wrong := [name for name in getattr(part, "version_columns", ()) if name in unordered]:
                raise self._error(
                    f"version={wrong[0]!r}: a field that the connector adds to a flattened event, such as __lsn or "
                    f"__ts_ms, does not order the changes of different transactions, so that newer changes could count "
                    f"as older ones. Leave out version: the offset orders the changes of a key, which stays in one "
                    f"partition by default."
                )

    def _check_key(self, key: Format) -> None:
        if self.value.tombstone_deletes and self.sink.keeps_deletes and self.sink.identity.version:
            raise self._error(
                "a tombstone deletes the row of its key and has no version, so that nothing says whether it is newer "
                "than the changes of the key. Leave out the version of the Upsert: offsets order the changes of a key "
                "in one partition. Or leave out key: a tombstone then is a reject."
            )
        key_columns = self.sink.key_columns if self.sink.keeps_deletes else ()
        if gives_several_rows(key):
            raise self._error(f"expected a key that gives one row, found several rows of an array in {key!r}")
        if {column.name for column in key.columns} != set(key_columns):
            raise self._error(
                f"expected key to have the key columns of the sink, ({', '.join(key_columns)}), found "
                f"({', '.join(column.name for column in key.columns)})"
                + ("" if self.sink.keeps_deletes else ": only an Upsert has a key")
            )
        types = {column.name: column.type for column in self.value.columns}
        for column in key.columns:
            if column not in self.value.columns:
                raise ConfigurationError(
                    f"pipeline {self.name!r}, column {column.name}: expected one type in key and value, found "
                    f"{column.type} and {types.get(column.name, 'no such column')}",
                    column=column.name,
                )

    def _check_forward(self, forward: ToTopic) -> None:
        self._expect(
            not loads(self.topics, forward.topic),
            "forward to name a topic that the pipeline does not read: it would process its own results",
            repr(forward.topic),
        )
        # What these write is not what their targets' rows become: the messages would be others than the rows.
        if len(self.sink.parts) > 1:
            raise self._error(
                "forward sends the results of one target, and the sink has several. Use two pipelines."
            )
        if not self.sink.keeps_every_row:
            raise self._error(
                "forward needs the history of the Upsert, to send corrections. Leave out history=False."
            )
        forward.key_columns(self.sink.key_columns)
        if not self.is_transformed:
            forward.check(
                self.sink.key_columns, self.sink.result_columns(self.value.columns), self.lineage_of_results
            )

    @property
    def lineage_of_results(self) -> tuple[Column, ...]:
        """The columns of lineage that a row of the target has besides its result; () for a derived target."""
        return () if self.sink.is_derived else self.sink.lineage_table.lineage_columns

    def _check_start(self) -> None:
        if isinstance(self.start, str):
            self._expect(
                self.start in ("earliest", "latest")
                or (self.start.startswith("group:") and self.start != "group:"),
                "start to be 'earliest', 'latest', 'group:NAME' or {topic: {partition: offset}}",
                repr(self.start),
            )
            return
        for topic, offsets in self.start.items():
            # A misspelt topic would start at its earliest offset instead.
            self._expect(
                self.loads(topic),
                f"start to name topics of the pipeline, {self.topics_text}",
                repr(topic),
            )
            for partition, offset in offsets.items():
                if min(partition, offset) < 0:
                    raise self._error(
                        f"start has {{{partition}: {offset}}} for topic {topic!r}: partitions and offsets must "
                        f"be 0 or more"
                    )
