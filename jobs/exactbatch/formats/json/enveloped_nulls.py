"""Nulls in the envelope of Kafka Connect's JSON converter: {"schema":null,"payload":null} stands for no value at all.

Older converters write a tombstone so, with schemas.enable=true.
"""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.format import Format

_PAYLOAD: Final = "payload"
_MAY_BE: Final = r'"payload"\s*:\s*null'
ENVELOPED_NULL: Final = (
    "the value is a null in the envelope of Kafka Connect's JSON converter, whose payload has no members"
)


def is_enveloped_null(value: Any) -> bool:
    """True for the envelope of a null, as parsed JSON."""
    return isinstance(value, dict) and value.keys() == {"schema", _PAYLOAD} and value[_PAYLOAD] is None


def with_nulls(spec: Format, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values with null for the envelope of a null, if it counts as null in their format."""
    return without_envelopes(values) if spec.reads_payloads else values


def without_envelopes(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values with null for the envelope of a null."""
    suspect = pc.fill_null(pc.match_substring_regex(values, _MAY_BE), False)
    if not pc.any(suspect, min_count=0).as_py():
        return values
    pairs = zip(suspect.to_pylist(), values, strict=True)
    is_null = pa.array([may_be and _is_null(value.as_py()) for may_be, value in pairs], pa.bool_())
    return pc.if_else(is_null, pa.scalar(None, values.type), values)


def _is_null(value: bytes) -> bool:
    try:
        return is_enveloped_null(json.loads(value))
    except (ValueError, RecursionError):
        return False
