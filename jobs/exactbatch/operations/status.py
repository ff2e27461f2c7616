"""Where a pipeline stands: the ledger beside the log."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Failing, Ledger, PartlyCommitted
from exactbatch.model import LogPartition, StoredOffset
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction

_BATCHES: Final = 5  # how many of the newest are shown
_UNFINISHED_AFTER: Final = 3600.0  # seconds; a replay may take that long
_UNANNOUNCED_AFTER: Final = 600.0  # seconds; so long its own report may take to tell of a batch
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition. `stored` and `committed_at` are None where no offset is stored yet.

    `horizon` is the offset below which changes were compacted and nothing can be replayed, None where there
    is none.
    """

    log: LogPartition
    stored: StoredOffset | None
    committed_at: datetime | None
    horizon: int | None
    open_transactions: tuple[tuple[int, int], ...]

    @property
    def lag(self) -> int:
        """Offsets between the stored offset, or the start of the log, and its end."""
        return self.log.high_watermark - (self.stored.next_offset if self.stored else self.log.earliest)

    @property
    def troubles(self) -> list[str]:
        """What keeps this partition from going on, in words."""
        found = []
        if self.log.last_stable < self.log.high_watermark:
            held = self.log.high_watermark - self.log.last_stable
            who = ", ".join(f"producer {p} since offset {o}" for p, o in self.open_transactions)
            found.append(
                f"{self.log}: an open transaction ({who or 'its producer is not known'}) holds back {held} "
                f"offsets from {self.log.last_stable}; nothing past it is read until it ends. If it hangs, end "
                f"it with Kafka's own kafka-transactions.sh --abort."
            )
        if self.stored is None:
            return found
        if self.stored.topic_id != self.log.topic_id:
            found.append(
                f"{self.log}: the topic was deleted and created again; the next plan will refuse it."
            )
        elif self.stored.next_offset < self.log.earliest:
            lost = self.log.earliest - self.stored.next_offset
            found.append(f"{self.log}: retention removed {lost} offsets that were not processed.")
        elif self.stored.next_offset > self.log.high_watermark:
            found.append(f"{self.log}: the log ends at {self.log.high_watermark}, before the stored offset.")
        return found


@dataclass(frozen=True, slots=True)
class Status:
    """A pipeline's partitions and its newest batches, newest first.

    `partly_committed` tells more of those batches that are not committed, although some of their ranges are, and
    `failing` of those that were tried and failed. `unfinished` are replays that were planned long ago and have not
    committed, and `unannounced` batches with results that no asset event has told of.
    """

    pipeline: Pipeline
    partitions: tuple[PartitionStatus, ...]
    batches: tuple[Batch, ...]
    partly_committed: tuple[PartlyCommitted, ...] = ()
    failing: tuple[Failing, ...] = ()
    unfinished: tuple[Batch, ...] = ()
    unannounced: tuple[Batch, ...] = ()

    @property
    def troubles(self) -> list[str]:
        """What keeps the pipeline from going on, in words."""
        of_partitions = [trouble for each in self.partitions for trouble in each.troubles]
        failing = {each.batch_id for each in self.failing}
        waiting = [_unfinished(each) for each in self.unfinished if each.batch_id not in failing]
        return [*map(_failure, self.failing), *waiting, *_untold(self.unannounced), *of_partitions]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "pipeline": self.pipeline.name,
            "partitions": [
                {
                    "topic": each.log.topic,
                    "partition": each.log.partition,
                    "stored": each.stored and each.stored.next_offset,
                    "last_stable": each.log.last_stable,
                    "high_watermark": each.log.high_watermark,
                    "earliest": each.log.earliest,
                    "horizon": each.horizon,
                    "lag": each.lag,
                    "committed_at": each.committed_at,
                    "troubles": each.troubles,
                }
                for each in self.partitions
            ],
            "batches": [asdict(each) for each in self.batches],
            "partly_committed": [asdict(each) for each in self.partly_committed],
            "failing": [asdict(each) for each in self.failing],
            "unfinished": [asdict(each) for each in self.unfinished],
            "unannounced": [asdict(each) for each in self.unannounced],
        }


def load_status(connection: Connection, kafka: KafkaBroker, pipeline: Pipeline) -> Status:
    """Ask ledger and broker.

    Raises NotRegistered, IdentityChanged, PostgresUnavailable, KafkaUnavailable, TopicMissing.
    """
    with transaction(connection):
        ledger = Ledger(connection)
        ledger.check_registered(pipeline)
        stored = {(each.topic, each.partition): each for each in ledger.stored_offsets(pipeline)}
        moved = ledger.stored_at(pipeline)
        horizons = ledger.horizons(pipeline)
        batches = ledger.batches(pipeline, limit=_BATCHES)
        partly_committed = ledger.partly_committed(pipeline, batches)
        failing = ledger.failing(pipeline, batches)
        unfinished = tuple(
            each
            for each in ledger.unfinished_replays(pipeline, age=_UNFINISHED_AFTER, limit=_SHOWN)
            if ledger.overtaken_by(each) is None
        )
        unannounced = tuple(ledger.unannounced(pipeline, age=_UNANNOUNCED_AFTER, limit=_SHOWN))
    partitions = tuple(
        PartitionStatus(
            log=each,
            stored=stored.get((each.topic, each.partition)),
            committed_at=moved.get((each.topic, each.partition)),
            horizon=horizons.get((each.topic, each.partition, each.topic_id)),
            open_transactions=tuple(
                kafka.open_transactions(each) if each.last_stable < each.high_watermark else ()
            ),
        )
        for each in kafka.partitions(pipeline.topics)
    )
    return Status(pipeline, partitions, tuple(batches), partly_committed, failing, unfinished, unannounced)


def _failure(failing: Failing) -> str:
    times = "once" if failing.failures == 1 else f"{failing.failures} times since {_time(failing.since)}"
    if failing.kind == "replay":
        next_one, rest = "plan the replay again", "What the ranges had given before stays."
    else:
        next_one = "the next run plans its offsets again"
        rest = "Until then the stored offsets stay where they are; replays of other ranges go on."
    advice = (
        "It may succeed when it is tried again."
        if failing.retryable
        else f"Trying it again does not help: mend the cause, and {next_one}. {rest}"
    )
    return (
        f"batch {failing.batch_id} ({failing.kind}) has failed {times}, last at {_time(failing.failed_at)} UTC, "
        f"with {failing.error}: {failing.message} {advice}"
    )


def _unfinished(batch: Batch) -> str:
    whose = f"run {batch.run_id!r}" if batch.run_id else "a command"
    return (
        f"batch {batch.batch_id} (replay) was planned at {_time(batch.planned_at)} UTC for {whose} and has not "
        f"committed. If nothing processes it any more, what it was to process again is as it was: "
        + (
            "clear plan_batch of that run with its downstream tasks."
            if batch.run_id
            else "run the command again."
        )
    )


def _untold(batches: Sequence[Batch]) -> list[str]:
    if not batches:
        return []
    more = " or more" if len(batches) == _SHOWN else ""
    return [
        f"batch {batches[0].batch_id}: no asset event has told of its results, nor of those of {len(batches) - 1}"
        f"{more} later batches. The next run of the DAG does."
    ]


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S}"
