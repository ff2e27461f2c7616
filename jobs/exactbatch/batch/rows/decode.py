"""Read one range and decode it into Arrow batches of rows."""

import gc
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from exactbatch.batch.rows.copy import EncodedRows
from exactbatch.batch.rows.rejected import REJECT_SCHEMA, SHOWN_REJECTS, PendingRejects, stored_reason
from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import unexpected
from exactbatch.formats import Format
from exactbatch.formats.bounds import InParts
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.json.blocks import with_nulls
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.message.record_headers import headers_as_json
from exactbatch.formats.replaced_text import WholeMessages, decode_replacing
from exactbatch.formats.upsert_changes import as_changes, with_epochs
from exactbatch.kafka.reader import SharedReads, read_range
from exactbatch.kafka.records import Int64s, Records
from exactbatch.offsets import OffsetRange

if TYPE_CHECKING:
    from exactbatch.batch.rows.json_loop import FastDecoder
    from exactbatch.batch.rows.row_encoder import RowEncoder


@dataclass(frozen=True, slots=True)
class Changes:
    """How rows become changes: the columns of their key, the format of message keys, for tombstones, whether a row may
    lack columns that have not changed, and the offsets at which epochs of positions begin; None without epochs."""

    key_columns: tuple[str, ...]
    key: Format | None
    keeps_unavailable: bool = False
    epochs: Sequence[int] | None = None


class ReadTask(Protocol):
    """Describes what to read and how to decode it.

    `leader_epoch` is the epoch up to which the log was processed at the start of the range, if it is known;
    `cluster_id` is the Kafka cluster of the plan. Reading ends when there are more rejects than `max_rejects`.
    `read_timeout` is in seconds. `slot_offsets` is how many offsets of the batch each slot of Spark reads.
    """

    @property
    def range(self) -> OffsetRange: ...
    @property
    def leader_epoch(self) -> int | None: ...
    @property
    def cluster_id(self) -> str | None: ...
    @property
    def kafka(self) -> Mapping[str, Any]: ...
    @property
    def read_timeout(self) -> float: ...
    @property
    def slot_offsets(self) -> int: ...
    @property
    def value(self) -> Format: ...
    @property
    def changes(self) -> Changes | None: ...
    @property
    def max_rejects(self) -> int: ...
    @property
    def replace_unstorable(self) -> str | None: ...


class Reads(Protocol):
    """Gives the records of ranges that several readers share."""

    def read(self, range_: OffsetRange) -> Iterator[Records]:
        """Yield the records of a range. Raises what read_range() raises."""
        ...


class RangeReader:
    """Reads and decodes one range, and counts.

    records: how many records were read
    rows: how many rows they gave
    fast_count: how many of these compiled code encoded or decoded
    rejects: how many did not decode
    tombstones: how many rightly gave no row: null values, and events that carry none
    dropped: how many decoded and gave no row, because they are of an array without elements
    replaced: how many decoded after text that Postgres cannot hold was replaced
    pending: rejects that the caller has yet to copy
    first: descriptions of the first rejects
    schema: the columns of the batches
    """

    def __init__(
        self,
        task: ReadTask,
        attempt: int,
        schema: pa.Schema,
        constants: Mapping[str, int],
        *,
        reads: Reads | None = None,
        pending: PendingRejects | None = None,
        decoder: "FastDecoder | None" = None,
    ) -> None:
        """`schema` has the columns of a row and any of those of its lineage, and `constants` the values of others
        that are the same for all rows. `attempt` is the task attempt that the rejects carry. `reads` and `pending`
        are those that the task shares with others, if it does. `decoder` decodes the rows of batches()."""
        self._task, self._attempt, self.schema, self._constants = task, attempt, schema, constants
        self._reads, self._decoder = reads, decoder
        self.records = self.rows = self.fast_count = self.rejects = self.tombstones = self.dropped = 0
        self.replaced = 0
        self._several = task.value.gives_several_rows
        self._value = RecordDecoder(task.value)
        key = None if task.changes is None else task.changes.key
        self._key = None if key is None else find_decoder(key)
        self._in_parts = InParts()
        self.pending = PendingRejects() if pending is None else pending
        self.first: list[str] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns of the schema, until there are more rejects than the task allows.

        Raises the errors of read_range() and of the format.
        """
        try:
            for block in self._read():
                for records, decoded in self._decode(block):
                    if self.rejects > self._task.max_rejects:
                        return
                    yield self._with_lineage(records, decoded, _offsets_of_rows(records, decoded))
        except ExactbatchError:
            raise
        except Exception as error:
            raise unexpected(error) from error

    def encoded(self, encoder: "RowEncoder") -> Generator[EncodedRows]:
        """Yield the same rows as bytes of a COPY, with the columns of the encoder.

        Raises what batches() raises.
        """
        try:
            for block in self._read():
                taken = encoder.take(block)
                if taken is not None:
                    self.records += taken.rows
                    self.rows += taken.rows
                    self.fast_count += taken.rows
                    offsets = block.offset_array
                    yield EncodedRows(taken.data, taken.rows, np.delete(offsets, taken.declined_indexes))
                    if len(taken.declined_indexes) < len(block):
                        block = block.take(taken.declined_indexes.tolist())
                for records, decoded in self._decode(block):
                    if self.rejects > self._task.max_rejects:
                        return
                    offsets = _offsets_of_rows(records, decoded)
                    yield encoder.encode(self._with_lineage(records, decoded, offsets), offsets)
        except ExactbatchError:
            raise
        except Exception as error:
            raise unexpected(error) from error

    def _read(self) -> Iterator[Records]:
        task = self._task
        if self._reads is not None:
            return self._reads.read(task.range)
        return read_range(
            task.range,
            task.kafka,
            leader_epoch=task.leader_epoch,
            timeout=task.read_timeout,
            cluster_id=task.cluster_id,
        )

    def _decode(self, block: Records) -> Iterator[tuple[Records, Decoded]]:
        """Decode records in parts, count them, and keep their rejects."""
        decode = self._decode_by_format
        if self._decoder is not None:
            decode = partial(self._decoder.decode, decode_by_format=self._decode_by_format)
        for records, decoded in self._in_parts.decode(block, decode):
            self.records += len(records)
            self.rows += len(decoded.rows)
            self.fast_count += decoded.fast_count
            self.rejects += len(decoded.rejects)
            self.tombstones += decoded.tombstones
            self.replaced += decoded.replaced
            if self._several:
                self.dropped += len(records) - with_rows(decoded) - len(decoded.rejects) - decoded.tombstones
            if decoded.rejects:
                self._reject(records, decoded)
            yield records, decoded

    def _decode_by_format(self, records: Records) -> Decoded:
        value, changes = self._task.value, self._task.changes
        decoded = decode_replacing(
            self._decode_records,
            records,
            value,
            None if changes is None else changes.key,
            self._task.replace_unstorable,
        )
        if changes is None or changes.epochs is None:
            return decoded
        return with_epochs(decoded, records.offsets(), changes.epochs)

    def _decode_records(self, records: WholeMessages) -> Decoded:
        value, changes = self._task.value, self._task.changes
        values = with_nulls(value, records.values())
        keeps_unavailable = changes is not None and changes.keeps_unavailable
        decoded = self._value.decode(values, records, keeps_unavailable=keeps_unavailable)
        if changes is None:
            return decoded
        return as_changes(
            decoded,
            values,
            records,
            self._key,
            changes.key_columns,
            tombstones_delete=value.tombstone_deletes,
            keeps_unavailable=keeps_unavailable,
        )

    def _reject(self, records: Records, decoded: Decoded) -> None:
        batch = build_rejects(self._task.range, records, decoded, self._attempt)
        self.pending.add(batch)
        # Only these two columns: a reject's value may be large.
        first = batch.select(["offset", "reason"]).slice(0, SHOWN_REJECTS - len(self.first)).to_pylist()
        self.first += [f"offset {row['offset']}: {row['reason']}" for row in first]

    def _with_lineage(self, records: Records, decoded: Decoded, offsets: Int64s) -> pa.RecordBatch:
        """Return the rows with their lineage; `offsets` is what _offsets_of_rows() returned."""
        range_ = self._task.range
        timestamps = records.timestamps()
        if offsets is not records.offset_array:
            timestamps = timestamps.take(decoded.kept)
        rows = len(offsets)
        columns = {
            "kafka_topic": pa.repeat(range_.topic, rows),
            "kafka_partition": pa.repeat(pa.scalar(range_.partition, pa.int32()), rows),
            "kafka_offset": pa.array(offsets),
            "kafka_timestamp": timestamps.cast(pa.timestamp("us", "UTC")),
        }
        for name, constant in self._constants.items():
            columns[name] = pa.repeat(pa.scalar(constant, pa.int64()), rows)
        columns |= zip(decoded.rows.schema.names, decoded.rows.columns, strict=True)
        # Not with schema=…, which would cast: RecordBatchReader.from_batches() refuses a column of another type.
        names = self.schema.names
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names)


def _offsets_of_rows(records: Records, decoded: Decoded) -> Int64s:
    """Return the offset of each row's record: the records' own array if each of them gave one row."""
    offsets = records.offset_array
    return offsets if is_row_each(decoded, len(records)) else offsets[decoded.kept.to_numpy()]


def is_row_each(decoded: Decoded, records: int) -> bool:
    """True if each record gave one row."""
    return len(decoded.kept) == records and bool((decoded.kept.to_numpy() == np.arange(records)).all())


def with_rows(decoded: Decoded) -> int:
    """Return how many values gave rows."""
    kept = decoded.kept.to_numpy()
    return int(np.count_nonzero(np.diff(kept))) + 1 if len(kept) else 0


def shared_reads(tasks: Sequence[ReadTask]) -> SharedReads | None:
    """Return what reads the ranges of several tasks of one batch together; None for a single one."""
    if len(tasks) == 1:
        return None
    task = tasks[0]
    ranges = {each.range: each.leader_epoch for each in tasks}
    return SharedReads(ranges, task.kafka, timeout=task.read_timeout, cluster_id=task.cluster_id)


def build_rejects(range_: OffsetRange, records: Records, decoded: Decoded, attempt: int) -> pa.RecordBatch:
    """Return the records of a range that did not decode, with the columns of REJECT_SCHEMA."""
    indexes, reasons = zip(*decoded.rejects, strict=True)
    refused = records.take(indexes)
    headers = refused.headers()
    columns = {
        "topic": pa.repeat(range_.topic, len(indexes)),
        "partition": pa.repeat(pa.scalar(range_.partition, pa.int32()), len(indexes)),
        "offset": refused.offsets(),
        "key": refused.keys(),
        "value": refused.values(),
        "headers": pa.array(map(headers_as_json, headers), pa.string()),
        "reason": pa.array(map(stored_reason, reasons, headers), pa.string()),
        "task_attempt": pa.repeat(pa.scalar(attempt, pa.int64()), len(indexes)),
    }
    return pa.RecordBatch.from_pydict(columns, schema=REJECT_SCHEMA)


@contextmanager
def pause_garbage_collector() -> Iterator[None]:
    """Pause the search for reference cycles: records come by the ten thousand, none is part of a cycle, and the
    repeated search would take a third of the time that reading takes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
