"""Measure a pipeline: what the ledger and the brokers say about it now, as metrics."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, Streams
from exactbatch.operations.forwarding import load_forwarding
from exactbatch.operations.lag import load_lag
from exactbatch.operations.metrics import Metric, batch_metrics, ledger_metrics, log_metrics
from exactbatch.postgres.connection import Connection, transaction


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
    yield from ledger_metrics(pipeline, last_commit, datetime.now(UTC), forwarding)
    (lag,) = load_lag(connection, broker, [pipeline])
    retention = (
        {} if lag.removed_at else broker.retention(sorted({each.log.topic for each in lag.partitions}))
    )
    yield from log_metrics(lag, retention)


def count(connection: Connection, announced: Sequence[Batch]) -> list[Metric]:
    """Return what batches that were announced just now add to the counters of their pipelines."""
    with transaction(connection):
        return batch_metrics(announced, Ledger(connection).batches.find_partly_committed(announced))
