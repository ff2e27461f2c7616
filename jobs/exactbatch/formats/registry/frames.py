"""The bytes before values that name their schema, in every framing: a value becomes what Confluent's serializers write.

AWS Glue: byte 3, a byte for the compression (0 for none, 5 for zlib) and the 16 bytes of a schema version's UUID
(com.amazonaws.services.schemaregistry.utils.AWSSchemaRegistryConstants).

Apicurio: byte 0 and an ID of 4 or 8 bytes, or a header of the record that has the ID in 8 bytes
(Default4ByteIdHandler, Legacy8ByteIdHandler and DefaultHeadersHandler of io.apicurio.registry.serde).
"""

import zlib
from collections.abc import Callable
from typing import Final, Literal

import pyarrow as pa

from exactbatch.formats.bounds import check_size
from exactbatch.formats.format import Format
from exactbatch.formats.json.wrapped import MOST_BYTES
from exactbatch.formats.message.record_headers import UNREADABLE, Header, Messages, Unreadable
from exactbatch.formats.protobuf.spec import Protobuf
from exactbatch.formats.registry.location import Apicurio, Confluent, Glue, find_location
from exactbatch.formats.registry.schema_id_headers import Framed, with_prefixes
from exactbatch.formats.registry.wire_format import GUID, ID_SIZE, MOST

Part = Literal["value", "key"]

_PLAIN: Final = b"\3\0"
_ZLIB: Final = b"\3\5"
_GLUE_SIZE: Final = 18  # bytes before a body
_HEADER_BYTES: Final = 8
_BINARY: Final = b"BINARY"


def framed(spec: Format, part: Part, values: pa.BinaryArray, messages: Messages) -> Framed:
    """Return what a format decodes for the values, or keys, of n records, whose headers may name their schemas.

    A header takes the place of a prefix: its value is never taken for one with a prefix. A header that is no prefix
    makes its record a reject. Raises TooLarge if several values decompress to more than a record may become.
    """
    if not spec.reads_schema_ids:
        return Framed(values)
    registry = getattr(spec, "registry", None)  # a format of one's own may have none
    return unframe(registry, part, values, messages, has_indexes=isinstance(spec, Protobuf))


def unframe(
    registry: str | None, part: Part, values: pa.BinaryArray, messages: Messages, *, has_indexes: bool = False
) -> Framed:
    """Return what framed() does for a format that reads schema IDs; `has_indexes` is true for Protobuf."""
    match Confluent("") if registry is None else find_location(registry):
        case Confluent():
            return with_prefixes(f"__{part}_schema_id", values, messages, has_indexes=has_indexes)
        case Glue():
            return _unframe_glue(values)
        case Apicurio() as location:
            return _unframe_apicurio(location, part, values, messages)


def reframe(registry: str | None, value: bytes | None) -> bytes | None:
    """Return a value as its producer framed it, without compression: unframe() backwards, without headers."""
    if value is None or registry is None:
        return value
    match find_location(registry):
        case Glue() if value.startswith(GUID):
            return _PLAIN + value[1:]
        case Apicurio(id_bytes=id_bytes):
            return b"\0" + value[1:ID_SIZE].rjust(id_bytes, b"\0") + value[ID_SIZE:]
        case _:
            return value


def suggest_registry(value: bytes) -> str | None:
    """Return what `registry` may be for a value that another registry than Confluent's framed; None for others."""
    if _is_of_glue(value):
        return "glue://REGION"
    if value.startswith(b"\0" * ID_SIZE) and len(value) > 1 + _HEADER_BYTES:
        return "'apicurio+https://host/apis/registry/v3?ids=globalId&bytes=8'"
    return None


def _unframe_each(values: pa.BinaryArray, unframe_one: Callable[[int, bytes], bytes]) -> Framed:
    """Unframe n values that are not null, each with its index; one for which ValueError is raised is refused."""
    found: list[bytes | None] = []
    refused: dict[int, str] = {}
    for index, value in enumerate(values.to_pylist()):
        try:
            found.append(None if value is None else unframe_one(index, value))
        except ValueError as error:
            refused[index] = str(error)
            found.append(b"")
    return Framed(pa.array(found, pa.binary()), refused)


def _unframe_glue(values: pa.BinaryArray) -> Framed:
    """Return n values as Confluent's serializers would frame them, by the GUID of their schema.

    Raises TooLarge if several of them decompress to more than a record may become.
    """
    size = 0

    def unframe_one(_index: int, value: bytes) -> bytes:
        nonlocal size
        unframed = _by_guid(value)
        size += len(unframed)
        check_size(0, size)
        return unframed

    return _unframe_each(values, unframe_one)


def _is_of_glue(value: bytes) -> bool:
    """True if a value begins as Glue's serializers write it."""
    return value[:2] in (_PLAIN, _ZLIB) and len(value) >= _GLUE_SIZE


def _by_guid(value: bytes) -> bytes:
    if not _is_of_glue(value):
        shown = value[:_GLUE_SIZE].hex(" ") or "nothing"
        raise ValueError(
            f"expected byte 3, a byte 0 or 5 and the 16 bytes of a schema version's UUID, as AWS Glue's serializers "
            f"write them, found {shown}"
        )
    body = value[_GLUE_SIZE:]
    if value.startswith(_ZLIB):
        body = _decompress(body)
    return b"".join((GUID, value[2:_GLUE_SIZE], body))


def _decompress(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, MOST_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"the value cannot be decompressed by zlib: {error}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"the value decompresses by zlib to more than {MOST_BYTES} bytes, which is the limit"
        )
    if not stream.eof or stream.unused_data:
        raise ValueError("the value's zlib stream does not end where the value does")
    return data


def _unframe_apicurio(location: Apicurio, part: Part, values: pa.BinaryArray, messages: Messages) -> Framed:
    """Return values, or keys, of n records as Confluent's serializers would frame them; `part` is value or key.

    A header with an ID takes the place of the bytes before a value, as for Apicurio's deserializer.
    """
    ids = messages.last_headers(f"apicurio.{part}.{location.ids}")
    other = "globalId" if location.ids == "contentId" else "contentId"
    of_other = messages.last_headers(f"apicurio.{part}.{other}")
    encodings = messages.last_headers(f"apicurio.{part}.encoding")

    def unframe_one(index: int, value: bytes) -> bytes:
        if encodings.get(index, _BINARY) != _BINARY:
            raise ValueError(
                f"header 'apicurio.{part}.encoding': expected BINARY, found {encodings[index]!r}"
            )
        if index in ids:
            return _by_id(_header_id(f"apicurio.{part}.{location.ids}", ids[index]), value)
        if index in of_other:
            raise ValueError(
                f"header 'apicurio.{part}.{other}': expected one with the {location.ids}, as the pipeline's "
                f"registry says with ids={location.ids}"
            )
        return _without_header(value, location.id_bytes)

    return _unframe_each(values, unframe_one)


def _header_id(name: str, header: Header) -> int:
    if isinstance(header, Unreadable):
        raise ValueError(UNREADABLE)
    if header is None or len(header) != _HEADER_BYTES:
        shown = "null" if header is None else header[:_HEADER_BYTES].hex(" ") or "nothing"
        raise ValueError(f"header {name!r}: expected an ID in {_HEADER_BYTES} bytes, found {shown}")
    return int.from_bytes(header, "big")


def _without_header(value: bytes, id_bytes: int) -> bytes:
    end = 1 + id_bytes
    if len(value) < end or value[0] != 0:
        shown = value[:end].hex(" ") or "nothing"
        raise ValueError(f"expected byte 0 and the {id_bytes} bytes of an ID of Apicurio, found {shown}")
    return _by_id(int.from_bytes(value[1:end], "big"), value[end:])


def _by_id(schema_id: int, body: bytes) -> bytes:
    if not 0 < schema_id <= MOST:
        raise ValueError(f"expected an ID of Apicurio from 1 to {MOST}, found {schema_id}")
    return b"\0" + schema_id.to_bytes(ID_SIZE - 1, "big") + body
