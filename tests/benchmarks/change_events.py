"""Flights as change events: as Debezium writes them with a JSON or an Avro converter, and with nested members."""

import io
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import fastavro

sys.path.insert(0, str(Path(__file__).parents[1]))

from exactbatch.local.demo.flights import flights
from pipelines.flights import flights as pipeline
from support.connect_avro import avro_schema, avro_value
from support.debezium_types import envelope, time, typed

SCHEMA_ID = 1
CHANGED = 20_000  # flights
_TYPES = {
    "integer": typed("int32"),
    "text": typed("string"),
    "timestamp with time zone": time("string", "ZonedTimestamp"),
}
_ROW = {column.name: _TYPES[column.type] for column in pipeline.value.columns}
_SOURCE = {
    "version": typed("string"),
    "connector": typed("string"),
    "name": typed("string"),
    "ts_ms": typed("int64"),
    "snapshot": typed("string"),
    "db": typed("string"),
    "sequence": typed("string"),
    "schema": typed("string"),
    "table": typed("string"),
    "txId": typed("int64"),
    "lsn": typed("int64"),
    "xmin": typed("int64"),
}
ENVELOPE = envelope(_ROW, _SOURCE)
# The members of each flight that its nested form has in an object.
NESTED = {
    "date": ("year", "month", "day"),
    "departure": ("dep_time", "sched_dep_time", "dep_delay", "origin", "hour", "minute"),
    "arrival": ("arr_time", "sched_arr_time", "arr_delay", "dest"),
}


def avro_registered() -> Any:
    """Return the schema that the registry has under SCHEMA_ID."""
    return avro_schema(ENVELOPE)


def debezium() -> Iterator[bytes]:
    """Yield inserts without their schema, of about 550 bytes."""
    for event in _events():
        yield _compact(event)


def debezium_with_schema() -> Iterator[bytes]:
    """Yield inserts as the payload beside their schema, which is most of their 5 kB."""
    before = b'{"schema":' + _compact(ENVELOPE) + b',"payload":'
    for event in _events():
        yield before + _compact(event) + b"}"


def debezium_avro() -> Iterator[bytes]:
    """Yield inserts in Avro, in Confluent's wire format."""
    return _in_avro(_events())


def changes_with_schema() -> Iterator[bytes]:
    """Yield changes of CHANGED flights without an end, as debezium_with_schema() does; their positions grow."""
    before = b'{"schema":' + _compact(ENVELOPE) + b',"payload":'
    for event in _changes():
        yield before + _compact(event) + b"}"


def changes_avro() -> Iterator[bytes]:
    """Yield the same changes in Avro."""
    return _in_avro(_changes())


def _in_avro(events: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    schema = fastavro.parse_schema(avro_registered())
    header = b"\0" + SCHEMA_ID.to_bytes(4, "big")
    for event in events:
        stream = io.BytesIO(header)
        stream.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(stream, schema, avro_value(ENVELOPE, event))
        yield stream.getvalue()


def nested_flights() -> Iterator[bytes]:
    """Yield flights whose members are in objects."""
    for value in flights():
        flight = json.loads(value)
        for name, members in NESTED.items():
            flight[name] = {member: flight.pop(member) for member in members if member in flight}
        yield _compact(flight)


def _changes() -> Iterator[dict[str, Any]]:
    return _events(cycle(list(islice(flights(), CHANGED))))


def _events(values: Iterable[bytes] | None = None) -> Iterator[dict[str, Any]]:
    for number, value in enumerate(flights() if values is None else values):
        source = {
            "version": "3.2.0.Final",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": 1_700_000_000_000 + number,
            "snapshot": "false",
            "db": "shop",
            "sequence": f'["{24_023_119 + number}","{24_023_128 + number}"]',
            "schema": "public",
            "table": "flight",
            "txId": 555 + number,
            "lsn": 24_023_128 + number,
            "xmin": None,
        }
        after = dict.fromkeys(_ROW) | json.loads(value)
        yield {
            "before": None,
            "after": after,
            "source": source,
            "op": "c",
            "ts_ms": 1_700_000_000_100 + number,
        }


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
