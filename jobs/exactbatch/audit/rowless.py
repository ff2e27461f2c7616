"""Find records that rightly give no row, although their value is not null: Debezium's events that carry no row, and
nulls in the envelope of Kafka Connect.

The auditor tells them apart by rules of its own. It parses only records that have no row, and those that do not look
like the change of a row.
"""

import io
import json
from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.audit.audit_result import Offsets
from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.offset_sets import Flags
from exactbatch.formats import Debezium, Flattened, Format, Json, WithKeyAndHeaders
from exactbatch.formats.avro.bodies import bounded, read
from exactbatch.formats.registry.frames import unframe
from exactbatch.formats.registry.registry_properties import with_registry
from exactbatch.formats.registry.schemas import fetch_schema
from exactbatch.formats.registry.wire_format import SchemaId

_TRANSACTION_BOUNDARY: Final = ("BEGIN", "END")  # transaction metadata
_PREFIXES: Final = {0: 5, 1: 17}  # the bytes of a prefix by its first one: 0 and an ID, or 1 and a GUID
# The JSON of each change of a row has this, and the JSON of an event without a row never has: quotes in strings are
# escaped.
_CHANGE: Final = r'"op"\s*:\s*"[^m"]"'
_NULL_PAYLOAD: Final = r'"payload"\s*:\s*null'
_HEARTBEAT: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})
# What may be in JSON of a flattened topic that is not a row.
_MAYBE_NO_ROW: Final = (
    r'^null$|"payload"\s*:\s*null|"name"\s*:\s*"io\.debezium\.connector\.|^\s*\{\s*"ts_(?:ms|us|ns)"'
)


class RowlessEvents:
    """Knows the events of a Debezium pipeline that have no row."""

    def __init__(self, registry: str | None, properties: Mapping[str, Any]) -> None:
        """`registry` is the address of the schema registry of Avro values, and `properties` are the properties of its
        client."""
        self._registry, self._properties = registry, properties

    def among(self, offsets: Offsets, records: LogRecords, is_found: Flags) -> Offsets:
        """Return the offsets of the records whose events carry no row; `is_found` says which have a row or a reject."""
        values = records.values()
        if self._registry is not None:
            values = unframe(self._registry, "value", values, records).values
        at = np.flatnonzero(~is_found | ~self._are_changes(values))
        is_rowless = np.fromiter(
            (self._is_rowless(value.as_py()) for value in values.take(pa.array(at))), bool, len(at)
        )
        rowless: Offsets = offsets[at[is_rowless]]
        return rowless

    def _are_changes(self, values: pa.BinaryArray) -> Flags:
        """Return which values look like changes of rows; no event without a row does."""
        if self._registry is None:
            is_change = pc.match_substring_regex(values, _CHANGE)
        else:
            prefixes = pa.array([value and _prefix(value) for value in values.to_pylist()], pa.binary())
            of_changes = [
                prefix for prefix in prefixes.unique() if self._is_of_changes(prefix.as_py(), self._registry)
            ]
            is_change = pc.is_in(prefixes, pa.array(of_changes, pa.binary()))
        flags: Flags = is_change.fill_null(True).to_numpy(zero_copy_only=False)  # null: a tombstone
        return flags

    def _is_of_changes(self, prefix: bytes | None, registry: str) -> bool:
        """True if all events of a schema are changes of rows."""
        match None if prefix is None else self._find_schema(prefix, registry):
            case {"fields": list() as fields}:
                names = {field["name"] for field in fields}
                return "op" in names and "message" not in names
            case _:
                return False

    def _is_rowless(self, value: bytes | None) -> bool:
        if value is None:
            return False  # a tombstone, which is known already
        document = _from_json(value) if self._registry is None else self._from_avro(value, self._registry)
        match document:
            case {"payload": dict() as payload}:
                return describes_no_row(payload)
            case dict():
                return describes_no_row(document)
            case _:
                return False

    def _from_avro(self, value: bytes, registry: str) -> Any:
        """Return what a value in the wire format holds; None for any other."""
        prefix = _prefix(value)
        schema = self._find_schema(prefix, registry)
        if schema is None:
            return None
        body = io.BytesIO(value[len(prefix) :])
        try:
            decoded = read(body, bounded(fastavro.parse_schema(schema)))
        except MemoryError:
            raise
        except Exception:  # fastavro raises errors of many types for broken bytes
            return None
        return None if body.read(1) else decoded

    def _find_schema(self, prefix: bytes, registry: str) -> Any:
        """Return the schema that a prefix in the wire format names; None for any other prefix."""
        if not prefix or len(prefix) < _PREFIXES[prefix[0]]:
            return None
        schema_id: SchemaId = UUID(bytes=prefix[1:]) if prefix[0] else int.from_bytes(prefix[1:], "big")
        if isinstance(schema_id, int) and schema_id >= 2**31:  # no registry has such IDs
            return None
        try:
            schema = fetch_schema(registry, schema_id, self._properties)
        except ValueError:  # it is no Avro schema
            return None
        return None if schema is None else json.loads(schema)


class EnvelopedNulls:
    """Knows the nulls in an envelope, {"schema":null,"payload":null}, of a pipeline that reads members of payloads."""

    def among(self, offsets: Offsets, records: LogRecords, is_found: Flags) -> Offsets:  # noqa: ARG002
        """Return the offsets of the records whose value is such a null."""
        values = records.values()
        may_be = pc.match_substring_regex(values, _NULL_PAYLOAD).fill_null(False)
        at = np.flatnonzero(may_be.to_numpy(zero_copy_only=False))
        is_null = [_is_null(_from_json(value.as_py())) for value in values.take(pa.array(at))]
        nulls: Offsets = offsets[at[np.array(is_null, bool)]]
        return nulls


def _is_null(document: Any) -> bool:
    match document:
        case {"schema": _, "payload": None, **rest} if not rest:
            return True
        case _:
            return False


def _prefix(value: bytes) -> bytes:
    """Return the first bytes of a value, as many as its first one announces; none for a value without a prefix."""
    return value[: _PREFIXES.get(value[0], 0)] if value else b""


class RowlessFlattenedEvents(RowlessEvents):
    """Knows the records without a row of a pipeline whose events are flattened: the connector's own events.

    With `with_nulls`, JSON's nulls, bare or next to a schema, give no row, either.
    """

    def __init__(
        self,
        registry: str | None,
        properties: Mapping[str, Any],
        fields: Collection[str],
        *,
        with_nulls: bool,
    ) -> None:
        """`fields` are those that the columns take."""
        super().__init__(registry, properties)
        self._fields, self._with_nulls = frozenset(fields), with_nulls

    def _are_changes(self, values: pa.BinaryArray) -> Flags:
        if self._registry is not None:
            return super()._are_changes(values)
        is_row = pc.invert(pc.match_substring_regex(values, _MAYBE_NO_ROW))
        flags: Flags = is_row.fill_null(True).to_numpy(zero_copy_only=False)
        return flags

    def _is_of_changes(self, prefix: bytes | None, registry: str) -> bool:
        match None if prefix is None else self._find_schema(prefix, registry):
            case {"fields": list()} as schema:
                return not self._is_of_own(schema)
            case _:
                return False

    def _is_of_own(self, schema: Any) -> bool:
        """True for a schema of Avro that is one of the connector's own events."""
        if not isinstance(schema, dict):
            return False
        names = {field["name"] for field in schema.get("fields", ())}
        is_heartbeat = "ts_ms" in names and names <= _HEARTBEAT and not names & self._fields
        return is_heartbeat or _is_own(schema.get("connect.name"))

    def _is_rowless(self, value: bytes | None) -> bool:
        if value is None:
            return False  # a tombstone, which is known already, or deletes a row
        if self._registry is not None:
            return self._is_of_own(self._find_schema(_prefix(value), self._registry))
        match _from_json(value):
            case None:
                return self._with_nulls and value == b"null"
            case {"schema": dict() | None, "payload": None, **rest} if not rest:
                return self._with_nulls
            case {"schema": {"name": str(name)}, "payload": dict()}:
                return _is_own(name)
            case {"ts_ms": _, **rest}:
                return rest.keys() <= _HEARTBEAT and not self._fields & {"ts_ms", *rest}
            case _:
                return False


def _is_own(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("io.debezium.connector.")


def find_rowless(
    value: Format, kafka: Mapping[str, Any], *, with_nulls: bool
) -> RowlessEvents | EnvelopedNulls | None:
    """Return what finds such records of a pipeline; None if its format has none. `kafka` are the properties of Kafka's
    connection, and `with_nulls` says whether a null gives no row."""
    match with_registry(value.value if isinstance(value, WithKeyAndHeaders) else value, kafka):
        case Flattened() as format_:
            fields = format_.field_names.values()
            return RowlessFlattenedEvents(format_.registry, format_.properties, fields, with_nulls=with_nulls)
        case Debezium() as format_:
            return RowlessEvents(format_.registry, format_.properties)
        case Json(reads_payloads=True) if with_nulls:
            return EnvelopedNulls()
        case _:
            return None


def _from_json(value: bytes) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def describes_no_row(event: Mapping[str, Any]) -> bool:
    """True for a logical decoding message, the boundary of a transaction, a schema change, a heartbeat, and a null in
    an envelope."""
    if _is_null(event):
        return True
    match event:
        case {"op": operation}:
            return operation == "m" and isinstance(event.get("message"), dict)
        case {"status": status, "id": str()} if status in _TRANSACTION_BOUNDARY:
            return True
        case {"source": dict(), "ddl": _} | {"source": dict(), "tableChanges": _}:
            return event.get("status") not in _TRANSACTION_BOUNDARY
        case {"ts_ms": _}:
            return event.keys() <= _HEARTBEAT
        case _:
            return False
