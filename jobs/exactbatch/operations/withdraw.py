"""Withdraw a replay that was planned and that nothing processes any more."""

from exactbatch.errors import ReplayRefused
from exactbatch.failpoints import failpoint
from exactbatch.ledger import Batch, Ledger
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction


def preview_withdrawal(connection: Connection, pipeline: Pipeline, batch_id: int) -> Batch:
    """Return the replay that withdraw_replay() would withdraw, without writing anything. Raises what it raises."""
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.check(pipeline)
        return _check_withdrawable(pipeline, ledger.batches.read(batch_id))


def withdraw_replay(connection: Connection, pipeline: Pipeline, batch_id: int) -> None:
    """Mark a planned replay superseded, so that it can no longer commit.

    A driver that processes it at this moment fails with Fenced. Of a pipeline with commit="partition", the partitions
    that it has committed stay committed.

    Raises ReplayRefused if the batch is no planned replay of the pipeline, BatchLost if there is no such batch,
    NotRegistered, IdentityChanged and PostgresUnavailable.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.lock(pipeline)
        batch = _check_withdrawable(pipeline, ledger.batches.read(batch_id, lock="change"))
        ledger.batches.supersede_replay(batch)
        failpoint("withdraw.before_commit")


def _check_withdrawable(pipeline: Pipeline, batch: Batch) -> Batch:
    if (batch.pipeline, batch.kind, batch.status) != (pipeline.name, "replay", "planned"):
        article = "an" if batch.kind == "advance" else "a"
        raise ReplayRefused(
            f"batch {batch.batch_id} of pipeline {batch.pipeline!r} is {article} {batch.kind} that is {batch.status}: "
            f"only a planned replay of {pipeline.name!r} can be withdrawn. Nothing was changed. `exactbatch batches "
            f"{pipeline.name} --kind replay` lists its replays.",
            batch_id=batch.batch_id,
        )
    return batch
