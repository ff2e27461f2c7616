"""Events that ExtractNewRecordState has flattened: which row an event tells, deletes, and which events are refused."""

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import Append, Flattened, Json, Pipeline, Upsert, WithKeyAndHeaders
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoders import find_decoder
from exactbatch.testing import Record, load
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import decimal, encoded, time, typed, unscaled

PLACEHOLDER = "__debezium_unavailable_value"
FORMAT = Flattened("id int, name text")
WITH_OP = Flattened("id int, name text, op text from '__op'")


def written(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def decode(*values: Any, form: Flattened = FORMAT) -> Any:
    return find_decoder(form).decode_with_unavailable(pa.array(list(map(written, values)), pa.binary()))


def deleted(*values: Any, form: Flattened = FORMAT) -> list[bool]:
    decoded = decode(*values, form=form)
    assert decoded.rejects == ()
    return list(decoded.deleted.to_pylist())


def reasons(*values: Any, form: Flattened = FORMAT) -> list[str]:
    decoded = decode(*values, form=form)
    assert [at for at, _ in decoded.rejects] == list(range(len(values)))
    return [reason for _, reason in decoded.rejects]


def row_schema(name: str = "shop.public.t.Value", **fields: Any) -> dict[str, Any]:
    """The schema of a flattened event, as Connect's JSON converter writes it."""
    return {
        "type": "struct",
        "fields": [{**schema, "field": each} for each, schema in fields.items()],
        "optional": False,
        "name": name,
    }


def with_schema(schema: dict[str, Any], payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def test_text_and_booleans_say_whether_an_event_is_a_delete():
    row = {"id": 1, "name": "a"}
    events = [{**row, "__deleted": each} for each in ("false", "true", False, True)]
    assert deleted(*events) == [False, True, False, True]
    assert deleted(*events[:2]) == deleted(*events[2:]) == [False, True]
    assert deleted(row, {**row, "__deleted": None}) == [False, False]
    assert decode(*events).rows.to_pylist() == [row] * 4


def test_the_operation_says_it_as_well():
    events = [{"id": 1, "__op": op} for op in "curd"]
    assert deleted(*events) == [False, False, False, True]
    assert deleted(*events, form=WITH_OP) == [False, False, False, True]
    assert decode(*events, form=WITH_OP).rows.column("op").to_pylist() == list("curd")


def test_what_an_event_says_of_its_deletion_may_not_be_unclear():
    found = reasons(
        {"id": 1, "__deleted": "yes"},
        {"id": 1, "__deleted": 1},
        {"id": 1, "__deleted": "true", "__op": "u"},
        {"id": 1, "__deleted": False, "__op": "d"},
        {"id": 1, "__op": "t"},
        b'{"id": 1, "__deleted": "false", "__deleted": "true"}',
    )
    assert found == [
        "__deleted: expected true or false, found 'yes'",
        "__deleted: expected string, found number",
        "__deleted is true, and __op is 'u'",
        "__deleted is false, and __op is 'd'",
        "expected op c, u, r or d, found 't'",
        "Column(/__deleted) was specified twice",
    ]


def test_an_object_that_is_no_row_is_a_reject():
    envelope = {"before": None, "after": {"id": 1}, "source": {"lsn": 1}, "op": "c", "ts_ms": 5}
    is_envelope = (
        "the value is an envelope of Debezium, {before, after, op, source}, and not flattened: decode the topic with "
        "Debezium(…)"
    )
    assert reasons(envelope, {**envelope, "before": {"id": 1}, "op": "u"}) == [is_envelope] * 2
    assert reasons(envelope, form=Flattened("op text, ts_ms bigint")) == [is_envelope]
    image = {**row_schema(id=typed("int32")), "field": "after"}
    source = {**row_schema(lsn=typed("int64")), "field": "source"}
    schema = {**row_schema(op=typed("string")), "name": "shop.public.t.Envelope"}
    schema["fields"] += [image, source]
    assert reasons(with_schema(schema, envelope), form=Flattened("op text")) == [is_envelope]
    lacks = "the event has none of the fields of the columns: it has"
    assert reasons({"x": 1, "y": 2}, {"payload": {"id": 1}}, {}, b"[1]") == [
        f"{lacks} 'x', 'y'",
        f"{lacks} 'payload'",
        f"{lacks} none at all",
        "expected a JSON object: { … }",
    ]
    assert reasons(with_schema(row_schema(x=typed("int32")), {"x": 1})) == [f"{lacks} 'x'"]


def test_a_table_may_have_columns_like_those_of_an_envelope():
    """Audit tables have them: what is in them is text."""
    row = {
        "op": "u",
        "before": "{}",
        "after": "{}",
        "source": "app",
        "ts_ms": 1,
        "status": "BEGIN",
        "id": "x",
    }
    form = Flattened("op text, after jsonb, source text, ts_ms bigint, status text, id text")
    names = [column.name for column in form.columns]
    schema = row_schema(**{name: typed("int64" if name == "ts_ms" else "string") for name in row})
    for event in (row, with_schema(schema, row)):
        assert decode(event, form=form).rows.to_pylist() == [{name: row[name] for name in names}]
    assert decode({"ts_ms": 1}, form=form).rows.num_rows == 1


def test_the_connectors_own_events_are_counted():
    own = [
        with_schema(
            row_schema(f"io.debezium.connector.{name}", ts_ms=typed("int64"), id=typed("string")), value
        )
        for name, value in (
            ("common.Heartbeat", {"ts_ms": 1}),
            ("common.TransactionMetadataValue", {"ts_ms": 1, "id": "571"}),
        )
    ]
    decoded = decode(*own, {"ts_ms": 1}, {"ts_ms": 1, "ts_us": 2, "ts_ns": 3}, {"id": 1})
    assert (decoded.tombstones, decoded.rejects, len(decoded.rows)) == (4, (), 1)


def test_a_schema_gives_values_their_meaning(monkeypatch):
    form = "id int, price numeric(10,2), born date, at timestamp, big numeric, body bytea, tags text[], note text"
    schema = row_schema(
        id=typed("int32"),
        price=decimal(2),
        born=time("int32", "Date"),
        at=time("int64", "MicroTimestamp"),
        big=decimal(3),
        body=typed("bytes"),
        tags={**typed("array"), "items": typed("string")},
        note=typed("string"),
        __deleted=typed("string"),
    )
    row = {
        "id": 1,
        "price": unscaled(125),
        "born": 20455,
        "at": 1_767_225_600_000_001,
        "big": unscaled(-5),
        "body": encoded(b"\0x"),
        "tags": ["a", None],
        "note": None,
        "__deleted": "false",
    }
    events = [row, {**row, "__deleted": "true"}, {**row, "tags": [PLACEHOLDER]}]
    monkeypatch.setattr(
        "exactbatch.formats.avro.bodies.fetch_schema", lambda *_: json.dumps(avro_schema(schema))
    )
    for registry in (None, "http://registry"):
        values = [
            with_schema(schema, event) if registry is None else b"\0\0\0\0\1" + avro_body(schema, event)
            for event in events
        ]
        decoded = decode(*values, form=Flattened(form, registry=registry))
        assert decoded.rejects == ()
        expected = {
            "id": 1,
            "price": Decimal("1.25"),
            "born": date(2026, 1, 2),
            "at": datetime(2026, 1, 1, 0, 0, 0, 1),
            "big": "-0.005",
            "body": b"\0x",
            "tags": ["a", None],
            "note": None,
        }
        assert decoded.rows.to_pylist() == [expected, expected, {**expected, "tags": None}]
        assert decoded.deleted.to_pylist() == [False, True, False]
        assert decoded.unavailable.to_pylist() == [None, None, ["tags"]]


def test_avro_of_other_kinds(monkeypatch):
    names = {"own": "io.debezium.connector.common.Heartbeat", "other": "shop.public.t.Value"}
    for name, expected in (("own", 1), ("other", 0)):
        schema = row_schema(names[name], ts_ms=typed("int64"), x=typed("int64"))
        text = json.dumps(avro_schema(schema))
        monkeypatch.setattr("exactbatch.formats.avro.bodies.fetch_schema", lambda *_, text=text: text)
        value = b"\0\0\0\0\1" + avro_body(schema, {"ts_ms": 1, "x": 2})
        decoded = decode(value, value, form=Flattened("id int", registry=f"http://{name}"))
        assert (decoded.tombstones, len(decoded.rejects)) == (2 * expected, 2 - 2 * expected)
    schema = row_schema(id=typed("int32"), __deleted=typed("boolean"))
    text = json.dumps(avro_schema(schema))
    monkeypatch.setattr("exactbatch.formats.avro.bodies.fetch_schema", lambda *_: text)
    values = [b"\0\0\0\0\1" + avro_body(schema, {"id": 1, "__deleted": each}) for each in (False, True)]
    assert deleted(*values, form=Flattened("id int", registry="http://boolean")) == [False, True]


def test_decimals_without_a_schema_are_not_guessed():
    [reason] = reasons({"id": 1, "n": "1234"}, form=Flattened("id int, n numeric(10,2)"))
    assert "declare decimals='string'" in reason
    stored = decode({"id": 1, "n": "1234"}, form=Flattened("id int, n numeric(10,2)", decimals="string"))
    assert stored.rows.column("n").to_pylist() == [Decimal("1234.00")]


def test_only_a_value_of_an_update_is_kept():
    out = {"id": 1, "name": PLACEHOLDER}
    kept = [{**out, "__op": "u"}, {**out, "__deleted": "false"}, {**out, "__op": "u", "__deleted": "false"}]
    assert decode(*kept).unavailable.to_pylist() == [["name"]] * 3
    assert decode({**out, "__op": "d"}).unavailable is None
    refused = reasons(out, {**out, "__op": "c"}, {**out, "__op": "r", "__deleted": "false", "__table": "t"})
    assert "add op to the connector's add.fields" in refused[0]
    assert not any("add.fields" in reason for reason in refused[1:])
    assert "alter table t replica identity full" in refused[2]
    with_rejects = find_decoder(FORMAT).decode(pa.array(list(map(written, kept)), pa.binary()))
    assert len(with_rejects.rejects) == 3


NULLS = (
    None,
    b"null",
    {"schema": row_schema(id=typed("int32")), "payload": None},
    {"schema": None, "payload": None},
)


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("key", [Flattened("id int"), Json("id int")], ids=["own", "json"])
def test_a_null_deletes_the_row_of_its_key_however_it_is_written(history, key):
    pipeline = Pipeline(
        name="p",
        topics=("t",),
        value=FORMAT,
        message_key=key,
        sink=Upsert("public.t", key=("id",), history=history),
    )
    records = [Record(written({"id": number, "name": "a"}), b"{}") for number in range(6)]
    records += [Record(written(null), written({"id": number})) for number, null in enumerate(NULLS)]
    records.append(Record(written({"id": 4, "name": None, "__deleted": "true"}), written({"id": 4})))
    records.append(Record(None, written({"id": 4})))
    records.append(Record(written({"ts_ms": 1}), b"x"))
    loaded = load(pipeline, records)
    assert loaded.rejects == []
    assert loaded.target == [{"id": 5, "name": "a"}]


def test_a_delete_whose_key_is_null_is_a_reject_however_it_is_written():
    sink = Upsert("public.t", key=("id",))
    pipeline = Pipeline(name="p", topics=("t",), value=FORMAT, message_key=Flattened("id int"), sink=sink)
    keys = [*map(written, NULLS), written({"ts_ms": 1}), written({"id": None})]
    rejects = load(pipeline, [Record(None, key) for key in keys]).rejects
    assert [reject.reason for reject in rejects] == [
        *["key: expected a key, found null"] * 5,
        "column 'id': the key is null",
    ]


def test_a_null_without_a_key_format_is_a_reject_and_in_an_append_a_tombstone():
    sink = Upsert("public.t", key=("id",))
    pipeline = Pipeline(name="p", topics=("t",), value=FORMAT, sink=sink)
    rejects = load(pipeline, list(map(written, NULLS))).rejects
    assert ["does not say what the key is" in reject.reason for reject in rejects] == [True] * 4
    appended = load(
        Pipeline(name="p", topics=("t",), value=FORMAT, sink=Append("public.t")), [b"null", b"{}"]
    )
    assert len(appended.rejects) == 1
    row = {"schema": {"a": 1}, "payload": None, "id": 1}
    assert decode(row, {"schema": "s", "payload": None, "id": None}).written_nulls is None


def test_what_the_format_cannot_have_is_refused():
    with pytest.raises(
        ConfigurationError, match="Flattened makes deletes of the field '__deleted', and no column"
    ):
        Flattened("id int, gone boolean from '__deleted'")
    with pytest.raises(TypeError):
        Flattened("id int", version="lsn")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="Flattened with a registry"):
        Flattened("id int", registry="http://registry", decimals="string")


@pytest.mark.parametrize("history", [True, False])
def test_a_field_that_the_connector_adds_is_no_version(history):
    value = Flattened("id int, lsn bigint from '__lsn', version int")
    for form in (value, WithKeyAndHeaders(value, all_headers="headers")):
        sink = Upsert("public.t", key=("id",), version="lsn", history=history)
        with pytest.raises(ConfigurationError, match="version='lsn': a field that the connector adds"):
            Pipeline(name="p", topics=("t",), value=form, sink=sink)
    own = Upsert("public.t", key=("id",), version="version", history=history)
    assert Pipeline(name="p", topics=("t",), value=value, sink=own).traits.version_columns == ("version",)


def test_a_compacted_log_without_values_that_were_left_out_is_not_replayed():
    sink = Upsert("public.t", key=("id",))
    pipeline = Pipeline(name="p", topics=("t",), value=FORMAT, message_key=Json("id int"), sink=sink)
    assert not pipeline.replays_compacted
