"""Launching a batch with spark-submit."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import errors_of_airflow
from exactbatch.exit_status import TERMINAL
from exactbatch.settings import Settings

APPLICATION = Path(__file__).parents[2] / "process_batch.py"


class ProcessBatchOperator(SparkSubmitOperator):
    """Run jobs/process_batch.py for a planned batch; a terminal error of the batch ends the task at once.

    Where Kafka and Postgres are, secrets included, reaches the job by this process's environment alone. Not by
    the operator's `env_vars`: those are rendered for the UI, and YARN and Kubernetes put them into arguments.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "batch_id", "plan_id")

    def __init__(
        self,
        *,
        connections: Connections,
        pipeline: str,
        batch_id: str,
        plan_id: str = "",
        application: str = "",
        **kwargs: Any,
    ) -> None:
        # durable=False: a retry asks the ledger, not Spark, how far the batch has come.
        super().__init__(
            application=application or str(APPLICATION),
            application_args=["--pipeline", pipeline, "--batch-id", batch_id],
            conn_id=connections.spark,
            durable=False,
            **kwargs,
        )
        self.connections = connections
        self.batch_id = batch_id
        self.plan_id = plan_id

    def execute(self, context: Any) -> None:
        """Submit the job and wait for it; a batch that is committed already needs none.

        Raises AirflowFailException for a terminal error of the batch, AirflowException or a retryable error of
        exactbatch for any other.
        """
        plan_id = UUID(self.plan_id) if self.plan_id else None
        with errors_of_airflow():
            settings = self.connections.settings()
            committed = _committed_at(settings, int(self.batch_id), plan_id)
        if committed:
            said = (
                f"Batch {self.batch_id} was committed at {committed:%Y-%m-%d %H:%M:%S} UTC: nothing was launched "
                f"or written. To process its ranges again, clear plan_batch with its downstream tasks."
            )
            self.log.info(said)
            self.connections.note(context["ti"], said)
            return
        BaseHook.get_connection(self.connections.spark)  # without it the hook would quietly turn to YARN
        if plan_id is not None:
            self.application_args = [*(self.application_args or ()), "--plan-id", str(plan_id)]
        self._hook = hook = self._get_hook()
        if hook._connection["deploy_mode"] == "cluster":
            raise AirflowFailException(
                f"expected the Spark connection {self.connections.spark!r} to deploy in client mode, found "
                f"deploy-mode cluster: secrets reach the driver by the environment of this task. Remove "
                f"deploy-mode from the connection's extra."
            )
        with _environment(settings.as_environment()):
            try:
                super().execute(context)
            except AirflowException as error:
                if hook._submit_sp is not None and hook._submit_sp.returncode == TERMINAL:
                    raise AirflowFailException(
                        f"the batch cannot succeed by trying again; the log above says why. {error}"
                    ) from None
                raise


def _committed_at(settings: Settings, batch_id: int, plan_id: UUID | None) -> datetime | None:
    """When the batch was committed; None when it was not. Raises BatchLost and what connect() raises."""
    from exactbatch.ledger import Ledger, connect, transaction

    connection = connect(settings.postgres, application="exactbatch launch")
    try:
        with transaction(connection):
            return Ledger(connection).batch(batch_id, plan_id).committed_at
    finally:
        connection.close()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that start inside the block; spark-submit is found beside this Python."""
    here = str(Path(sys.executable).parent)
    changed = {
        "PYSPARK_PYTHON": sys.executable,
        **variables,
        "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
