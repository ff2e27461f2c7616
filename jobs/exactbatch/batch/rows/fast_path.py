"""Choose how the rows of a range are encoded: by compiled code if that pays and works, or by ADBC."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.compiled.availability import is_available, pays

if TYPE_CHECKING:
    from exactbatch.batch.rows.row_encoder import RowEncoder


def encoder_for(task: ReadTask, schema: pa.Schema, constants: Mapping[str, int]) -> "RowEncoder | None":
    """Return the encoder of a range whose rows have the columns of `schema`; None if it takes ADBC.

    `constants` are the values of bigint columns of the schema that are the same for all rows.
    """
    # A worker loads the code once, and reads several ranges one after the other.
    if not pays(max(len(task.range), task.slot_offsets)) or not is_available():
        return None
    from exactbatch.batch.rows.row_encoder import row_encoder  # imports numba

    return row_encoder(task, schema, constants)
