"""Stage the rows of a transform in the Spark tasks that read the records, if the transform needs no shuffle.

Such a task runs two Python workers on one machine: the first reads and decodes, the second stages what Spark makes
of the decoded rows. No record is kept for a second look. What the first worker did, and the rejects that it found,
reach the second in files, so that a task has one connection to Postgres.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles, TaskContext

from exactbatch.batch.rejects import REJECT_SCHEMA
from exactbatch.batch.task import Staged, dump, load
from exactbatch.errors import ExactbatchError
from exactbatch.offsets import OffsetRange

# The local property of a Spark job that stages in one pass, with the launch as its value.
ONE_PASS: Final = "exactbatch.one_pass"


@dataclass(frozen=True, slots=True)
class Passed:
    """The work of one task attempt: what it read, how many rows it staged, and how many records these come from.

    `records` is None if the rows did not come in the order of the log, so that their records were not counted.
    """

    attempt: int
    pieces: tuple[Staged, ...]
    rows: int
    records: int | None


class HandOver:
    """The files in which the worker of a task attempt that decodes leaves its rejects and its outcomes to the one
    that stages. Both run on one machine, in the directory that Spark made for this application."""

    def __init__(self, folder: Path, launch: str, attempt: int) -> None:
        self._outcomes = folder / f"exactbatch_{launch}_{attempt}_outcomes"
        self._rejects = folder / f"exactbatch_{launch}_{attempt}_rejects"
        self._file: Any = None
        self._writer: Any = None

    @classmethod
    def of_job(cls, attempt: int) -> "HandOver | None":
        """Return the files of a task attempt; None if its job does not stage in one pass."""
        context = TaskContext.get()
        launch = None if context is None else context.getLocalProperty(ONE_PASS)
        return None if launch is None else cls(Path(SparkFiles.getRootDirectory()), launch, attempt)

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
        outcomes: list[Staged | ExactbatchError] = load(self._outcomes.read_bytes())
        return outcomes

    def rejects(self) -> Iterator[pa.RecordBatch] | None:
        """Return the rejects; None if there are none."""
        return _batches(self._rejects) if self._rejects.exists() else None

    def remove(self) -> None:
        """Remove the files."""
        for path in (self._outcomes, self._rejects):
            path.unlink(missing_ok=True)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        yield from reader


def _private(path: Path) -> Any:
    """Open a new file that only this account may read: rejects are records."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


class RecordsInOrder:
    """Counts the records that rows come from, as long as these come in the order in which the records were read.

    Then the rows of a record follow each other, and a record is new if its offset is greater than the one before.
    """

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        """`ranges` are those of the task, in the order in which it reads them."""
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
        topics, partitions, offsets = (
            rows.column(name) for name in ("kafka_topic", "kafka_partition", "kafka_offset")
        )
        if topics.null_count or partitions.null_count or offsets.null_count:
            self._in_order = False
            return
        numbers = offsets.to_numpy()
        for start, end in _runs(topics, partitions):
            place = topics[start].as_py(), partitions[start].as_py()
            while start < end and self._in_order:
                start = self._add_of_a_range(place, numbers, start, end)

    def _add_of_a_range(self, place: tuple[str, int], offsets: Any, start: int, end: int) -> int:
        """Add rows of one partition that are in one range; return where those of the next range start."""
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


def all_pieces(passed: Iterable[Passed]) -> tuple[Staged, ...]:
    """Return what all task attempts read, in the order of the log."""
    return tuple(sorted((piece for each in passed for piece in each.pieces), key=lambda piece: piece.range))


def passed(
    outcomes: Iterable[Staged | ExactbatchError], attempt: int, rows: int, records: int | None
) -> Passed | ExactbatchError:
    """Return what a task attempt did that has read `outcomes` and staged rows; the first error if it could not read."""
    pieces = []
    for outcome in outcomes:
        if isinstance(outcome, ExactbatchError):
            return outcome
        pieces.append(outcome)
    return Passed(attempt, tuple(pieces), rows, records)
