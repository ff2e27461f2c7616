"""A database with the roles of docs/roles.sql."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.errors

from exactbatch import Pipeline
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, migrate
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from support.logins import as_login

ROLES = (Path(__file__).parents[2] / "docs" / "roles.sql").read_text()


@dataclass(frozen=True)
class Deployment:
    """A database with the roles, and a login in each of them."""

    superuser: str
    kafka: dict[str, Any]

    def settings(self, role: str) -> Settings:
        """Return the settings for a login in a role."""
        return Settings(kafka=self.kafka, postgres=as_login(self.superuser, f"test_{role}"))

    def execute(self, statement: str, role: str | None = None) -> int:
        """Run a statement; return how many rows it touched."""
        dsn = self.superuser if role is None else self.settings(role).postgres
        connection = psycopg2.connect(dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement)
                return int(cursor.rowcount)
        finally:
            connection.close()

    def init(self, pipeline: Pipeline) -> None:
        """`exactbatch register`, as its owner."""
        connection = connect(self.settings("owner").postgres, application="tests")
        migrate(connection)
        with transaction(connection):
            Ledger(connection).registry.register(pipeline)
        connection.close()

    def run(self, spark: Any, pipeline: Pipeline, request: ReplayRequest | None = None) -> int:
        """Run a batch from plan to commit, as the job; return its ID."""
        settings = self.settings("job")
        connection, log = connect(settings.postgres, application="tests"), KafkaBroker(settings.kafka)
        try:
            if request is None:
                batch_id = freeze_advance(connection, log, pipeline, origin="cli")
            else:
                batch_id = freeze_replay(connection, log, pipeline, request, origin="cli").batch_id
            assert batch_id is not None
            process_batch(DriverEngine(spark), pipeline, batch_id, settings)
            return batch_id
        finally:
            connection.close()
