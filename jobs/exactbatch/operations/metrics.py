"""Measure the metrics of a pipeline and its batches, as the ledger and the brokers report them now.

airflow/tasks/report_batch.py sends them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, PartlyCommitted, Streams
from exactbatch.model import Retention
from exactbatch.operations.lag import PipelineLag, load_lag, seconds_since, seconds_until
from exactbatch.operations.unprocessed import Forwarding, load_forwarding
from exactbatch.postgres.connection import Connection, transaction

_PREFIX: Final = "exactbatch"


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a metric.

    kind   a gauge is set to the value, a counter grows by it, and a timer is a duration in seconds
    names  what the values of several pipelines are told apart by: at most a pipeline and a kind of batch, so that
           the number of series does not grow with partitions, batches or runs
    """

    kind: Literal["gauge", "counter", "timer"]
    measure: str
    value: float
    names: Mapping[str, str]

    @property
    def tagged(self) -> str:
        """The name where tags tell the series apart: exactbatch.lag."""
        return f"{_PREFIX}.{self.measure}"

    @property
    def untagged(self) -> str:
        """The name with the tags in it, for StatsD without tags: exactbatch.flights.lag.

        As in Airflow's own names, a dot in a tag becomes two underscores, because dots separate the parts of a name.
        """
        return ".".join([_PREFIX, *(name.replace(".", "__") for name in self.names.values()), self.measure])


def measure_ledger(
    pipeline: str, last_commit: datetime | None, now: datetime, forwarding: Forwarding | None = None
) -> list[Metric]:
    """Return what the ledger alone says about a pipeline. Without a committed advance there is no age of it, and
    without a topic for the results nothing about these."""
    return _gauges(
        pipeline,
        last_commit_age=seconds_since(last_commit, now),
        unsent_results=None if forwarding is None else forwarding.unsent,
        unsent_age=None if forwarding is None else seconds_since(forwarding.oldest, now) or 0.0,
    )


def measure_logs(lag: PipelineLag, retention: Mapping[str, Retention]) -> list[Metric]:
    """Return how far a pipeline is behind its logs, and whether it is overdue; nothing if one of its topics is missing.

    `retention` has the topics whose settings the broker shows.
    """
    if lag.missing is not None:
        return []
    return _gauges(
        lag.pipeline,
        lag=lag.lag,
        retention_headroom=_headroom(lag, retention),
        overdue=None if lag.overdue is None else float(lag.overdue),
    )


def measure_batch(
    announced: Iterable[Batch], partly_committed: Sequence[PartlyCommitted] = ()
) -> list[Metric]:
    """Return what announced batches add to the counters.

    `partly_committed` has the counts of those that were superseded after some of their ranges had committed.
    """
    partly = {counts.batch_id: counts for counts in partly_committed}
    metrics = []
    for batch in announced:
        names = {"pipeline": batch.pipeline, "kind": batch.kind}
        counts = partly.get(batch.batch_id, batch)
        metrics += [
            Metric("counter", "rows", counts.rows or 0, names),
            Metric("counter", "rejects", counts.rejected or 0, names),
        ]
        if batch.seconds is not None:
            metrics.append(Metric("timer", "batch.duration", batch.seconds, names))
    return metrics


def _gauges(pipeline: str, **values: float | None) -> list[Metric]:
    """Return a gauge for each value that is known."""
    return [
        Metric("gauge", name, value, {"pipeline": pipeline})
        for name, value in values.items()
        if value is not None
    ]


def _headroom(lag: PipelineLag, retention: Mapping[str, Retention]) -> float | None:
    """Return the seconds until retention may remove an unprocessed record, 0 if it already has; None if not known.

    StatsD keeps the last value of a gauge. A pipeline that has caught up must therefore send one, too: the time that
    a record written now would last. Of partitions that do not answer in time, the others decide.
    """
    if any(
        partition.stored is not None and partition.stored.next_offset < partition.log.earliest
        for partition in lag.partitions
    ):
        return 0.0
    if lag.removed_at is not None:
        return seconds_until(lag.removed_at, lag.at)
    if lag.unanswered:
        return None
    return min((age.total_seconds() for each in retention.values() if (age := each.age)), default=None)


def measure(connection: Connection, broker: KafkaBroker, pipeline: str) -> Iterator[Metric]:
    """Yield the gauges of a registered pipeline, those of the ledger before Kafka is asked: it may not answer.

    Raises NotRegistered, PostgresUnavailable, KafkaUnavailable, and ConfigurationError if an ACL denies reading.
    """
    with transaction(connection):
        advances = Ledger(connection).batches.read_page(
            pipeline, kind="advance", status="committed", before=None, limit=1
        )
        forwarding = load_forwarding(Streams(connection), pipeline)
    last_commit = advances[0].committed_at if advances else None
    yield from measure_ledger(pipeline, last_commit, datetime.now(UTC), forwarding)
    (lag,) = load_lag(connection, broker, [pipeline])
    retention = (
        {} if lag.removed_at else broker.retention(sorted({each.log.topic for each in lag.partitions}))
    )
    yield from measure_logs(lag, retention)


def count(connection: Connection, announced: Sequence[Batch]) -> list[Metric]:
    """Return what batches that were announced just now add to the counters of their pipelines."""
    with transaction(connection):
        return measure_batch(announced, Ledger(connection).batches.find_partly_committed(announced))
