"""Confluent's wire format: a prefix that names a schema, then what was written with it.

The prefix is a byte 0 and the schema's ID in 4 bytes, big-endian, or a byte 1 and the 16 bytes of the schema's GUID.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from typing import Final
from uuid import UUID

SchemaId = int | UUID  # an ID or a GUID

ID_SIZE: Final = 5  # bytes of a prefix with an ID
GUID_SIZE: Final = 17
_ID: Final = b"\0"
GUID: Final = b"\1"  # with which a prefix with a GUID begins
MOST: Final = 2**31 - 1  # registries count in a signed integer


def read_schema_id(value: bytes) -> SchemaId:
    """Return the schema that the first bytes of a value name. Raises ValueError unless they are a prefix."""
    if value[:1] == GUID and len(value) >= GUID_SIZE:
        return UUID(bytes=value[1:GUID_SIZE])
    if len(value) < ID_SIZE or value[:1] != _ID:
        raise ValueError(no_id(value))
    schema_id = int.from_bytes(value[1:ID_SIZE], "big")
    if schema_id > MOST:
        raise ValueError(f"expected a schema ID of at most {MOST}, found {schema_id}")
    return schema_id


def prefix_size(value: bytes) -> int:
    """Return how many bytes the prefix has with which a value begins."""
    return GUID_SIZE if value[:1] == GUID else ID_SIZE


def has_prefix(value: bytes) -> bool:
    """True if a value begins as a prefix does; its schema may be named by a header otherwise."""
    return value[:1] in (_ID, GUID)


def unknown(schema_id: SchemaId, type_: str = "") -> str:
    """Return the reason to reject a value whose schema the registry does not have."""
    name = "GUID" if isinstance(schema_id, UUID) else "ID"
    return f"the registry has no {type_ + ' ' if type_ else ''}schema with the {name} {schema_id}"


def no_id(value: bytes) -> str:
    """Return the reason to reject a value that does not begin with an ID."""
    return f"expected byte 0 and the 4 bytes of a schema ID, found {value[:ID_SIZE].hex(' ') or 'nothing'}"
