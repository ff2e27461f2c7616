"""What the operators ask the ledger before and after a batch: whether it needs a launch, and how large it is."""

from typing import Any
from uuid import UUID

from exactbatch.airflow.batches import check_own
from exactbatch.settings import Settings


def done_already(
    settings: Settings, batch_id: int, plan_id: UUID | None, ti: Any, *, pipeline: str | None = None
) -> str | None:
    """Return why a batch needs no launch (it is committed, or later replays processed all of its ranges), or None.

    `pipeline` is the batch's; None if it has the name of the DAG.

    Raises BatchLost, AirflowFailException for a batch of another run, and the errors of ledger_session().
    """
    from exactbatch.ledger import Ledger, ledger_session
    from exactbatch.postgres.connection import transaction

    with ledger_session(settings.postgres, "exactbatch launch") as connection, transaction(connection):
        ledger = Ledger(connection)
        batch = ledger.batch(batch_id, plan_id)
        check_own(batch, ti, pipeline=pipeline)
        if batch.committed_at is not None:
            return (
                f"Batch {batch_id} was committed at {batch.committed_at:%Y-%m-%d %H:%M:%S} UTC: nothing was launched "
                f"or written. To process its ranges again, clear plan_batch with its downstream tasks."
            )
        later = ledger.overtaken_by(batch)
        if later is None:
            return None
        ledger.supersede_replay(batch)
        return (
            f"Batch {later}, which was planned later, has processed all ranges of this replay, batch "
            f"{batch_id}. Nothing is left to do, and the later results stay."
        )


def planned_offsets(settings: Settings, batch_id: int) -> int:
    """Return how many offsets the ranges of a batch have. Raises the errors of ledger_session()."""
    from exactbatch.ledger import Ledger, ledger_session
    from exactbatch.postgres.connection import transaction

    with ledger_session(settings.postgres, "exactbatch launch") as connection, transaction(connection):
        return sum(map(len, Ledger(connection).ranges(batch_id)))
