"""Decode JSON by the paths of its fields for an audit, one record after the other.

This finds the members of a record by itself, with the parser of Python, apart from the code that decodes batches: it
writes the members of each row as an object of its own. Only what these simple objects mean is left to Json, and records
that are nested deeper than Python's parser goes.
"""

import binascii
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # its stubs leave it out
from typing import Any, Final

import pyarrow as pa

from exactbatch.columns import Field
from exactbatch.formats import Format, Json, JsonSchema, WithKeyAndHeaders
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, in_order
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.json.decoder import JsonDecoder
from exactbatch.member_paths import Step

_NULL: Final = b"null"
# Numbers stay text: Python limits the digits of an integer that it parses. It takes NaN and Infinity, as Arrow does in
# members that no column takes.
_PARSER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_MOST_BYTES: Final = 64 * 1024 * 1024  # that a value may decompress to
_MARK: Final = b"\xef\xbb\xbf"  # of UTF-8
_SPACE: Final = " \t\r\n"
# The members of a row by the path to the element that it is of: the texts of a record, and of its elements.
_Places = list[bytes | None]


def find_audited_decoder(spec: Format) -> Decoder[Any]:
    """Return what decodes the values of a format into the same rows without the code that reads members by paths."""
    if isinstance(spec, WithKeyAndHeaders):
        return find_audited_decoder(spec.value)
    if isinstance(spec, JsonSchema):
        return _AfterHeader(spec)
    return JsonMembers(spec) if type(spec) is Json and not spec.is_plain else find_decoder(spec)


class _AfterHeader(Decoder[JsonSchema]):
    """The rows of JSON after the 5 bytes with the ID of its schema, or the 17 bytes with its GUID."""

    def __init__(self, spec: JsonSchema) -> None:
        super().__init__(spec)
        self._body = find_audited_decoder(spec.body)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values; one without a header is a reject as what it is, which is no JSON."""
        starts = {b"\0": 5, b"\1": 17}
        bodies = [
            None if value is None else value[start:] if (start := starts.get(value[:1])) else b"no header"
            for value in values.to_pylist()
        ]
        return self._body.decode(pa.array(bodies, pa.binary()))


class JsonMembers(Decoder[Json]):
    """The rows that Json gives for columns with paths and defaults."""

    def __init__(self, spec: Json) -> None:
        super().__init__(spec)
        self._fields, self._encodings, self._documents = spec.fields, spec.encodings, spec.documents
        schema = ", ".join(f'"{column.name}" {column.type}' for column in spec.columns)
        self._flat = JsonDecoder(Json(schema, epoch=spec.epoch))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values."""
        objects: list[bytes] = []
        origins: list[int] = []
        reasons: dict[int, str] = {}
        deep: list[int] = []
        for index, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                whole = _decoded(value, self._encodings)
                documents = _documents(whole.removeprefix(_MARK), self._documents)
                rows = [row for document in documents for row in self._rows(document)]
            except RecursionError:
                deep.append(index)
                continue
            except (ValueError, OSError, EOFError, zlib.error) as error:
                reasons[index] = str(error)
                continue
            objects += rows
            origins += [index] * len(rows)
        flat = self._flat.decode(pa.array(objects, pa.binary()))
        for at, reason in flat.rejects:
            reasons.setdefault(origins[at], reason)
        kept = [origins[at] for at in flat.kept.to_pylist()]
        is_kept = pa.array([index not in reasons for index in kept], pa.bool_())
        decoded = Decoded(
            flat.rows.filter(is_kept),
            pa.array([index for index in kept if index not in reasons], pa.int64()),
            tuple(sorted(reasons.items())),
            values.null_count,
        )
        return in_order([decoded, self._decode_deep(values, deep)], 0) if deep else decoded

    def _decode_deep(self, values: pa.BinaryArray, at: list[int]) -> Decoded:
        """Decode the values at some indices as batches do."""
        decoded = JsonDecoder(self.spec).decode(values.take(pa.array(at)))
        return Decoded(
            decoded.rows,
            pa.array(at).take(decoded.kept),
            tuple((at[index], reason) for index, reason in decoded.rejects),
        )

    def _rows(self, value: bytes) -> Iterator[bytes]:
        """Yield an object for each row of a record."""
        text = value.removeprefix(_MARK).decode().strip(" \t\r\n").encode()
        if not text.startswith(b"{"):
            raise ValueError("expected a JSON object: { … }")
        _PARSER.decode(text.decode())
        arrays = max((each.path.arrays for each in self._fields), key=len)
        for places in _elements([text], arrays):
            yield b"{" + b",".join(self._members(places)) + b"}"

    def _members(self, places: _Places) -> Iterator[bytes]:
        for each in self._fields:
            last = len(each.path.parts) - 1
            written = _found(places[last], each.path.parts[last])
            if written is None:
                written = _written_default(each)
            if written is not None:
                yield json.dumps(each.column.name).encode() + b":" + written


def _decoded(value: bytes, encodings: Sequence[str]) -> bytes:
    for encoding in encodings:
        match encoding:
            case "base64":
                value = binascii.a2b_base64(value, strict_mode=True)
            case "gzip":
                with gzip.open(io.BytesIO(value)) as stream:
                    value = stream.read(_MOST_BYTES + 1)
            case _:
                with pa.input_stream(pa.BufferReader(value), compression=encoding) as stream:
                    # Not read(), which never frees what it has read of a broken stream.
                    value = stream.read_buffer(_MOST_BYTES + 1).to_pybytes()
        if len(value) > _MOST_BYTES:
            raise ValueError(f"the value decompresses to more than {_MOST_BYTES} bytes")
    return value


def _documents(value: bytes, documents: str) -> list[bytes]:
    match documents:
        case "one":
            return [value]
        case "lines":
            return [line for line in value.split(b"\n") if line.strip()]
        case "array":
            _PARSER.decode(value.decode())
            return _array(value.strip())
    found, rest = [], value.decode().strip()
    while rest:
        end = _PARSER.raw_decode(rest)[1]
        found.append(rest[:end].encode())
        rest = rest[end:].strip()
    return found


def _elements(places: _Places, arrays: Sequence[tuple[Step, ...]]) -> Iterator[_Places]:
    """Yield the record and the element of each array, one inside of the other, for each element of the last array."""
    if not arrays:
        yield places
        return
    array = _found(places[-1], arrays[0])
    if array is None or array == _NULL:
        return
    for element in _array(array):
        yield from _elements([*places, element], arrays[1:])


def _found(text: bytes | None, steps: Sequence[Step]) -> bytes | None:
    """Return the text to which steps lead; None if it is missing."""
    for step in steps:
        if text is None or text == _NULL:
            return None
        if isinstance(step, int):
            elements = _array(text)
            text = elements[step] if step < len(elements) else None
            continue
        if not text.startswith(b"{"):
            raise ValueError(f"expected an object with {step!r}, found {text[:20]!r}")
        members = [value for name, value in _parts(text.decode(), named=True) if name == step]
        if len(members) > 1:
            raise ValueError(f"field {step!r} was specified twice")
        text = members[0] if members else None
    return text


def _array(text: bytes) -> list[bytes]:
    if not text.startswith(b"["):
        raise ValueError(f"expected an array, found {text[:20]!r}")
    return [value for _, value in _parts(text.decode(), named=False)]


def _parts(text: str, *, named: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the names and texts of an object's members, or the texts of an array's elements. Raises ValueError for
    text that is neither."""
    at = _after_space(text, 1)
    while text[at] not in "]}":
        name = ""
        if named:
            name, at = scanstring(text, at + 1)
            at = _after_space(text, _after_space(text, at) + 1)  # the colon
        end = _PARSER.raw_decode(text, at)[1]
        yield name, text[at:end].encode()
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    if text[at + 1 :].strip(_SPACE):
        raise ValueError("the value goes on after its end")


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    if at == len(text):
        raise ValueError("the value ends too early")
    return at


def _written_default(field: Field) -> bytes | None:
    if (default := field.default) is None:
        return None
    is_json = (
        not default.is_quoted or field.column.type in ("json", "jsonb") or field.column.element is not None
    )
    return (default.text if is_json else json.dumps(default.text)).encode()
