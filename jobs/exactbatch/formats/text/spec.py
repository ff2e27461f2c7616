"""The format Text: UTF-8, as it is or as one value of a type."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.declared_fields import one_column
from exactbatch.formats.format import Format
from exactbatch.options import check_types


@dataclass(frozen=True)
class Text(Format):
    """Values are UTF-8 text for one column: its name, or its name and type, such as `"id bigint"`, which takes the text
    that a field of Csv takes, without quotes and white space around it. So Kafka's StringSerializer writes keys.

    A null value gives a row with null. Text that is not of the type, invalid UTF-8, and U+0000, which Postgres cannot
    store, make the record a reject. Raises ConfigurationError for several columns, arrays and bytea.
    """

    null_is_tombstone: ClassVar[bool] = False
    tombstone_deletes: ClassVar[bool] = False

    column: str = "value"

    def __post_init__(self) -> None:
        check_types(self)
        (column,) = self.columns
        if column.element is not None or column.type == "bytea":
            raise ConfigurationError(
                f"column {column.name!r}, {column.type}: Text takes the text of one value. Declare the column as text, "
                f"or decode the values with Raw, which takes bytes, or Custom."
            )

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One column, of type text unless another is declared."""
        return (one_column(self.column, "text"),)
