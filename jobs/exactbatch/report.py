"""What a committed batch did, for people and for programs."""

import io
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

from exactbatch.kafka_log import KafkaLog
from exactbatch.ledger import Batch, Ledger, connect, transaction
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planner import LogPartition, TopicPartition

_WIDTH = 100  # characters; a task's log has no terminal to ask


@dataclass(frozen=True, slots=True)
class Report:
    """A batch, its ranges, and how far the pipeline is behind the log now."""

    batch: Batch
    ranges: tuple[OffsetRange, ...]
    records: tuple[int | None, ...]
    stored: dict[TopicPartition, int]
    log: tuple[LogPartition, ...]

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
            "batch_id": self.batch.batch_id,
            "plan_id": str(self.batch.plan_id),
            "pipeline": self.batch.pipeline,
            "kind": self.batch.kind,
            "records": self.batch.records,
            "rows": self.batch.rows,
            "rejected": self.batch.rejected,
            "tombstones": self.batch.tombstones,
            "dropped": self.batch.dropped,
            "seconds": self.seconds,
            "ranges": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "from_offset": each.from_offset,
                    "until_offset": each.until_offset,
                }
                for each in self.ranges
            ],
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
            table.add_row(each.topic, *map(str, numbers), str(lag[each.topic, each.partition]))
        return render(table, _held_back(self.log))


def load_report(
    postgres: str, kafka: KafkaLog, pipeline: Pipeline, batch_id: int, plan_id: UUID | None = None
) -> Report:
    """Read a batch's report from the ledger and the broker.

    Raises BatchLost, NotRegistered, PostgresUnavailable, KafkaUnavailable, TopicMissing.
    """
    connection = connect(postgres, application="exactbatch report")
    try:
        with transaction(connection):
            ledger = Ledger(connection)
            batch = ledger.batch(batch_id, plan_id)
            ranges = ledger.ranges_with_records(batch_id)
            stored = {
                (each.topic, each.partition): each.next_offset for each in ledger.stored_offsets(pipeline)
            }
    finally:
        connection.close()
    return Report(
        batch=batch,
        ranges=tuple(range_ for range_, _ in ranges),
        records=tuple(records for _, records in ranges),
        stored=stored,
        log=kafka.known_partitions(pipeline.topics),
    )


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
