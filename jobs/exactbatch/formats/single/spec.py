"""The formats Raw and Text: a value is one column, bytes or UTF-8 text, unchanged or as one value of a type."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.declared_fields import one_column
from exactbatch.formats.format import Format
from exactbatch.options import check_types

# Types of fixed width: their bytes, and the name that numpy has for them, the highest byte first.
WIDTHS: Final[Mapping[str, tuple[int, str]]] = {
    "smallint": (2, ">i2"),
    "integer": (4, ">i4"),
    "bigint": (8, ">i8"),
    "real": (4, ">f4"),
    "double precision": (8, ">f8"),
    "uuid": (16, "V16"),
}


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


@dataclass(frozen=True)
class Raw(Format):
    """Values are bytes for one column: its name, for a column of type bytea, or its name and type, such as
    `"id bigint"`.

    A smallint, integer, bigint, real or double precision is its 2, 4 or 8 bytes, the highest first, as Kafka's
    serializers of numbers write it, and a uuid its 16 bytes. A value of another length is a reject.

    A null value gives a row with null. Raises ConfigurationError for another type, and for several columns.
    """

    null_is_tombstone: ClassVar[bool] = False
    tombstone_deletes: ClassVar[bool] = False

    column: str = "value"

    def __post_init__(self) -> None:
        check_types(self)
        (column,) = self.columns
        if column.type != "bytea" and column.type not in WIDTHS:
            raise ConfigurationError(
                f"column {column.name!r}, {column.type}: Raw has bytea and types of a fixed width, "
                f"{', '.join(WIDTHS)}. Use Text for text, or Custom."
            )

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One column, of type bytea unless another is declared."""
        return (one_column(self.column, "bytea"),)
