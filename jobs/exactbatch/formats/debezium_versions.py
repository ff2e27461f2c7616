"""Which fields of an event's source order the changes of a row, for each connector of Debezium."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

# The position of a change, as the connector's SourceInfoStructMaker writes it. MongoDB's events have none: their ts_ms
# is the clock of the server (wallTime) since MongoDB 6.
CONNECTORS: Final[Mapping[str, tuple[str, ...]]] = {
    "postgres": ("lsn",),
    "mysql": ("file", "pos", "row"),
    "mariadb": ("file", "pos", "row"),
    "sqlserver": ("commit_lsn", "change_lsn", "event_serial_no"),
    "oracle": ("commit_scn", "scn"),
}
_TYPES: Final = {
    "commit_lsn": "text",
    "change_lsn": "text",
    "commit_scn": "numeric(20,0)",
    "scn": "numeric(20,0)",
}
_WRITTEN_AS_TEXT: Final = ("file", "commit_lsn", "change_lsn", "commit_scn", "scn")
# Lsn.toString() of the SQL Server connector.
_LSN: Final = "^[0-9a-f]{8}:[0-9a-f]{8}:[0-9a-f]{4}$"
_FIRST_LSN: Final = "00000000:00000000:0000"
_FILE_NUMBER: Final = r"^.*\.(?P<number>[0-9]{1,18})$"
_SCN: Final = "^[0-9]{1,20}$"

_POSITION: Final = "a position inside a binlog file, which starts again with each new file"
_CLOCK: Final = "a clock, which can repeat a time and go back"
_TRANSACTION: Final = "a transaction number, and transactions do not commit in the order of their numbers"
_INSIDE: Final = "a position inside a transaction or second"
_PART: Final = "only a part of a change's position"
_GTID: Final = "a number of its own for each server, which does not order the transactions of several servers"
_NO_ORDER: Final = {
    **dict.fromkeys(("pos", "row", "file", "server_id", "thread"), _POSITION),
    **dict.fromkeys(("gtid", "vgtid"), _GTID),
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns", "ts_sec", "ts_usec", "wallTime"), _CLOCK),
    **dict.fromkeys(("txId", "xmin"), _TRANSACTION),
    **dict.fromkeys(("event_serial_no", "ssn", "ord"), _INSIDE),
    **dict.fromkeys(("change_lsn", "commit_lsn", "scn", "commit_scn"), _PART),
    "sequence": "not an integer",
}


def version_fields(version: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the fields of `source` that a version names, or that a connector's name stands for.

    Raises ConfigurationError for fields that do not order the changes of a row.
    """
    if version is None:
        return ()
    fields = CONNECTORS.get(version, (version,)) if isinstance(version, str) else tuple(version)
    if fields in CONNECTORS.values():
        return fields
    if not fields:
        raise ConfigurationError(
            "version=(): expected the fields of source that order the changes, found none"
        )
    for field in fields:
        if field in _NO_ORDER:
            raise ConfigurationError(
                f"version={version!r}: source.{field} is {_NO_ORDER[field]}, so that newer changes could count as "
                f"older ones. Use the version of your connector: {_listed()}. Or give Debezium and the Upsert no "
                f"version: all changes of a key are in one partition by default."
            )
    if len(fields) > 1:
        raise ConfigurationError(
            f"version={version!r}: these fields of source are not the position of a connector. Use one of "
            f"{_listed()}"
        )
    return fields


def _listed() -> str:
    return ", ".join(f"{name!r} for {fields}" for name, fields in CONNECTORS.items())


def version_columns(fields: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of a version, whose values order as the changes do."""
    return tuple(Column(field, _TYPES.get(field, "bigint")) for field in fields)


def written_as(field: str) -> "pa.DataType":
    """Return the type in which a source has a field of a version."""
    import pyarrow as pa

    return pa.string() if field in _WRITTEN_AS_TEXT else pa.int64()


def versions_of(
    fields: Sequence[str], source: "Callable[[str], pa.Array]", is_snapshot: "pa.BooleanArray"
) -> "list[pa.Array]":
    """Return the columns of a version from fields of the source.

    A row of a snapshot may lack its position, or a part of it: it then is older than any change that was streamed,
    as far as its position says. A row of a snapshot of Postgres is always older: a transaction that was open while the
    snapshot was taken has changes with smaller positions, and the snapshot has not seen them.

    Raises ValueError for a change that lacks a part, and for text that is no position.
    """
    return [_column(field, source, is_snapshot) for field in fields]


def _column(field: str, source: "Callable[[str], pa.Array]", is_snapshot: "pa.BooleanArray") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    values = source(field)
    if field == "lsn":
        values = pc.if_else(is_snapshot, pa.scalar(None, values.type), values)
    elif field == "file":
        values = _file_numbers(values)
    elif field in ("commit_lsn", "change_lsn"):
        _check(field, values, _LSN, "a log sequence number, such as 0000002b:000002e8:0003")
    elif field in ("commit_scn", "scn"):
        _check(field, values, _SCN, "one system change number")
        values = values.cast(pa.decimal128(20, 0))
        if field == "commit_scn":
            # A snapshot reads as of its scn, which is above the commits that it has seen and below those to come.
            seen = _column("scn", source, is_snapshot)
            values = pc.if_else(pc.and_(is_snapshot, values.is_null()), seen, values)
    first = pa.scalar(_FIRST_LSN) if pa.types.is_string(values.type) else pa.scalar(0).cast(values.type)
    values = pc.if_else(pc.and_(is_snapshot, values.is_null()), first, values)
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
