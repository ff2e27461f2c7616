"""Schema IDs in the headers of records: such a value or key becomes what it would be with a prefix.

Confluent's serializers may write the prefix of the wire format into a header, and the value without it. Its
deserializers look at the last header of that name first, and at the first bytes of the value only if there is none
(DualSchemaIdDeserializer in io.confluent.kafka.serializers.schema.id).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.decoded import Decoded
from exactbatch.formats.message.record_headers import UNREADABLE, Header, Messages, Unreadable
from exactbatch.formats.protobuf.decoder import message_prefix
from exactbatch.formats.registry.wire_format import GUID, no_id, prefix_size, read_schema_id

VALUE_HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
_SHOWN: Final = 17  # bytes of a header
_EMPTY: Final = b""  # no format that reads schema IDs accepts it


@dataclass(frozen=True, slots=True)
class Framed:
    """Values that begin with the prefixes of their schemas, and the reasons to reject others, by index."""

    values: pa.BinaryArray
    refused: Mapping[int, str] = field(default_factory=dict)

    def take(self, indexes: pa.Int64Array) -> "Framed":
        """Return the values at some indexes."""
        if not self.refused:
            return Framed(self.values.take(indexes))
        refused = {
            at: self.refused[index] for at, index in enumerate(indexes.to_pylist()) if index in self.refused
        }
        return Framed(self.values.take(indexes), refused)

    def decode(self, decode: Callable[[pa.BinaryArray], Decoded]) -> Decoded:
        """Decode the values by `decode`; those that are refused become rejects."""
        decoded = decode(self.values)
        if not self.refused:
            return decoded
        rejects = tuple((at, self.refused.get(at, reason)) for at, reason in decoded.rejects)
        return replace(decoded, rejects=rejects)


def with_prefixes(
    header: str, values: pa.BinaryArray, messages: Messages, *, has_indexes: bool = False
) -> Framed:
    """Return the values, or keys, of n records with the prefixes that their headers of this name have in place of them.

    `has_indexes` is true for Protobuf, whose headers also have the indexes of a message type.
    """
    headers = messages.last_headers(header)
    # Without a header, only an ID is a prefix, as serializers write it.
    starts_with_guid = pc.starts_with(values, GUID)
    if not headers and not starts_with_guid.true_count:
        return Framed(values)
    reasons = {found: _why_refused(header, found, has_indexes) for found in set(headers.values())}
    refused = {index: reason for index, found in headers.items() if (reason := reasons[found]) is not None}
    for index in pc.indices_nonzero(starts_with_guid).to_pylist():
        if index not in headers:
            refused[index] = no_id(values[index].as_py())
    prefixes = [headers.get(index) or _EMPTY for index in range(len(values))]
    joined = pc.binary_join_element_wise(pa.array(prefixes, pa.binary()), values, _EMPTY)
    is_refused = pa.array([index in refused for index in range(len(values))])
    return Framed(pc.if_else(pc.and_(is_refused, values.is_valid()), _EMPTY, joined), refused)


def _why_refused(name: str, header: Header, has_indexes: bool) -> str | None:
    """Return the reason to reject a record for the value of its header; None if it is a prefix."""
    if isinstance(header, Unreadable):
        return UNREADABLE
    try:
        if header is not None:
            read_schema_id(header)
            end = message_prefix(header)[2] if has_indexes else prefix_size(header)
            if end == len(header):
                return None
    except ValueError:
        pass
    expected = "byte 1 and the 16 bytes of a schema's GUID, or byte 0 and the 4 bytes of its ID"
    if has_indexes:
        expected += ", and then the indexes of a message type"
    return f"header {name!r}: expected {expected}, found {_shown(header)}"


def _shown(header: bytes | None) -> str:
    if not header:
        return "null" if header is None else "nothing"
    rest = f" … ({len(header)} bytes)" if len(header) > _SHOWN else ""
    return header[:_SHOWN].hex(" ") + rest
