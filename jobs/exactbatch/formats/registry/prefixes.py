"""The prefixes of Confluent's wire format before blocks of values."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.registry.wire_format import GUID, GUID_SIZE, ID_SIZE

_LONGEST: Final = (
    2**31 - 1
)  # bytes of a value: without an end, Arrow 26 counts wrongly and cannot allocate the result


def cut_prefixes(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return the first bytes of n values, which are their prefixes if they have any."""
    return _sliced(values, lambda size: (0, size))


def most_frequent_first(headers: pa.BinaryArray) -> list[bytes]:
    """Return the different headers of a block, so that a registry is asked first for those of most records."""
    counts = pc.value_counts(headers)
    order = pc.array_sort_indices(counts.field("counts"), order="descending")
    different: list[bytes] = counts.field("values").take(order).to_pylist()
    return different


def cut_bodies(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return what comes after the prefixes of n values."""
    return _sliced(values, lambda size: (size, _LONGEST))


def _sliced(values: pa.BinaryArray, bounds: Callable[[int], tuple[int, int]]) -> pa.BinaryArray:
    """Return a part of each value; `bounds` says where it begins and ends after a prefix of a given size in bytes."""
    has_guid = pc.starts_with(values, GUID)
    parts = pc.binary_slice(values, *bounds(ID_SIZE))
    if not has_guid.true_count:
        return parts
    return pc.if_else(has_guid, pc.binary_slice(values, *bounds(GUID_SIZE)), parts)
