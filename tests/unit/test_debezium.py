"""Debezium's envelopes: which row an event tells, and which events are refused."""

import json
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import Debezium
from exactbatch.errors import ConfigurationError

FORMAT = Debezium("id int, name text, born date", version="lsn")


def event(op: str | None, before: Any, after: Any, lsn: Any = 7, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "source": {"lsn": lsn, "table": "t"}, **more}


def decode(*events: Any, form: Debezium = FORMAT) -> Any:
    values = [
        None if each is None else each if isinstance(each, bytes) else json.dumps(each).encode()
        for each in events
    ]
    return form.decode(pa.array(values, pa.binary()))


def test_creates_updates_reads_and_deletes() -> None:
    row, old = {"id": 1, "name": "a", "born": "2026-01-02"}, {"id": 1, "name": "old"}
    decoded = decode(event("c", None, row), event("u", old, {**row, "name": "b"}, 8), event("r", None, row))
    assert decoded.rows.column("name").to_pylist() == ["a", "b", "a"]
    assert decoded.rows.column("lsn").to_pylist() == [7, 8, 7]
    assert decoded.rows.schema.field("born").type == pa.date32()
    assert decoded.deleted.to_pylist() == [False] * 3
    gone = decode(event("d", {"id": 1}, None, 9))
    assert gone.rows.to_pylist() == [{"id": 1, "name": None, "born": None, "lsn": 9}]
    assert gone.deleted.to_pylist() == [True]


def test_with_a_schema_beside_it() -> None:
    inner = event("c", None, {"id": 2, "name": "x"})
    decoded = decode({"schema": {"type": "struct", "fields": [{"field": "op"}]}, "payload": inner}, inner)
    assert decoded.rows.column("id").to_pylist() == [2, 2]
    assert decoded.rejects == ()
    deleted = decode({"schema": None, "payload": event("d", {"id": 3}, None)}, inner)
    assert deleted.deleted.to_pylist() == [True, False]


def test_a_tombstone_is_counted_and_is_no_row() -> None:
    decoded = decode(event("d", {"id": 1}, None), None, event("c", None, {"id": 2}))
    assert decoded.tombstones == 1
    assert decoded.kept.to_pylist() == [0, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (event("t", None, None), "expected op c, u, r or d, found 't'"),
        (event(None, None, {"id": 1}), "expected op c, u, r or d, found none"),
        ({"id": 1}, "expected op c, u, r or d, found none"),
        (event("c", {"id": 1}, None), "expected 'after', which holds the row of such an event, found none"),
        (event("d", None, {"id": 1}), "expected 'before'"),
        (event("c", None, {"id": 1}, None), "expected source.lsn, which orders the changes, found none"),
        (event("c", None, {"id": "one"}), "JSON parse error"),
        (event("c", None, {"id": 1, "name": "\0"}), "U+0000"),
        (event("c", None, [1]), "JSON parse error"),
        (b"[]", "expected a JSON object"),
        (b'{"payload": 3}', "JSON parse error"),
    ],
)
def test_an_event_that_is_none_is_a_reject_and_its_neighbours_are_rows(value: Any, said: str) -> None:
    good = event("c", None, {"id": 5})
    decoded = decode(good, value, good)
    assert decoded.kept.to_pylist() == [0, 2]
    ((at, reason),) = decoded.rejects
    assert at == 1
    assert said in reason


def test_no_value_at_all() -> None:
    decoded = decode()
    assert (len(decoded.rows), len(decoded.deleted), decoded.tombstones) == (0, 0, 0)
    assert decode(None).tombstones == 1
    assert Debezium("id int").columns == FORMAT.columns[:1]


def test_a_version_that_is_a_column_of_the_row_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="rename the column"):
        Debezium("id int, lsn bigint", version="lsn")
