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

from exactbatch.airflow.batches import check_own, named_batch
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.errors import errors_of_airflow
from exactbatch.errors.exit_status import TERMINAL
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
        """Submit the job and wait for it; a batch that is done already needs none.

        Raises AirflowFailException for a terminal error of the batch, AirflowException or a retryable error of
        exactbatch for any other.
        """
        ti = context["ti"]
        with errors_of_airflow():
            batch_id, plan_id = named_batch(self.batch_id, self.plan_id)
            settings = self.connections.settings()
            done = _done(settings, batch_id, plan_id, ti)
        if done:
            self.log.info(done)
            self.connections.note(ti, done)
            return
        BaseHook.get_connection(self.connections.spark)  # without it the hook would quietly turn to YARN
        # With render_template_as_native_obj a number has become one.
        self.application_args = [str(each) for each in self.application_args or ()]
        if plan_id is not None:
            self.application_args += ["--plan-id", str(plan_id)]
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
                if hook._submit_sp is None or hook._submit_sp.returncode != TERMINAL:
                    raise
                with errors_of_airflow():
                    done = _done(settings, batch_id, plan_id, ti)
                if done is None:
                    raise AirflowFailException(
                        f"the batch cannot succeed by trying again; the log above says why. {error}"
                    ) from None
                self.log.info(done)


def _done(settings: Settings, batch_id: int, plan_id: UUID | None, ti: Any) -> str | None:
    """Why a batch needs no launch, or None: it is committed, or later replays have processed all of its ranges.

    Raises BatchLost, what ledger_session() raises, and AirflowFailException for a batch of another run.
    """
    from exactbatch.ledger import Ledger, ledger_session
    from exactbatch.postgres.connection import transaction

    with ledger_session(settings.postgres, "exactbatch launch") as connection, transaction(connection):
        ledger = Ledger(connection)
        batch = ledger.batch(batch_id, plan_id)
        check_own(batch, ti)
        if batch.committed_at is not None:
            return (
                f"Batch {batch_id} was committed at {_time(batch.committed_at)} UTC: nothing was launched or "
                f"written. To process its ranges again, clear plan_batch with its downstream tasks."
            )
        later = ledger.overtaken_by(batch)
        if later is None:
            return None
        ledger.supersede_overtaken(batch)
        return (
            f"Batch {later}, which was planned later, has processed all ranges of this replay, batch "
            f"{batch_id}: nothing is left to do, and the later result stays."
        )


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S}"


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
