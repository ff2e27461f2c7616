"""What a committed batch did, for people and for programs."""

import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, ledger_session
from exactbatch.model import LogPartition
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import transaction

log_ = logging.getLogger(__name__)

_WIDTH = 100  # characters; a task's log has no terminal to ask


@dataclass(frozen=True, slots=True)
class Missed:
    """A batch with results that no report has told of, and those of its ranges that are committed."""

    batch: Batch
    ranges: tuple[OffsetRange, ...]

    def as_json(self) -> dict[str, Any]:
        """What an asset event says of it."""
        return {**_counts(self.batch), "ranges": list(map(_range, self.ranges))}


@dataclass(frozen=True, slots=True)
class Report:
    """A batch, its ranges, and how far the pipeline is behind the log now.

    `log` is empty where the broker did not answer. `missed` are further batches to tell of, and `overtaken_by` is
    the later replay that has done what this one was to do.
    """

    batch: Batch
    ranges: tuple[OffsetRange, ...]
    records: tuple[int | None, ...]
    stored: dict[TopicPartition, int]
    log: tuple[LogPartition, ...]
    missed: tuple[Missed, ...] = ()
    overtaken_by: int | None = None

    @property
    def seconds(self) -> float | None:
        """From plan to commit; None before the commit."""
        planned, committed = self.batch.planned_at, self.batch.committed_at
        return None if committed is None else (committed - planned).total_seconds()

    def lag(self, partition: LogPartition) -> int:
        """Offsets between the stored offset and the end of the log."""
        stored = self.stored.get((partition.topic, partition.partition), partition.earliest)
        return partition.high_watermark - stored

    def as_json(self) -> dict[str, Any]:
        """What an asset event carries."""
        return {
            **_counts(self.batch),
            "seconds": self.seconds,
            "ranges": list(map(_range, self.ranges)),
            "missed": [each.as_json() for each in self.missed],
        }

    def as_table(self) -> str:
        """Ranges, rows, rejects, seconds and rows/s as a small table of text."""
        batch, seconds = self.batch, self.seconds or 0.0
        table = Table(
            "topic", "partition", "from", "until", "records", "lag",
            title=f"batch {batch.batch_id} of {batch.pipeline} ({batch.kind}, {batch.status})",
            caption=f"{batch.rows} rows · {batch.rejected} rejected · {batch.tombstones} tombstones · "
            f"{batch.dropped} dropped · "
            f"{seconds:.1f} s from plan to commit · {(batch.rows or 0) / max(seconds, 0.001):,.0f} rows/s",
        )  # fmt: skip
        lag = {(each.topic, each.partition): self.lag(each) for each in self.log}
        for each, records in zip(self.ranges, self.records, strict=True):
            numbers = (each.partition, each.from_offset, each.until_offset, records)
            table.add_row(each.topic, *map(str, numbers), str(lag.get((each.topic, each.partition), "–")))
        missed = ", ".join(str(each.batch.batch_id) for each in self.missed)
        return render(
            table, _held_back(self.log), missed and f"batches that no report had told of so far: {missed}"
        )


def load_report(
    postgres: str,
    kafka: KafkaBroker,
    pipeline: Pipeline,
    batch_id: int,
    plan_id: UUID | None = None,
    missed: Sequence[UUID] = (),
) -> Report:
    """Read a batch's report from the ledger and the broker; `missed` are the plans of others to tell of.

    Raises BatchLost, NotRegistered and PostgresUnavailable.
    """
    with ledger_session(postgres, "exactbatch report") as connection, transaction(connection):
        ledger = Ledger(connection)
        batch = ledger.batch(batch_id, plan_id)
        # Of a superseded batch with commit="partition", some ranges are committed.
        ranges = [
            (range_, records)
            for range_, records in ledger.ranges_with_records(batch_id)
            if batch.status == "committed" or records is not None
        ]
        overtaken_by = ledger.overtaken_by(batch)
        others = tuple(
            Missed(each, ledger.committed_ranges(each.batch_id))
            for each in ledger.batches_of_plans(pipeline, missed)
            if each.batch_id != batch_id
        )
        stored = {(each.topic, each.partition): each.next_offset for each in ledger.stored_offsets(pipeline)}
    return Report(
        batch=batch,
        ranges=tuple(range_ for range_, _ in ranges),
        records=tuple(records for _, records in ranges),
        stored=stored,
        log=_log_of(kafka, pipeline),
        missed=others,
        overtaken_by=overtaken_by,
    )


def _log_of(kafka: KafkaBroker, pipeline: Pipeline) -> tuple[LogPartition, ...]:
    """What the broker says now; nothing where it does not answer, for the batch is committed all the same."""
    try:
        return kafka.known_partitions(pipeline.topics)
    except ExactbatchError as error:
        log_.warning(
            "how far the pipeline is behind the log is not known: %s: %s", type(error).__name__, error
        )
        return ()


def _counts(batch: Batch) -> dict[str, Any]:
    return {
        "batch_id": batch.batch_id,
        "plan_id": str(batch.plan_id),
        "pipeline": batch.pipeline,
        "kind": batch.kind,
        "records": batch.records,
        "rows": batch.rows,
        "rejected": batch.rejected,
        "tombstones": batch.tombstones,
        "dropped": batch.dropped,
    }


def _range(each: OffsetRange) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "from_offset": each.from_offset,
        "until_offset": each.until_offset,
    }


def render(*parts: Any) -> str:
    """Tables and lines as plain text."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    for part in parts:
        if part:
            console.print(part)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO from above
    return text


def _held_back(log: tuple[LogPartition, ...]) -> str:
    """A transaction that hangs looks like "nothing new", so it is named."""
    held = [each for each in log if each.last_stable < each.high_watermark]
    return "\n".join(
        f"{each}: an open transaction holds back offsets {each.last_stable} to {each.high_watermark}"
        for each in held
    )
