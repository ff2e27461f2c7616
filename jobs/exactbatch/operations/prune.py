"""Fold the history of old batches: which batch covers an offset is forgotten, and that a batch does is not."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from exactbatch.errors import PruneRefused, TargetMismatch
from exactbatch.failpoints import failpoint
from exactbatch.ledger import FoldedBatches, Ledger, PlannedReplay
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction

# One transaction folds at most this many ranges, for which it holds the pipeline's lock: less than a second.
_RANGES: Final = 10_000
_BATCHES: Final = 1_000
_COUNTED: Final = 20_000  # batches that a preview counts at a time
_EMPTY_RUNS: Final = 20_000  # that one transaction forgets


@dataclass(frozen=True, slots=True)
class Pruning:
    """The result of prune_history(), or its preview: how many batches are folded, and how many ranges they had.

    `newest` is the newest of these batches, None if there is none; batches were folded that committed before `before`.
    `empty_runs` is how many DAG runs are forgotten that had found nothing to process.
    """

    before: datetime
    batches: int
    ranges: int
    newest: int | None
    empty_runs: int = 0


def preview_pruning(connection: Connection, pipeline: Pipeline, *, before: datetime) -> Pruning:
    """Return what prune_history() would do, without writing or locking anything. Raises what it raises."""
    ledger, folding = Ledger(connection), FoldedBatches(connection)
    with transaction(connection):
        ledger.registry.check(pipeline)
        for replay in folding.find_blocking_replays(pipeline, before):
            if ledger.coverage.find_overtaking(ledger.batches.read(replay.batch_id)) is None:
                raise _blocked(pipeline, replay, done=0)
        pruning = Pruning(before, 0, 0, None)
        while batches := folding.find_prunable(pipeline, before, after=pruning.newest or 0, limit=_COUNTED):
            pruning = _plus(pruning, {batch.batch_id: batch.ranges for batch in batches})
        return replace(pruning, empty_runs=folding.count_empty_runs(pipeline, before))


def prune_history(
    connection: Connection,
    pipeline: Pipeline,
    *,
    before: datetime,
    progress: Callable[[int], None] = lambda _batches: None,
) -> Pruning:
    """Fold all batches of a pipeline that committed before a time, or were superseded and planned before it.

    The rows of coverage of these batches are merged into few, and their ranges and failures are deleted; the batches
    themselves, rejects, resolved times and the target stay. DAG runs that found nothing before that time are forgotten.
    Each transaction folds a portion, and whatever ends the program leaves the rest for the next call. `progress`
    receives the number of batches that are folded so far.

    Raises PruneRefused if a planned replay would retract folded results, TargetMismatch if the ledger does not hold
    what was written into it, NotRegistered, IdentityChanged and PostgresUnavailable.
    """
    ledger, folding = Ledger(connection), FoldedBatches(connection)
    pruning = Pruning(before, 0, 0, None)
    with transaction(connection):
        ledger.registry.lock(pipeline)
        for replay in folding.read_planned_replays(pipeline):
            if ledger.coverage.find_overtaking(replay) is not None:
                ledger.batches.supersede_replay(replay)
        if blocking := folding.find_blocking_replays(pipeline, before):
            raise _blocked(pipeline, blocking[0], done=0)
    while True:
        with transaction(connection):
            ledger.registry.lock(pipeline)
            portion = _portion(folding, pipeline, before, after=pruning.newest or 0)
            if not portion:
                break
            _fold(folding, pipeline, portion, done=pruning.batches)
            failpoint("prune.before_commit")
        failpoint("prune.after_commit")
        pruning = _plus(pruning, portion)
        progress(pruning.batches)
    return replace(pruning, empty_runs=_forget_empty_runs(connection, pipeline, before))


def _forget_empty_runs(connection: Connection, pipeline: Pipeline, before: datetime) -> int:
    """Forget the DAG runs that found nothing before a time; return how many. No lock: no plan depends on them."""
    forgotten = 0
    while True:
        with transaction(connection):
            deleted = FoldedBatches(connection).forget_empty_runs(pipeline, before, limit=_EMPTY_RUNS)
        forgotten += deleted
        if deleted < _EMPTY_RUNS:
            return forgotten


# Batches that one transaction folds, oldest first, and the number of ranges of each.
_Portion = dict[int, int]


def _portion(folding: FoldedBatches, pipeline: Pipeline, before: datetime, *, after: int) -> _Portion:
    """Return the oldest batches that may be folded, for one transaction; none if all are."""
    portion: _Portion = {}
    for batch in folding.find_prunable(pipeline, before, after=after, limit=_BATCHES):
        if portion and sum(portion.values()) + batch.ranges > _RANGES:
            break
        portion[batch.batch_id] = batch.ranges
    return portion


def _plus(pruning: Pruning, portion: _Portion) -> Pruning:
    return Pruning(
        pruning.before,
        pruning.batches + len(portion),
        pruning.ranges + sum(portion.values()),
        max(portion),
    )


def _fold(folding: FoldedBatches, pipeline: Pipeline, portion: _Portion, *, done: int) -> None:
    """Fold one portion, in the caller's transaction, which holds the pipeline's lock."""
    folded = folding.fold(pipeline, list(portion))
    failpoint("prune.after_fold")
    if folded.ranges and (replay := folding.find_planned_replay(pipeline, folded.ranges)) is not None:
        raise _blocked(pipeline, replay, done=done)
    deleted = folding.delete_ranges(list(portion))
    if folded.before != folded.after or deleted != sum(portion.values()):
        raise TargetMismatch(
            f"batches {min(portion)} to {max(portion)}: {folded.before} offsets were covered, and {folded.after} are "
            f"after folding; of {sum(portion.values())} ranges, {deleted} were deleted. A trigger, a rule or a "
            f"policy on the ledger's tables alters what is written. This transaction wrote nothing; {done} batches "
            f"were folded before it. Drop that trigger, rule or policy."
        )


def _blocked(pipeline: Pipeline, replay: PlannedReplay, *, done: int) -> PruneRefused:
    before = f"{done} batches were folded before this and stay folded" if done else "Nothing was folded"
    return PruneRefused(
        f"batch {replay.batch_id} (replay) was planned at {replay.planned_at:%Y-%m-%d %H:%M:%S} UTC and has not "
        f"committed: it would retract results of batches that this command would fold. {before}. "
        f"Let the replay commit; or, if nothing processes it any more, withdraw it: `exactbatch replay "
        f"{pipeline.name} --withdraw {replay.batch_id}`. Then prune again.",
        batch_id=replay.batch_id,
    )
