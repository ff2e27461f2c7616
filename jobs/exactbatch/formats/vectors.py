"""pgvector's dense types: a JSON array of numbers becomes text of exactly the numbers that the type holds."""

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import own_name

# As formats/json/raw_fields.py has it, which needs this module.
_NUMBER: Final = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_KINDS: Final = {'"': "string", "{": "object", "[": "array", "n": "null", "t": "boolean", "f": "boolean"}


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
