"""Confluent's schema registry: which schema a value was written with, as the prefixes before blocks of values say."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.registry.wire_format import GUID, GUID_SIZE, ID_SIZE, SchemaId

if TYPE_CHECKING:
    from exactbatch.formats.registry.client import SchemaReader


_MOST_LACKING: Final = 20  # IDs that one block may ask for in vain
_LONGEST: Final = (
    2**31 - 1
)  # bytes of a value: without an end, Arrow 26 counts wrongly and cannot allocate the result


class Inquiry:
    """What the records of one block ask a registry.

    After 20 IDs that the registry lacks, it is asked for no other one: each is a request, and records name any ID.
    """

    def __init__(self) -> None:
        self._lacking: set[SchemaId] = set()

    def check(self, schema_id: SchemaId) -> None:
        """Raise ValueError, the reason to reject a record, if the registry is not asked for this ID."""
        if len(self._lacking) >= _MOST_LACKING:
            raise ValueError(
                f"the registry was not asked for schema {schema_id}, because it lacks {_MOST_LACKING} others that are "
                f"more frequent in the same block of records: replay this one if its schema exists"
            )

    def lacks(self, schema_id: SchemaId) -> None:
        """Note that the registry has no such schema."""
        self._lacking.add(schema_id)


def fetch_schema(
    registry: str, schema_id: SchemaId, properties: Mapping[str, Any], inquiry: Inquiry | None = None
) -> str | None:
    """Return the Avro schema, as JSON text, that the registry has under an ID or GUID; None if it has no such schema.

    Schemas that it references are part of the text. A schema never changes under its id, so that each process
    fetches it once; an unknown id is not asked for again for 30 s. Raises ValueError if the registry has something
    other than an Avro schema under this id, or if the inquiry does not ask for it, RegistryUnavailable if it cannot be
    reached, and ConfigurationError if it refuses the request or is not a schema registry.
    """
    return _reader(registry, tuple(sorted(properties.items()))).schema(schema_id, inquiry)


def fetch_schema_type(
    registry: str, schema_id: SchemaId, properties: Mapping[str, Any], inquiry: Inquiry | None = None
) -> str | None:
    """Return the type of the schema that the registry has under an id, such as JSON; None if it has no such id.

    Raises as fetch_schema() does.
    """
    schema = _reader(registry, tuple(sorted(properties.items()))).fetched(schema_id, inquiry)
    return None if schema is None else schema.schema_type or "AVRO"


def read_protobuf_files(
    registry: str, schema_id: SchemaId, properties: Mapping[str, Any], inquiry: Inquiry | None = None
) -> list[tuple[str, bytes]] | None:
    """Return the .proto files of a schema, each as its name and a serialized FileDescriptorProto: first those that it
    references, and last its own; None if the registry has no Protobuf schema under this id.

    Raises as fetch_schema() does.
    """
    return _reader(registry, tuple(sorted(properties.items()))).files(schema_id, inquiry)


@cache
def _reader(registry: str, properties: tuple[tuple[str, Any], ...]) -> "SchemaReader":
    # Confluent's client takes half a second to import: only a worker that asks a registry does.
    from exactbatch.formats.registry.client import SchemaReader

    return SchemaReader(registry, dict(properties))


def cut_prefixes(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return the first bytes of n values, which are their prefixes if they have any."""
    return _sliced(values, lambda size: (0, size))


def most_frequent_first(headers: pa.BinaryArray) -> list[bytes]:
    """Return the different headers of a block, so that a registry is asked first for the schemas of most records."""
    counts = pc.value_counts(headers)
    order = pc.array_sort_indices(counts.field("counts"), order="descending")
    different: list[bytes] = counts.field("values").take(order).to_pylist()
    return different


def cut_bodies(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return what comes after the prefixes of n values."""
    return _sliced(values, lambda size: (size, _LONGEST))


def _sliced(values: pa.BinaryArray, bounds: Callable[[int], tuple[int, int]]) -> pa.BinaryArray:
    """Return a part of each value; `bounds` says where it begins and ends after a prefix of a given size in bytes."""
    has_guid = pc.starts_with(values, GUID)
    parts = pc.binary_slice(values, *bounds(ID_SIZE))
    if not has_guid.true_count:
        return parts
    return pc.if_else(has_guid, pc.binary_slice(values, *bounds(GUID_SIZE)), parts)
