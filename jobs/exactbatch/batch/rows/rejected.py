"""Rejected records: as Arrow batches of bounded size, and the check that there are not too many of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from exactbatch.errors import TooManyRejects
from exactbatch.errors.printable import printable
from exactbatch.formats.message.record_headers import UNREADABLE, Unreadable, headers_as_json
from exactbatch.kafka.records import KafkaRecord
from exactbatch.pipeline import Pipeline

SHOWN_REJECTS: Final = 5  # in an error
# Rejects that a process holds, by their bytes in Arrow and their number, before it copies them into Postgres.
_HELD_BYTES: Final = 16 * 1024 * 1024
_HELD_RECORDS: Final = 10_000
REJECT_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
        ("reason", pa.string()),
        ("task_attempt", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that does not become a row, the reason, and the task attempt that read it."""

    topic: str
    partition: int
    record: KafkaRecord
    reason: str
    attempt: int


def note_attempt(attempt: int) -> int:
    """Return the task_attempt, below 0, of records that an attempt only notes to be rejected.

    Notes do not count: the driver reads the records again and replaces the notes by complete rejects.
    """
    return ~attempt


class PendingRejects:
    """Rejects that wait to be copied into Postgres, in portions that bound memory."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rejects with the columns of REJECT_SCHEMA."""
        self._batches.append(batch)
        self._bytes += batch.nbytes

    @property
    def is_full(self) -> bool:
        """True if they should be copied now."""
        return self._bytes >= _HELD_BYTES

    def take(self) -> list[pa.RecordBatch]:
        """Remove and return all of them."""
        batches, self._batches, self._bytes = self._batches, [], 0
        return batches


def reject_batches(rejects: Iterable[Rejected]) -> Iterator[pa.RecordBatch]:
    """Yield rejects with the columns of REJECT_SCHEMA, in batches of a size that fits into memory. This is slow: one
    record at a time."""
    held: list[Rejected] = []
    size = 0
    for reject in rejects:
        held.append(reject)
        size += reject.record.size
        if size >= _HELD_BYTES or len(held) == _HELD_RECORDS:
            yield _reject_batch(held)
            held, size = [], 0
    if held:
        yield _reject_batch(held)


def _reject_batch(rejects: Iterable[Rejected]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(map(_reject, rejects)), REJECT_SCHEMA)


def stored_reason(reason: str, headers: Any) -> str:
    """Return a reason as it is stored: printable, and with a note if the record's headers cannot be read."""
    if isinstance(headers, Unreadable) and reason != UNREADABLE:
        reason = f"{reason}; {UNREADABLE}"
    return printable(reason)


def _reject(reject: Rejected) -> dict[str, Any]:
    record = reject.record
    return {
        "topic": reject.topic,
        "partition": reject.partition,
        "offset": record.offset,
        "key": record.key,
        "value": record.value,
        "headers": headers_as_json(record.headers),
        "reason": stored_reason(reject.reason, record.headers),
        "task_attempt": reject.attempt,
    }


def too_many_rejects(
    pipeline: Pipeline,
    where: str,
    *,
    batch_id: int,
    rejected: int,
    records: int,
    written: str,
    first: Sequence[str],
) -> TooManyRejects:
    """Return the error for more rejects than the pipeline allows.

    `where` opens the message, `written` continues it after the counts, and `first` describes the first rejects.
    """
    return TooManyRejects(
        f"{where}: {pipeline.too_many_rejects(rejected, records)}{written} The first: {'; '.join(first)}. "
        f"Correct the pipeline's value format, or raise max_rejects to keep such records in "
        f"exactbatch.rejected_record.",
        batch_id=batch_id,
    )
