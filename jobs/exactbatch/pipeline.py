"""A pipeline as its user defines it: one class, because many of its options depend on others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from exactbatch.columns import LINEAGE
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Format, WithKeyAndHeaders
from exactbatch.formats.cleaned_text import why_not_replaced
from exactbatch.model import Evolve, Limits, OnLoss, StoredOffset
from exactbatch.options import check_types, list_values, names_options
from exactbatch.sinks.route import Route
from exactbatch.sinks.several import find_traits
from exactbatch.sinks.sink import FormatFacts, Sink, SinkTraits
from exactbatch.time_text import Duration, parse_duration, read_time
from exactbatch.to_topic import ToTopic
from exactbatch.topic_pattern import TopicPattern, known_topics, list_topics, loads, topics_text
from exactbatch.tuning import Tuning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Kafka's rule for topic names also suits Airflow's DAG ids and pools.
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_NAME_LENGTH = 200
# With a transform, a separate column carries the outcomes of the tasks next to the records.
OUTCOME: Final = "exactbatch_outcome"


def check_name(name: str) -> None:
    """Raise ConfigurationError unless a pipeline can have this name."""
    if not name or len(name) > _NAME_LENGTH or not _NAME_CHARACTERS.issuperset(name):
        raise ConfigurationError(
            f"expected a pipeline name of 1 to {_NAME_LENGTH} letters, digits, '.', '_' and '-', found {name!r}"
        )


def _is_time(text: str) -> bool:
    try:
        read_time(text)
    except (ValueError, OverflowError):
        return False
    return True


@names_options
@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Topics, the format of their values, and the sink that the rows go to.

    topics         names, or a TopicPattern: topics that match it join when a batch is planned
    sink           where the rows go: an Append, an Upsert or an Aggregate. A list of Appends and at most one Upsert
                   stores the rows of each batch in several targets, in one transaction: in all of them or in none. A
                   record with a value that one target cannot hold is a reject for all. Next to an Upsert, an Append has
                   a row for each change, deletes included, with the column `deleted`. A Route stores each row in one
                   of several targets. No other pipeline may write to any of several targets
    message_key    the format of message keys; an Upsert deletes the row with this key when a value is null
    forward        the topic to which the committed results go back, exactly once: ToTopic("late_flights"); None: they
                   stay in Postgres
    start          where topics without a stored offset start: "earliest", "latest", a time such as
                   "2026-11-21T08:00:00Z" (the first record in the log with this timestamp or a later one),
                   "group:NAME" (the offsets that this consumer group has committed) or
                   {topic: {partition: offset}}; partitions that the group or
                   the mapping does not name start at their earliest offset. A topic that joins by a pattern after
                   the first plan starts at its earliest offset, too, unless the mapping names it
    limits         how many offsets one batch may span
    on_loss        if retention removed unprocessed offsets: "fail", or "skip" them: the ledger records them as lost
    transform      a function from a Spark DataFrame of the decoded records to a DataFrame of the rows to store, or
                   a query over the view `records`, as text
    allow_nondeterministic  names of Spark expressions that may return other results on a retry, and that the
                   transform may use nevertheless: "now"
    checks         SQL expressions over the columns of a row, such as "amount >= 0": a record for which one is
                   false is a reject, and null passes. With a transform, they see the rows that it makes
    evolve         if the target lacks columns of the pipeline: "refuse" the batch, or "add" the columns
    commit         "batch": a batch in one transaction; "partition": each range of an advance in its own
                   transaction, for large catch-ups into an Append
    max_rejects    how many records of a batch may be rejected; one more fails the batch; with commit="partition",
                   of each range
    max_reject_share  the same as a share of the records, from 0.0 to 1.0, instead of max_rejects
    replace_unstorable  text for each U+0000, half surrogate pair and byte that is no UTF-8; None: these are rejects
    freshness      the age from which an unprocessed record makes the pipeline overdue, which status, lag, doctor,
                   dashboards and the page in Airflow show, as a timedelta or text such as "1 hour"; None: it never is.
                   They read it from the ledger: `exactbatch register` stores it there
    tuning         how long a batch waits, and how many connections it opens
    spark_conf     Spark properties of the batch job

    Raises ConfigurationError for values that cannot work.
    """

    name: str
    topics: str | tuple[str, ...] | TopicPattern
    value: Format
    sink: Sink | Sequence[Sink] | Route
    message_key: Format | None = None
    forward: ToTopic | None = None
    start: str | Mapping[str, Mapping[int, int]] = "earliest"
    limits: Limits = field(default_factory=Limits)
    on_loss: OnLoss = "fail"
    transform: "str | Callable[[DataFrame], DataFrame] | None" = None
    allow_nondeterministic: str | tuple[str, ...] = ()
    checks: str | tuple[str, ...] = ()
    evolve: Evolve = "refuse"
    commit: Literal["batch", "partition"] = "batch"
    max_rejects: int = 0
    max_reject_share: float | None = None
    replace_unstorable: str | None = None
    freshness: Duration | None = None
    tuning: Tuning = field(default_factory=Tuning)
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        check_name(self.name)
        self._expect(
            bool(self.topics),
            'one or more topics, such as topics="flights"',
            repr(self.topics),
        )
        self._check_start()
        self._expect(
            self.max_rejects >= 0,
            "max_rejects to be 0 or more; max_reject_share allows a share of the records",
            self.max_rejects,
        )
        self._expect(
            self.max_reject_share is None or 0 <= self.max_reject_share <= 1,
            "max_reject_share to be a share from 0.0 to 1.0; max_rejects allows a number of records",
            self.max_reject_share,
        )
        self._expect(
            not (self.max_rejects and self.max_reject_share is not None),
            "one of max_rejects and max_reject_share",
            f"max_rejects={self.max_rejects}, max_reject_share={self.max_reject_share}",
        )
        self._expect(
            self.freshness is None or self.fresh_for != timedelta(0),
            'freshness to be more than 0, such as "1 hour", or None',
            repr(self.freshness),
        )
        self._expect(
            all(check.strip() for check in self.row_checks), "checks that are not empty", repr(self.checks)
        )
        if reason := why_not_replaced(self.replace_unstorable, self.value, self.message_key):
            raise self._error(reason)
        if self.value.truncate_order is not None:
            self._check_truncates()
        _ = self.traits
        self._check_transform()
        if self.traits.is_routed:
            self._check_route()
        if self.message_key is not None:
            self._check_message_key(self.message_key)
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
        if self.traits.not_copyable is not None:
            return self.traits.not_copyable
        if self.is_transformed:
            return "a transform, which sees the records of all ranges"
        if self.value.gives_several_rows:
            return "values that give any number of rows each"
        if self.row_checks:
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
        if self.max_reject_share is not None:
            return int(Fraction(str(self.max_reject_share)) * records)  # 0.29 * 100 is 28.999…96
        return self.max_rejects

    def too_many_rejects(self, rejected: int, records: int) -> str:
        """Say how many records were rejected, and how many may be.

        Reading and checking end once there are too many, so there may be more than `rejected`.
        """
        limit = (
            f"max_rejects={self.max_rejects}"
            if self.max_reject_share is None
            else f"max_reject_share={self.max_reject_share}"
        )
        share = f"{float(f'{100 * rejected / records:.2g}'):.9f}".rstrip("0").rstrip(".") + " %"
        return (
            f"{rejected:,} or more of the {records:,} records read were rejected ({share}); "
            f"{limit} allows {self.rejects_allowed(records):,}"
        )

    @property
    def allows_rejects(self) -> bool:
        """True if a batch may have any rejects."""
        return bool(self.max_rejects or self.max_reject_share)

    @property
    def row_checks(self) -> tuple[str, ...]:
        """The SQL expressions of `checks`."""
        return list_values(self.checks)

    @property
    def fresh_for(self) -> timedelta | None:
        """The freshness as a timedelta."""
        return None if self.freshness is None else parse_duration(self.freshness, what="freshness")

    @property
    def topic_names(self) -> tuple[str, ...] | TopicPattern:
        """The names of the topics, or their pattern."""
        return list_topics(self.topics)

    def loads(self, topic: str) -> bool:
        """True if a topic is one of the pipeline's."""
        return loads(self.topic_names, topic)

    def known_topics(self, stored: Iterable[StoredOffset]) -> tuple[str, ...]:
        """Return the named topics; with a pattern, those that have joined: they have stored offsets."""
        return known_topics(self.topic_names, (offset.topic for offset in stored))

    @cached_property
    def traits(self) -> SinkTraits:
        """What the sink asks of those who plan, stage, replay and audit batches."""
        return find_traits(self.sink, self._format_facts)

    @property
    def _format_facts(self) -> FormatFacts:
        if self.is_transformed:  # its rows are whole, and their columns are its own
            return FormatFacts(truncate_order=self.value.truncate_order)
        return FormatFacts(
            has_unavailable_values=self.value.has_unavailable_values,
            position_columns=tuple(self.value.position_columns),
            truncate_order=self.value.truncate_order,
        )

    @property
    def topics_text(self) -> str:
        """The topics, for a sentence."""
        return topics_text(self.topic_names)

    @property
    def is_transformed(self) -> bool:
        """True if a transform makes the rows from the decoded records."""
        return self.transform is not None

    @property
    def has_row_per_record(self) -> bool:
        """True if a record that is neither a reject nor a tombstone gives exactly one row."""
        return not (self.is_transformed or self.value.gives_several_rows)

    @property
    def replays_compacted(self) -> bool:
        """True if the records that compaction keeps, the last one of each message key, restore all rows.

        They do if the message key is the key of the row, and its last record alone determines the row. That of a
        Debezium event does not: its tombstone says nothing about the delete before it. Nor does a record that may have
        unavailable values.
        """
        return (
            self.traits.needs_last_records_only
            and self.message_key is not None
            and self.value.tombstone_deletes
            and not self.traits.keeps_unavailable
            and self.has_row_per_record
        )

    def _check_truncates(self) -> None:
        if self.is_transformed:
            raise self._error("a transform sees rows, and no truncates. Leave out truncate='apply'.")
        self._expect(
            isinstance(self.topic_names, tuple) and len(self.topic_names) == 1,
            "one topic, the topic of the table whose truncates are applied (truncate='apply')",
            self.topics_text,
        )

    def _check_transform(self) -> None:
        if isinstance(self.transform, str):
            self._expect(
                bool(self.transform.strip()),
                "the transform to be a query or a function",
                repr(self.transform),
            )
        if not self.is_transformed:
            self.traits.check(self.value.columns)
            self._check_versions()
            return
        # The columns that the sink gets are not known before Spark has analyzed the transform. The transform gets
        # those of the value and these:
        own = (
            {column.name for column in LINEAGE}
            | {OUTCOME}
            | ({"deleted"} if self.traits.keeps_deletes else set())
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

    def _check_route(self) -> None:
        """Raise ConfigurationError for rows whose target an audit could not tell from their record alone."""
        if not self.has_row_per_record:
            raise self._error(
                "a Route needs one row for each record, and none that a transform makes. Route the records by a column "
                "of the value, or use two pipelines."
            )
        if self.message_key is not None:
            raise self._error(
                "a tombstone has no value that says which target its key is in. Leave out message_key: a tombstone "
                "then is a reject. Or use a topic for each table."
            )

    def _check_versions(self) -> None:
        unordered = self.value.unordered_columns
        for part in self.traits.parts:
            if wrong := [name for name in part.version_columns if name in unordered]:
                raise self._error(
                    f"version={wrong[0]!r}: a field that the connector adds to a flattened event, such as __lsn or "
                    f"__ts_ms, does not order the changes of different transactions, so that newer changes could count "
                    f"as older ones. Leave out version: the offset orders the changes of a key, which stays in one "
                    f"partition by default."
                )

    def _check_message_key(self, key: Format) -> None:
        if self.value.tombstone_deletes and self.traits.keeps_deletes and self.traits.version_columns:
            raise self._error(
                "a tombstone deletes the row of its key and has no version, so that nothing says whether it is newer "
                "than the changes of the key. Leave out the version of the Upsert: offsets order the changes of a key "
                "in one partition. Or leave out message_key: a tombstone then is a reject."
            )
        self._expect(
            not isinstance(key, WithKeyAndHeaders), "the format of message keys as message_key", repr(key)
        )
        key_columns = self.traits.key_columns if self.traits.keeps_deletes else ()
        if key.gives_several_rows:
            raise self._error(
                f"expected a message_key that gives one row, found several rows of an array in {key!r}"
            )
        if {column.name for column in key.columns} != set(key_columns):
            raise self._error(
                f"expected message_key to have the key columns of the sink, ({', '.join(key_columns)}), found "
                f"({', '.join(column.name for column in key.columns)})"
                + ("" if self.traits.keeps_deletes else ": only an Upsert has a key")
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
            not loads(self.topic_names, forward.topic),
            "forward to name a topic that the pipeline does not read: it would process its own results",
            repr(forward.topic),
        )
        # What these write is not what their targets' rows become: the messages would be others than the rows.
        if len(self.traits.parts) > 1:
            raise self._error(
                "forward sends the results of one target, and the sink has several. Use two pipelines."
            )
        if not self.traits.keeps_every_row:
            raise self._error(
                "forward needs the history of the Upsert, to send corrections. Leave out history=False."
            )
        forward.key_columns(self.traits.key_columns)
        if not self.is_transformed:
            forward.check(
                self.traits.key_columns,
                self.traits.result_columns(self.value.columns),
                self.traits.lineage_of_results,
            )

    def _check_start(self) -> None:
        if isinstance(self.start, str):
            self._expect(
                self.start in ("earliest", "latest")
                or (self.start.startswith("group:") and self.start != "group:")
                or _is_time(self.start),
                "start to be 'earliest', 'latest', 'group:NAME', a time such as '2026-11-21T08:00:00Z', or "
                "{topic: {partition: offset}}",
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
