"""Launching a batch with spark-submit."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from exactbatch.airflow.connections import Connections
from exactbatch.exit_status import TERMINAL

APPLICATION = Path(__file__).parents[2] / "process_batch.py"


class ProcessBatchOperator(SparkSubmitOperator):
    """Run jobs/process_batch.py for a planned batch; a terminal error of the batch ends the task at once.

    Where Kafka and Postgres are, secrets included, reaches the job by this process's environment alone. Not by
    the operator's `env_vars`: those are rendered for the UI, and YARN and Kubernetes put them into arguments.
    """

    def __init__(self, *, connections: Connections, application: str = "", **kwargs: Any) -> None:
        # durable=False: a retry asks the ledger, not Spark, how far the batch has come.
        super().__init__(
            application=application or str(APPLICATION), conn_id=connections.spark, durable=False, **kwargs
        )
        self.connections = connections

    def execute(self, context: Any) -> None:
        """Submit the job and wait for it.

        Raises AirflowFailException for a terminal error of the batch, AirflowException for any other.
        """
        BaseHook.get_connection(self.connections.spark)  # without it the hook would quietly turn to YARN
        self._hook = hook = self._get_hook()
        if hook._connection["deploy_mode"] == "cluster":
            raise AirflowFailException(
                f"expected the Spark connection {self.connections.spark!r} to deploy in client mode, found "
                f"deploy-mode cluster: secrets reach the driver by the environment of this task. Remove "
                f"deploy-mode from the connection's extra."
            )
        with _environment(self.connections.settings().as_environment()):
            try:
                super().execute(context)
            except AirflowException as error:
                if hook._submit_sp is not None and hook._submit_sp.returncode == TERMINAL:
                    raise AirflowFailException(
                        f"the batch cannot succeed by trying again; the log above says why. {error}"
                    ) from None
                raise


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
