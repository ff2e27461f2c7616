"""Recognize the placeholder that Debezium writes for a value that the source has left out.

Postgres omits an unchanged value that it stores outside of the row (TOAST) from an update, unless the table has replica
identity full; Oracle does so with LOBs. Debezium then writes `unavailable.value.placeholder`, in the type of the
column. The forms are those of UnchangedToastedPlaceholder in all versions of Debezium's Postgres connector.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column


@dataclass(frozen=True)
class Placeholder:
    """All forms of a placeholder: text, bytes, an array's only element, an array of its bytes, and hstore."""

    text: str

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The forms of a value that is text."""
        written = self.text.encode()
        return (
            self.text,
            base64.b64encode(written).decode(),
            base64.urlsafe_b64encode(written).decode(),
            written.hex(),
            # Java's UUID.nameUUIDFromBytes(), for elements of uuid[]
            str(uuid.UUID(bytes=hashlib.md5(written, usedforsecurity=False).digest(), version=3)),
            # hstore.handling.mode=json
            json.dumps({self.text: self.text}, separators=(",", ":"), ensure_ascii=False),
        )

    def matches(self, column: Column, values: pa.Array) -> pa.BooleanArray:
        """Return true for each value of a column that is or contains the placeholder; false for null."""
        if pa.types.is_string(values.type):
            # Text that is a document: json, and your own types, such as hstore.
            nested = (column.element or column.type) in ("json", "jsonb") or "." in column.type
            return self._in_texts(values, nested=nested)
        if not pa.types.is_list(values.type):
            return pa.repeat(pa.scalar(False), len(values))
        if pa.types.is_string(values.type.value_type):
            elements = self.matches(column, pc.list_flatten(values))
            if not pc.any(elements, min_count=0).as_py():
                return pa.repeat(pa.scalar(False), len(values))
            holding = pc.unique(pc.list_parent_indices(values).filter(elements))
            return pc.is_in(pa.array(range(len(values)), holding.type), holding)
        return self._in_bytes(values)

    def _in_texts(self, values: pa.StringArray, *, nested: bool) -> pa.BooleanArray:
        matches = pc.is_in(values, pa.array(self.texts))
        if nested:
            quoted = json.dumps(self.text, ensure_ascii=False)
            matches = pc.or_(matches, pc.fill_null(pc.match_substring(values, quoted), False))
        return matches

    def _in_bytes(self, values: pa.ListArray) -> pa.BooleanArray:
        """Return true for each array of numbers with one element for each byte of the placeholder."""
        matches = np.zeros(len(values), bool)
        of_length = pc.fill_null(pc.equal(pc.list_value_length(values), len(self.text.encode())), False)
        for index in pc.indices_nonzero(of_length).to_pylist():
            matches[index] = self.is_in(values[index].as_py())
        return pa.array(matches)

    def is_in(self, value: Any) -> bool:
        """True if a parsed JSON value is or contains the placeholder."""
        if isinstance(value, str):
            return value in self.texts
        if isinstance(value, dict):
            return any(map(self.is_in, (*value, *value.values())))
        if not isinstance(value, list):
            return False
        written = list(self.text.encode())
        return value == written or value == [True] * len(written) or any(map(self.is_in, value))


def names_where(marks: Mapping[str, pa.BooleanArray], rows: int) -> pa.ListArray:
    """Return for each of n rows the names under which it is marked, in their order; null if there are none."""
    if not marks:
        return pa.nulls(rows, pa.list_(pa.string()))
    is_marked = np.column_stack([mark.to_numpy(zero_copy_only=False).astype(bool) for mark in marks.values()])
    counts = is_marked.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    names = pa.array(list(marks)).take(pa.array(np.nonzero(is_marked)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(counts == 0))
