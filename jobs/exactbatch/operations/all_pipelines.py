"""Show the state of all registered pipelines at once: the ledger, and one query of all logs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from exactbatch.errors import ConfigurationError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.model import LogPartition
from exactbatch.offsets import TopicPartition
from exactbatch.operations.freshness import overdue_text
from exactbatch.operations.overview import Lag, LedgerSummary, State, find_state, load_summaries, total_lag
from exactbatch.operations.unprocessed import first_unprocessed
from exactbatch.planning.plan_tables import existing_partitions
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.topic_pattern import TopicPattern

_EVERY_TOPIC: Final = TopicPattern(".*")


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
    lag: Lag | None
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
            "lag": self.lag and self.lag.records,
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
    topics = _topics(broker, summaries)
    everything = {topic for each in topics for topic in each}
    stored = {topic for each in summaries for topic, _ in each.stored}
    now = datetime.now(UTC)
    logs, errors = existing_partitions(broker, everything, stored) if everything else ({}, {})
    of_each = [[log for topic in each for log in logs.get(topic, ())] for each in topics]
    oldest, unknown = _oldest(broker, summaries, of_each)
    states = []
    for number, summary in enumerate(summaries):
        denied = [errors[topic] for topic in topics[number] if topic in errors]
        lag = None if denied else total_lag(summary.positions, of_each[number], now)
        late = overdue_text(summary.definition.freshness, oldest.get(number), now)
        troubles = (
            *_failure(summary),
            *(f"{type(error).__name__}: {error}" for error in denied),
            *_lag_troubles(lag),
            *((f"{late}.",) if late else ()),
            *((unknown[number],) if number in unknown else ()),
        )
        state = find_state(summary, lag, is_paused=False, now=now)
        states.append(PipelineState(summary, state, len(of_each[number]), lag, troubles))
    return states


def _topics(broker: KafkaBroker, summaries: Sequence[LedgerSummary]) -> list[list[str]]:
    """Return the topics of each pipeline; those of a pattern as they exist now, from one list for all pipelines."""
    patterns = [each.definition.pattern for each in summaries]
    listed: Sequence[str] = ()
    if any(patterns):
        known = {topic for each in summaries for topic in each.topics}
        listed = broker.matching_topics(_EVERY_TOPIC, known)
    return [
        summary.topics
        if pattern is None
        else sorted({*summary.topics, *(topic for topic in listed if pattern.matches(topic))})
        for summary, pattern in zip(summaries, patterns, strict=True)
    ]


def _oldest(
    broker: KafkaBroker, summaries: Sequence[LedgerSummary], logs: Sequence[Sequence[LogPartition]]
) -> tuple[dict[int, datetime], dict[int, str]]:
    """Return the timestamp of the oldest unprocessed record of each pipeline with a freshness, by its number, and of
    others why it is not known.

    Pipelines that have no partition in common are asked for at once.
    """
    waiting = [number for number, each in enumerate(summaries) if each.definition.freshness is not None]
    oldest: dict[int, datetime] = {}
    unknown: dict[int, str] = {}
    while waiting:
        together: dict[int, set[TopicPartition]] = {}
        taken: set[TopicPartition] = set()
        for number in waiting:
            places = {log.topic_partition for log in logs[number]}
            if taken.isdisjoint(places):
                together[number] = places
                taken |= places
        waiting = [number for number in waiting if number not in together]
        stored = {
            place: position
            for number, places in together.items()
            for place, position in summaries[number].stored.items()
            if place in places
        }
        try:
            times, unanswered = first_unprocessed(
                broker, [log for number in together for log in logs[number]], stored
            )
        except ConfigurationError as denied:
            unknown |= dict.fromkeys(together, f"whether it is overdue is not known: {denied}")
            continue
        for number, places in together.items():
            if known := [times[place] for place in places if place in times]:
                oldest[number] = min(known)
            if slow := len(unanswered & places):
                unknown[number] = (
                    f"Kafka did not send the oldest unprocessed records of {slow} partitions in time: ask again."
                )
    return oldest, unknown


def _failure(summary: LedgerSummary) -> Iterator[str]:
    if summary.failure is not None:
        batch, failure = summary.failure
        times = "once" if failure.failures == 1 else f"{failure.failures} times"
        yield f"batch {batch.batch_id} has failed {times}, last with {failure.error}: {failure.message}"


def _lag_troubles(lag: Lag | None) -> Iterator[str]:
    if lag is None:
        return
    if lag.contradiction is not None:
        yield lag.contradiction
    elif lag.lost:
        yield f"retention removed {lag.lost} unprocessed offsets."
    if lag.held_back:
        yield f"open transactions hold back {lag.held_back} offsets."
