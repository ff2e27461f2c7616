"""The task check_tables: say whether a run of many tables has failed."""

from typing import Any

from exactbatch.airflow.check_batches import check_committed, named_batches
from exactbatch.airflow.connections import Connections
from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.versions import AirflowFailException
from exactbatch.ledger import Ledger, ledger_session
from exactbatch.postgres.connection import transaction


def check_tables(name: str, connections: Connections, batches: Any, failed: Any) -> None:
    """Fail the run of the tables `name` if one could not be planned, or if a batch is not committed.

    `batches` and `failed` are what plan_batch has left. The ledger decides whether a batch is committed: somebody may
    have set Airflow's states by hand.

    Raises AirflowFailException, and a retryable error of exactbatch.
    """
    with (
        airflow_errors(),
        ledger_session(connections.settings().postgres, "exactbatch check") as connection,
        transaction(connection),
    ):
        ledger = Ledger(connection)
        for named in named_batches(batches):
            batch = ledger.batches.read(named.batch_id, named.plan_id)
            if ledger.coverage.find_overtaking(batch) is None:
                check_committed(batch)
    if failed:
        raise AirflowFailException(
            f"all planned batches are committed, but tables of {name!r} could not be planned: {failed}"
        )
