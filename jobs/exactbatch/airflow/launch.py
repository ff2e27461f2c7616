"""What the operators of both engines have in common: their fields, and which of their batches are left."""

from typing import Any, Final

from exactbatch.airflow.check_batches import named_batches
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.links import build_links
from exactbatch.airflow.openlineage import BatchLineage
from exactbatch.model import PlannedBatch
from exactbatch.settings import Settings

# Airflow stores them with the DAG, all but the first for the Pipelines page, which does not import pipelines.
FIELDS: Final = (
    "batches",
    "kafka_conn_id",
    "member",
    "postgres_conn_id",
    "replays_compacted",
    "spark_history",
    "tables",
)


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
        self.spark_history = connections.spark_history
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
        from exactbatch.airflow.tasks.left_batches import done_already

        batches = named_batches(self.batches)
        done = done_already(settings, batches, ti)
        for batch, why in done.items():
            self.log.info("%s: %s", batch.pipeline, why)
            if len(batches) == 1:
                self.connections.note(ti, why)
        return [batch for batch in batches if batch not in done]
