"""Lineage of batches for OpenLineage: which topics and tables they connect, and which offsets.

Airflow's provider for OpenLineage calls these methods around a task, if it is installed and configured. It logs their
errors, which do not fail the task. Without it nothing calls them, and nothing of it is imported.
"""

from typing import TYPE_CHECKING, Any

from exactbatch.airflow.check_batches import named_batches
from exactbatch.airflow.connections import Connections

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


class BatchLineage:
    """The part of an operator that describes its batch to OpenLineage."""

    connections: Connections
    batches: str
    tables: str | None

    def get_openlineage_facets_on_start(self) -> "OperatorLineage[Any, Any]":
        """Return the topics with their planned ranges, and the targets; nothing for a task of many tables.

        Its event would connect each topic with each table.

        Raises AirflowFailException if plan_batch has left no batch, BatchLost, NotRegistered, and the errors of
        ledger_session().
        """
        # Airflow's provider for OpenLineage, which is optional, is what calls this.
        from airflow.providers.openlineage.extractors import OperatorLineage

        from exactbatch.airflow.openlineage_facets import load_lineage

        if self.tables is not None:
            return OperatorLineage()
        (batch,) = named_batches(self.batches)
        return load_lineage(self.connections.settings(), batch)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> "OperatorLineage[Any, Any]":
        """Return the same, with the numbers of records, rows and rejects if the batch is committed."""
        return self.get_openlineage_facets_on_start()
