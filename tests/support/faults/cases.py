"""A pipeline for each kind of sink, on servers that a test breaks."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Sum, Tuning, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.batch.publishing.publish import Published
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, migrate
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from support.faults.held import Engine, Held, held
from support.topics import Topic

RECORDS: Final = 40
PAD: Final = 400  # bytes: that many that the staged rows do not fit into the pages that a table has anyway
SINKS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "append": lambda name: {"sink": Append(name)},
    "upsert": lambda name: {"sink": Upsert(name, key=("id",)), "message_key": Json("id int")},
    "aggregate": lambda name: {
        "sink": Aggregate(name, group_by=("name",), aggregates={"seen": Count(), "ids": Sum("id")})
    },
    "transform": lambda name: {"sink": Append(name), "transform": "select * from records"},
    "shuffle": lambda name: {
        "sink": Append(name),
        "transform": "select /*+ repartition(2) */ * from records",
    },
    "partition": lambda name: {"sink": Append(name), "commit": "partition"},
}


class Case:
    """A pipeline with records to process, and queries on its database."""

    def __init__(
        self,
        engine: Engine,
        topic: Topic,
        dsn: str,
        folder: Path,
        sink: str,
        *,
        records: int = RECORDS,
        pad: int = PAD,
        **changes: Any,
    ) -> None:
        """Produce `records` records at a time, each with `pad` bytes that compress badly."""
        self.engine, self.folder, self.dsn = engine, folder, dsn
        self.settings = Settings(kafka=topic.properties, postgres=dsn)
        self.topic = topic
        self.pipeline = Pipeline(
            name=topic.name,
            topics=(topic.name,),
            value=Json("id int, name text, pad text"),
            **{
                "tuning": Tuning(read_timeout="10 seconds", lock_timeout="10 seconds"),
                **SINKS[sink](f"public.{topic.name}"),
                **changes,
            },
        )
        with closing(connect(dsn, application="tests")) as connection:
            migrate(connection)
            with transaction(connection):
                Ledger(connection).registry.register(self.pipeline)
        self.records, self.pad, self.sent = records, pad, 0
        self.produce()

    def produce(self) -> None:
        """Append the same number of records with the same ids again, in two partitions."""
        for partition in (0, 1):
            self.topic.produce(*map(self.value, range(partition, self.records, 2)), partition=partition)
        self.sent += self.records

    def value(self, number: int) -> bytes:
        """Return the value of a record."""
        pad = os.urandom(self.pad // 2).hex()
        return json.dumps({"id": number, "name": f"n{number % 3}", "pad": pad}).encode()

    def plan(self) -> int:
        """Plan an advance that must not be empty."""
        batch_id = self.plan_if_any()
        assert batch_id is not None
        return batch_id

    def plan_if_any(self) -> int | None:
        """Plan an advance; return None if there is nothing new."""
        with closing(connect(self.dsn, application="tests")) as connection:
            return freeze_advance(connection, KafkaBroker(self.settings.kafka), self.pipeline, origin="cli")

    def process(self, batch_id: int, **options: str) -> Published:
        """Process a batch whose connections have these server options."""
        return self.engine.process(self.pipeline, batch_id, self.with_options(**options))

    def with_options(self, **options: str) -> Settings:
        """Return settings whose connections have these server options."""
        text = " ".join(f"-c {name}={value}" for name, value in options.items())
        return Settings(self.settings.kafka, make_dsn(self.dsn, options=text) if text else self.dsn)

    @contextmanager
    def held(self, batch_id: int, moment: str, **options: str) -> Iterator[Held]:
        """Process a batch that waits at a failpoint."""
        settings = self.with_options(**options)
        process = partial(self.engine.process, self.pipeline, batch_id, settings, moment)
        with held(process, self.folder / f"{moment}-{batch_id}") as batch:
            yield batch

    def refused(self, run: Callable[[], Any], *expected: type[ExactbatchError]) -> str:
        """Return the message of the retryable error that `run` fails with."""
        with pytest.raises(expected) as caught:
            run()
        assert caught.value.retryable
        return str(caught.value)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, on a new connection."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def assert_nothing_written(self, batch_id: int) -> None:
        """Check that the batch is planned and has no row and no coverage."""
        assert self.rows(f"select status from exactbatch.batch where batch_id = {batch_id}") == [("planned",)]
        assert self.rows(f"select from exactbatch.coverage where batch_id = {batch_id}") == []
        table = find_writer(self.pipeline.traits).lineage_table.table.name[1]
        assert self.rows(f"select from public.{table} where batch_id = {batch_id}") == []

    def assert_exact(self) -> None:
        """Check with the auditor, and compare counts and sums of the target with what was sent."""
        self.assert_audited()
        sink, ids = self.pipeline.sink, sum(range(self.records))
        measure = "sum(seen), sum(ids)" if isinstance(sink, Aggregate) else "count(*), sum(id)"
        times = 1 if isinstance(sink, Upsert) else self.sent // self.records
        assert self.rows(f"select {measure} from public.{self.pipeline.name}") == [
            (times * self.records, times * ids)
        ]
        assert self.rows("select from pg_tables where schemaname = 'exactbatch_staging'") == []

    def assert_audited(self) -> None:
        """Check that the auditor finds nothing, and has seen as many records as were sent."""
        found = audit(self.pipeline, self.settings)
        assert found.partitions
        assert found.is_exact, found
        assert found.records == self.sent
