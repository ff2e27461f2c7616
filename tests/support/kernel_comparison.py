"""Compare the compiled loop over JSON with the strict decoder, which has the last word."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from exactbatch import Json
from exactbatch.batch.rows.copy import ArrowEncoder
from exactbatch.compiled.json_kernel import JsonKernel, TakenRows
from exactbatch.compiled.row_frame import NO_FRAME, Frame, row_frame
from exactbatch.compiled.rows_arrow import RowsAsArrow
from exactbatch.formats.decoders import find_decoder
from support.copy_rows import comparable, fields_of, values_of

PARTITION = 3
_EPOCH_MS = 946_684_800_000
_LINEAGE = ("kafka_partition", "kafka_offset", "kafka_topic", "kafka_timestamp")


@dataclass(frozen=True)
class Compared:
    """How many values there were, and how many of them the loop took."""

    values: int
    taken: int


def take(
    format_: Json,
    values: Sequence[bytes | None],
    required: Collection[str] = (),
    frame: Frame | None = None,
    checked: Collection[str] = (),
) -> TakenRows:
    """What the loop makes of values at the offsets 0, 3, 6, …, at as many milliseconds after 2000. Each of the columns
    `checked` has a second one for documents."""
    frame = _frame(len(format_.columns) + len(checked)) if frame is None else frame
    kernel = JsonKernel(format_.columns, format_.epoch, frame, required, format_.own_members, checked)
    sizes = np.array([len(value or b"") for value in values], np.uint64)
    ends = np.cumsum(sizes, dtype=np.uint64)
    offsets = np.arange(len(values)) * 3
    return kernel.take(
        np.frombuffer(b"".join(value or b"" for value in values), np.uint8),
        ends - sizes,
        ends,
        np.array([value is not None for value in values], np.bool_),
        offsets,
        _EPOCH_MS + offsets,
    )


def compare(
    format_: Json,
    values: Sequence[bytes | None],
    required: Collection[str] = (),
    *,
    by_field: bool = False,
) -> Compared:
    """Fail unless each row that the loop writes is the one that the format gives, also when it is read back into
    Arrow columns; `by_field` also reads the rows field by field."""
    taken = take(format_, values, required)
    indexes = np.setdiff1d(np.arange(len(values)), taken.declined_indexes)
    assert len(indexes) == taken.rows
    decoded = find_decoder(format_).decode(pa.array([values[index] for index in indexes], pa.binary()))
    refused = [(values[indexes[at]], reason) for at, reason in decoded.rejects]
    assert refused == []
    assert decoded.tombstones == 0
    for name in required:
        assert decoded.rows.column(name).null_count == 0
    batch = _with_lineage(decoded.rows, indexes)
    rows = ArrowEncoder(batch.schema)
    expected = rows.encode(batch).data
    if by_field or expected != taken.data:
        written, columns = fields_of(taken.data), format_.columns
        for index, fields, row in zip(indexes, written, comparable(decoded.rows), strict=True):
            lineage = [
                PARTITION.to_bytes(4),
                (3 * int(index)).to_bytes(8),
                b"topic",
                (3000 * int(index)).to_bytes(8),
            ]
            assert fields[: len(lineage)] == lineage
            assert values_of(fields[len(lineage) :], columns) == row, repr(values[index])
    assert expected == taken.data
    of_values = take(format_, values, required, NO_FRAME)
    columns = RowsAsArrow(decoded.rows.schema).read(of_values.data, of_values.rows)
    columns.validate(full=True)
    assert rows.encode(_with_lineage(columns, indexes)).data == taken.data
    if checked := [column.name for column in format_.columns if column.type == "jsonb"]:
        _compare_documents(format_, taken, take(format_, values, required, checked=checked))
    return Compared(len(values), taken.rows)


def _compare_documents(format_: Json, taken: TakenRows, with_second: TakenRows) -> None:
    """Fail unless rows with second columns are the same: each document is in one of both columns."""
    assert with_second.declined_indexes.tolist() == taken.declined_indexes.tolist()
    for written, expected in zip(fields_of(with_second.data), fields_of(taken.data), strict=True):
        fields = iter(written)
        for name, field in zip(
            [*_LINEAGE, *(column.name for column in format_.columns)], expected, strict=True
        ):
            text = next(fields)
            if any(column.name == name and column.type == "jsonb" for column in format_.columns):
                document = next(fields)
                assert text is None or document is None
                text = document[1:] if document is not None and document[:1] == b"\1" else text
            assert text == field
        assert list(fields) == []


def _frame(columns: int) -> Frame:
    return row_frame(len(_LINEAGE) + columns, "topic", PARTITION, {})


def _with_lineage(rows: pa.RecordBatch, indexes: np.ndarray) -> pa.RecordBatch:
    count = len(rows)
    times = pa.array((_EPOCH_MS + 3 * indexes) * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
    lineage = (
        pa.repeat(pa.scalar(PARTITION, pa.int32()), count),
        pa.array(3 * indexes, pa.int64()),
        pa.repeat("topic", count),
        times,
    )
    return pa.RecordBatch.from_arrays([*lineage, *rows.columns], [*_LINEAGE, *rows.schema.names])
