"""Show the state of a pipeline: its ledger compared with its log; or of many tables, from one query of the logs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from exactbatch.errors import ConfigurationError, ExactbatchError, NotRegistered
from exactbatch.errors.explanation import find_hint
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Failing, JoinedTopic, Ledger, PartlyCommitted, Streams
from exactbatch.model import LogPartition, StoredOffset
from exactbatch.operations.unprocessed import (
    Forwarding,
    OldestRecords,
    differing_freshness,
    find_contradiction,
    first_unprocessed,
    is_overdue,
    load_forwarding,
    overdue_text,
)
from exactbatch.pipeline import Pipeline
from exactbatch.planning.members import find_members
from exactbatch.planning.plan_tables import existing_partitions
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks.capabilities import MergesPartitions
from exactbatch.sinks.writers import find_writer
from exactbatch.tables import Tables

_BATCHES: Final = 5  # number of the newest batches to show
UNFINISHED_AFTER: Final = timedelta(hours=1)  # a replay may take that long
_UNANNOUNCED_AFTER: Final = 600.0  # seconds; a batch's own report may take that long to announce it
_SHOWN: Final = 10
_MANY_PARTITIONS: Final = 1000  # of a target; docs/layouts.md says what they cost


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    log                what the broker reports
    stored             its stored offset; None if there is none yet
    committed_at       when the stored offset last moved; None if there is none yet
    horizon            the offset below which changes were compacted and nothing can be replayed; None without one
    open_transactions  producer ID and first offset of the transactions that hold back the last stable offset
    """

    log: LogPartition
    stored: StoredOffset | None
    committed_at: datetime | None
    horizon: int | None
    open_transactions: tuple[tuple[int, int], ...]

    @property
    def lag(self) -> int:
        """Number of offsets between the stored offset, or without one the start of the log, and the end of the log."""
        return self.log.lag(self.stored.next_offset if self.stored else None)

    @property
    def troubles(self) -> list[str]:
        """Sentences that say what blocks this partition."""
        troubles = []
        if self.log.last_stable < self.log.high_watermark:
            held = self.log.high_watermark - self.log.last_stable
            producers = ", ".join(
                f"producer {producer} since offset {offset}" for producer, offset in self.open_transactions
            )
            troubles.append(
                f"{self.log}: an open transaction ({producers or 'its producer is not known'}) holds back {held} "
                f"offsets from {self.log.last_stable} on; none of them is read until it ends. If it hangs, end it "
                f"with Kafka's own kafka-transactions.sh --abort."
            )
        contradiction = find_contradiction(self.stored, self.log)
        return troubles if contradiction is None else [*troubles, contradiction]


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline's partitions and its newest batches, newest first.

    partly_committed  details of the batches that are not committed although some of their ranges are
    failing           details of the planned batches that have failed
    unfinished        replays that were planned long ago and have not committed
    unannounced       batches with results that no asset event has announced
    target_partitions  how many partitions a target with layout="by_batch" has; None for another target
    at                 when the log was asked
    freshness          the registered age from which an unprocessed record makes the pipeline overdue; None without one
    joined             topics that joined by the pipeline's pattern, the newest ones
    oldest             the timestamp of the oldest unprocessed record; None without a freshness, and if there is none or
                       it is not known
    is_age_known       False if Kafka denied, or did not send in time, timestamps that `oldest` comes from
    not_known          sentences on what Kafka denied, and how to grant it, or did not send in time
    forwarding         how far the results are sent to the pipeline's topic; None without one
    """

    pipeline: Pipeline
    partitions: tuple[PartitionStatus, ...]
    batches: tuple[Batch, ...]
    partly_committed: tuple[PartlyCommitted, ...] = ()
    failing: tuple[Failing, ...] = ()
    unfinished: tuple[Batch, ...] = ()
    unannounced: tuple[Batch, ...] = ()
    target_partitions: int | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    freshness: timedelta | None = None
    oldest: datetime | None = None
    is_age_known: bool = True
    not_known: tuple[str, ...] = ()
    joined: tuple[JoinedTopic, ...] = ()
    forwarding: Forwarding | None = None

    @property
    def overdue(self) -> bool | None:
        """Whether the oldest unprocessed record is older than `freshness`; None if it is not known, or without one."""
        return is_overdue(self.freshness, self.oldest, self.at, is_known=self.is_age_known)

    @property
    def troubles(self) -> list[str]:
        """Sentences that say what blocks the pipeline."""
        failing = {batch.batch_id for batch in self.failing}
        return [
            *self._late(),
            *map(_failure, self.failing),
            *(_unfinished(batch) for batch in self.unfinished if batch.batch_id not in failing),
            *_unannounced(self.unannounced),
            *_many_partitions(self.pipeline, self.target_partitions or 0),
            *(trouble for partition in self.partitions for trouble in partition.troubles),
            *self.not_known,
        ]

    def _late(self) -> list[str]:
        late = []
        if text := overdue_text(self.freshness, self.oldest, self.at):
            late.append(f"{text}.")
        if difference := differing_freshness(self.pipeline.fresh_for, self.freshness):
            late.append(
                f"{difference} To store the new value in the ledger: exactbatch register {self.pipeline.name}"
            )
        return late

    def as_json(self) -> dict[str, Any]:
        """Return the content of `exactbatch status --json`."""
        return {
            "pipeline": self.pipeline.name,
            "overdue": self.overdue,
            "freshness_seconds": self.freshness and self.freshness.total_seconds(),
            "partitions": [
                {
                    "topic": partition.log.topic,
                    "partition": partition.log.partition,
                    "stored": partition.stored and partition.stored.next_offset,
                    "last_stable": partition.log.last_stable,
                    "high_watermark": partition.log.high_watermark,
                    "earliest": partition.log.earliest,
                    "horizon": partition.horizon,
                    "lag": partition.lag,
                    "committed_at": partition.committed_at,
                    "troubles": partition.troubles,
                }
                for partition in self.partitions
            ],
            "batches": list(map(asdict, self.batches)),
            "partly_committed": list(map(asdict, self.partly_committed)),
            "failing": list(map(asdict, self.failing)),
            "unfinished": list(map(asdict, self.unfinished)),
            "unannounced": list(map(asdict, self.unannounced)),
            "target_partitions": self.target_partitions,
            "not_known": list(self.not_known),
            "joined": list(map(asdict, self.joined)),
            "forwarding": self.forwarding and asdict(self.forwarding),
        }


def load_status(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    *,
    logs: Sequence[LogPartition] | None = None,
) -> PipelineStatus:
    """Query ledger and broker.

    `logs` are the logs of the pipeline's topics, if they are known. The timestamps of unprocessed records are only read
    for a pipeline with a freshness. What needs the ACL Read is left out without it, and `not_known` says so.

    Raises NotRegistered, IdentityChanged, PostgresUnavailable, KafkaUnavailable, TopicMissing, with a freshness
    ReadFailed, and ConfigurationError if an ACL denies to describe the topics.
    """
    with transaction(connection) as cursor:
        ledger = Ledger(connection)
        freshness = ledger.registry.check(pipeline).freshness
        writer = find_writer(pipeline.traits)
        target_partitions = writer.merger.count(cursor) if isinstance(writer, MergesPartitions) else None
        stored = {offset.topic_partition: offset for offset in ledger.plans.read_stored_offsets(pipeline)}
        moved = ledger.plans.read_move_times(pipeline)
        horizons = ledger.coverage.read_horizons(pipeline)
        batches = ledger.batches.read_page(pipeline.name, limit=_BATCHES)
        partly_committed = ledger.batches.find_partly_committed(batches)
        failing = ledger.batches.find_failing(pipeline, batches)
        unfinished = tuple(
            replay
            for replay in ledger.batches.find_unfinished_replays(
                pipeline, age=UNFINISHED_AFTER.total_seconds(), limit=_SHOWN
            )
            if ledger.coverage.find_overtaking(replay) is None
        )
        joined = tuple(ledger.plans.read_joined_topics(pipeline, limit=_SHOWN))
        unannounced = tuple(ledger.batches.find_unannounced(pipeline, age=_UNANNOUNCED_AFTER, limit=_SHOWN))
        forwarding = load_forwarding(Streams(connection), pipeline.name)
    # With a pattern, also topics that join at the next plan.
    if logs is None:
        logs = broker.partitions(broker.loaded_topics(pipeline.topic_names, {topic for topic, _ in stored}))
    held_back = [log for log in logs if log.last_stable < log.high_watermark]
    not_known = []
    try:
        open_transactions = broker.open_transactions(held_back)
    except ConfigurationError as denied:
        open_transactions = {}
        not_known.append(f"the producers of open transactions are not known: {denied}")
    oldest = OldestRecords({}, frozenset())
    is_age_known = True
    if freshness is not None:
        try:
            # The timestamps are read from the log, which costs more than all else here.
            oldest = first_unprocessed(broker, logs, stored)
            if slow := len(oldest.unanswered):
                is_age_known = False
                not_known.append(
                    f"Kafka did not send the oldest unprocessed records of {slow} partitions in time: ask again"
                )
        except ConfigurationError as denied:
            is_age_known = False
            not_known.append(f"whether the pipeline is overdue is not known: {denied}")
    partitions = tuple(
        PartitionStatus(
            log=log,
            stored=stored.get(log.topic_partition),
            committed_at=moved.get(log.topic_partition),
            horizon=horizons.get(log.key),
            open_transactions=tuple(open_transactions.get(log.topic_partition, ())),
        )
        for log in logs
    )
    return PipelineStatus(
        pipeline,
        partitions,
        tuple(batches),
        partly_committed,
        failing,
        unfinished,
        unannounced,
        target_partitions,
        datetime.now(UTC),
        freshness,
        min(oldest.times.values(), default=None),
        is_age_known,
        tuple(not_known),
        joined,
        forwarding,
    )


def _failure(failing: Failing) -> str:
    times = "once" if failing.failures == 1 else f"{failing.failures} times since {_time(failing.since)}"
    if failing.kind == "replay":
        next_step, rest = "plan the replay again", "The previous results of its ranges stay."
    else:
        next_step = "the next run plans its offsets again"
        rest = "Until then the stored offsets stay where they are; replays of other ranges go on."
    advice = (
        "A retry may succeed."
        if failing.retryable
        else f"A retry does not help: correct the cause, and {next_step}. {rest}"
    )
    text = (
        f"batch {failing.batch_id} ({failing.kind}) has failed {times}, last at {_time(failing.failed_at)} UTC, "
        f"with {failing.error}: {failing.message} {advice} {find_hint(failing.error)}"
    )
    return text.rstrip()


def _unfinished(batch: Batch) -> str:
    planner = f"run {batch.run_id!r}" if batch.run_id else "a command"
    return (
        f"batch {batch.batch_id} (replay) was planned at {_time(batch.planned_at)} UTC for {planner} and has not "
        f"committed. If nothing processes it any more, its ranges keep their previous results: "
        + (
            "clear plan_batch of that run with its downstream tasks."
            if batch.run_id
            else "run the command again."
        )
    )


def _unannounced(batches: Sequence[Batch]) -> list[str]:
    if not batches:
        return []
    first, later = batches[0].batch_id, len(batches) - 1
    others = ""
    if later:
        more = " or more" if len(batches) == _SHOWN else ""
        others = f", nor those of {later}{more} later {'batches' if more or later > 1 else 'batch'}"
    return [
        f"batch {first}: no asset event has announced its results{others}. The next run of the DAG "
        f"announces them."
    ]


def _many_partitions(pipeline: Pipeline, partitions: int) -> list[str]:
    if partitions <= _MANY_PARTITIONS:
        return []
    return [
        f"target {pipeline.traits.target} has {partitions} partitions, and every partition slows queries down. Merge "
        f"small ones: exactbatch merge {pipeline.name}"
    ]


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True, slots=True)
class TablesStatus:
    """The status of each member of Tables, by name.

    new     members whose topics match the pattern, and that join at the next plan
    errors  why the status of other members is not known
    """

    tables: Tables
    members: tuple[PipelineStatus, ...]
    new: tuple[str, ...] = ()
    errors: Mapping[str, ExactbatchError] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Number of unprocessed offsets of all members whose status is known."""
        return sum(partition.lag for member in self.members for partition in member.partitions)

    @property
    def troubles(self) -> list[str]:
        """Sentences that say what blocks which member."""
        return [
            *(f"{name}: {type(error).__name__}: {error}" for name, error in self.errors.items()),
            *(f"{each.pipeline.name}: {trouble}" for each in self.members for trouble in each.troubles),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the content of `exactbatch status --json`."""
        return {
            "tables": self.tables.name,
            "lag": self.lag,
            "members": [member.as_json() for member in self.members],
            "new": list(self.new),
            "errors": {name: f"{type(error).__name__}: {error}" for name, error in self.errors.items()},
        }


def load_tables_status(connection: Connection, broker: KafkaBroker, tables: Tables) -> TablesStatus:
    """Query the ledger and, once for all members, the broker.

    Raises PostgresUnavailable, KafkaUnavailable, ConfigurationError, and TopicMissing if no topic matches.
    """
    members, unmade = find_members(connection, broker, tables)
    logs, _ = existing_partitions(broker, {member.known_topics(())[0] for member in members})
    found, new, errors = [], [], dict[str, ExactbatchError](unmade)
    for member in members:
        try:
            found.append(load_status(connection, broker, member, logs=logs.get(member.known_topics(())[0])))
        except NotRegistered:
            new.append(member.name)
        except ExactbatchError as error:
            errors[member.name] = error
    return TablesStatus(tables, tuple(found), tuple(new), errors)
