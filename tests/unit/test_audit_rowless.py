"""The auditor finds events that carry no row, also where a row claims their offset."""

import io
import json
from typing import Any

import fastavro
import numpy as np
import pytest
from confluent_kafka import Message

from exactbatch.audit import rowless
from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.rowless import RowlessEvents

CHANGE = {"before": None, "after": {"id": 1, "op": "m"}, "source": {"lsn": 1}, "op": "c", "ts_ms": 1}
MESSAGE = {"op": "m", "source": {"lsn": 1}, "message": {"prefix": '"op":"c"', "content": "eA=="}}
EVENTS = (
    CHANGE,
    {"ts_ms": 1},
    MESSAGE,
    {"payload": CHANGE},
    {"status": "BEGIN", "id": "1"},
    {"source": {}, "ddl": 'comment on table t is \'"op" : "c"\''},
    {"payload": MESSAGE},
)
ROWLESS = [1, 2, 4, 5, 6]
RECORD = "record"
SCHEMAS: dict[int, dict[str, Any]] = {
    1: {"type": RECORD, "name": "Envelope", "fields": [{"name": "op", "type": "string"}]},
    2: {"type": RECORD, "name": "Heartbeat", "fields": [{"name": "ts_ms", "type": "long"}]},
}


def among(events: RowlessEvents, values: list[bytes | None], *, is_found: bool) -> list[int]:
    """The offsets, from 0 on, of the events without a row."""
    records = LogRecords([Message("t", 0, offset, value=value) for offset, value in enumerate(values)])
    return events.among(np.arange(len(values)), records, np.full(len(values), is_found)).tolist()


@pytest.mark.parametrize("is_found", [False, True])
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " :\n")])
def test_events_without_a_row_are_found_in_json(is_found: bool, separators: tuple[str, str]) -> None:
    values = [json.dumps(event, separators=separators).encode() for event in EVENTS]
    assert among(RowlessEvents(None, {}), [*values, None, b"{"], is_found=is_found) == ROWLESS


@pytest.mark.parametrize("is_found", [False, True])
def test_events_without_a_row_are_found_in_avro(is_found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowless, "fetch_schema", lambda _registry, number, _: json.dumps(SCHEMAS[number]))

    def avro(number: int, event: dict[str, Any]) -> bytes:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, SCHEMAS[number], event)
        return b"\0" + number.to_bytes(4, "big") + body.getvalue()

    values = [avro(1, {"op": "c"}), avro(2, {"ts_ms": 1}), None, b"", b"\1x", avro(1, {"op": "u"})]
    assert among(RowlessEvents("http://registry", {}), values, is_found=is_found) == [1]


def test_changes_that_have_their_row_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowless, "_from_json", lambda _value: pytest.fail("parsed"))
    assert among(RowlessEvents(None, {}), [json.dumps(CHANGE).encode()], is_found=True) == []
