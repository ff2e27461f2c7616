"""Find records that rightly give no row, although their value is not null: Debezium's events that tell of no row.

The auditor tells them apart by rules of its own, and only among records that have no row.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.offset_sets import Flags
from exactbatch.audit.report import Offsets
from exactbatch.formats import Debezium, Format, WithMessage

_TRANSACTION_BOUNDARY: Final = ("BEGIN", "END")  # transaction metadata
_HEARTBEAT: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})


class RowlessEvents:
    """Knows the events of a Debezium pipeline that have no row."""

    def among(self, offsets: Offsets, records: LogRecords, without_row: Flags) -> Offsets:
        """Return the offsets of those records without a row whose events tell of no row."""
        at = np.flatnonzero(without_row)
        if not len(at):
            return offsets[:0]
        values = records.values().take(pa.array(at))
        is_rowless = np.fromiter((_is_rowless(value.as_py()) for value in values), bool, len(at))
        rowless: Offsets = offsets[at[is_rowless]]
        return rowless


def rowless_of(value: Format | WithMessage) -> RowlessEvents | None:
    """Return what finds such records of a pipeline; None if its format has none."""
    format_ = value.value if isinstance(value, WithMessage) else value
    return RowlessEvents() if isinstance(format_, Debezium) else None


def _is_rowless(value: bytes | None) -> bool:
    if value is None:
        return False  # a tombstone, which is known already
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return False
    match document:
        case {"payload": dict() as payload}:
            return describes_no_row(payload)
        case dict():
            return describes_no_row(document)
        case _:
            return False


def describes_no_row(event: Mapping[str, Any]) -> bool:
    """True for a logical decoding message, the boundary of a transaction, a schema change, and a heartbeat."""
    match event:
        case {"op": operation}:
            return operation == "m" and isinstance(event.get("message"), dict)
        case {"status": status, "id": str()} if status in _TRANSACTION_BOUNDARY:
            return True
        case {"source": dict(), "ddl": _} | {"source": dict(), "tableChanges": _}:
            return event.get("status") not in _TRANSACTION_BOUNDARY
        case {"ts_ms": _}:
            return event.keys() <= _HEARTBEAT
        case _:
            return False
