"""The name of a table as a user writes it, and as Postgres stores it."""

import re
from dataclasses import dataclass
from typing import Final, Self

from exactbatch.columns import MAX_NAME_BYTES
from exactbatch.errors import ConfigurationError

_IDENTIFIER: Final = re.compile(r'"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*)')


@dataclass(frozen=True)
class TableName:
    """A table that `spec` names: `schema.table`; a part that is not lower-case goes in double quotes.

    Raises ConfigurationError if `spec` is not such a name.
    """

    spec: str

    def __post_init__(self) -> None:
        if not _is_table_name(self.spec):
            raise ConfigurationError(
                f"expected a target as 'schema.table', lower-case or in double quotes, found {self.spec!r}"
            )

    @property
    def name(self) -> tuple[str, str]:
        """Schema and table as Postgres stores them, which cuts long names; the schema is public if `spec` has none."""
        parts = [part.encode()[:MAX_NAME_BYTES].decode(errors="ignore") for part in self._parts]
        return (parts[0], parts[1]) if len(parts) > 1 else ("public", parts[0])

    @property
    def _parts(self) -> list[str]:
        return [
            match[1].replace('""', '"') if match[1] else match[2] for match in _IDENTIFIER.finditer(self.spec)
        ]

    def check_length(self) -> None:
        """Raise ConfigurationError if Postgres would cut the name: two long names could be one table."""
        for part in self._parts:
            if (size := len(part.encode())) > MAX_NAME_BYTES:
                raise ConfigurationError(
                    f"target {self.spec}: the name {part!r} is too long. It has {size} bytes, and Postgres stores "
                    f"{MAX_NAME_BYTES}. Choose a shorter name."
                )

    def sibling(self, suffix: str) -> Self:
        """Return the table in the same schema whose name is this one's plus a suffix.

        Raises ConfigurationError if Postgres cannot store a name of that length.
        """
        schema, name = self.name[0], self.name[1] + suffix
        # Postgres cuts a longer name with no more than a notice, down to the target's own.
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ConfigurationError(
                f"target {self.spec}: the name is too long. exactbatch keeps the table {name!r} in the same "
                f"schema: {len(name.encode())} bytes, and Postgres stores {MAX_NAME_BYTES}. Choose a shorter name."
            )
        return type(self)(f"{quoted(schema)}.{quoted(name)}")


def quoted(name: str) -> str:
    """Quote an identifier for a statement that a message suggests; own statements go through psycopg2.sql."""
    return '"{}"'.format(name.replace('"', '""'))


def _is_table_name(text: str) -> bool:
    part = _IDENTIFIER.pattern
    return re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text) is not None
