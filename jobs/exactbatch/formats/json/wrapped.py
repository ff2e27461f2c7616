"""Values that are compressed or encoded, and values of several documents: Python looks at one value after the other."""

import base64
import codecs
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import methodcaller
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from exactbatch.formats.bounds import MOST_ROWS, check_size, join_batches
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import without_values
from exactbatch.formats.json.raw_fields import TOO_DEEP
from exactbatch.formats.json.spec import Documents, Encoding
from exactbatch.formats.refused_text import not_an_object

# A small value may be decompressed to any size: one value, and all that are decoded together.
MOST_BYTES: Final = 64 * 1024 * 1024
_TOGETHER: Final = 16 * 1024 * 1024
_GZIP: Final = b"\x1f\x8b"  # RFC 1952
_WHITE_SPACE: Final = b" \t\r\n"
_OPENING: Final = ord("{")
_MOST_OBJECTS: Final = 4 * MOST_ROWS  # in all documents of a value: about two seconds of searching
# The next brace outside of strings. Without backtracking: it takes time in proportion to the bytes.
_BRACE: Final = re.compile(rb'[^"{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}]*+)*+[{}]', re.DOTALL)


def decode_wrapped(
    values: pa.BinaryArray,
    encodings: Sequence[Encoding],
    documents: Documents,
    decode: Callable[[pa.BinaryArray], Decoded],
) -> Decoded:
    """Decode the documents that are in n values by `decode`, which gets no null. One bad document makes its value a
    reject, and a null value is a tombstone."""
    parts: list[Decoded] = []
    refused: list[tuple[int, str]] = []
    rows = bytes_ = 0

    def decode_part(found: list[bytes], origins: list[int]) -> None:
        nonlocal rows, bytes_
        part = decode(pa.array(found, pa.binary()))
        refused.extend((origins[at], reason) for at, reason in part.rejects)
        kept = np.array(origins, np.int64)[part.kept.to_numpy()]
        parts.append(Decoded(part.rows, pa.array(kept)))
        rows, bytes_ = rows + len(part.rows), bytes_ + part.rows.nbytes
        check_size(rows, bytes_)

    found: list[bytes] = []
    origins: list[int] = []
    size = 0
    for index, value in enumerate(values):
        if not value.is_valid:
            continue
        try:
            whole = unwrap_values(value.as_py(), encodings).removeprefix(codecs.BOM_UTF8)
            inside = list(islice(_split_documents(whole, documents), MOST_ROWS + 1))
        except (ValueError, RecursionError) as error:
            refused.append((index, TOO_DEEP if isinstance(error, RecursionError) else str(error)))
            continue
        check_size(rows + len(found) + len(inside))
        found += inside
        origins += [index] * len(inside)
        size += sum(map(len, inside))
        if size >= _TOGETHER:
            decode_part(found, origins)
            found, origins, size = [], [], 0
    decode_part(found, origins)
    decoded = Decoded(
        join_batches([part.rows for part in parts]),
        pa.concat_arrays([part.kept for part in parts]),
        tombstones=values.null_count,
    )
    return without_values(decoded, refused)


def unwrap_values(value: bytes, encodings: Sequence[Encoding]) -> bytes:
    """Undo encodings, the outermost first; raise ValueError for a value that is not encoded so, or is too large."""
    for encoding in encodings:
        if encoding == "base64":
            try:
                value = base64.b64decode(value, validate=True)
            except ValueError as error:
                raise ValueError(f"the value is not base64: {error}") from None
        else:
            value = _decompressed(value, encoding)
    return value


def _decompressed(value: bytes, encoding: Encoding) -> bytes:
    if encoding == "gzip" and value and not value.startswith(_GZIP):  # Arrow takes a zlib stream as well
        raise ValueError("the value cannot be decompressed by gzip: it does not begin with 1f 8b")
    try:
        with pa.CompressedInputStream(pa.BufferReader(value), encoding) as stream:
            # Not read(), which never frees what it has read of a broken stream.
            data: bytes = stream.read_buffer(MOST_BYTES + 1).to_pybytes()
    except (OSError, ValueError) as error:
        raise ValueError(f"the value cannot be decompressed by {encoding}: {error}") from None
    if not data:
        raise ValueError(f"the value is not compressed by {encoding}: it decompresses to nothing")
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"the value decompresses by {encoding} to more than {MOST_BYTES} bytes, which is the limit"
        )
    return data


def _split_documents(value: bytes, documents: Documents) -> Iterator[bytes]:
    """Yield the documents of a value; raise ValueError for a value that is not made of them."""
    match documents:
        case "one":
            yield value
        case "lines":
            yield from filter(bytes.strip, map(methodcaller("rstrip", b"\n"), io.BytesIO(value)))
        case "array":
            array = value.lstrip()
            if not array.startswith(b"["):
                raise ValueError("expected a JSON array of documents: [ … ]")
            if value.count(b",") >= MOST_ROWS:  # msgspec creates all elements before it counts them
                check_size(sum(1 for _ in islice(_objects(array[1:], b",]"), MOST_ROWS + 1)))
            yield from map(bytes, msgspec.json.decode(value, type=list[msgspec.Raw]))
        case "concatenated":
            yield from _objects(value)


def _objects(value: bytes, between: bytes = b"") -> Iterator[bytes]:
    """Yield the texts of objects that come one after the other, each from its first brace to its last.

    Only white space and the bytes `between` may be before and after them; raise ValueError for others. What is inside
    of the braces is not parsed: Python's parser would create an object of each part.
    """
    if value.count(b"{") > _MOST_OBJECTS:
        raise ValueError(f"the value has more than {_MOST_OBJECTS:,} opening braces, which is the limit")
    start = at = depth = 0
    while brace := _BRACE.match(value, at):
        at = brace.end()
        if value[at - 1] == _OPENING:
            if depth == 0:
                _check_between(value[start : at - 1], between)
                start = at - 1
            depth += 1
        elif depth == 0:
            raise ValueError("expected a JSON object: { … }, found a brace that closes none")
        else:
            depth -= 1
            if depth == 0:
                yield value[start:at]
                start = at
    if depth:
        raise ValueError("the last object is not closed")
    _check_between(value[start:], between)


def _check_between(text: bytes, between: bytes) -> None:
    if rest := text.strip(_WHITE_SPACE + between):
        raise ValueError(not_an_object(rest.decode(errors="replace")))
