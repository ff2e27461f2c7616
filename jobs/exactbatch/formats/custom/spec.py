"""The format Custom: your own function decodes the values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.formats.format import Format
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa  # for the type of the function alone

INDEX: Final = "value_index"


@dataclass(frozen=True)
class Custom(Format):
    """`function` decodes values into rows with the columns of `schema`, or rejects them.

    Its argument is a RecordBatch of `value_index` (int64) and `value` (binary), without null values. It returns a
    RecordBatch of `value_index` and the columns of `schema`, in any order, and a mapping of value_index to the reason
    for each value that it rejects. Every value has to give one row or one reject, and the same row each time: a retry
    and a replay decode again.

    The result is checked: an invalid result, or an exception other than OSError and MemoryError, raises
    ConfigurationError and ends the batch; after an OSError the batch is retried. A row that Postgres cannot store is a
    reject. A null value is a tombstone.
    """

    function: "Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Mapping[int, str]]]"
    schema: str

    def __post_init__(self) -> None:
        check_types(self)
        if INDEX in [column.name for column in self.columns]:
            raise ConfigurationError(
                f"column {INDEX!r} in {self.schema!r} is reserved for the index of a row's value: rename the column"
            )

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the schema."""
        return parse_columns(self.schema)
