"""Choose how records are decoded and rows encoded: by compiled code if that pays and works, or by pyarrow and ADBC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.compiled.availability import is_available, pays
from exactbatch.compiled.row_formats import is_encodable
from exactbatch.sinks import CheckedJson

if TYPE_CHECKING:
    from exactbatch.batch.rows.fast_decoder import FastDecoder
    from exactbatch.batch.rows.row_encoder import RowEncoder


@dataclass(frozen=True, slots=True)
class Packing:
    """What a decoder packs: the fields of the columns `names` go into the column PACKED. The columns in `used` are
    needed themselves; others may be null."""

    names: Sequence[str]
    used: Sequence[str]


def encoder_for(
    task: ReadTask, schema: pa.Schema, constants: Mapping[str, int], checked: Sequence[CheckedJson] = ()
) -> "RowEncoder | None":
    """Return the encoder of a range whose rows have the columns of `schema`; None if it takes ADBC.

    `constants` are the values of bigint columns of the schema that are the same for all rows. `checked` are columns
    that the rows also have.
    """
    if not _reads_fast(task):
        return None
    from exactbatch.batch.rows.row_encoder import row_encoder  # imports numba

    return row_encoder(task, schema, constants, checked)


def decoder_for(
    task: ReadTask, schema: pa.Schema, packing: Packing | None, *, shares_reads: bool
) -> "FastDecoder | None":
    """Return the decoder of a range for a transform, whose rows have the columns of `schema`; None if pyarrow decodes
    it and there is nothing to pack. `shares_reads` is True if the range shares reads with others."""
    if packing is None and (shares_reads or not _reads_fast(task)):
        return None
    from exactbatch.batch.rows.fast_decoder import fast_decoder  # imports numba

    return fast_decoder(task, schema, packing, shares_reads=shares_reads)


def encodes(schema: pa.Schema, slot_offsets: int) -> bool:
    """True if compiled code encodes a transform's rows; each slot of Spark stages those of `slot_offsets` offsets."""
    return is_encodable(schema) and is_fast(slot_offsets)


def _reads_fast(task: ReadTask) -> bool:
    # A worker loads the code once, and reads several ranges one after the other.
    return is_fast(max(len(task.range), task.slot_offsets))


def is_fast(offsets: int, *, reload: bool = False) -> bool:
    """True if compiled code pays for a number of offsets, and works; `reload` if another process has to load it."""
    return pays(offsets, reload=reload) and is_available()
