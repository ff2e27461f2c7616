"""Batches from end to end in this process: real Kafka, Spark and Postgres."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from exactbatch import Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.errors import (
    ExactbatchError,
)
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, list_staging_tables
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from support.topics import Topic

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]


class BatchRunner:
    """Plans, runs and looks at batches of one test."""

    def __init__(self, spark: Any, connection: Any, settings: Settings) -> None:
        self.spark, self.connection, self.settings = spark, connection, settings
        self.log = KafkaBroker(settings.kafka)

    def settle(self, pipeline: Pipeline) -> None:
        """Wait until the broker has written the marker at the end of each transaction."""
        while any(
            each.last_stable < each.high_watermark for each in self.log.partitions(pipeline.known_topics(()))
        ):
            time.sleep(0.05)

    def plan(self, pipeline: Pipeline) -> int:
        batch_id = freeze_advance(self.connection, self.log, pipeline, origin="cli")
        assert batch_id is not None
        return batch_id

    def process(self, pipeline: Pipeline, batch_id: int) -> Published:
        return process_batch(DriverEngine(self.spark), pipeline, batch_id, self.settings)

    def run(self, pipeline: Pipeline) -> Published:
        return self.process(pipeline, self.plan(pipeline))

    def refused(
        self, expected: type[ExactbatchError], pipeline: Pipeline, batch_id: int | None = None
    ) -> str:
        """The message of the error with which a batch ends that leaves nothing behind."""
        before = self.everything(pipeline)
        batch_id = batch_id or self.plan(pipeline)
        with pytest.raises(expected) as caught:
            self.process(pipeline, batch_id)
        after = self.everything(pipeline)
        assert after["staging"] == []
        assert after["coverage"] == before["coverage"]
        assert after["rows"] == before["rows"]
        assert after["rejects"] == before["rejects"]
        with transaction(self.connection):
            assert Ledger(self.connection).batches.read(batch_id).status == "planned"
            assert all(
                each.from_offset == offsets.next_offset
                for each in Ledger(self.connection).batches.read_ranges(batch_id)
                for offsets in Ledger(self.connection).plans.read_stored_offsets(pipeline)
                if (each.topic, each.partition) == (offsets.topic, offsets.partition)
            )
        return str(caught.value)

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with transaction(self.connection) as cursor:
            cursor.execute(statement, arguments or None)
            return [tuple(row) for row in cursor.fetchall()]

    def execute(self, statement: str) -> None:
        with transaction(self.connection) as cursor:
            cursor.execute(statement)

    def target(self, pipeline: Pipeline, columns: str) -> list[tuple[Any, ...]]:
        table = find_writer(pipeline.traits).tables[-1].identifier.as_string(self.connection)
        return self.rows(f"select {columns} from {table} order by kafka_partition, kafka_offset")

    def staging(self) -> list[str]:
        with transaction(self.connection):
            return sorted(list_staging_tables(self.connection))

    def everything(self, pipeline: Pipeline) -> dict[str, Any]:
        """Return everything that a batch can change, except its own row."""
        table = find_writer(pipeline.traits).tables[-1].identifier.as_string(self.connection)
        exists = self.rows("select to_regclass(%s) is not null", table) == [(True,)]
        with transaction(self.connection):
            coverage = Ledger(self.connection).coverage.read_all(pipeline)
        return {
            "staging": self.staging(),
            "coverage": coverage,
            "rows": self.rows(f"select count(*) from {table}") if exists else [(0,)],
            "rejects": self.rows("select count(*) from exactbatch.rejected_record"),
        }

    def is_exact(self, pipeline: Pipeline) -> bool:
        found = audit(pipeline, self.settings)
        return bool(found.partitions) and found.is_exact


LINEAGE = (
    "kafka_topic text not null, kafka_partition int not null, kafka_offset bigint not null, "
    "kafka_timestamp timestamptz, batch_id bigint not null"
)


def recreate(admin: AdminClient, make_topic: MakeTopic, topic: Topic) -> None:
    """Delete a topic and create it again under its name."""
    admin.delete_topics([topic.name])[topic.name].result(30)
    while True:
        try:
            make_topic(name=topic.name)
            return
        except (
            KafkaException
        ) as error:  # brokers, and the controller after them, delete it after their answer
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
