"""The operator that launches batches with spark-submit."""

import os
from typing import Any

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.launch import FIELDS, LaunchesBatches
from exactbatch.airflow.submit import APPLICATIONS, SubmitOperator, search_path
from exactbatch.airflow.versions import AirflowException, AirflowFailException
from exactbatch.batch.spark.class_archive import with_archive
from exactbatch.errors.exit_status import TERMINAL


class ProcessBatchOperator(LaunchesBatches, SubmitOperator):
    """Run process_batch.py for the planned batch of a pipeline, or for those of many tables.

    Batches that are done already are left out: a retry processes what is left. A terminal error ends the task at once,
    in client mode.
    """

    template_fields = (*SubmitOperator.template_fields, *FIELDS)

    def __init__(
        self,
        *,
        connections: Connections,
        pipeline: str,
        batches: str,
        is_transformed: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            connections=connections,
            pipeline=pipeline,
            batches=batches,
            conn_id=connections.spark,
            application=str(APPLICATIONS / "process_batch.py"),
            application_args=["--pipeline", pipeline, "--batches", batches],
            durable=False,  # a retry reads the state of the batches from the ledger, not from Spark
            **kwargs,
        )
        self.is_transformed = is_transformed

    def execute(self, context: Any) -> None:
        """Submit the job for the batches that are left, and wait for it.

        Raises AirflowFailException if batches failed and a retry cannot help, and AirflowException or a retryable error
        of exactbatch for any other failure.
        """
        with airflow_errors():
            settings = self.connections.settings()
            left = self.find_left(settings, context["ti"])
            if not left:
                return
            # Parsing a DAG file, which needs no ledger, imports this module.
            from exactbatch.airflow.tasks.left_batches import planned_offsets

            offsets = planned_offsets(settings, left)
        self.application_args = ["--pipeline", self.pipeline, "--batches", *map(str, left)]
        variables = {
            **with_archive(os.environ, is_transformed=self.is_transformed, offsets=offsets),
            **search_path(self.pipeline),
        }
        try:
            self.submit(context, settings, variables)
        except AirflowException as error:
            if self.exit_status != TERMINAL:
                raise
            # Later replays may have overtaken batches while they were processed.
            with airflow_errors():
                left = self.find_left(settings, context["ti"])
            if left:
                raise AirflowFailException(
                    f"{'tables failed and' if self.tables else 'the batch'} cannot succeed by trying again: the log "
                    f"above has the reason. {error}"
                ) from None
