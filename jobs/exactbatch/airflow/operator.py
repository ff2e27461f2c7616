"""The operator that launches batches with spark-submit.

Secrets reach the job only through the environment, or through YARN's credentials.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from exactbatch.airflow.connections import Connections
from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.launch import FIELDS, LaunchesBatches
from exactbatch.airflow.versions import AirflowException, AirflowFailException, BaseHook
from exactbatch.batch.spark.class_archive import with_archive
from exactbatch.batch.spark.yarn_credentials import credentials_file
from exactbatch.discovery import import_folder
from exactbatch.errors.exit_status import TERMINAL
from exactbatch.settings import Settings

APPLICATIONS: Final = Path(__file__).parents[2]


class SubmitOperator(SparkSubmitOperator):
    """Run a job of exactbatch.

    The addresses of Kafka and Postgres, secrets included, reach the job only through the environment of this process,
    or in cluster mode through the credentials of YARN's application. The operator's `env_vars` would not do: Airflow
    renders them in the UI, and YARN and Kubernetes put them into arguments.

    The provider has no public access to two facts, so this class reads private attributes of its hook: `_connection`,
    the options that the hook has resolved, and `_submit_sp`, the process of spark-submit. tests/unit/test_operator.py
    uses both with the real hook.
    """

    connections: Connections

    def submit(self, context: Any, settings: Settings, variables: Mapping[str, str]) -> None:
        """Submit the job with these settings, and variables in its environment, and wait for it.

        Raises AirflowException, and AirflowFailException before anything starts if the driver would run in cluster mode
        anywhere else than on YARN.
        """
        in_cluster = self._is_in_cluster()
        secrets = credentials_file(settings) if in_cluster else nullcontext(settings.as_environment())
        with secrets as of_settings, _environment({**variables, **of_settings}):
            super().execute(context)

    @property
    def exit_status(self) -> int | None:
        """The exit status of spark-submit; None if it was not started. In cluster mode, it is not the status of the
        job."""
        return (
            None if self._hook is None or self._hook._submit_sp is None else self._hook._submit_sp.returncode
        )

    def _is_in_cluster(self) -> bool:
        """True if the Spark connection has the cluster mode. Raises AirflowFailException if no secret may follow it."""
        BaseHook.get_connection(
            self.connections.spark
        )  # raises if missing, when the hook would use YARN instead
        # execute() of the base class makes another hook, once it has added the properties of OpenLineage.
        connection = self._get_hook()._connection
        if connection["deploy_mode"] != "cluster":
            self._deploy_mode = "client"  # whatever spark-defaults.conf and the pipeline's spark_conf say
            return False
        if connection["master"] != "yarn":
            raise AirflowFailException(
                f"the Spark connection {self.connections.spark!r} has the deploy-mode cluster, and its master is "
                f"{connection['master']}: only YARN keeps secrets from others on their way to the driver. Nothing was "
                f"launched. Remove deploy-mode from the connection's extra: the driver then runs in client mode, and "
                f"gets them through the environment of this task."
            )
        return True


def search_path(reference: str) -> dict[str, str]:
    """Return PYTHONPATH with the folder of the pipeline's module, for the driver: the DAG's bundle may have it.

    It is the last entry, as in Airflow's own processes.
    """
    given = os.environ.get("PYTHONPATH", "")
    folders = [folder for folder in given.split(os.pathsep) if folder]
    folder = import_folder(reference)
    if folder is None or folder in folders or Path(folder).is_relative_to(sys.prefix):
        return {}
    return {"PYTHONPATH": os.pathsep.join([*folders, folder])}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that start in the block. They find the spark-submit of this Python's environment."""
    bin_folder = str(Path(sys.executable).parent)
    changed = {
        "PYSPARK_PYTHON": sys.executable,
        **variables,
        "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)]),
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


class ProcessBatchOperator(LaunchesBatches, SubmitOperator):
    """Run process_batch.py for the planned batch of a pipeline, or for the batches of many tables.

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
            from exactbatch.airflow.tasks.uncommitted_batches import planned_offsets

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
