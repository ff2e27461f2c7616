"""The operator that launches a batch with spark-submit."""

import os
from typing import Any, Final

from exactbatch.airflow.batches import named_batch
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.launch import done_already, planned_offsets
from exactbatch.airflow.links import links_of
from exactbatch.airflow.openlineage import BatchLineage
from exactbatch.airflow.submit import APPLICATIONS, SubmitOperator, search_path
from exactbatch.airflow.versions import AirflowException, AirflowFailException
from exactbatch.class_archive import with_archive
from exactbatch.errors.exit_status import TERMINAL

APPLICATION: Final = APPLICATIONS / "process_batch.py"


class ProcessBatchOperator(BatchLineage, SubmitOperator):
    """Run process_batch.py for a planned batch. A terminal error of the batch ends the task at once, in client mode."""

    template_fields = (
        *SubmitOperator.template_fields,
        *("batch_id", "plan_id"),
        # Airflow stores these with the DAG, for the Pipelines page, which does not import the pipeline.
        *("kafka_conn_id", "postgres_conn_id", "replays_compacted", "spark_history"),
    )

    def __init__(
        self,
        *,
        connections: Connections,
        pipeline: str,
        batch_id: str,
        plan_id: str = "",
        application: str = "",
        replays_compacted: bool = False,
        is_transformed: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            application=application or str(APPLICATION),
            application_args=["--pipeline", pipeline, "--batch-id", batch_id],
            connections=connections,
            **kwargs,
        )
        self.pipeline = pipeline
        self.kafka_conn_id = connections.kafka
        self.postgres_conn_id = connections.postgres
        self.replays_compacted = replays_compacted
        self.is_transformed = is_transformed
        self.spark_history = connections.spark_history
        self.operator_extra_links = links_of(connections)
        self.batch_id = batch_id
        self.plan_id = plan_id

    def execute(self, context: Any) -> None:
        """Submit the job and wait for it, unless the batch is already done.

        Raises AirflowFailException for a terminal error of the batch, and AirflowException or a retryable error of
        exactbatch for any other.
        """
        ti = context["ti"]
        with airflow_errors():
            batch_id, plan_id = named_batch(self.batch_id, self.plan_id)
            settings = self.connections.settings()
            done = done_already(settings, batch_id, plan_id, ti)
            offsets = 0 if done else planned_offsets(settings, batch_id)
        if done:
            self.log.info(done)
            self.connections.note(ti, done)
            return
        # With render_template_as_native_obj, Jinja has turned the batch ID into a number.
        self.application_args = [str(argument) for argument in self.application_args or ()]
        if plan_id is not None:
            self.application_args += ["--plan-id", str(plan_id)]
        variables = {
            **with_archive(os.environ, is_transformed=self.is_transformed, offsets=offsets),
            **search_path(self.pipeline),
        }
        try:
            self.submit(context, settings, variables)
        except AirflowException as error:
            if self.exit_status != TERMINAL:
                raise
            with airflow_errors():
                done = done_already(settings, batch_id, plan_id, ti)
            if done is None:
                raise AirflowFailException(
                    f"the batch cannot succeed by trying again: the log above has the reason. {error}"
                ) from None
            self.log.info(done)
