"""Ask the ledger about batches before a task launches them."""

from typing import Any

from exactbatch.airflow.check_batches import check_own
from exactbatch.ledger import Ledger, ledger_session
from exactbatch.model import PlannedBatch
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings


def done_already(settings: Settings, batches: list[PlannedBatch], ti: Any) -> dict[PlannedBatch, str]:
    """Return why batches need no launch: they are committed, or later replays processed all of their ranges.

    Raises BatchLost, AirflowFailException for a batch of another run, and the errors of ledger_session().
    """
    done: dict[PlannedBatch, str] = {}
    with ledger_session(settings.postgres, "exactbatch launch") as connection:
        ledger = Ledger(connection)
        for named in batches:
            with transaction(connection):
                batch = ledger.batches.read(named.batch_id, named.plan_id)
                check_own(batch, ti, pipeline=named.pipeline)
                if batch.committed_at is not None:
                    done[named] = (
                        f"Batch {batch.batch_id} was committed at {batch.committed_at:%Y-%m-%d %H:%M:%S} UTC: nothing "
                        f"was launched or written. To process its ranges again, clear plan_batch with its downstream "
                        f"tasks."
                    )
                elif (later := ledger.coverage.find_overtaking(batch)) is not None:
                    ledger.batches.supersede_replay(batch)
                    done[named] = (
                        f"Batch {later}, which was planned later, has processed all ranges of this replay, batch "
                        f"{batch.batch_id}. Nothing is left to do, and the later results stay."
                    )
    return done


def planned_offsets(settings: Settings, batches: list[PlannedBatch]) -> int:
    """Return how many offsets the ranges of batches have. Raises the errors of ledger_session()."""
    with ledger_session(settings.postgres, "exactbatch launch") as connection, transaction(connection):
        ledger = Ledger(connection)
        return sum(len(range_) for batch in batches for range_ in ledger.batches.read_ranges(batch.batch_id))
