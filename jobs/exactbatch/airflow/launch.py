"""The common part of the operators of both engines: their fields, which of their batches are left, links, and lineage.

The links need no login of their own. Airflow asks for them once a task has ended, in the task's process, and keeps them
as XComs.

Airflow's provider for OpenLineage calls the methods of BatchLineage around a task, if it is installed and configured.
It logs their errors, which do not fail the task. Without it nothing calls them, and nothing of it is imported.
"""

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from exactbatch.airflow.check_batches import read_named_batches
from exactbatch.airflow.connections import Connections, application_url
from exactbatch.model import PlannedBatch
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


# Airflow stores them with the DAG, all but the first for the Pipelines page, which does not import pipelines.
FIELDS: Final = (
    "batches",
    "kafka_conn_id",
    "member",
    "postgres_conn_id",
    "replays_compacted",
    "spark_history_url",
    "tables",
)


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
        (batch,) = read_named_batches(self.batches)
        return load_lineage(self.connections.settings(), batch)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> "OperatorLineage[Any, Any]":
        """Return the same, with the numbers of records, rows and rejects if the batch is committed."""
        return self.get_openlineage_facets_on_start()


class BatchLink(BaseOperatorLink):
    """The batch on the Pipelines page. The address is relative to Airflow's, which may be below a path."""

    name = "Batch in exactbatch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address."""
        (batch,) = read_named_batches(operator.batches)
        return "exactbatch/?" + urlencode(
            {"dag": ti_key.dag_id, "run": ti_key.run_id, "batch": batch.batch_id}
        )


class SparkApplicationLink(BaseOperatorLink):
    """The Spark application of the batch's last launch, on Spark's history server."""

    name = "Spark application"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002
        """Return the address; an empty text, for which Airflow shows no link, if no application is known.

        Raises the errors of ledger_session(), which Airflow logs.
        """
        # Parsing a DAG file, which needs no ledger, imports this module.
        from exactbatch.ledger import Ledger, ledger_session

        (batch,) = read_named_batches(operator.batches)
        postgres = operator.connections.settings().postgres
        with ledger_session(postgres, "exactbatch link") as connection, transaction(connection):
            application_id = Ledger(connection).batches.read(batch.batch_id, batch.plan_id).application_id
        return application_url(operator.connections.spark_history_url, application_id) or ""


def build_links(connections: Connections) -> tuple[BaseOperatorLink, ...]:
    """Return the links of a task; one to Spark only if there is a history server."""
    return (BatchLink(), SparkApplicationLink()) if connections.spark_history_url else (BatchLink(),)


class LaunchesBatches(BatchLineage):
    """The part of an operator that knows its batches. `member` names a pipeline that is not its DAG's own."""

    log: Any

    def __init__(
        self,
        *,
        connections: Connections,
        pipeline: str,
        batches: str,
        member: str = "",
        replays_compacted: bool = False,
        is_tables: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.connections = connections
        self.kafka_conn_id = connections.kafka
        self.postgres_conn_id = connections.postgres
        self.replays_compacted = replays_compacted
        self.spark_history_url = connections.spark_history_url
        self.pipeline = pipeline
        self.member = member
        self.tables = pipeline if is_tables else None
        self.batches = batches
        self.operator_extra_links: Any = () if is_tables or member else build_links(connections)

    def find_left(self, settings: Settings, ti: Any) -> list[PlannedBatch]:
        """Return the batches that need a launch; log why each other needs none, and note it if there is only one batch.

        Raises AirflowFailException without batches, and what done_already() raises.
        """
        # Parsing a DAG file, which needs no ledger, imports this module.
        from exactbatch.airflow.tasks.uncommitted_batches import done_already

        batches = read_named_batches(self.batches)
        done = done_already(settings, batches, ti)
        for batch, why in done.items():
            self.log.info("%s: %s", batch.pipeline, why)
            if len(batches) == 1:
                self.connections.note(ti, why)
        return [batch for batch in batches if batch not in done]
