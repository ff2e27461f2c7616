"""The operator that processes the planned batches of many tables with one spark-submit."""

import json
import os
from typing import Any, Final

from exactbatch.airflow.batches import named_batches
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.launch import done_already
from exactbatch.airflow.submit import APPLICATIONS, SubmitOperator, search_path
from exactbatch.airflow.versions import AirflowException, AirflowFailException
from exactbatch.class_archive import with_archive
from exactbatch.errors.exit_status import TERMINAL
from exactbatch.settings import Settings

# A batch takes up to 320 bytes, and Linux allows 128 KiB for one argument of a process.
_IN_ONE_ARGUMENT: Final = 100


class ProcessTablesOperator(SubmitOperator):
    """Run process_tables.py for the planned batches of many tables.

    Batches that are done already are left out: a retry processes what is left. The task fails at its end if any member
    failed.
    """

    template_fields = (
        *SubmitOperator.template_fields,
        "batches",
        # Airflow stores these with the DAG, for the Pipelines page, which does not import the pipelines.
        *("kafka_conn_id", "postgres_conn_id", "spark_history", "tables"),
    )

    def __init__(
        self,
        *,
        connections: Connections,
        tables: str,
        batches: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            connections=connections, application=str(APPLICATIONS / "process_tables.py"), **kwargs
        )
        self.kafka_conn_id = connections.kafka
        self.postgres_conn_id = connections.postgres
        self.spark_history = connections.spark_history
        self.tables = tables
        self.batches = batches

    def execute(self, context: Any) -> None:
        """Submit the job for the batches that are left, and wait for it.

        Raises AirflowFailException if members failed and a retry cannot help, and AirflowException or a retryable error
        of exactbatch for any other failure.
        """
        with airflow_errors():
            settings = self.connections.settings()
            left = self._left(settings, context["ti"])
        if not left:
            return
        try:
            self._submit(context, left, settings)
        except AirflowFailException:
            # Later replays may have overtaken batches while they were processed.
            with airflow_errors():
                left = self._left(settings, context["ti"])
            if left:
                raise

    def _left(self, settings: Settings, ti: Any) -> list[list[Any]]:
        """Return the batches that are not done: topic, batch ID and plan ID of each."""
        from exactbatch.discovery import load_tables

        tables, left = load_tables(self.tables), []
        for batch in named_batches(self.batches):
            name = tables.name_of(batch.topic)
            done = done_already(settings, batch.batch_id, batch.plan_id, ti, pipeline=name)
            if done is None:
                left.append([batch.topic, batch.batch_id, str(batch.plan_id)])
            else:
                self.log.info("%s: %s", name, done)
        return left

    def _submit(self, context: Any, left: list[list[Any]], settings: Settings) -> None:
        self.application_args = ["--tables", self.tables]
        for first in range(0, len(left), _IN_ONE_ARGUMENT):
            self.application_args += ["--batches", json.dumps(left[first : first + _IN_ONE_ARGUMENT])]
        try:
            self.submit(context, settings, {**with_archive(os.environ), **search_path(self.tables)})
        except AirflowException as error:
            if self.exit_status != TERMINAL:
                raise
            raise AirflowFailException(
                f"tables failed and cannot succeed by trying again: the log above names them and the reasons. {error}"
            ) from None
