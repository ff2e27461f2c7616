"""Records of Debezium's connectors, with or without their schemas."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from support.debezium_types import Schema, envelope, typed

# The fields of the source next to the common ones, as each connector's SourceInfoStructMaker declares them.
_COMMON: Final = {
    **dict.fromkeys(("version", "connector", "name", "snapshot", "db", "sequence", "table"), "string"),
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), "int64"),
}
_BINLOG: Final = {
    **dict.fromkeys(("server_id", "pos", "thread"), "int64"),
    **dict.fromkeys(("gtid", "file", "query"), "string"),
    "row": "int32",
}
_SOURCES: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": {"schema": "string", **dict.fromkeys(("txId", "lsn", "commit_lsn", "xmin"), "int64")},
    "mysql": _BINLOG,
    "mariadb": _BINLOG,
    "sqlserver": {
        **dict.fromkeys(("schema", "change_lsn", "commit_lsn"), "string"),
        "event_serial_no": "int64",
    },
    "oracle": {
        **dict.fromkeys(("schema", "txId", "scn", "commit_scn", "lcr_position", "rs_id"), "string"),
        **dict.fromkeys(("start_scn", "user_name", "redo_sql", "row_id"), "string"),
        **dict.fromkeys(("ssn", "txSeq", "commit_ts_ms", "start_ts_ms"), "int64"),
        "redo_thread": "int32",
    },
}
COLUMNS: Final = {"id": typed("int32"), "note": typed("string"), "body": typed("string")}
_SCHEMAS: Final = {
    connector: envelope(COLUMNS, {name: typed(kind) for name, kind in {**_COMMON, **fields}.items()})
    for connector, fields in _SOURCES.items()
}
_KEY_SCHEMA: Final = {
    "type": "struct",
    "optional": False,
    "fields": [{**typed("int32"), "field": "id", "optional": False}],
}
_TIME: Final = 1_767_225_600_000  # ms since 1970


@dataclass(frozen=True)
class Event:
    """A record of a connector. A tombstone has no operation, and a truncate no key."""

    key: int | None
    operation: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    source: dict[str, Any]

    def partition(self, count: int) -> int:
        """Return the partition of the key among this number of partitions."""
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
                "ts_ms": _TIME,
            }
        schema = _SCHEMAS[self.source["connector"]]
        return _json(key, _KEY_SCHEMA, has_schema), _json(value, schema, has_schema)


def _json(value: Any, schema: Schema, has_schema: bool) -> bytes | None:
    if value is None:
        return None
    value = {"schema": schema, "payload": value} if has_schema else value
    return json.dumps(value, separators=(",", ":")).encode()


def source_of(connector: str, table: str, position: dict[str, Any]) -> dict[str, Any]:
    """Return the source of a streamed change; what the connector leaves out of a position is not in it."""
    names = [*_COMMON, *_SOURCES[connector]]
    assert all(name in names for name in position), position
    return {
        "version": "3.4.0.Final",
        "connector": connector,
        "name": "shop",
        "ts_ms": _TIME,
        "snapshot": "false",
        "db": "shop",
        "ts_us": _TIME * 1_000,
        "ts_ns": _TIME * 1_000_000,
        "table": table,
        **position,
    }
