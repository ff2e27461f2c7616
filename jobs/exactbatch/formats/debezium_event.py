"""Describe a single value from a Debezium topic, for the reasons of rejects."""

import json
from typing import Any

_NO_EVENT = "Send such events to another topic, or allow for them with max_rejects."


def event_of(value: bytes) -> dict[str, Any]:
    """Return the envelope of an event, bare or as a payload; empty for a value that is not an event."""
    try:
        event = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    if isinstance(event, dict) and isinstance(event.get("payload"), dict):
        event = event["payload"]
    return event if isinstance(event, dict) else {}


def table_of(event: dict[str, Any]) -> str:
    """Return the table of an event, with its schema or database if the event names one."""
    source = event.get("source")
    if not isinstance(source, dict) or not source.get("table"):
        return "the table"
    return ".".join(str(part) for part in (source.get("schema") or source.get("db"), source["table"]) if part)


def other_event(event: dict[str, Any]) -> str | None:
    """Describe an event that is not a change of a row; None for an event that may be one.

    The shapes are those of Debezium's documentation: "truncate events", "message events", "Transaction metadata",
    "Schema change topic", and heartbeat.interval.ms.
    """
    if event.get("op") == "t":
        return (
            f"op 't': {table_of(event)} was truncated at its source. No row can represent that, so the target keeps "
            f"its rows. Delete them by hand, or load the topic under a new pipeline name, and allow for this "
            f"record with max_rejects; skipped.operations=t, the connector's default, omits such events."
        )
    if event.get("op") == "m":
        message = event.get("message")
        prefix = message.get("prefix") if isinstance(message, dict) else None
        return (
            f"op 'm': a logical decoding message (pg_logical_emit_message) with the prefix {prefix!r}, which is "
            f"not a change of a row. {_NO_EVENT}"
        )
    if "op" in event:
        return None
    if event.keys() <= {"ts_ms", "ts_us", "ts_ns"} and event:
        return f"a heartbeat of the connector, which is not a change of a row. {_NO_EVENT}"
    if event.get("status") in ("BEGIN", "END") and "id" in event:
        return f"transaction metadata ({event['status']}), which is not a change of a row. {_NO_EVENT}"
    if "ddl" in event or "tableChanges" in event:
        return f"a schema change, which is not a change of a row. {_NO_EVENT}"
    return None
