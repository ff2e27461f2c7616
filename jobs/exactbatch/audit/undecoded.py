"""Find the records of a JSON pipeline that are exactly the text of their rows, without decoding them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from psycopg2 import sql

from exactbatch.audit.equal_values import differ, pair
from exactbatch.audit.json_text import WRITTEN, Flags, JsonText
from exactbatch.audit.report import Offsets
from exactbatch.audit.snapshot import Snapshot
from exactbatch.columns import Column
from exactbatch.formats import Format, Json, WithMessage
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.values.null_safe_groups import column_list

# Postgres prints these columns together, as the text of a row: to receive each on its own takes several times as long.
_PRINTED: Final = frozenset({"smallint", "integer", "bigint", "text"})
_SAMPLES: Final = 10  # one of these records has to tell how the producer writes
_MOST_BYTES: Final = 2**30  # of rows: the bytes of an array of text have to be less than 2 GB
_OFFSET, _BATCH, _TIMESTAMP, _TEXT = (
    "exactbatch offset",
    "exactbatch batch",
    "exactbatch timestamp",
    "exactbatch text",
)


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Records of one partition: offsets, ascending; values; Kafka's timestamps, in microseconds; and the batches that
    cover them."""

    offsets: Offsets
    values: pa.BinaryArray
    timestamps: pa.TimestampArray
    batches: Offsets

    @classmethod
    def joined(cls, parts: Sequence["Undecoded"]) -> "Undecoded":
        """Return all of some parts, which ascend."""
        return cls(
            np.concatenate([part.offsets for part in parts]),
            pa.concat_arrays([part.values for part in parts]),
            pa.concat_arrays([part.timestamps for part in parts]),
            np.concatenate([part.batches for part in parts]),
        )

    def take(self, positions: Offsets) -> "Undecoded":
        """Return the records at some positions, which ascend."""
        at = pa.array(positions)
        return Undecoded(
            self.offsets[positions], self.values.take(at), self.timestamps.take(at), self.batches[positions]
        )


def can_be_written(value: Format | WithMessage, columns: Sequence[Column]) -> bool:
    """True for a format and columns whose records may be the text of their rows."""
    return (
        type(value) is Json
        and value.is_plain
        and not value.epoch
        and all(column.type in WRITTEN for column in columns)
    )


class RowTexts:
    """Compares records with the text that their producer would have written for the rows of the lineage table."""

    def __init__(
        self, snapshot: Snapshot, pipeline: Pipeline, columns: Sequence[Column], row_batch: sql.Composable
    ) -> None:
        """`row_batch` is an expression for the batch of a row t. `columns` are those that can_be_written() accepts."""
        self._snapshot, self._table, self._row_batch = snapshot, pipeline.sink.lineage_table, row_batch
        self._types = {column.name: column.type for column in columns}
        self._printed = [column.name for column in columns if column.type in _PRINTED]
        self._received = [column.name for column in columns if column.type not in _PRINTED]

    def equal(self, records: Undecoded, in_window: sql.Composable) -> Flags:
        """Return which records are exactly the text of each of their rows, and have at least one.

        `in_window` is a condition for the rows t of these records.
        """
        is_equal = np.zeros(len(records.offsets), bool)
        text = self._learned(records.values)
        if text is None:
            return is_equal
        rows, at = pair(records.offsets, records.batches, self._rows(in_window), by=(_OFFSET, _BATCH))
        columns = self._columns(rows) if 0 < rows.nbytes < _MOST_BYTES else None
        if columns is None:
            return is_equal
        values, timestamps = records.values, records.timestamps
        if at is not None:
            values, timestamps = values.take(pa.array(at)), timestamps.take(pa.array(at))
        is_row = text.is_text_of(values, columns) & ~differ(timestamps, _whole(rows[_TIMESTAMP]))
        if at is None:
            return is_row
        is_equal[at] = True
        is_equal[at[~is_row]] = False
        return is_equal

    def _learned(self, values: pa.BinaryArray) -> JsonText | None:
        samples = (value.as_py() for value in values.drop_null()[:_SAMPLES])
        return next(filter(None, (JsonText.learned(sample, self._types) for sample in samples)), None)

    def _rows(self, in_window: sql.Composable) -> pa.Table:
        """Return the rows: offset, batch, Kafka's timestamp, the printed columns as one text, and the others."""
        one = sql.Literal(1)
        query = sql.SQL("select {}::bigint, {}::bigint, row({})::text, {} from {} t where {}").format(
            sql.Identifier("t", "kafka_offset"),
            self._row_batch,
            # With a number at both ends, no column is next to a parenthesis.
            sql.SQL(", ").join([one, *(sql.Identifier("t", name) for name in self._printed), one]),
            column_list(["kafka_timestamp", *self._received], of="t"),
            self._table.in_snapshot,
            in_window,
        )
        return self._snapshot.table(query).rename_columns(
            [_OFFSET, _BATCH, _TEXT, _TIMESTAMP, *map(_column, self._received)]
        )

    def _columns(self, rows: pa.Table) -> dict[str, pa.Array] | None:
        """Return the columns of the rows by name, the printed ones as text; None if their text cannot be read."""
        received = {name: _whole(rows[_column(name)]) for name in self._received}
        printed = printed_columns(_whole(rows[_TEXT]), self._printed)
        return None if printed is None else printed | received


def printed_columns(texts: pa.StringArray, names: Sequence[str]) -> dict[str, pa.StringArray] | None:
    """Return the columns between the first and the last one of Postgres's texts of rows; None if one cannot be read.

    A text with a backslash has two in its place.
    """
    block = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_buffer()
    numbered = [str(number) for number in range(len(names) + 2)]
    try:
        table = pcsv.read_csv(
            pa.BufferReader(block),
            pcsv.ReadOptions(use_threads=False, column_names=numbered, block_size=block.size + 1),
            convert_options=pcsv.ConvertOptions(
                column_types=dict.fromkeys(numbered, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != len(texts):
        return None
    return {name: _whole(column) for name, column in zip(names, table.columns[1:-1], strict=True)}


def _column(name: str) -> str:
    """Return a name for a received column, which differs from the names of the others."""
    return f"column {name}"


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
