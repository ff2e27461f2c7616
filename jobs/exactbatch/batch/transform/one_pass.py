"""Stage the rows of a transform in the Spark tasks that read the records, if the transform needs no shuffle.

Such a task runs two Python workers on one machine: the first reads and decodes, the second stages what Spark makes
of the decoded rows. What the first worker did, and the rejects that it found, reach the second in files, so that a
task has one connection to Postgres. So do the columns that the transform returns as they are: they need not go
through the JVM.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles

from exactbatch.batch.rows.rejected import REJECT_SCHEMA
from exactbatch.batch.staging.outcomes import declare_outcome, dump, load
from exactbatch.batch.staging.task import Staged, StagedBatch, by_attempt
from exactbatch.errors import ExactbatchError, StagedRowsDiffer
from exactbatch.offsets import OffsetRange, TopicPartition

# The columns that name a row's record. They go through the JVM; of a task that reads one partition, only the offset.
PLACE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")
OFFSET: Final = ("kafka_offset",)


@dataclass(frozen=True, slots=True)
class OnePass:
    """What the two workers of a task do with the columns of the decoded records.

    launch: the launch of the batch, as text
    unchanged: the columns of the rows that the workers that stage take from files, with their names in the records
    used: the columns of the records that go through the JVM
    """

    launch: str
    unchanged: Mapping[str, str]
    used: tuple[str, ...]

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the worker that decodes keeps of decoded rows, in a file."""
        return rows.select(list(dict.fromkeys([*self.unchanged.values(), *PLACE])))


@declare_outcome
@dataclass(frozen=True, slots=True)
class Passed:
    """The work of one task attempt: what it read, how many rows it staged, and how many records these come from.

    `records` is None if the rows did not come in the order of the log, so that their records were not counted.
    """

    attempt: int
    splits: tuple[Staged, ...]
    rows: int
    records: int | None


class HandOver:
    """The files in which the worker of a task attempt that decodes leaves rows, rejects and its outcomes to the one
    that stages. Both run on one machine, in the directory that Spark made for this application."""

    def __init__(self, launch: str, attempt: int, folder: Path | None = None) -> None:
        self._folder = folder or Path(SparkFiles.getRootDirectory())
        self._name = f"exactbatch_{launch}_{attempt}"
        self._outcomes = self._folder / f"{self._name}_outcomes"
        self._rejects = self._folder / f"{self._name}_rejects"
        self._kept = self._taken = 0  # batches of rows
        self._file: Any = None
        self._writer: Any = None

    def keep_rows(self, rows: pa.RecordBatch) -> None:
        """Leave rows, before what the transform makes of them can reach the worker that stages."""
        with _private(self._rows(self._kept)) as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_batch(rows)
        self._kept += 1

    def take_rows(self) -> pa.RecordBatch | None:
        """Return the next batch of rows, and remove its file; None if there is no other so far."""
        path = self._rows(self._taken)
        if not path.exists():
            return None
        self._taken += 1
        rows = pa.ipc.open_stream(pa.memory_map(str(path))).read_next_batch()
        path.unlink()  # the mapped memory stays
        return rows

    def _rows(self, number: int) -> Path:
        return self._folder / f"{self._name}_rows_{number}"

    def keep(self, rejects: Sequence[pa.RecordBatch]) -> None:
        """Append rejects, with the columns of REJECT_SCHEMA."""
        if self._writer is None:
            self._file = _private(self._rejects)
            self._writer = pa.ipc.new_stream(self._file, REJECT_SCHEMA)
        for batch in rejects:
            self._writer.write_batch(batch)

    def finish(self, outcomes: Sequence[Staged | ExactbatchError]) -> None:
        """Leave the outcomes. They are the last: the worker that stages begins with them."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
        with _private(self._outcomes) as file:
            file.write(dump(list(outcomes)))

    def outcomes(self) -> list[Staged | ExactbatchError]:
        """Return what the worker that decodes did. Its rows have all come."""
        return load(self._outcomes.read_bytes())

    def rejects(self) -> Iterator[pa.RecordBatch] | None:
        """Return the rejects; None if there are none."""
        return _batches(self._rejects) if self._rejects.exists() else None

    def remove(self) -> None:
        """Remove the files."""
        for path in (self._outcomes, self._rejects, *self._folder.glob(f"{self._name}_rows_*")):
            path.unlink(missing_ok=True)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        yield from reader


def _private(path: Path) -> Any:
    """Open a new file that only this account may read: rejects are records."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


class UnchangedColumns:
    """Adds the columns to the rows of a transform that are unchanged columns of their records."""

    def __init__(
        self, hand_over: HandOver, unchanged: Mapping[str, str], only: TopicPartition | None = None
    ) -> None:
        """`unchanged` has the columns to add, with their names in the rows that were kept. `only` is the partition of
        all rows, if they have the offsets alone."""
        self._hand_over, self._unchanged, self._only = hand_over, unchanged, only
        self._rows: pa.RecordBatch | None = None
        self._place: TopicPartition | None = None
        self._offsets: Any = np.array([], np.int64)

    def added_to(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these columns. They carry the lineage of decoded records, in the order of the log.

        Raises StagedRowsDiffer if they do not.
        """
        numbers = rows.column("kafka_offset").to_numpy()
        for place, start, end in self._runs(rows) if len(rows) else ():
            while start < end:
                self._find(place, int(numbers[start]))
                inside = numbers[start:end]
                beyond = (inside > self._offsets[-1]) | (inside < self._offsets[0])
                if beyond.any():
                    inside = inside[: int(np.argmax(beyond))]
                yield self._added(rows.slice(start, len(inside)), inside)
                start += len(inside)

    def _runs(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield the partition, start and end of each run of rows of one partition."""
        if self._only is not None:
            yield self._only, 0, len(rows)
            return
        topics, partitions = rows.column("kafka_topic"), rows.column("kafka_partition")
        for start, end in _runs(topics, partitions):
            yield (topics[start].as_py(), partitions[start].as_py()), start, end

    def _find(self, place: TopicPartition, offset: int) -> None:
        """Take kept rows until these have the record."""
        while (
            self._rows is None or place != self._place or not self._offsets[0] <= offset <= self._offsets[-1]
        ):
            if (kept := self._hand_over.take_rows()) is None:
                raise _not_decoded(*place, offset)
            topic, partition, offsets = (kept.column(name) for name in PLACE)
            self._rows, self._place = kept, (topic[0].as_py(), partition[0].as_py())
            self._offsets = offsets.to_numpy()

    def _added(self, rows: pa.RecordBatch, offsets: Any) -> pa.RecordBatch:
        assert self._rows is not None
        assert self._place is not None
        indexes = np.searchsorted(self._offsets, offsets)
        if (wrong := self._offsets[indexes] != offsets).any():
            raise _not_decoded(*self._place, int(offsets[int(np.argmax(wrong))]))
        first, count = int(indexes[0]), len(indexes)
        if (indexes == np.arange(first, first + count)).all():
            of_records = self._rows.slice(first, count)
        else:
            of_records = self._rows.take(pa.array(indexes))
        columns = [*rows.columns, *map(of_records.column, self._unchanged.values())]
        return pa.RecordBatch.from_arrays(columns, [*rows.schema.names, *self._unchanged])


def _not_decoded(topic: str, partition: int, offset: int) -> StagedRowsDiffer:
    return StagedRowsDiffer(
        f"{topic}[{partition}] offset {offset}: Spark returned a row of this record out of order, or without having "
        f"read it. Nothing was written; try again.",
        topic=topic,
        partition=partition,
        from_offset=offset,
        until_offset=offset + 1,
    )


class RecordsInOrder:
    """Counts the records that rows come from, as long as these come in the order in which the records were read.

    Then the rows of a record follow each other, and a record is new if its offset is greater than the one before.
    """

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        """`ranges` are the ranges of the task, in the order in which it reads them."""
        self._ranges = ranges
        self._range, self._offset = 0, -1  # the last row's range, and its offset
        self._records = 0
        self._in_order = True

    @property
    def count(self) -> int | None:
        """The number of records; None if a row was out of order, or of no record in the ranges."""
        return self._records if self._in_order else None

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the rows that come next, with their lineage."""
        if not self._in_order or not len(rows):
            return
        topics, partitions, offsets = (rows.column(name) for name in PLACE)
        if topics.null_count or partitions.null_count or offsets.null_count:
            self._in_order = False
            return
        numbers = offsets.to_numpy()
        for start, end in _runs(topics, partitions):
            place = topics[start].as_py(), partitions[start].as_py()
            while start < end and self._in_order:
                start = self._add_of_a_range(place, numbers, start, end)

    def _add_of_a_range(self, place: tuple[str, int], offsets: Any, start: int, end: int) -> int:
        """Add rows of one partition that are in one range; return where the rows of the next range start."""
        first = int(offsets[start])
        for index in range(self._range, len(self._ranges)):
            range_ = self._ranges[index]
            if range_.topic_partition == place and range_.from_offset <= first < range_.until_offset:
                break
        else:
            self._in_order = False
            return end
        inside = offsets[start:end]
        outside = (inside < range_.from_offset) | (inside >= range_.until_offset)
        if outside.any():
            inside = inside[: int(np.argmax(outside))]
        steps = np.diff(inside, prepend=self._offset if index == self._range else -1)
        self._in_order = bool((steps >= 0).all())
        self._records += int(np.count_nonzero(steps))
        self._range, self._offset = index, int(inside[-1])
        return start + len(inside)


def _runs(topics: pa.Array, partitions: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of rows of one partition."""
    rows = len(topics)
    changes = pc.or_(
        pc.not_equal(topics.slice(1), topics.slice(0, rows - 1)),
        pc.not_equal(partitions.slice(1), partitions.slice(0, rows - 1)),
    )
    bounds = [0, *(int(at) + 1 for at in np.flatnonzero(changes.to_numpy(zero_copy_only=False))), rows]
    return pairwise(bounds)


def staged_batch(passed: Iterable[Passed]) -> StagedBatch:
    """Return what task attempts did, except how many records they have dropped; the splits in the order of the log."""
    passed = list(passed)
    splits = sorted((split for each in passed for split in each.splits), key=lambda split: split.range)
    return StagedBatch(
        tuple(splits),
        {each.attempt: each.rows for each in passed},
        by_attempt(splits, "rejects"),
    )


def passed(
    outcomes: Iterable[Staged | ExactbatchError],
    attempt: int,
    rows: int,
    records: int | None,
) -> Passed | ExactbatchError:
    """Return what a task attempt did that has read `outcomes` and staged rows; the first error if it could not read."""
    splits = []
    for outcome in outcomes:
        if isinstance(outcome, ExactbatchError):
            return outcome
        splits.append(outcome)
    return Passed(attempt, tuple(splits), rows, records)
