"""Values of Avro as the JSON of json and jsonb columns."""

from math import isfinite
from typing import Any

import msgspec
import pyarrow as pa

from exactbatch.formats.json.raw_fields import json_texts


def write_json(values: list[Any], type_: str) -> pa.StringArray:
    """Return the JSON text, for a type, of values that fastavro returned; null for None.

    Raises ValueError for NaN and infinity, and in a jsonb for U+0000.
    """
    encode = msgspec.json.Encoder(decimal_format="number").encode
    texts = list(map(encode, values))
    for value, text in zip(values, texts, strict=True):
        if b"null" in text:
            _refuse_not_finite(value)
    return json_texts(pa.array(texts, pa.binary()), type_)


def _refuse_not_finite(value: Any) -> None:
    """Raise ValueError for NaN and infinity, which JSON does not have and which msgspec writes as null."""
    match value:
        case float() if not isfinite(value):
            raise ValueError(f"JSON has no number {value}")
        case dict():
            for member in value.values():
                _refuse_not_finite(member)
        case list():
            for element in value:
                _refuse_not_finite(element)
