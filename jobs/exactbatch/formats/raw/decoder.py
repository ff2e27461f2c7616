"""Bytes, unchanged or as one number or UUID."""

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, positions
from exactbatch.formats.raw.spec import WIDTHS, Raw


class RawDecoder(Decoder[Raw]):
    """Decodes bytes of one column."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Return a row for every value that has the width of the type."""
        (column,) = self.spec.columns
        kept = positions(values)
        if column.type == "bytea":
            return Decoded(pa.RecordBatch.from_arrays([values], [column.name]), kept)
        width, _ = WIDTHS[column.type]
        lengths = pc.binary_length(values)
        fits = pc.fill_null(pc.equal(lengths, width), True)
        rejects = []
        if not pc.all(fits, min_count=0).as_py():
            wrong = pc.invert(fits)
            reason = f"column {column.name!r}, {column.type}: expected {width} bytes, found"
            pairs = zip(kept.filter(wrong).to_pylist(), lengths.filter(wrong).to_pylist(), strict=True)
            rejects = [(at, f"{reason} {length}") for at, length in pairs]
            values, kept = values.filter(fits), kept.filter(fits)
        rows = pa.RecordBatch.from_arrays([_of_bytes(values, column)], [column.name])
        return Decoded(rows, kept, tuple(rejects))


def _of_bytes(values: pa.BinaryArray, column: Column) -> pa.Array:
    """Return bytes, all of the column's width or null, as values of the column."""
    present = b"".join(values.drop_null().to_pylist())
    width, kind = WIDTHS[column.type]
    if column.type == "uuid":
        starts = range(0, len(present), width)
        found = pa.array([str(uuid.UUID(bytes=present[at : at + width])) for at in starts], pa.string())
    else:
        numbers = np.frombuffer(present, kind)
        found = pa.array(numbers.astype(numbers.dtype.newbyteorder("=")), column.arrow_type)
    return pc.replace_with_mask(pa.nulls(len(values), found.type), values.is_valid(), found)
