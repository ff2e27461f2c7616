"""Sampled values and keys whose schemas headers name: they are recognized, and drafted, as if prefixes named them."""

import pyarrow as pa

from exactbatch.formats.message.record_headers import Messages
from exactbatch.formats.registry.schema_id_headers import KEY_HEADER, VALUE_HEADER
from exactbatch.formats.registry.wire_format import GUID, prefix_size
from exactbatch.sampling.registry_columns import has_schema_id

_JSON = (b"{", b"[")


def with_header_ids(header: str, values: pa.BinaryArray, messages: Messages) -> pa.BinaryArray:
    """Return values, or keys, of n records, after what the header of this name says, where it names a schema."""
    prefixes = {
        index: found
        for index, found in messages.last_headers(header).items()
        if isinstance(found, bytes) and has_schema_id(found)
    }
    if not prefixes:
        return values
    return pa.array(
        [
            None if value is None else prefixes.get(index, b"") + value
            for index, value in enumerate(values.to_pylist())
        ],
        pa.binary(),
    )


def are_json(values: pa.BinaryArray) -> bool:
    """True if all values that are not null look like JSON, which needs no registry."""
    return all(value.lstrip().startswith(_JSON) for value in values.drop_null().to_pylist())


def as_sent(
    value: bytes | None, key: bytes | None
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]:
    """Return the value, the key and the headers of a record: a prefix with a GUID was a header."""
    headers: list[tuple[str, bytes]] = []
    parts: list[bytes | None] = []
    for name, part in ((VALUE_HEADER, value), (KEY_HEADER, key)):
        size = prefix_size(part or b"")
        if part is not None and part.startswith(GUID) and len(part) >= size:
            headers.append((name, part[:size]))
            part = part[size:]
        parts.append(part)
    return parts[0], parts[1], headers
