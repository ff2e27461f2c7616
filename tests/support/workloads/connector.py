"""Events of committed transactions, as Debezium's connector for Postgres 3.x writes them.

source.lsn is the position of the change. source.sequence has the end of the last transaction that the connector has
received before this one, null in a snapshot and in the first transaction after it, and the position of the change.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from support.workloads.events import COLUMNS, Event, source_of
from support.workloads.pgoutput import UNAVAILABLE, Change, Committed
from support.workloads.pgoutput import Row as Decoded
from support.workloads.source import Row

_OUT: Final = "__debezium_unavailable_value"


class Connector:
    """A connector that begins with a snapshot; `writes_commits` adds source.commit_lsn, as newer ones may."""

    def __init__(self, *, writes_commits: bool) -> None:
        self._writes_commits = writes_commits
        self._last_commit: int | None = None

    def snapshot(self, rows: Mapping[str, Sequence[Row]], lsn: int) -> list[Event]:
        """Return the events of the rows that tables have when the slot is created."""
        places = [(table, row) for table, found in rows.items() for row in found]
        marks = {len(places) - 1: "last", 0: "first"}
        return [
            Event(
                row[0],
                "r",
                None,
                dict(zip(COLUMNS, row, strict=True)),
                {**self._source(table, lsn, xid=1), "snapshot": marks.get(at, "true")},
            )
            for at, (table, row) in enumerate(places)
        ]

    def stream(self, transactions: Sequence[Committed]) -> list[Event]:
        """Return the events of transactions, in the order of their commits."""
        events: list[Event] = []
        for each in transactions:
            for change in each.changes:
                source = self._source(change.table, change.lsn, each.xid)
                if self._writes_commits:
                    source["commit_lsn"] = each.commit
                events += _events_of(change, source)
            self._last_commit = each.end
        return events

    def _source(self, table: str, lsn: int, xid: int) -> dict[str, Any]:
        last = None if self._last_commit is None else str(self._last_commit)
        sequence = json.dumps([last, str(lsn)], separators=(",", ":"))
        position = {"sequence": sequence, "schema": "public", "txId": xid, "lsn": lsn, "xmin": None}
        return source_of("postgresql", table, position)


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
    image = {
        name: (old or {}).get(name, _OUT) if value is UNAVAILABLE else value for name, value in row.items()
    }
    return {**image, "id": int(str(image["id"]))}


def with_restarts(events: Sequence[Event], chance: random.Random, restarts: int) -> list[Event]:
    """Return the events with runs of them repeated: a connector that restarts sends what it had not yet committed."""
    events = list(events)
    written: list[Event] = []
    until = 0
    for stop in sorted(chance.randrange(1, len(events)) for _ in range(restarts)):
        written += events[until:stop]
        start = chance.randrange(max(0, stop - 40), stop)
        events[start:] = _resumed(events, start)
        written += events[start:stop]
        until = stop
    return [*written, *events[until:]]


def _resumed(events: Sequence[Event], start: int) -> list[Event]:
    """Return the events from a restart on. Without a commit before it, the last change's position takes its place.

    They stay as they were if a value was left out, which then can be a reject (docs/debezium.md).
    """
    last = events[start - 1].source["lsn"] if start > 0 else None
    resumed = list(events[start:])
    of_first = [at for at, event in enumerate(resumed) if _has_no_commit(event)]
    if last is not None and not any(_OUT in (resumed[at].after or {}).values() for at in of_first):
        for at in of_first:
            source = resumed[at].source
            sequence = json.dumps([str(last), str(source["lsn"])], separators=(",", ":"))
            resumed[at] = replace(resumed[at], source={**source, "sequence": sequence})
    return resumed


def _has_no_commit(event: Event) -> bool:
    sequence: str = event.source["sequence"]
    return event.source["snapshot"] == "false" and sequence.startswith("[null")
