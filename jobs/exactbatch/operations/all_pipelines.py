"""Show the state of all registered pipelines at once: the ledger, and one query of all logs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.operations.lag import PipelineLag, measure_lags
from exactbatch.operations.overview import LedgerSummary, State, find_state, load_summaries
from exactbatch.operations.unprocessed import overdue_text
from exactbatch.postgres.connection import Connection, transaction


@dataclass(frozen=True, slots=True)
class PipelineState:
    """A registered pipeline.

    summary     what the ledger knows
    state       one word
    partitions  how many its topics have
    lag         how far it is behind; None if Kafka did not describe all of its topics
    troubles    sentences that say what is wrong
    """

    summary: LedgerSummary
    state: State
    partitions: int
    lag: PipelineLag | None
    troubles: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return its part of `exactbatch status --json`."""
        newest, committed = self.summary.newest, self.summary.committed
        return {
            "pipeline": self.summary.definition.name,
            "state": self.state,
            "newest_batch": newest
            and {"batch_id": newest.batch_id, "kind": newest.kind, "status": newest.status},
            "partitions": self.partitions,
            "lag": self.lag and self.lag.lag,
            "held_back": self.lag and self.lag.held_back,
            "committed_at": committed and committed.committed_at,
            "troubles": list(self.troubles),
        }


def load_states(connection: Connection, broker: KafkaBroker) -> list[PipelineState]:
    """Return the states of all registered pipelines, by name.

    Each pipeline costs the ledger a bounded number of rows. All logs are described at once; with patterns, one more
    query lists all topics. Timestamps of records are only read for pipelines with a freshness, for up to 10 s.

    Raises PostgresUnavailable, KafkaUnavailable, ReadFailed, and ConfigurationError if an ACL denies more than topics.
    """
    with transaction(connection):
        names = [each.name for each in Ledger(connection).registry.read_all()]
    summaries = [each for _, each in sorted(load_summaries(connection, names, batches=1).items())]
    lags = measure_lags(broker, [(each.definition, each.positions) for each in summaries], ages_of_all=False)
    return [_state(summary, lag) for summary, lag in zip(summaries, lags, strict=True)]


def _state(summary: LedgerSummary, lag: PipelineLag) -> PipelineState:
    # A pattern that matches no topic yet is a state, and no trouble.
    errors = lag.errors if lag.errors and (summary.topics or summary.definition.pattern is None) else ()
    known = None if errors else lag
    late = overdue_text(lag.freshness, lag.oldest, lag.at)
    troubles = (
        *_failure(summary),
        *(f"{type(error).__name__}: {error}" for error in errors),
        *(_lag_troubles(lag) if known else ()),
        *((f"{late}.",) if late else ()),
        *_unknown_age(lag),
    )
    state = find_state(summary, known, is_paused=False, now=lag.at)
    return PipelineState(summary, state, len(lag.partitions), known, troubles)


def _failure(summary: LedgerSummary) -> Iterator[str]:
    if summary.failure is not None:
        batch, failure = summary.failure
        times = "once" if failure.failures == 1 else f"{failure.failures} times"
        yield f"batch {batch.batch_id} has failed {times}, last with {failure.error}: {failure.message}"


def _lag_troubles(lag: PipelineLag) -> Iterator[str]:
    if lag.contradiction is not None:
        yield lag.contradiction
    if lag.held_back:
        yield f"open transactions hold back {lag.held_back} offsets."


def _unknown_age(lag: PipelineLag) -> Iterator[str]:
    if lag.denied is not None:
        yield f"whether it is overdue is not known: {lag.denied}"
    elif lag.unanswered:
        yield (
            f"Kafka did not send the oldest unprocessed records of {lag.unanswered} partitions in time: ask again."
        )
