"""NaN and infinity in JSON, which has no such numbers: Connect's JSON converter writes them as strings.

Jackson quotes them (JsonWriteFeature.WRITE_NAN_AS_STRINGS).
"""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.connect.types_of_schema import ConnectType
from exactbatch.formats.json.raw_fields import NUMBER, elements, refuse_escaped_nul
from exactbatch.formats.postgres_limits import refuse_infinity

FLOAT_TYPES: Final = ("float", "double", "float32", "float64")  # of Connect
NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_QUOTED: Final = '"(?:NaN|-?Infinity)"'
_KINDS: Final = {'"': "string", "{": "object", "[": "array"}  # of JSON, by the first character
# How Arrow writes them → Postgres's spelling.
_SPELLED: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def may_have_not_finite(text: pa.StringArray) -> bool:
    """True if JSON text has a string that may be NaN or infinity."""
    return bool(pc.any(pc.match_substring_regex(text, _QUOTED)).as_py())


def has_floats(type_: pa.DataType) -> bool:
    """True for floats and lists of floats."""
    return bool(pa.types.is_floating(type_.value_type if pa.types.is_list(type_) else type_))


def floats_of_json(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Return the floats, or lists of floats, of a type that JSON texts are.

    Raises ValueError for a number out of range, and for any string but NaN, Infinity and -Infinity.
    """
    if pa.types.is_list(type_):
        lists = elements(texts)
        floats = floats_of_json(lists.values, type_.value_type)
        return pa.ListArray.from_arrays(lists.offsets, floats, mask=lists.is_null())
    is_quoted = pc.match_substring_regex(texts, f"^{_QUOTED}$")
    known = pc.or_(is_quoted, pc.match_substring_regex(texts, f"^{NUMBER}$"))
    if not pc.all(known, min_count=0).as_py():
        found = texts.filter(pc.invert(known))[0].as_py()
        raise ValueError(f"expected number, found {_KINDS.get(found[0], 'boolean')}")
    floats = pc.ascii_trim(texts, characters='"').cast(type_)
    refuse_infinity(floats.filter(pc.invert(is_quoted)))
    return floats


def round_to_reals(doubles: pa.DoubleArray) -> pa.FloatArray:
    """Return the nearest reals; raise ValueError for a finite number that is too large for them."""
    reals = doubles.cast(pa.float32())
    refuse_infinity(reals.filter(pc.is_finite(doubles)))
    return reals


def floats_as_text(floats: pa.Array) -> pa.StringArray:
    """Return floats as text that Postgres reads."""
    text = floats.cast(pa.string())
    for written, spelled in _SPELLED.items():
        text = pc.if_else(pc.equal(text, written), pa.scalar(spelled), text)
    return text


def refuse_in_json(texts: pa.StringArray, written: ConnectType, type_: str) -> pa.StringArray:
    """Return JSON texts of a type of Connect, for json or jsonb. Raises ValueError for a float that is NaN or infinity,
    and in jsonb for an escaped U+0000."""
    if type_ == "jsonb":
        refuse_escaped_nul(texts)
    if may_have_not_finite(texts):
        for text in texts.to_pylist():
            _refuse(None if text is None else json.loads(text), written)
    return texts


def _refuse(value: Any, written: ConnectType) -> None:
    if written.type in FLOAT_TYPES and value in NOT_FINITE:
        raise ValueError(f"JSON has no number {value}")
    if isinstance(value, list) and written.element is not None:
        for element in value:
            _refuse(element, written.element)
    if isinstance(value, dict):
        for name, member in value.items():
            if (type_ := written.fields.get(name)) is not None:
                _refuse(member, type_)
