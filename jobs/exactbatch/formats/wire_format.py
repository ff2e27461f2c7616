"""Confluent's wire format: a prefix that names a schema, then what was written with it.

The prefix is a byte 0 and the schema's ID in 4 bytes, big-endian, or a byte 1 and the 16 bytes of the schema's GUID.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from uuid import UUID

from exactbatch.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

SchemaId = int | UUID  # an ID or a GUID

_ID_SIZE: Final = 5  # bytes of a prefix with an ID
_GUID_SIZE: Final = 17
_ID: Final = b"\0"
GUID: Final = b"\1"  # with which a prefix with a GUID begins
_MOST: Final = 2**31 - 1  # registries count in a signed integer
_LONGEST: Final = (
    2**31 - 1
)  # bytes of a value: without an end, Arrow 26 counts wrongly and cannot allocate the result


def schema_id_of(value: bytes) -> SchemaId:
    """Return the schema that the first bytes of a value name. Raises ValueError unless they are a prefix."""
    if value[:1] == GUID and len(value) >= _GUID_SIZE:
        return UUID(bytes=value[1:_GUID_SIZE])
    if len(value) < _ID_SIZE or value[:1] != _ID:
        raise ValueError(no_id(value))
    schema_id = int.from_bytes(value[1:_ID_SIZE], "big")
    if schema_id > _MOST:
        raise ValueError(f"expected a schema ID of at most {_MOST}, found {schema_id}")
    return schema_id


def prefix_size(value: bytes) -> int:
    """Return how many bytes the prefix has with which a value begins."""
    return _GUID_SIZE if value[:1] == GUID else _ID_SIZE


def has_prefix(value: bytes) -> bool:
    """True if a value begins as a prefix does; its schema may be named by a header otherwise."""
    return value[:1] in (_ID, GUID)


def prefixes_of(values: "pa.BinaryArray") -> "pa.BinaryArray":
    """Return the first bytes of n values, which are their prefixes if they have any."""
    return _sliced(values, lambda size: (0, size))


def most_frequent_first(headers: "pa.BinaryArray") -> list[bytes]:
    """Return the different headers of a block, so that a registry is asked first for those of most records."""
    import pyarrow.compute as pc

    counts = pc.value_counts(headers)
    order = pc.array_sort_indices(counts.field("counts"), order="descending")
    different: list[bytes] = counts.field("values").take(order).to_pylist()
    return different


def bodies_of(values: "pa.BinaryArray") -> "pa.BinaryArray":
    """Return what comes after the prefixes of n values."""
    return _sliced(values, lambda size: (size, _LONGEST))


def _sliced(values: "pa.BinaryArray", bounds: Callable[[int], tuple[int, int]]) -> "pa.BinaryArray":
    """Return a part of each value; `bounds` says where it begins and ends after a prefix of a given size in bytes."""
    import pyarrow.compute as pc

    has_guid = pc.starts_with(values, GUID)
    parts = pc.binary_slice(values, *bounds(_ID_SIZE))
    if not has_guid.true_count:
        return parts
    return pc.if_else(has_guid, pc.binary_slice(values, *bounds(_GUID_SIZE)), parts)


def unknown(schema_id: SchemaId, type_: str = "") -> str:
    """Return the reason to reject a value whose schema the registry does not have."""
    name = "GUID" if isinstance(schema_id, UUID) else "ID"
    return f"the registry has no {type_ + ' ' if type_ else ''}schema with the {name} {schema_id}"


def no_id(value: bytes) -> str:
    """Return the reason to reject a value that does not begin with an ID."""
    return f"expected byte 0 and the 4 bytes of a schema ID, found {value[:_ID_SIZE].hex(' ') or 'nothing'}"


def check_address(registry: str | None) -> None:
    """Raise ConfigurationError for a registry's address that contains a password."""
    if "@" in urlsplit(registry or "").netloc:
        raise ConfigurationError(
            "The address of the schema registry contains a user and password, which errors and pages would show. "
            "Set schema.registry.basic.auth.user.info in the Kafka connection instead."
        )
