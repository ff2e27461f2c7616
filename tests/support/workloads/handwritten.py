"""Events of connectors whose servers are not at hand, in the shapes that the connectors write.

Each source has a snapshot, a transaction whose change comes first in the log and whose commit comes last, two changes
of a row in one transaction with one position, a change of a key, and a row of an incremental snapshot. MySQL and
MariaDB write each transaction in one piece, so that nothing overlaps in them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from support.workloads.events import Event, source_of
from support.workloads.source import Row

# What each source has at the end.
ROWS: Final[list[Row]] = [(1, "new", None), (2, "second", None), (4, "three", None), (5, "third", None)]

Source = Callable[..., dict[str, Any]]


def _event(key: int, operation: str, note: str | None, source: dict[str, Any]) -> Event:
    row = {"id": key, "note": note, "body": None}
    before, after = (row, None) if operation == "d" else (None, row)
    return Event(key, operation, before, after, source)


def _deleted(key: int, source: dict[str, Any]) -> list[Event]:
    return [_event(key, "d", None, source), Event(key, None, None, None, source)]


def _story(snapshot: dict[str, Any], at: Mapping[str, dict[str, Any]]) -> list[Event]:
    """Return the events of one story; `at` has the source of each of its changes."""
    return [
        _event(1, "r", "one", snapshot | {"snapshot": "first"}),
        _event(2, "r", "two", snapshot | {"snapshot": "true"}),
        _event(3, "r", "three", snapshot | {"snapshot": "last"}),
        _event(1, "u", "closing", at["update 1"]),
        *_deleted(1, at["delete 1"]),
        _event(1, "c", "new", at["insert 1"]),
        _event(5, "c", "first", at["insert 5"]),
        _event(2, "u", "first", at["update 2"]),
        _event(2, "u", "second", at["update 2 again"]),
        *_deleted(3, at["move 3"]),
        _event(4, "c", "three", at["move 3 to 4"]),
        _event(2, "r", "second", at["incremental"]),
        _event(5, "u", "second", at["update 5"]),
        _event(5, "u", "third", at["update 5 again"]),
    ]


def _binlog(connector: str, gtid: Callable[[int], str]) -> list[Event]:
    """Changes before and after the binlog file with seven digits, and compressed transactions.

    All events of a compressed transaction have its position, and each of them counts its rows from 0. The third
    transaction came from another server of a topology; positions are those of the server that is read.
    """

    def at(file: int, pos: int, number: int, row: int = 0, server: int = 1) -> dict[str, Any]:
        place = {"server_id": server, "gtid": gtid(number), "file": f"bin.{file:06}", "pos": pos, "row": row}
        return source_of(connector, "cart", {**place, "thread": 7})

    snapshot = source_of(
        connector, "cart", {"server_id": 0, "gtid": None, "file": "bin.999999", "pos": 157, "row": 0}
    )
    return _story(
        snapshot,
        {
            "update 1": at(999_999, 380, 5),
            "delete 1": at(999_999, 520, 5),
            "insert 1": at(1_000_000, 236, 6, server=2),
            "insert 5": at(1_000_000, 610, 7),
            "update 2": at(1_000_000, 900, 8, row=3),
            "update 2 again": at(1_000_000, 900, 8, row=0),
            "move 3": at(1_000_000, 1_100, 9),
            "move 3 to 4": at(1_000_000, 1_100, 9),
            "incremental": at(1_000_000, 1_500, 10) | {"snapshot": "incremental"},
            "update 5": at(1_000_001, 157, 11, row=1),
            "update 5 again": at(1_000_001, 157, 11, row=0),
        },
    )


def _mysql() -> list[Event]:
    return _binlog("mysql", lambda number: f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{number}")


def _mariadb() -> list[Event]:
    return _binlog("mariadb", lambda number: f"0-1-{number}")


def _sqlserver() -> list[Event]:
    """change_lsn is __$seqval, which can go back within a transaction; its statements have an order of their own."""

    def at(commit: str, change: str | None, serial: int | None = 1) -> dict[str, Any]:
        position = {"commit_lsn": commit, "change_lsn": change, "event_serial_no": serial}
        written = {name: value for name, value in position.items() if value is not None}
        return source_of("sqlserver", "cart", {"schema": "dbo", **written})

    def lsn(block: int, slot: int = 3) -> str:
        return f"0000002b:{block:08x}:{slot:04x}"

    return _story(
        at(lsn(0x2E0), None, None),
        {
            "update 1": at(lsn(0x320), lsn(0x300), 2),
            "delete 1": at(lsn(0x320), lsn(0x310)),
            "insert 1": at(lsn(0x330), lsn(0x308)),
            "insert 5": at(lsn(0x340), lsn(0x338)),
            "update 2": at(lsn(0x370), lsn(0x360), 2),
            "update 2 again": at(lsn(0x370), lsn(0x360), 4),
            "move 3": at(lsn(0x380), lsn(0x378), 1),
            "move 3 to 4": at(lsn(0x380), lsn(0x378), 2),
            "incremental": at(lsn(0x390), lsn(0x388)) | {"snapshot": "incremental"},
            "update 5": at(lsn(0x3A0), lsn(0x398), 2),
            "update 5 again": at(lsn(0x3A0), lsn(0x394), 2),
        },
    )


def _oracle() -> list[Event]:
    """Changes of a transaction share a system change number, and its text grows by a digit."""

    def at(commit: int, scn: int, xid: str = "0a001100ab010000", number: int = 1) -> dict[str, Any]:
        change = {"schema": "SHOP", "txId": xid, "scn": str(scn), "commit_scn": str(commit)}
        return source_of("oracle", "CART", {**change, "ssn": 0, "redo_thread": 1, "txSeq": number})

    return _story(
        source_of("oracle", "CART", {"schema": "SHOP", "scn": "9980", "commit_scn": None, "ssn": 0}),
        {
            "update 1": at(9_998, 9_990),
            "delete 1": at(9_998, 9_996, number=2),
            "insert 1": at(10_001, 9_993, "0b001100ab010000"),
            "insert 5": at(10_010, 10_005),
            "update 2": at(10_020, 10_015),
            "update 2 again": at(10_020, 10_015, number=2),
            "move 3": at(10_030, 10_025),
            "move 3 to 4": at(10_030, 10_025),
            "incremental": at(10_040, 10_035) | {"snapshot": "incremental"},
            "update 5": at(10_050, 10_045),
            "update 5 again": at(10_050, 10_045, number=2),
        },
    )


STORIES: Final[Mapping[str, Callable[[], list[Event]]]] = {
    "mysql": _mysql,
    "mariadb": _mariadb,
    "sqlserver": _sqlserver,
    "oracle": _oracle,
}
