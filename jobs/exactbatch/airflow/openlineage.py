"""Lineage of batches for OpenLineage: which topics and tables they connect, and which offsets.

Airflow's provider for OpenLineage calls these methods around a task, if it is installed and configured. It logs their
errors, which do not fail the task. Without it nothing calls them, and nothing of it is imported.
"""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from exactbatch.airflow.batches import named_batch
from exactbatch.airflow.connections import Connections
from exactbatch.settings import Settings

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from exactbatch.operations.datasets import BatchDatasets


class BatchLineage:
    """The part of an operator that describes its batch to OpenLineage."""

    connections: Connections
    batch_id: str
    plan_id: str

    def get_openlineage_facets_on_start(self) -> "OperatorLineage[Any, Any]":
        """Return the topics with their planned ranges, and the targets.

        Raises AirflowFailException if plan_batch has left no batch, BatchLost, NotRegistered, and the errors of
        ledger_session().
        """
        from exactbatch.airflow.openlineage_facets import operator_lineage

        batch = named_batch(self.batch_id, self.plan_id)
        return operator_lineage(_datasets(self.connections.settings(), *batch))

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> "OperatorLineage[Any, Any]":
        """Return the same, with the numbers of records, rows and rejects if the batch is committed."""
        return self.get_openlineage_facets_on_start()


def _datasets(settings: Settings, batch_id: int, plan_id: UUID | None) -> "BatchDatasets":
    """Read from the ledger what a batch reads and writes."""
    from psycopg2.extensions import parse_dsn

    from exactbatch.ledger import Ledger, ledger_session
    from exactbatch.operations.datasets import (
        BatchDatasets,
        kafka_namespace,
        postgres_namespace,
        tables,
        topic_ranges,
    )
    from exactbatch.postgres.connection import transaction

    with ledger_session(settings.postgres, "exactbatch lineage") as connection, transaction(connection):
        ledger = Ledger(connection)
        batch = ledger.batch(batch_id, plan_id)
        return BatchDatasets(
            batch=batch,
            kafka=kafka_namespace(str(settings.kafka["bootstrap.servers"])),
            topics=topic_ranges(ledger.ranges_with_records(batch_id)),
            postgres=postgres_namespace(parse_dsn(settings.postgres)),
            tables=tables(batch, connection.info.dbname, ledger.registered_as(batch.pipeline).targets),
        )
