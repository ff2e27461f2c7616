"""Which fields of an event's source prove the order of changes, for each connector of Debezium.

Transactions that change one row wait for each other, so the position of the commit orders their changes. The position
of a change does not: an insert is logged before its key is checked, and the check can wait for a transaction whose
changes come later in the log and which commits first. Within a transaction the offset decides, unless the connector's
position of a change does: that of Postgres, which truncates need.

MongoDB's events have no position: their ts_ms is the clock of the server (wallTime) since MongoDB 6.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    # Returns a field of the source of all events.
    Source = Callable[[str], pa.Array]

# AbstractSourceInfo and SourceInfo.sequence() of the Postgres connector: the end of the transaction that the connector
# had processed before, which no change of that transaction or of one before it has, and the position of the change.
_SEQUENCE: Final = r'^\[(?:null|"(?P<commit>[0-9]{1,19})"), ?(?:null|"(?P<lsn>[0-9]{1,19})")\]$'
# Lsn.toString() of the SQL Server connector.
_LSN: Final = "^[0-9a-f]{8}:[0-9a-f]{8}:[0-9a-f]{4}$"
_FIRST_LSN: Final = "00000000:00000000:0000"
_FILE_NUMBER: Final = r"^.*\.(?P<number>[0-9]{1,18})$"
_SCN: Final = "^[0-9]{1,20}$"
# The snapshot that runs while changes are streamed, chunk by chunk.
_INCREMENTAL: Final = "incremental"


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a change: its columns by name and type, and the fields of the source that it is read from, of
    which those in `numbers` are integers and all others text.

    `read` returns the columns from the source and from which events are rows of a snapshot. It raises ValueError for a
    change that lacks a part, and for text that is no position. A row of a snapshot may lack its position, or a part
    of it: it then is older than any change that was streamed, as far as its position says.
    """

    columns: Mapping[str, str]
    fields: Sequence[str]
    numbers: Sequence[str]
    read: "Callable[[Source, pa.BooleanArray], Sequence[pa.Array]]"


def _postgres(source: "Source", is_snapshot: "pa.BooleanArray") -> "Sequence[pa.Array]":
    """Return the commit that a change's position counts from, and its position.

    commit_lsn, the commit of the change's own transaction, is proposed for connectors to come. It is at least as great
    as `sequence` says, and less than that of any later transaction, so that a topic may have both. A row of a snapshot
    is older than any streamed change, because a transaction that was open while it was taken has changes with smaller
    positions, which the snapshot has not seen. The rows of an incremental snapshot have the position of the stream.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    sequence = source("sequence")
    _check("sequence", sequence, _SEQUENCE, 'two positions, such as ["24023119","24023128"]')
    parts = pc.extract_regex(sequence, _SEQUENCE)
    has_no_place = pc.and_(is_snapshot, pc.fill_null(pc.not_equal(source("snapshot"), _INCREMENTAL), True))

    def part(name: str, field: str) -> "pa.Array":
        text = pc.struct_field(parts, [name])
        number = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text).cast(pa.int64())
        return pc.coalesce(source(field), number)

    # The first transaction that a connector streams has no commit before it.
    commit = pc.coalesce(
        part("commit", "commit_lsn"),
        pc.if_else(sequence.is_valid(), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())),
    )
    columns = []
    for name, values in (("sequence", commit), ("lsn", part("lsn", "lsn"))):
        placed = pc.if_else(has_no_place, pa.scalar(None, values.type), values)
        if pc.any(pc.and_(placed.is_null(), pc.invert(has_no_place))).as_py():
            raise ValueError(
                f"the event has no source.{name}, which orders the changes: Debezium writes source.sequence from 1.5 "
                f"on. Upgrade the connector, or leave out the version: offsets order the changes of a key in one "
                f"partition"
            )
        columns.append(placed)
    return columns


def _binlog(source: "Source", is_snapshot: "pa.BooleanArray") -> "Sequence[pa.Array]":
    """Return the number of the binlog file, and the position of the event in it, which several rows share.

    The number of the row is no position: in a compressed transaction it starts again with each event, and all events
    have one position.
    """
    return [
        _complete("file", _file_numbers(source("file")), is_snapshot, 0),
        _complete("pos", source("pos"), is_snapshot, 0),
    ]


def _sql_server(source: "Source", is_snapshot: "pa.BooleanArray") -> "Sequence[pa.Array]":
    """Return the log sequence number of the commit; __$seqval, the change_lsn, does not order a transaction."""
    values = source("commit_lsn")
    _check("commit_lsn", values, _LSN, "a log sequence number, such as 0000002b:000002e8:0003")
    return [_complete("commit_lsn", values, is_snapshot, _FIRST_LSN)]


def _oracle(source: "Source", is_snapshot: "pa.BooleanArray") -> "Sequence[pa.Array]":
    """Return the system change number of the commit, which the changes of a transaction share.

    A snapshot reads as of its scn, which is not below the commits that it has seen and below those to come.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def numbers(field: str) -> "pa.Array":
        _check(field, source(field), _SCN, "one system change number")
        return source(field).cast(pa.decimal128(20, 0))

    commits = numbers("commit_scn")
    commits = pc.if_else(pc.and_(is_snapshot, commits.is_null()), numbers("scn"), commits)
    return [_complete("commit_scn", commits, is_snapshot, 0)]


_BINLOG: Final = Position({"file": "bigint", "pos": "bigint"}, ("file", "pos"), ("pos",), _binlog)
CONNECTORS: Final[Mapping[str, Position]] = {
    "postgres": Position(
        {"commit_lsn": "bigint", "lsn": "bigint"},
        ("sequence", "lsn", "commit_lsn", "snapshot"),
        ("lsn", "commit_lsn"),
        _postgres,
    ),
    "mysql": _BINLOG,
    "mariadb": _BINLOG,
    "sqlserver": Position({"commit_lsn": "text"}, ("commit_lsn",), (), _sql_server),
    "oracle": Position({"commit_scn": "numeric(20,0)"}, ("commit_scn", "scn"), (), _oracle),
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


def position_of(version: str | None) -> Position | None:
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

    def read(source: "Source", is_snapshot: "pa.BooleanArray") -> "Sequence[pa.Array]":
        return [_complete(version, source(version), is_snapshot, 0)]

    return Position({version: "bigint"}, (version,), (version,), read)


def version_columns(position: Position | None) -> tuple[Column, ...]:
    """Return the columns of a position, whose values order as the commits do."""
    return tuple(Column(name, type_) for name, type_ in position.columns.items()) if position else ()


def source_types(position: Position) -> "Mapping[str, pa.DataType]":
    """Return the fields of the source that a position is read from, in the types that they are written in."""
    import pyarrow as pa

    return {field: pa.int64() if field in position.numbers else pa.string() for field in position.fields}


def _complete(field: str, values: "pa.Array", is_snapshot: "pa.BooleanArray", first: int | str) -> "pa.Array":
    """Return positions in which a row of a snapshot without one has the first of all."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lowest = pa.scalar(first) if isinstance(first, str) else pa.scalar(first).cast(values.type)
    values = pc.if_else(pc.and_(is_snapshot, values.is_null()), lowest, values)
    if values.null_count:
        raise ValueError(f"the event has no source.{field}, which orders the changes")
    return values


def _file_numbers(files: "pa.StringArray") -> "pa.Array":
    """Return the numbers of binlog files: mysql-bin.1000000 follows mysql-bin.999999, and is less as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    files = pc.if_else(pc.equal(files, ""), pa.scalar(None, pa.string()), files)
    numbers = pc.struct_field(pc.extract_regex(files, _FILE_NUMBER), ["number"])
    if wrong := files.filter(pc.and_(files.is_valid(), numbers.is_null())).to_pylist():
        raise ValueError(
            f"source.file: expected the name of a binlog file with its number, found {wrong[0]!r}"
        )
    return numbers.cast(pa.int64())


def _check(field: str, text: "pa.StringArray", pattern: str, expected: str) -> None:
    import pyarrow.compute as pc

    matches = pc.match_substring_regex(text, pattern)
    if not pc.all(matches, min_count=0).as_py():
        found = text.filter(pc.invert(pc.fill_null(matches, True)))[0].as_py()
        raise ValueError(f"source.{field}: expected {expected}, found {found!r}")
