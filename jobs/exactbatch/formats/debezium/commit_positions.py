"""The fields of an event's source that prove the order of changes, for each connector of Debezium.

Transactions that change one row wait for each other, so the position of the commit orders their changes. The position
of a change does not: an insert is logged before its key is checked, and the check can wait for a transaction whose
changes come later in the log and which commits first. Within a transaction the offset decides, unless the connector's
position of a change does: that of Postgres, which truncates need.

MongoDB's events have no position: their ts_ms is the clock of the server (wallTime) since MongoDB 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class CommitPosition:
    """The position of a change: its columns by name and type, and the fields of the source that it is read from, of
    which those in `numbers` are integers and all others text.
    """

    columns: Mapping[str, str]
    fields: Sequence[str]
    numbers: Sequence[str]


_BINLOG: Final = CommitPosition({"file": "bigint", "pos": "bigint"}, ("file", "pos"), ("pos",))
CONNECTORS: Final[Mapping[str, CommitPosition]] = {
    "postgres": CommitPosition(
        {"commit_lsn": "bigint", "lsn": "bigint"},
        ("sequence", "lsn", "commit_lsn", "snapshot"),
        ("lsn", "commit_lsn"),
    ),
    "mysql": _BINLOG,
    "mariadb": _BINLOG,
    "sqlserver": CommitPosition({"commit_lsn": "text"}, ("commit_lsn",), ()),
    "oracle": CommitPosition({"commit_scn": "numeric(20,0)"}, ("commit_scn", "scn"), ()),
}

_CHANGE: Final = "the position of a change, and transactions do not commit in the order of their changes"
_FILE: Final = "a position inside a binlog file, which starts again with each new file"
_CLOCK: Final = "a clock, which can repeat a time and go back"
_TRANSACTION: Final = "a transaction number, and transactions do not commit in the order of their numbers"
_INSIDE: Final = "a position inside a transaction or second"
_GTID: Final = "a number of its own for each server, which does not order the transactions of several servers"
_NO_ORDER: Final = {
    **dict.fromkeys(("lsn", "change_lsn", "scn"), _CHANGE),
    **dict.fromkeys(("pos", "row", "file", "server_id", "thread"), _FILE),
    **dict.fromkeys(("gtid", "vgtid"), _GTID),
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns", "ts_sec", "ts_usec", "wallTime"), _CLOCK),
    **dict.fromkeys(("txId", "xmin"), _TRANSACTION),
    **dict.fromkeys(("event_serial_no", "ssn", "ord", "txSeq"), _INSIDE),
    **dict.fromkeys(("commit_lsn", "commit_scn", "sequence"), "not read by its name"),
}


def find_position(version: str | None) -> CommitPosition | None:
    """Return the position that a version stands for: that of a connector, or another integer field of the source.

    Raises ConfigurationError for a field that does not order the changes of a row.
    """
    if version is None:
        return None
    if version in CONNECTORS:
        return CONNECTORS[version]
    if not version or version in _NO_ORDER:
        raise ConfigurationError(
            f"version={version!r}: "
            + (f"source.{version} is {_NO_ORDER[version]}. " if version else "expected a name, found none. ")
            + f"Use the name of your connector, {', '.join(map(repr, CONNECTORS))}. Or give Debezium and the Upsert no "
            f"version: offsets order the changes of a key in one partition, where they are by default."
        )

    return CommitPosition({version: "bigint"}, (version,), (version,))


def version_columns(position: CommitPosition | None) -> tuple[Column, ...]:
    """Return the columns of a position, whose values order as the commits do."""
    return tuple(Column(name, type_) for name, type_ in position.columns.items()) if position else ()
