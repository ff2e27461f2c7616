"""The messages of the logical decoding plugin pgoutput, protocol version 1, which Debezium's connector reads."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

UNAVAILABLE: Final = object()  # a value of TOAST that an update has not changed, and that the message lacks

Value = str | object | None
Row = dict[str, Value]
Operation = Literal["insert", "update", "delete", "truncate"]


@dataclass(frozen=True)
class Change:
    """A change of one row, or a truncate of a table, at its position in the write-ahead log.

    `key` has the old key of an update that changes it, and of a delete; `old` is the whole old row of a table with
    REPLICA IDENTITY FULL.
    """

    operation: Operation
    table: str
    lsn: int
    key: Row | None = None
    old: Row | None = None
    new: Row | None = None


@dataclass(frozen=True)
class Committed:
    """A transaction: `commit` is the position of its commit record, `end` the position after that."""

    xid: int
    commit: int
    end: int
    changes: tuple[Change, ...]


class _Body:
    """The bytes of a message, read from its start."""

    def __init__(self, message: bytes) -> None:
        self._message, self._at = message, 0

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._message[self._at - size : self._at]

    def int(self, size: int) -> int:
        return int.from_bytes(self.bytes(size), "big")

    def char(self) -> str:
        return self.bytes(1).decode()

    def string(self) -> str:
        text = self.bytes(self._message.index(b"\0", self._at) - self._at).decode()
        self._at += 1
        return text

    def row(self, names: list[str]) -> Row:
        assert self.int(2) == len(names)
        return {name: self._value() for name in names}

    def _value(self) -> Value:
        match self.char():
            case "n":
                return None
            case "u":
                return UNAVAILABLE
            case _:
                return self.bytes(self.int(4)).decode()


def transactions_of(messages: Iterable[tuple[int, bytes]]) -> Iterator[Committed]:
    """Yield the transactions of messages (position, body), in the order in which they have committed."""
    tables: dict[int, tuple[str, list[str]]] = {}
    changes: list[Change] = []
    xid = final = 0
    for lsn, message in messages:
        body = _Body(message)
        match body.char():
            case "B":
                final, _, xid = struct.unpack(">QQI", body.bytes(20))
                changes = []
            case "C":
                _, commit, end, _ = struct.unpack(">BQQQ", body.bytes(25))
                # The connector takes the position at which it receives the message.
                assert (commit, end) == (final, lsn)
                yield Committed(xid, commit, end, tuple(changes))
            case "R":
                number, name, columns = _relation(body)
                tables[number] = name, columns
            case "T":
                count, _ = body.int(4), body.int(1)
                changes += [Change("truncate", tables[body.int(4)][0], lsn) for _ in range(count)]
            case "I" | "U" | "D" as kind:
                changes.append(_change(kind, lsn, *tables[body.int(4)], body))


def _relation(body: _Body) -> tuple[int, str, list[str]]:
    number, _, name, _ = body.int(4), body.string(), body.string(), body.int(1)
    columns = []
    for _ in range(body.int(2)):
        body.int(1)
        columns.append(body.string())
        body.bytes(8)
    return number, name, columns


def _change(kind: str, lsn: int, table: str, columns: list[str], body: _Body) -> Change:
    parts: dict[str, Row] = {}
    for _ in range(1 if kind in "ID" else 2):
        part = body.char()
        parts[part] = body.row(columns)
        if part == "N":
            break
    operation: Operation = "insert" if kind == "I" else "update" if kind == "U" else "delete"
    return Change(operation, table, lsn, key=parts.get("K"), old=parts.get("O"), new=parts.get("N"))
