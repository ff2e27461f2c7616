"""Report what a committed batch did, to people and to programs."""

import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, PartlyCommitted, ledger_session
from exactbatch.model import LogPartition
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.topic_pattern import known_topics

logger = logging.getLogger(__name__)

_WIDTH = 100  # characters; a task's log has no terminal to ask


@dataclass(frozen=True, slots=True)
class Missed:
    """A batch with results that no report has announced, and its committed ranges.

    `partly` has the counts of these ranges, if the batch was superseded before the others were committed.
    """

    batch: Batch
    ranges: tuple[OffsetRange, ...]
    partly: PartlyCommitted | None = None

    def as_json(self) -> dict[str, Any]:
        """Return its part of an asset event."""
        return {**_counts(self.batch, self.partly), "ranges": list(map(_range, self.ranges))}


@dataclass(frozen=True, slots=True)
class Report:
    """A batch, its ranges, and how far the pipeline is behind the log now.

    records       number of records by range; None for a range that is not committed
    stored        the pipeline's stored offsets
    partitions    the pipeline's logs; empty if the broker did not answer
    missed        further batches to announce
    overtaken_by  the later replay that has processed the ranges of this one
    partly        the counts of the committed ranges, if the batch was superseded before the others were committed
    """

    batch: Batch
    ranges: tuple[OffsetRange, ...]
    records: tuple[int | None, ...]
    stored: dict[TopicPartition, int]
    partitions: tuple[LogPartition, ...]
    missed: tuple[Missed, ...] = ()
    overtaken_by: int | None = None
    partly: PartlyCommitted | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds from plan to commit; None before the commit."""
        return self.batch.seconds

    @property
    def plans(self) -> list[UUID]:
        """The plan IDs of the batches that it announces."""
        return [*(missed.batch.plan_id for missed in self.missed), self.batch.plan_id]

    def lag(self, partition: LogPartition) -> int:
        """Number of offsets between the stored offset and the end of the log."""
        return partition.lag(self.stored.get(partition.topic_partition))

    def as_json(self) -> dict[str, Any]:
        """Return the content of an asset event."""
        return {
            **_counts(self.batch, self.partly),
            "seconds": self.seconds,
            "ranges": list(map(_range, self.ranges)),
            "missed": [missed.as_json() for missed in self.missed],
        }

    def _replaced(self) -> str:
        return f" · {self.batch.replaced} with replaced text" if self.batch.replaced else ""

    def _speed(self) -> str:
        """Say how long the batch took, once it is committed."""
        if self.seconds is None:
            return ""
        rows_per_second = (self.batch.rows or 0) / max(self.seconds, 0.001)
        return f" · {self.seconds:.1f} s from plan to commit · {rows_per_second:,.0f} rows/s"

    def as_table(self) -> str:
        """Format ranges, rows, rejects, seconds and rows/s as a small table of text."""
        batch, counts = self.batch, self.partly or self.batch
        state: str = batch.status
        if self.partly is not None:
            state += f", {self.partly.committed} of {self.partly.ranges} ranges committed"
        table = Table(
            "topic", "partition", "from", "until", "records", "lag",
            title=f"batch {batch.batch_id} of {batch.pipeline} ({batch.kind}, {state})",
            caption=f"{counts.rows} rows · {counts.rejected} rejected · {counts.tombstones} tombstones · "
            f"{batch.dropped or 0} dropped{self._replaced()}{self._speed()}",
        )  # fmt: skip
        lag = {partition.topic_partition: self.lag(partition) for partition in self.partitions}
        for range_, records in zip(self.ranges, self.records, strict=True):
            numbers = (range_.partition, range_.from_offset, range_.until_offset, records)
            table.add_row(range_.topic, *map(str, numbers), str(lag.get(range_.topic_partition, "–")))
        missed = ", ".join(str(missed.batch.batch_id) for missed in self.missed)
        return render(
            table,
            _held_back(self.partitions),
            missed and f"batches announced only now: {missed}",
        )


def load_report(
    postgres: str,
    broker: KafkaBroker,
    pipeline: Pipeline,
    batch_id: int,
    plan_id: UUID | None = None,
    missed: Sequence[UUID] = (),
) -> Report:
    """Read a batch's report from the ledger and the broker; `missed` are the plan IDs of other batches to announce.

    Raises BatchLost, NotRegistered and PostgresUnavailable.
    """
    with ledger_session(postgres, "exactbatch report") as connection:
        report = report_from_ledger(connection, pipeline, batch_id, plan_id, missed)
    return with_logs(broker, pipeline, report)


def with_logs(broker: KafkaBroker, pipeline: Pipeline, report: Report) -> Report:
    """Return a report with the pipeline's logs, if the broker answers."""
    topics = known_topics(pipeline.topic_names, (topic for topic, _ in report.stored))
    return replace(report, partitions=_partitions(broker, topics))


def report_from_ledger(
    connection: Connection,
    pipeline: Pipeline,
    batch_id: int,
    plan_id: UUID | None = None,
    missed: Sequence[UUID] = (),
) -> Report:
    """Like load_report(), without the pipeline's logs."""
    with transaction(connection):
        ledger = Ledger(connection)
        batch = ledger.batches.read(batch_id, plan_id)
        # With commit="partition", some ranges of a superseded batch may be committed.
        ranges = [
            (range_, records)
            for range_, records in ledger.batches.read_ranges_with_records(batch_id)
            if batch.status == "committed" or records is not None
        ]
        overtaken_by = ledger.coverage.find_overtaking(batch)
        late = [
            other for other in ledger.batches.find_finished(pipeline, missed) if other.batch_id != batch_id
        ]
        partly = {each.batch_id: each for each in ledger.batches.find_partly_committed([batch, *late])}
        others = tuple(
            Missed(
                other,
                ledger.batches.read_committed_ranges([other.batch_id])[other.batch_id],
                partly.get(other.batch_id),
            )
            for other in late
        )
        positions = ledger.plans.read_stored_offsets(pipeline)
    return Report(
        batch=batch,
        ranges=tuple(range_ for range_, _ in ranges),
        records=tuple(records for _, records in ranges),
        stored={offset.topic_partition: offset.next_offset for offset in positions},
        partitions=(),
        missed=others,
        overtaken_by=overtaken_by,
        partly=partly.get(batch_id),
    )


def _partitions(broker: KafkaBroker, topics: Sequence[str]) -> tuple[LogPartition, ...]:
    """Return the pipeline's logs; nothing if the broker does not answer: the batch is committed all the same."""
    try:
        return broker.known_partitions(topics)
    except ExactbatchError as error:
        logger.warning("cannot determine the pipeline's lag: %s: %s", type(error).__name__, error)
        return ()


def _counts(batch: Batch, partly: PartlyCommitted | None) -> dict[str, Any]:
    """Return what an asset event has about a batch; `partial` is true if only some of its ranges are committed."""
    counts = partly or batch
    return {
        "batch_id": batch.batch_id,
        "plan_id": str(batch.plan_id),
        "pipeline": batch.pipeline,
        "kind": batch.kind,
        "partial": partly is not None,
        "records": counts.records,
        "rows": counts.rows,
        "rejected": counts.rejected,
        "tombstones": counts.tombstones,
        # With commit="partition", which is how a batch is committed in part, there is no transform to drop records.
        "dropped": batch.dropped if partly is None else 0,
    }


def _range(range_: OffsetRange) -> dict[str, Any]:
    return {
        "topic": range_.topic,
        "partition": range_.partition,
        "from_offset": range_.from_offset,
        "until_offset": range_.until_offset,
    }


def as_one_table(reports: Sequence[Report]) -> str:
    """Return the batches of several pipelines as a table, for a task's log."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("pipeline", "kind"):
        table.add_column(name, overflow="fold")
    for name in ("batch", "records", "rows", "rejected"):
        table.add_column(name, justify="right")
    for each in reports:
        batch = each.batch
        counts = (batch.batch_id, batch.records, batch.rows, batch.rejected)
        table.add_row(escape(batch.pipeline), batch.kind, *map(str, counts))
    return render(table)


def render(*parts: Any) -> str:
    """Return tables and lines as plain text."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    for part in parts:
        if part:
            console.print(part)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO from above
    return text


def _held_back(partitions: tuple[LogPartition, ...]) -> str:
    """Name open transactions: one that hangs looks like "nothing new"."""
    return "\n".join(
        f"{partition}: an open transaction holds back offsets {partition.last_stable} to "
        f"{partition.high_watermark}"
        for partition in partitions
        if partition.last_stable < partition.high_watermark
    )
