"""A table whose changes a connector of Debezium captures: concurrent transactions, one snapshot, and the events."""

import json
import random
from dataclasses import dataclass, field
from typing import Any, Final

from support.debezium_types import envelope, typed

OUT: Final = "__debezium_unavailable_value"
COLUMNS: Final = "id int, name text, body text"
# Those whose updates lack a long value that has not changed: TOAST, and LOBs.
LEAVES_OUT: Final = ("postgres", "oracle")
# Those whose connector writes truncates.
TRUNCATES: Final = ("postgres", "mysql", "oracle")
_KEYS: Final = 6

Row = tuple[str, str | None]


@dataclass
class Transaction:
    """Changes that are not committed: operation, key, row, whether the body is the same, and the position."""

    changes: list[tuple[str, int, Row | None, bool, int]] = field(default_factory=list)

    @property
    def keys(self) -> set[int]:
        """The keys that it has locked."""
        return {key for _, key, *_ in self.changes}


class CapturedTable:
    """The source. `rows` are committed; `take_events` returns what the connector has written since, in its order."""

    def __init__(self, connector: str, chance: random.Random) -> None:
        self.connector, self.chance = connector, chance
        self.rows: dict[int, Row] = {}
        self._open: list[Transaction] = []
        self._events: list[tuple[bytes | None, int]] = []
        self._transactions = 0
        # The end of the transaction that was streamed before.
        self._streamed: int | None = None
        self._is_streaming = False
        # Positions whose texts do not order as the positions do.
        self._position = {"sqlserver": 0xFFC0, "oracle": 9_900}.get(connector, 0)
        self._file, self._file_position = 999_998, 4
        self._has_schema = chance.random() < 0.5
        source = {
            "file": "string",
            "pos": "int64",
            "row": "int32",
            "lsn": "int64",
            "event_serial_no": "int64",
        }
        named: tuple[str, ...] = ("sequence", "snapshot", "scn", "commit_scn", "change_lsn")
        if connector == "sqlserver":
            named = (*named, "commit_lsn")
        fields = {
            **{name: typed(kind) for name, kind in source.items()},
            **dict.fromkeys(named, typed("string")),
        }
        self._schema = envelope(
            {"id": typed("int32"), "name": typed("string"), "body": typed("string")}, fields
        )

    def work(self) -> None:
        """Do something: change rows in one of several transactions, commit, roll back, or truncate the table."""
        chance = self.chance.random()
        if chance < 0.3 and self._open:
            self._end(self._open.pop(self.chance.randrange(len(self._open))))
        elif chance < 0.35 and not self._open and self.connector in TRUNCATES:
            self._end(Transaction([("t", -1, None, False, self._next())]))
        elif chance < 0.4:
            self._nothing()
        else:
            if len(self._open) < 3 and (not self._open or self.chance.random() < 0.5):
                self._open.append(Transaction())
            self._change(self.chance.choice(self._open))

    def snapshot(self) -> None:
        """Take the snapshot: rows that are committed now; transactions that are open are streamed when they commit."""
        positions: dict[str, dict[str, Any]] = {
            "postgres": {"lsn": self._position, "sequence": f'[null,"{self._position}"]', "snapshot": "true"},
            "mysql": {"file": self._binlog(), "pos": self._file_position, "row": 0},
            "sqlserver": {"commit_lsn": _lsn(self._position), "change_lsn": None},
            "oracle": {"scn": str(self._position), "commit_scn": None},
        }
        for key, row in self.rows.items():
            self._write("r", key, row, positions[self.connector])
        self._is_streaming = True

    def finish(self) -> None:
        """Commit what is open."""
        while self._open:
            self._end(self._open.pop())

    def take_events(self) -> list[tuple[bytes | None, int]]:
        """Return the values of the connector's records with the numbers of their transactions, and forget them."""
        events, self._events = self._events, []
        return events

    def _next(self) -> int:
        self._position += self.chance.randint(2, 9)
        return self._position

    def _binlog(self) -> str:
        return f"mysql-bin.{self._file:06}"

    def _change(self, transaction: Transaction) -> None:
        taken = {key for other in self._open if other is not transaction for key in other.keys}
        visible: dict[int, Row | None] = {**self.rows}
        visible |= {key: row for _, key, row, *_ in transaction.changes}
        key, new_key = (self.chance.randrange(_KEYS) for _ in range(2))
        if key in taken:
            return
        old, chance = visible.get(key), self.chance.random()
        if old is None:
            row: Row = f"{self.chance.random()}", self.chance.choice([None, f"{self.chance.random()}"])
            transaction.changes.append(("c", key, row, False, self._next()))
        elif chance < 0.2:
            transaction.changes.append(("d", key, None, False, self._next()))
        elif chance < 0.35 and new_key not in taken and visible.get(new_key) is None:
            # An update of the key: both events have its position. The whole row is written here.
            at = self._next()
            transaction.changes += [("d", key, None, False, at), ("c", new_key, old, False, at)]
        else:
            is_same = self.chance.random() < 0.5
            body = old[1] if is_same else self.chance.choice([None, f"{self.chance.random()}"])
            row = f"{self.chance.random()}", body
            transaction.changes.append(("u", key, row, is_same and body is not None, self._next()))

    def _end(self, transaction: Transaction) -> None:
        if transaction.changes[:1] and self.chance.random() < 0.1:
            return  # rolled back
        commit = self._next()
        if self.chance.random() < 0.2:
            self._file, self._file_position = self._file + 1, 4
        for number, (op, key, row, is_same, position) in enumerate(transaction.changes):
            if op == "t":
                self.rows.clear()
            elif row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
            # Rows of one event of the binlog have the same position.
            if number % 2 == 0:
                self._file_position += self.chance.randint(30, 90)
            if self._is_streaming:
                left_out = is_same and self.connector in LEAVES_OUT
                at = self._source(op, number, position, commit)
                self._write(op, key, (row[0], OUT) if row is not None and left_out else row, at)
        self._transactions += 1
        if self._is_streaming:
            self._streamed = commit
        self._let_insert(transaction)

    def _let_insert(self, ended: Transaction) -> None:
        """Let an insert go on that waited for a delete: it was logged before the delete, and commits after it."""
        _, key, _, _, position = ended.changes[-1] if ended.changes else ("", -1, None, False, 0)
        if key >= 0 and key not in self.rows and self.chance.random() < 0.5:
            row: Row = f"{self.chance.random()}", None
            self._open.append(Transaction([("c", key, row, False, position - 1)]))

    def _source(self, op: str, number: int, position: int, commit: int) -> dict[str, Any]:
        """Return the position of a change; one of a transaction may be before those of others that have committed."""
        match self.connector:
            case "postgres":
                before = "null" if self._streamed is None else f'"{self._streamed}"'
                return {"lsn": position, "sequence": f'[{before},"{position}"]', "snapshot": "false"}
            case "mysql":
                return {"file": self._binlog(), "pos": self._file_position, "row": number % 2}
            case "sqlserver":
                serial = 2 if op == "u" else 1
                return {
                    "commit_lsn": _lsn(commit), "change_lsn": _lsn(position), "event_serial_no": serial
                }  # fmt: skip
            case _:
                return {"scn": str(position), "commit_scn": str(commit)}

    def _write(self, op: str, key: int, row: Row | None, source: dict[str, Any]) -> None:
        image = None if row is None else {"id": key, "name": row[0], "body": row[1]}
        before = {"id": key, "name": None, "body": None} if op == "d" else None
        self._append({"before": before, "after": image, "source": source, "op": op, "ts_ms": 1})
        if op == "d":
            self._events.append((None, self._transactions))

    def _append(self, event: dict[str, Any]) -> None:
        value = {"schema": self._schema, "payload": event} if self._has_schema else event
        self._events.append((json.dumps(value, separators=(",", ":")).encode(), self._transactions))

    def _nothing(self) -> None:
        """Write an event that tells of no row."""
        event: dict[str, Any] = self.chance.choice(
            [
                {"ts_ms": 1},
                {"status": "BEGIN", "id": "571:1", "event_count": None, "ts_ms": 1},
                {"status": "END", "id": "571:1", "event_count": 2, "ts_ms": 1},
                {
                    "source": {"db": "shop"},
                    "databaseName": "shop",
                    "ddl": "alter table t",
                    "tableChanges": [],
                },
            ]
        )
        self._events.append((json.dumps(event, separators=(",", ":")).encode(), self._transactions))


def _lsn(position: int) -> str:
    return f"0000002b:{position:08x}:0001"
