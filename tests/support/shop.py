"""Many tables for tests: topics with a common prefix, as a connector for changes of a database names them."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch import Append, Json, Pipeline, Tables, TableTopic, TopicPattern, Tuning, Upsert
from support.topics import await_leaders


@dataclass(frozen=True)
class MakeMember:
    """Make a pipeline for a topic; a frozen dataclass, so that its repr is the Python that makes it."""

    schema: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, topic: TableTopic) -> Pipeline:
        """Make an Upsert by id; of tables whose names begin with "event", an Append."""
        target = f'{self.schema}."{topic.table}"'
        return Pipeline(
            name=topic.name,
            topics=(topic.topic,),
            value=Json("id int, name text"),
            sink=Append(target) if topic.table.startswith("event") else Upsert(target, key=("id",)),
            tuning=Tuning(read_timeout="20 seconds", lock_timeout="20 seconds"),
            **self.changes,
        )


class Shop:
    """The topics `<prefix>.public.<table>`."""

    def __init__(self, properties: Mapping[str, Any], admin: AdminClient) -> None:
        self.prefix = f"shop{uuid.uuid4().hex[:8]}"
        self._properties, self._admin = dict(properties), admin
        self._producer = Producer({**self._properties, "linger.ms": 5, "log_level": 2})

    def topic(self, table: str) -> str:
        """Return the name of a table's topic."""
        return f"{self.prefix}.public.{table}"

    def create(self, *tables: str) -> None:
        """Create the topics of tables."""
        new = [NewTopic(self.topic(table), 1, 1) for table in tables]
        for created in self._admin.create_topics(new).values():
            created.result(60)
        for table in tables:
            await_leaders(self._admin, self.topic(table), 1)

    def produce(self, table: str, *ids: int, name: str = "x") -> None:
        """Append a record for each ID."""
        for each in ids:
            self._producer.produce(self.topic(table), json.dumps({"id": each, "name": name}).encode())
        assert self._producer.flush(30) == 0

    def produce_bytes(self, table: str, value: bytes) -> None:
        """Append one record."""
        self._producer.produce(self.topic(table), value)
        assert self._producer.flush(30) == 0

    def tables(self, names: Sequence[str] | None = None, *, at_a_time: int = 4, **changes: Any) -> Tables:
        """Return Tables over all topics, or over those of these tables."""
        return Tables(
            name=self.prefix,
            topics=TopicPattern(rf"{self.prefix}\.public\..*")
            if names is None
            else tuple(map(self.topic, names)),
            pipeline=MakeMember("public", changes),
            at_a_time=at_a_time,
        )
