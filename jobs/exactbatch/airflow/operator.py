"""The operator that launches a batch with spark-submit."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from exactbatch.airflow.batches import named_batch
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import airflow_errors
from exactbatch.airflow.launch import done_already, planned_offsets
from exactbatch.airflow.links import links_of
from exactbatch.airflow.openlineage import BatchLineage
from exactbatch.class_archive import with_archive
from exactbatch.discovery import import_folder
from exactbatch.errors.exit_status import TERMINAL

_SMALL: Final = 100_000  # offsets: the JVM of a driver has nothing to compile that would run for long
APPLICATION: Final = Path(__file__).parents[2] / "process_batch.py"


class ProcessBatchOperator(BatchLineage, SparkSubmitOperator):
    """Run process_batch.py for a planned batch. A terminal error of the batch ends the task at once.

    The addresses of Kafka and Postgres, secrets included, reach the job only through the environment of this process.
    The operator's `env_vars` would not do: Airflow renders them in the UI, and YARN and Kubernetes put them into
    arguments.

    The provider has no public access to two facts, so this class reads private attributes of its hook: `_connection`,
    the options that the hook has resolved, and `_submit_sp`, the process of spark-submit. tests/unit/test_operator.py
    uses both with the real hook.
    """

    template_fields = (
        *SparkSubmitOperator.template_fields,
        *("batch_id", "plan_id"),
        # Airflow stores these with the DAG, for the operator's page, which does not import the pipeline.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(
            application=application or str(APPLICATION),
            application_args=["--pipeline", pipeline, "--batch-id", batch_id],
            conn_id=connections.spark,
            durable=False,  # a retry reads the state of the batch from the ledger, not from Spark
            **kwargs,
        )
        self.connections = connections
        self.pipeline = pipeline
        self.kafka_conn_id = connections.kafka
        self.postgres_conn_id = connections.postgres
        self.replays_compacted = replays_compacted
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
            is_small = not done and planned_offsets(settings, batch_id) < _SMALL
        if done:
            self.log.info(done)
            self.connections.note(ti, done)
            return
        # With render_template_as_native_obj, Jinja has turned the batch ID into a number.
        self.application_args = [str(argument) for argument in self.application_args or ()]
        if plan_id is not None:
            self.application_args += ["--plan-id", str(plan_id)]
        hook = self._checked_hook()
        variables = {
            **with_archive(os.environ, is_small=is_small),
            **_search_path(self.pipeline),
            **settings.as_environment(),
        }
        with _environment(variables):
            try:
                super().execute(context)
            except AirflowException as error:
                if hook._submit_sp is None or hook._submit_sp.returncode != TERMINAL:
                    raise
                with airflow_errors():
                    done = done_already(settings, batch_id, plan_id, ti)
                if done is None:
                    raise AirflowFailException(
                        f"the batch cannot succeed by trying again: the log above has the reason. {error}"
                    ) from None
                self.log.info(done)

    def _checked_hook(self) -> SparkSubmitHook:
        """Create the hook that execute() of the base class uses. Raises AirflowFailException for cluster mode."""
        BaseHook.get_connection(
            self.connections.spark
        )  # raises if missing, when the hook would use YARN instead
        self._hook = hook = self._get_hook()
        if hook._connection["deploy_mode"] == "cluster":
            raise AirflowFailException(
                f"the Spark connection {self.connections.spark!r} has the deploy-mode cluster, but secrets reach the "
                f"driver through the environment of this task, which needs client mode. Remove deploy-mode from the "
                f"connection's extra."
            )
        return hook


def _search_path(reference: str) -> dict[str, str]:
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
