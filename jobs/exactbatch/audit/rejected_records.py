"""Compare rejects with their records: key, value, headers and, where the format refuses the record, the reason.

A record that decodes is a reject because of a check, the target or what was loaded before: its reason is not compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from psycopg2 import sql

from exactbatch.audit.decoding import decode_records
from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.offset_sets import Flags
from exactbatch.audit.report import Finding, Offsets
from exactbatch.audit.snapshot import Snapshot
from exactbatch.formats import headers_as_json, with_registry
from exactbatch.formats.record_headers import UNREADABLE, Header, Unreadable, last_headers
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.printable import printable

_TOGETHER: Final = 1_000
_SHOWN_CHARACTERS: Final = 200  # of a reason


@dataclass(frozen=True, slots=True)
class _Selected:
    """Some records of a block, by their positions."""

    records: LogRecords
    positions: Offsets

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, start: int, stop: int) -> "_Selected":
        """See LogRecords."""
        return _Selected(self.records, self.positions[start:stop])

    def values(self) -> pa.BinaryArray:
        """See LogRecords."""
        return self.records.values().take(pa.array(self.positions))

    def keys(self) -> pa.BinaryArray:
        """See LogRecords."""
        return self.records.keys().take(pa.array(self.positions))

    def headers(self) -> list[Any]:
        """See LogRecords."""
        headers = self.records.headers()
        return [headers[position] for position in self.positions.tolist()]

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See LogRecords."""
        return last_headers(self.headers(), name)

    def timestamps(self) -> pa.TimestampArray:
        """See LogRecords."""
        return self.records.timestamps().take(pa.array(self.positions))


class RejectedRecords:
    """The rejects of a pipeline in one topic."""

    def __init__(
        self, snapshot: Snapshot, pipeline: Pipeline, kafka: Mapping[str, Any], topic_id: UUID
    ) -> None:
        self._snapshot, self._pipeline, self._topic_id = snapshot, pipeline, topic_id
        # Only the format that rejected a record words the reason as it did.
        self._value, self._key = with_registry(pipeline.value, kafka), with_registry(pipeline.key, kafka)

    def differing(
        self, place: TopicPartition, offsets: Offsets, records: LogRecords, is_reject: Flags
    ) -> tuple[Finding, list[str]]:
        """Return the records of a block whose rejects differ from them, and these in words.

        `is_reject` says for each record whether the ledger has a reject at its offset.
        """
        found, notes = Finding(), list[str]()
        at = np.flatnonzero(is_reject)
        for start in range(0, len(at), _TOGETHER):
            positions = at[start : start + _TOGETHER]
            differing = self._compare(place, offsets[positions], _Selected(records, positions))
            found.add(np.array([offset for offset, _ in differing], np.int64))
            notes += [f"{place[0]}[{place[1]}] offset {offset}: {what}" for offset, what in differing]
        return found, notes

    def _compare(self, place: TopicPartition, offsets: Offsets, records: LogRecords) -> list[tuple[int, str]]:
        decoded = decode_records(self._pipeline, self._value, self._key, records, place, offsets)
        reasons = {at.start + index: reason for at, part in decoded for index, reason in part.rejects}
        stored = {
            offset: (key, value, headers, reason)
            for offset, key, value, headers, reason in self._stored(place, offsets)
        }
        differing = []
        parts = zip(
            offsets.tolist(),
            records.keys().to_pylist(),
            records.values().to_pylist(),
            records.headers(),
            strict=True,
        )
        for number, (offset, key, value, headers) in enumerate(parts):
            found_key, found_value, found_headers, found_reason = stored[offset]
            reason = _stored_reason(reasons.get(number), headers)
            wrong = [
                name
                for name, is_wrong in (
                    ("key", key != found_key),
                    ("value", value != found_value),
                    ("headers", json.loads(headers_as_json(headers)) != json.loads(found_headers)),
                )
                if is_wrong
            ]
            # Earlier versions stored reasons as they were.
            if reason is not None and reason != (found_reason := printable(found_reason)):
                wrong.append(
                    f"reason, which is {found_reason[:_SHOWN_CHARACTERS]!r}, and decoding says "
                    f"{reason[:_SHOWN_CHARACTERS]!r}"
                )
            if wrong:
                differing.append((offset, f"the reject does not have the record's {', '.join(wrong)}"))
        return differing

    def _stored(self, place: TopicPartition, offsets: Offsets) -> Sequence[tuple[Any, ...]]:
        return self._snapshot.rows(
            sql.SQL(
                'select r."offset", r.key, r.value, r.headers::text, r.reason from exactbatch.rejected_record r '
                'where r.pipeline = {} and r.topic_id = {}::uuid and r.partition = {} and r."offset" = any({})'
            ).format(
                sql.Literal(self._pipeline.name),
                sql.Literal(str(self._topic_id)),
                sql.Literal(place[1]),
                sql.Literal(offsets.tolist()),
            )
        )


def _stored_reason(reason: str | None, headers: Any) -> str | None:
    """Return a reason of the format as the ledger has it."""
    if reason is None:
        return None
    if isinstance(headers, Unreadable) and reason != UNREADABLE:
        reason = f"{reason}; {UNREADABLE}"
    return printable(reason)
