"""The operator that processes a batch through a Spark Connect server, in the task's own process."""

from typing import Any

from airflow.sdk import BaseOperator

from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.launch import FIELDS, LaunchesBatches
from exactbatch.errors import ExactbatchError


class ProcessBatchOnServerOperator(LaunchesBatches, BaseOperator):
    """Process a planned batch with engine="connect". A terminal error of the batch ends the task at once.

    Secrets reach the server's Python workers in the pickled tasks only.
    """

    template_fields = FIELDS

    def __init__(self, **kwargs: Any) -> None:  # Airflow needs one in each class
        super().__init__(**kwargs)
        self._engine: Any = None

    def execute(self, context: Any) -> None:
        """Process the batch, unless it is already done.

        Raises AirflowFailException for a terminal error of the batch, and a retryable error of exactbatch otherwise.
        """
        with airflow_errors():
            settings = self.connections.settings()
            left = self.find_left(settings, context["ti"])
            if not left:
                return
            # Parsing a DAG file, which needs no Spark, imports this module.
            from exactbatch.airflow.tasks.process_on_server import open_engine, process_on_server

            (batch,) = left
            self._engine = open_engine(self.connections.spark)
            try:
                published = process_on_server(self._engine, self.pipeline, batch, settings)
            except ExactbatchError as error:
                if error.retryable or self.find_left(settings, context["ti"]):
                    raise
                return
        self.log.info("%s", published)

    def on_kill(self) -> None:
        """End what the server runs for this task; Airflow ends this process soon after."""
        if self._engine is not None:
            self._engine.interrupt()
