"""Read the positions of changes from the sources of events."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.debezium.commit_positions import CommitPosition

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


def _postgres(source: Source, is_snapshot: pa.BooleanArray) -> Sequence[pa.Array]:
    """Return the commit that a change's position counts from, and its position.

    commit_lsn, the commit of the change's own transaction, is proposed for connectors to come. It is at least as great
    as `sequence` says, and less than that of any later transaction, so that a topic may have both. A row of a snapshot
    is older than any streamed change, because a transaction that was open while it was taken has changes with smaller
    positions, which the snapshot has not seen. The rows of an incremental snapshot have the position of the stream.
    """
    sequence = source("sequence")
    _check("sequence", sequence, _SEQUENCE, 'two positions, such as ["24023119","24023128"]')
    parts = pc.extract_regex(sequence, _SEQUENCE)
    has_no_place = pc.and_(is_snapshot, pc.fill_null(pc.not_equal(source("snapshot"), _INCREMENTAL), True))

    def part(name: str, field: str) -> pa.Array:
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


def _binlog(source: Source, is_snapshot: pa.BooleanArray) -> Sequence[pa.Array]:
    """Return the number of the binlog file, and the position of the event in it, which several rows share.

    The number of the row is no position: in a compressed transaction it starts again with each event, and all events
    have one position.
    """
    return [
        _complete("file", _file_numbers(source("file")), is_snapshot, 0),
        _complete("pos", source("pos"), is_snapshot, 0),
    ]


def _sql_server(source: Source, is_snapshot: pa.BooleanArray) -> Sequence[pa.Array]:
    """Return the log sequence number of the commit; __$seqval, the change_lsn, does not order a transaction."""
    values = source("commit_lsn")
    _check("commit_lsn", values, _LSN, "a log sequence number, such as 0000002b:000002e8:0003")
    return [_complete("commit_lsn", values, is_snapshot, _FIRST_LSN)]


def _oracle(source: Source, is_snapshot: pa.BooleanArray) -> Sequence[pa.Array]:
    """Return the system change number of the commit, which the changes of a transaction share.

    A snapshot reads as of its scn, which is not below the commits that it has seen and below those to come.
    """

    def numbers(field: str) -> pa.Array:
        _check(field, source(field), _SCN, "one system change number")
        return source(field).cast(pa.decimal128(20, 0))

    commits = numbers("commit_scn")
    commits = pc.if_else(pc.and_(is_snapshot, commits.is_null()), numbers("scn"), commits)
    return [_complete("commit_scn", commits, is_snapshot, 0)]


def source_types(position: CommitPosition) -> Mapping[str, pa.DataType]:
    """Return the fields of the source that a position is read from, in the types that they are written in."""
    return {field: pa.int64() if field in position.numbers else pa.string() for field in position.fields}


def _complete(field: str, values: pa.Array, is_snapshot: pa.BooleanArray, first: int | str) -> pa.Array:
    """Return positions in which a row of a snapshot without one has the first of all."""
    lowest = pa.scalar(first) if isinstance(first, str) else pa.scalar(first).cast(values.type)
    values = pc.if_else(pc.and_(is_snapshot, values.is_null()), lowest, values)
    if values.null_count:
        raise ValueError(f"the event has no source.{field}, which orders the changes")
    return values


def _file_numbers(files: pa.StringArray) -> pa.Array:
    """Return the numbers of binlog files: mysql-bin.1000000 follows mysql-bin.999999, and is less as text."""
    files = pc.if_else(pc.equal(files, ""), pa.scalar(None, pa.string()), files)
    numbers = pc.struct_field(pc.extract_regex(files, _FILE_NUMBER), ["number"])
    if wrong := files.filter(pc.and_(files.is_valid(), numbers.is_null())).to_pylist():
        raise ValueError(
            f"source.file: expected the name of a binlog file with its number, found {wrong[0]!r}"
        )
    return numbers.cast(pa.int64())


def _check(field: str, text: pa.StringArray, pattern: str, expected: str) -> None:
    matches = pc.match_substring_regex(text, pattern)
    if not pc.all(matches, min_count=0).as_py():
        found = text.filter(pc.invert(pc.fill_null(matches, True)))[0].as_py()
        raise ValueError(f"source.{field}: expected {expected}, found {found!r}")


_READERS: Final[Mapping[str, Callable[[Source, pa.BooleanArray], Sequence[pa.Array]]]] = {
    "postgres": _postgres,
    "mysql": _binlog,
    "mariadb": _binlog,
    "sqlserver": _sql_server,
    "oracle": _oracle,
}


def read_position(version: str, source: Source, is_snapshot: pa.BooleanArray) -> Sequence[pa.Array]:
    """Return the columns of the position that a version stands for, from the source and from which events are rows of a
    snapshot.

    Raises ValueError for a change that lacks a part, and for text that is no position. A row of a snapshot may lack its
    position, or a part of it: it then is older than any change that was streamed, as far as its position says.
    """
    if (read := _READERS.get(version)) is not None:
        return read(source, is_snapshot)
    return [_complete(version, source(version), is_snapshot, 0)]
