"""Compare rejects with their records: key, value, headers and, where the format refuses the record, the reason.

A record that decodes is a reject because of a check, the target or what was loaded before: its reason is not compared.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import numpy as np
from psycopg2 import sql

from exactbatch.audit.audit_result import Differences, Offsets
from exactbatch.audit.log_records import LogRecords, decode_records
from exactbatch.audit.offset_sets import Flags
from exactbatch.audit.snapshot import Snapshot
from exactbatch.errors.printable import printable
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.message.record_headers import UNREADABLE, Unreadable, headers_as_json
from exactbatch.formats.registry.registry_properties import with_registry
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.sink import SinkTraits

_TOGETHER: Final = 1_000
_SHOWN_CHARACTERS: Final = 200  # of a reason


class RejectedRecords:
    """The rejects of a pipeline in one topic."""

    def __init__(
        self,
        snapshot: Snapshot,
        pipeline: Pipeline,
        traits: SinkTraits,
        kafka: Mapping[str, Any],
        topic_id: UUID,
    ) -> None:
        self._snapshot, self._pipeline, self._traits, self._topic_id = snapshot, pipeline, traits, topic_id
        # Only the format that rejected a record words the reason as it did.
        value, key = with_registry(pipeline.value, kafka), with_registry(pipeline.message_key, kafka)
        self._value, self._key = RecordDecoder(value), None if key is None else find_decoder(key)

    def differing(
        self, place: TopicPartition, offsets: Offsets, records: LogRecords, is_reject: Flags
    ) -> tuple[Differences, list[str]]:
        """Return the records of a block whose rejects differ from them, and these in words.

        `is_reject` says for each record whether the ledger has a reject at its offset.
        """
        found, notes = Differences(), list[str]()
        at = np.flatnonzero(is_reject)
        for start in range(0, len(at), _TOGETHER):
            positions = at[start : start + _TOGETHER]
            differing = self._compare(place, offsets[positions], records.take(positions))
            found.add(np.array([offset for offset, _ in differing], np.int64))
            notes += [f"{place[0]}[{place[1]}] offset {offset}: {what}" for offset, what in differing]
        return found, notes

    def _compare(self, place: TopicPartition, offsets: Offsets, records: LogRecords) -> list[tuple[int, str]]:
        decoded = decode_records(
            self._pipeline, self._traits, self._value, self._key, records, place, offsets
        )
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
