"""Extract fields of JSON objects as unchanged text, for types that Arrow's JSON reader would alter.

msgspec extracts them in C, in one pass over the objects. A field for a numeric column is checked to be a number; json
and jsonb stay as they are, and an array for a vector, one of pgvector's dense types, becomes text of exactly the
numbers that the type holds.
"""

import json
from functools import cache
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column, is_vector, own_name
from exactbatch.formats.postgres_limits import NUL

# As formats/json/raw_fields.py has it, which needs this module.
_NUMBER: Final = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_KINDS: Final = {'"': "string", "{": "object", "[": "array", "n": "null", "t": "boolean", "f": "boolean"}
_JSON: Final = {"json", "jsonb"}
NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
# An escaped backslash before u0000 is not U+0000.
_ESCAPED_NUL: Final = r"(?:^|[^\\])(?:\\\\)*\\u0000"
# A field's name that contains an escape, so that a text search does not find it.
ESCAPED_NAME: Final = r'\\.(?:[^"\\]|\\.)*"\s*:'
TOO_DEEP: Final = "expected fewer than 900 levels of nesting, found more"


def vectors_of_json(texts: pa.StringArray, type_: str) -> pa.StringArray:
    """Return JSON texts as text of a type that is_vector(): an array has the nearest numbers that the type holds, with
    all their digits, and a string stays as it is, for Postgres to read; null for null.

    Raises ValueError for other JSON, for an element that is not a number, and for a number out of range.
    """
    decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
    decode_string = msgspec.json.Decoder(str).decode
    arrays: list[list[bytes] | None] = []
    strings: list[str | None] = []
    for text in texts.to_pylist():
        is_string = text is not None and text.startswith('"')
        strings.append(decode_string(text) if is_string else None)
        try:
            arrays.append(None if text is None or is_string else list(map(bytes, decode_array(text))))
        except msgspec.ValidationError:
            raise ValueError(f"expected an array of numbers, found {_kind(text)}") from None
    lists = pa.array(arrays, pa.list_(pa.binary()))
    numbers = _nearest(lists.values.cast(pa.string()), type_).cast(pa.string())
    parts = pa.ListArray.from_arrays(lists.offsets, numbers, mask=lists.is_null())
    written = pc.binary_join_element_wise("[", pc.binary_join(parts, ","), "]", "")
    return pc.coalesce(written, pa.array(strings, pa.string()))


def _nearest(written: pa.StringArray, type_: str) -> pa.DoubleArray:
    """Return the nearest numbers of a type. pgvector reads a halfvec's as floats of 32 bits first, too."""
    is_number = pc.match_substring_regex(written, _NUMBER)
    if not pc.all(is_number, min_count=0).as_py():
        found = written.filter(pc.invert(is_number))[0].as_py()
        raise ValueError(f"expected an array of numbers, found {_kind(found)} in it")
    floats = written.cast(pa.float32()).to_numpy(zero_copy_only=False)
    if own_name(type_) == "halfvec":
        with np.errstate(over="ignore"):
            floats = floats.astype(np.float16)
    too_large = ~np.isfinite(floats)
    if too_large.any():
        raise ValueError(
            f"expected numbers in the range of the type, found {written[int(too_large.argmax())]}"
        )
    return pa.array(floats.astype(np.float64))


def _kind(text: str) -> str:
    return _KINDS.get(text[:1], "number")


def fields_as_text(
    objects: pa.StringArray, columns: tuple[Column, ...], names: tuple[str, ...] | None = None
) -> list[pa.Array]:
    """Return, for each column, the text of each object's field; null for a missing field and for a JSON null.

    `names` are the fields' names, if they are not the columns'. `objects` are valid JSON, one object in each. Raises
    ValueError for a field given twice, a field that is not of its column's type, an escaped U+0000 in a jsonb, and
    nesting too deep for Python and Postgres to read safely.
    """
    if names is None:
        names = tuple(column.name for column in columns)
    try:
        rows = _decoder(columns, names).decode(joined_as_array(objects))
        _refuse_fields_given_twice(objects, names)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if len(rows) != len(objects):
        raise ValueError(f"found {len(rows)} objects in {len(objects)} values")
    return [
        column_of_written(column, list(map(attrgetter(_attribute(i)), rows)))
        for i, column in enumerate(columns)
    ]


def joined_as_array(objects: pa.StringArray) -> bytes:
    """Return one JSON array of all objects."""
    block = pc.binary_join(pa.ListArray.from_arrays([0, len(objects)], objects), ",")[0].as_buffer()
    return b"".join((b"[", memoryview(block), b"]"))


def _attribute(index: int) -> str:
    """Return an attribute for a column, whose name may not be a Python identifier."""
    return f"column_{index}"


@cache
def _decoder(columns: tuple[Column, ...], names: tuple[str, ...]) -> Any:
    null = msgspec.Raw(b"null")
    fields: list[tuple[str, Any, Any]] = [
        (_attribute(i), list[msgspec.Raw] | None, None) if c.element else (_attribute(i), msgspec.Raw, null)
        for i, c in enumerate(columns)
    ]
    rename = {_attribute(i): name for i, name in enumerate(names)}
    row = msgspec.defstruct("Row", fields, rename=rename, gc=False)
    return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]  # the type is created here


def column_of_written(column: Column, fields: list[Any]) -> pa.Array:
    """Return JSON texts, for an array a list of them or None, as a column that is kept as text; null for a JSON null.

    Raises ValueError for text that is not of the column's type.
    """
    if column.element is None:
        return _checked(column.type, pa.array(list(map(bytes, fields)), pa.binary()))
    lists = pa.array(
        [None if each is None else list(map(bytes, each)) for each in fields], pa.list_(pa.binary())
    )
    elements = _checked(column.element, lists.values)
    return pa.ListArray.from_arrays(lists.offsets, elements, mask=lists.is_null())


def _checked(type_: str, written: pa.BinaryArray) -> pa.StringArray:
    """Return the texts, with null for JSON's null; raise ValueError for text that is not of the type."""
    if type_ in _JSON:
        return json_texts(written, type_)
    text = _without_null(written)
    if is_vector(type_):
        return vectors_of_json(text, type_)
    numbers = pc.match_substring_regex(text, rf'^(?:{NUMBER}|"{NUMBER}")$')
    if not pc.all(numbers, min_count=0).as_py():
        raise ValueError("expected a number, bare or in a string")
    return pc.ascii_trim(text, characters='"')


def numbers_or_strings(texts: pa.StringArray) -> pa.StringArray:
    """Return JSON's numbers as they are written, and its strings unquoted; raise ValueError for any other JSON."""
    if not pc.all(pc.match_substring_regex(texts, rf'^(?:{NUMBER}$|")'), min_count=0).as_py():
        raise ValueError("expected a number, bare or in a string")
    return pa.array(
        [json.loads(text) if text and text[0] == '"' else text for text in texts.to_pylist()], pa.string()
    )


def elements(texts: pa.StringArray) -> pa.ListArray:
    """Return the JSON texts of the elements of JSON arrays, null for JSON's null; raise ValueError for other JSON."""
    decode = msgspec.json.Decoder(list[msgspec.Raw]).decode
    try:
        lists = [None if text is None else list(map(bytes, decode(text))) for text in texts.to_pylist()]
    except msgspec.ValidationError:
        raise ValueError("expected an array") from None
    array = pa.array(lists, pa.list_(pa.binary()))
    return pa.ListArray.from_arrays(array.offsets, _without_null(array.values), mask=array.is_null())


def json_texts(written: pa.BinaryArray, type_: str) -> pa.StringArray:
    """Return JSON texts for a type, with null for JSON's null. Raises ValueError for an escaped U+0000 in a jsonb; json
    and text keep the escape."""
    text = _without_null(written)
    return refuse_escaped_nul(text) if type_ == "jsonb" else text


def refuse_escaped_nul(texts: pa.StringArray) -> pa.StringArray:
    """Return JSON texts; raise ValueError for one with an escaped U+0000, which jsonb cannot hold."""
    if pc.any(pc.match_substring_regex(texts, _ESCAPED_NUL)).as_py():
        raise ValueError(NUL)
    return texts


def _without_null(written: pa.BinaryArray) -> pa.StringArray:
    text = written.cast(pa.string())
    return pc.if_else(pc.equal(text, "null"), pa.scalar(None, pa.string()), text)


def _refuse_fields_given_twice(objects: pa.StringArray, fields: tuple[str, ...]) -> None:
    """Parse the objects in which a name occurs twice as text, or any name has an escape; raise ValueError."""
    suspect = pc.match_substring_regex(objects, ESCAPED_NAME)
    for field in fields:
        name = json.dumps(field, ensure_ascii=False)
        suspect = pc.or_(suspect, pc.greater(pc.count_substring(objects, name), 1))
    for text in objects.filter(suspect).to_pylist():
        # Numbers stay text: Python limits the digits of an integer that it parses.
        names = json.loads(text, object_pairs_hook=_names, parse_int=str, parse_float=str)
        for field in fields:
            if names.count(field) > 1:
                raise ValueError(f"field {field!r} was specified twice")


def _names(pairs: list[tuple[str, Any]]) -> list[str]:
    return [name for name, _ in pairs]
