"""Events of committed transactions, as Debezium's connector for Postgres 3.x writes them.

source.lsn is the position of the change. source.sequence has the end of the last transaction that the connector has
received before this one, null in a snapshot and in the first transaction after it, and the position of the change.
"""

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from support.debezium_types import envelope, typed
from support.workloads.pgoutput import UNCHANGED, Change, Committed
from support.workloads.pgoutput import Row as Decoded
from support.workloads.source import Row

_OUT: Final = "__debezium_unavailable_value"
_COLUMNS: Final = {"id": typed("int32"), "note": typed("string"), "body": typed("string")}
_SOURCE: Final = {
    **dict.fromkeys(
        ("version", "connector", "name", "snapshot", "db", "sequence", "schema", "table"), typed("string")
    ),
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "commit_lsn"), typed("int64")),
}
_SCHEMA: Final = envelope(_COLUMNS, _SOURCE)
_KEY_SCHEMA: Final = {
    "type": "struct",
    "optional": False,
    "fields": [{**typed("int32"), "field": "id", "optional": False}],
}


@dataclass(frozen=True)
class Event:
    """A record of the connector. A tombstone has no operation, and a truncate no key."""

    key: int | None
    operation: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    source: dict[str, Any]

    def partition(self, count: int) -> int:
        """Return the partition of the key among so many."""
        return zlib.crc32(str(self.key).encode()) % count

    def record(self, *, has_schema: bool) -> tuple[bytes | None, bytes | None]:
        """Return the record's key and value, with or without their schemas."""
        key = None if self.key is None else {"id": self.key}
        value = None
        if self.operation is not None:
            value = {
                "before": self.before,
                "after": self.after,
                "source": self.source,
                "op": self.operation,
                "ts_ms": 1_767_225_600_000,
            }
        return _json(key, _KEY_SCHEMA, has_schema), _json(value, _SCHEMA, has_schema)


def _json(value: Any, schema: dict[str, Any], has_schema: bool) -> bytes | None:
    if value is None:
        return None
    value = {"schema": schema, "payload": value} if has_schema else value
    return json.dumps(value, separators=(",", ":")).encode()


class Connector:
    """A connector that begins with a snapshot; `writes_commits` adds source.commit_lsn, as newer ones may."""

    def __init__(self, table: str, *, writes_commits: bool = False) -> None:
        self._table, self._writes_commits = table, writes_commits
        self._last_commit: int | None = None

    def snapshot(self, rows: Sequence[Row], lsn: int) -> list[Event]:
        """Return the events of rows that the table has when the slot is created."""
        source = self._source(lsn, xid=1)
        marks = ["first", *["true"] * len(rows)][: len(rows) - 1] + ["last"]
        return [
            Event(row[0], "r", None, dict(zip(_COLUMNS, row, strict=True)), {**source, "snapshot": mark})
            for row, mark in zip(rows, marks if rows else [], strict=True)
        ]

    def stream(self, transactions: Sequence[Committed]) -> list[Event]:
        """Return the events of transactions, in the order of their commits."""
        events: list[Event] = []
        for each in transactions:
            for change in each.changes:
                source = self._source(change.lsn, each.xid)
                if self._writes_commits:
                    source["commit_lsn"] = each.commit
                events += _events_of(change, source)
            self._last_commit = each.end
        return events

    def _source(self, lsn: int, xid: int) -> dict[str, Any]:
        at = 1_767_225_600_000
        last = None if self._last_commit is None else str(self._last_commit)
        return {
            "version": "3.4.0.Final",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": at,
            "snapshot": "false",
            "db": "shop",
            "sequence": json.dumps([last, str(lsn)], separators=(",", ":")),
            "ts_us": at * 1_000,
            "ts_ns": at * 1_000_000,
            "schema": "public",
            "table": self._table,
            "txId": xid,
            "lsn": lsn,
            "xmin": None,
        }


def _events_of(change: Change, source: dict[str, Any]) -> Iterator[Event]:
    """Yield the events of one change: a change of the key is a delete, a tombstone and a create."""
    if change.operation == "truncate":
        yield Event(None, "t", None, None, source)
        return
    old = change.old or change.key
    before = None if old is None else _image(old)
    after = None if change.new is None else _image(change.new, change.old)
    if before is not None and (after is None or before["id"] != after["id"]):
        yield Event(before["id"], "d", before, None, source)
        yield Event(before["id"], None, None, None, source)
        before = None
    if after is not None:
        is_new = change.operation == "insert" or (old is not None and before is None)
        yield Event(after["id"], "c" if is_new else "u", before, after, source)


def _image(row: Decoded, old: Decoded | None = None) -> dict[str, Any]:
    """Return a row as an event has it: a value of TOAST that has not changed is the old one, if that is known."""
    image = {name: (old or {}).get(name, _OUT) if value is UNCHANGED else value for name, value in row.items()}
    return {**image, "id": int(str(image["id"]))}


def with_restarts(events: Sequence[Event], chance: random.Random, restarts: int) -> list[Event]:
    """Return the events with runs of them repeated: a connector that restarts sends what it had not yet committed."""
    written: list[Event] = []
    until = 0
    for stop in sorted(chance.randrange(1, len(events)) for _ in range(restarts)):
        written += events[until:stop]
        start = chance.randrange(max(0, stop - 40), stop)
        written += _resumed(events, start, stop)
        until = stop
    return [*written, *events[until:]]


def _resumed(events: Sequence[Event], start: int, stop: int) -> list[Event]:
    """Return a run as it is repeated. If no commit was received before, the last change's position takes its place."""
    last = events[start - 1].source["lsn"] if start > 0 else None
    repeated = []
    for event in events[start:stop]:
        first, lsn = json.loads(event.source["sequence"])
        if first is None and event.source["snapshot"] == "false" and last is not None:
            sequence = json.dumps([str(last), lsn], separators=(",", ":"))
            event = replace(event, source={**event.source, "sequence": sequence})
        repeated.append(event)
    return repeated
