"""Debezium's envelopes: which row an event tells, and which events are refused."""

import base64
import json
from datetime import date
from math import isnan
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import Debezium, Pipeline, Upsert
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoders import find_decoder
from exactbatch.testing import load
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import envelope, time, typed

FORMAT = Debezium("id int, name text, born date", version="position")


def event(op: str | None, before: Any, after: Any, position: Any = 7, **more: Any) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "op": op,
        "source": {"position": position, "table": "t"},
        **more,
    }


def envelope_schema(**columns: Any) -> dict[str, Any]:
    """The schema that Connect's JSON converter writes for an envelope, with the schemas of its row's columns."""
    fields = [{"optional": True, **schema, "field": name} for name, schema in columns.items()]
    row = {"type": "struct", "fields": fields, "optional": True, "name": "shop.public.t.Value"}
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {"type": "struct", "fields": [], "optional": False, "field": "source"},
            {"type": "string", "optional": False, "field": "op"},
        ],
        "optional": False,
        "name": "shop.public.t.Envelope",
    }


def compact(value: Any) -> bytes:
    """JSON as Connect's converter writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def decode(*events: Any, form: Debezium = FORMAT) -> Any:
    values = [
        None if each is None else each if isinstance(each, bytes) else json.dumps(each).encode()
        for each in events
    ]
    return find_decoder(form).decode(pa.array(values, pa.binary()))


LONG_NAME = "a" * 70
RENAMED = (
    "source_id bigint from 'batch_id', is_deleted boolean from 'deleted', doc jsonb from 'ctid', born date from 'b.c', "
    f"price numeric from '{LONG_NAME}', own_position int from 'position', short real from 'é'"
).replace("'b.c'", "'\"b.c\"'")
SOURCE_ROW = {
    "batch_id": 5,
    "deleted": True,
    "ctid": "[1]",
    "b.c": "2026-01-02",
    LONG_NAME: "1.50",
    "position": 3,
    "é": 0.5,
}
RENAMED_ROW = {
    "source_id": 5,
    "is_deleted": True,
    "doc": "[1]",
    "born": date(2026, 1, 2),
    "price": "1.50",
    "own_position": 3,
    "short": 0.5,
    "position": 7,
}


@pytest.mark.parametrize("sent", ["bare", "schema", "avro"])
def test_columns_take_fields_of_other_names(monkeypatch, sent):
    types = ("int64", "boolean", "string", "string", "string", "int32", "float")
    row = {name: typed(type_) for name, type_ in zip(SOURCE_ROW, types, strict=True)}
    row["b.c"] = time("int32", "Date")
    schema = envelope(row, {"position": typed("int64")})
    written = SOURCE_ROW | ({} if sent == "bare" else {"b.c": 20455})
    whole = event("c", None, written), event("u", written, {**written, "é": "NaN"}), event("d", written, None)
    out = event("u", None, {**written, "ctid": '"__debezium_unavailable_value"'})
    events: list[Any] = [*whole, event("d", {"batch_id": 5}, None), out]
    if sent == "schema":
        events = [compact({"schema": schema, "payload": each}) for each in events]
    elif sent == "avro":
        for row_of_key in (schema["fields"][0]["fields"], schema["fields"][1]["fields"]):
            for each in row_of_key:  # Avro's names have no dots and no accents
                each["field"] = {"b.c": "b_c", "é": "e"}.get(each["field"], each["field"])
        monkeypatch.setattr(
            "exactbatch.formats.avro.bodies.fetch_schema", lambda *_: json.dumps(avro_schema(schema))
        )
        names = {"b.c": "b_c", "é": "e"}
        for each in events:
            for image in ("before", "after"):
                if each[image] is not None:
                    each[image] = {names.get(name, name): value for name, value in each[image].items()}
        events = [b"\0\0\0\0\1" + avro_body(schema, each) for each in events]
    form = Debezium(
        RENAMED if sent != "avro" else RENAMED.replace('"b.c"', "b_c").replace("é", "e"),
        version="position",
        registry="http://registry" if sent == "avro" else None,
        decimals="string" if sent == "bare" else None,
    )
    decoded = find_decoder(form).decode_with_unavailable(
        pa.array([e if isinstance(e, bytes) else compact(e) for e in events], pa.binary())
    )
    assert decoded.rejects == ()
    assert decoded.rows.schema.names == [column.name for column in form.columns] == list(RENAMED_ROW)
    rows = decoded.rows.to_pylist()
    assert rows[0] == rows[2] == RENAMED_ROW
    assert isnan(rows[1]["short"])
    assert rows[3] == dict.fromkeys(RENAMED_ROW) | {"source_id": 5, "position": 7}
    assert decoded.unavailable.to_pylist() == [None] * 4 + [["doc"]]


def test_a_document_of_mongodb_fills_columns_of_other_names():
    document = json.dumps({"_id": {"$oid": "5f"}, "deleted": True, "batch_id": {"$numberLong": "7"}})
    form = Debezium("id text from '_id', is_deleted boolean from 'deleted', source_id bigint from 'batch_id'")
    assert decode(event("c", None, document), form=form).rows.to_pylist() == [
        {"id": "5f", "is_deleted": True, "source_id": 7}
    ]


def test_a_renamed_column_is_checked_as_any_other():
    form = Debezium("id int, is_deleted numeric(10,2) from 'deleted'")
    bad, unclear = (
        event("c", None, {"id": 1, "deleted": True}),
        event("c", None, {"id": 1, "deleted": "1234"}),
    )
    out = event("u", None, {"id": 1, "deleted": "__debezium_unavailable_value"})
    rejects = decode(bad, unclear, out, form=form).rejects
    assert [reason.partition(": ")[0] for _, reason in rejects] == [
        "column 'is_deleted', numeric(10,2)",
        "column 'is_deleted', numeric(10,2)",
        "column 'is_deleted'",
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("a int from 'b.c'", "neither a path nor a default, found from 'b.c'"),
        ("a jsonb from '$'", "neither a path nor a default, found from '\\$'"),
        ("a int from 'b[]'", "neither a path nor a default"),
        ("a int default 1", "neither a path nor a default, found default"),
        ("a int from 'b', b text", "columns 'a' and 'b': both take the field 'b'"),
        ('a jsonb from \'"b""c"\'', "double quotes or control characters is not supported"),
    ],
)
def test_columns_that_are_no_field_of_the_row_are_refused(schema, said):
    with pytest.raises(ConfigurationError, match=said):
        Debezium(schema)


def test_a_source_with_reserved_names_is_loaded_into_an_upsert():
    for schema in ("id int, deleted boolean", "id int, batch_id int"):
        with pytest.raises(
            ConfigurationError, match='of another name with from: "source_(deleted|batch_id) …'
        ):
            Pipeline(name="p", topics=("t",), value=Debezium(schema), sink=Upsert("public.p", key=("id",)))
    value = Debezium("id int from 'batch_id', is_deleted boolean from 'deleted'", version="position")
    pipeline = Pipeline(
        name="p", topics=("t",), value=value, sink=Upsert("public.p", key=("id",), version="position")
    )
    events = [
        event("c", None, {"batch_id": 1, "deleted": True}, 1),
        event("c", None, {"batch_id": 2, "deleted": False}, 2),
        event("d", {"batch_id": 2}, None, 3),
    ]
    loaded = load(pipeline, list(map(compact, events)))
    assert loaded.rejects == []
    assert loaded.target == [{"id": 1, "is_deleted": True, "position": 1}]


def test_creates_updates_reads_and_deletes():
    row, old = {"id": 1, "name": "a", "born": "2026-01-02"}, {"id": 1, "name": "old"}
    decoded = decode(event("c", None, row), event("u", old, {**row, "name": "b"}, 8), event("r", None, row))
    assert decoded.rows.column("name").to_pylist() == ["a", "b", "a"]
    assert decoded.rows.column("position").to_pylist() == [7, 8, 7]
    assert decoded.rows.schema.field("born").type == pa.date32()
    assert decoded.deleted.to_pylist() == [False] * 3
    gone = decode(event("d", {"id": 1}, None, 9))
    assert gone.rows.to_pylist() == [{"id": 1, "name": None, "born": None, "position": 9}]
    assert gone.deleted.to_pylist() == [True]


def test_with_a_schema_beside_it():
    inner = event("c", None, {"id": 2, "name": "x"})
    decoded = decode({"schema": envelope_schema(), "payload": inner}, inner)
    assert decoded.rows.column("id").to_pylist() == [2, 2]
    assert decoded.rejects == ()
    deleted = decode({"schema": None, "payload": event("d", {"id": 3}, None)}, inner)
    assert deleted.deleted.to_pylist() == [True, False]


def test_a_tombstone_is_counted_and_is_no_row():
    decoded = decode(event("d", {"id": 1}, None), None, event("c", None, {"id": 2}))
    assert decoded.tombstones == 1
    assert decoded.kept.to_pylist() == [0, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (event("x", None, None), "expected op c, u, r or d, found 'x'"),
        (event(None, None, {"id": 1}), "expected op c, u, r or d, found none"),
        ({"id": 1}, "it is flattened"),
        (event("c", {"id": 1}, None), "the event has no 'after', which would hold its row"),
        (event("d", None, {"id": 1}), "the event has no 'before'"),
        (event("c", None, {"id": 1}, None), "the event has no source.position, which orders the changes"),
        (event("c", None, {"id": "one"}), "column 'id', integer: expected number, found string"),
        (event("c", None, {"id": 1, "name": "\0"}), "U+0000"),
        (event("c", None, [1]), "after: expected object, found array"),
        (b'{"op":"c",}', "expected one JSON object: "),
        (b"[]", "expected a JSON object"),
        (b'{"payload": 3}', "payload: expected object, found number"),
    ],
)
def test_event_that_is_none_is_reject_and_its_neighbours_are_rows(value, said):
    good = event("c", None, {"id": 5})
    decoded = decode(good, value, good)
    assert decoded.kept.to_pylist() == [0, 2]
    ((at, reason),) = decoded.rejects
    assert at == 1
    assert said in reason


def test_no_value_at_all():
    decoded = decode()
    assert (len(decoded.rows), len(decoded.deleted), decoded.tombstones) == (0, 0, 0)
    assert decode(None).tombstones == 1
    assert Debezium("id int").columns == FORMAT.columns[:1]


def test_a_version_that_is_a_column_of_the_row_is_refused():
    with pytest.raises(ConfigurationError, match="rename the column"):
        Debezium("id int, position bigint", version="position")


OUT = "__debezium_unavailable_value"
WIDE = Debezium(
    "id int, body text, tags text[], blob bytea, blobs bytea[], doc jsonb, price numeric, ids int[], "
    "sums bigint[], reals float8[], flags bool[], uuids uuid[], attributes public.hstore, at timestamptz, "
    "times timestamptz[]"
)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", OUT),
        ("body", base64.b64encode(OUT.encode()).decode()),
        ("body", f'{{"{OUT}":"{OUT}"}}'),
        ("tags", [OUT]),
        ("tags", ["a", None, OUT]),
        ("blob", base64.b64encode(OUT.encode()).decode()),
        ("blob", OUT),
        ("blobs", [base64.b64encode(OUT.encode()).decode()]),
        ("doc", OUT),
        ("doc", f'{{"a": ["{OUT}"]}}'),
        ("price", OUT),
        ("ids", list(OUT.encode())),
        ("sums", list(OUT.encode())),
        ("reals", [float(byte) for byte in OUT.encode()]),
        ("flags", [True] * len(OUT)),
        ("uuids", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("attributes", f'{{"{OUT}":"{OUT}"}}'),
        ("at", OUT),
        ("times", [OUT]),
    ],
)
def test_value_that_source_left_out_is_reject_that_names_column_table_and_remedy(column, value):
    good = {"source": {"schema": "shop", "table": "item"}, "op": "u", "before": None, "after": {"id": 1}}
    unavailable = {**good, "after": {"id": 2, column: value}}
    decoded = decode(good, unavailable, good, {"payload": unavailable}, form=WIDE)
    assert decoded.kept.to_pylist() == [0, 2]
    assert [at for at, _ in decoded.rejects] == [1, 3]
    for _, reason in decoded.rejects:
        assert reason.startswith(f"column {column!r}: the source left the value out")
        assert "alter table shop.item replica identity full" in reason
        assert "ReselectColumnsPostProcessor" in reason


@pytest.mark.parametrize("op", ["c", "r"])
def test_only_an_update_keeps_values_that_were_left_out(op):
    """Debezium writes an update of a key as a delete and an insert, which lacks values of the old key's row."""
    events = [event(each, None, {"id": 1, "name": OUT, "born": None}) for each in ("u", op, "u")]
    decoded = find_decoder(FORMAT).decode_with_unavailable(pa.array(map(compact, events), pa.binary()))
    assert decoded.kept.to_pylist() == [0, 2]
    assert decoded.unavailable.to_pylist() == [["name"], ["name"]]
    [(at, reason)] = decoded.rejects
    assert at == 1
    assert reason.startswith("column 'name': the source left the value out")


def test_a_delete_needs_no_value_that_the_source_left_out():
    gone = {
        "op": "d",
        "before": {"id": 2, "body": OUT, "blob": OUT, "tags": [OUT], "ids": [1]},
        "after": None,
    }
    decoded = decode(gone, form=WIDE)
    assert decoded.rejects == ()
    [row] = decoded.rows.to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {"id": 2, "ids": [1]}


def test_values_that_only_resemble_the_placeholder_stay():
    rows = [
        {"body": OUT + "!", "tags": [], "ids": [95], "flags": [True], "doc": '{"a": 1}'},
        {"body": "", "tags": None, "ids": [0] * len(OUT), "flags": [False] * len(OUT), "blob": ""},
    ]
    decoded = decode(*({"op": "c", "after": row} for row in rows), form=WIDE)
    assert decoded.rejects == ()
    assert decoded.rows.column("body").to_pylist() == [OUT + "!", ""]
    other = Debezium("id int, body text", unavailable="(left out)")
    decoded = decode(*(event("u", None, {"id": 1, "body": body}) for body in (OUT, "(left out)")), form=other)
    assert decoded.rows.column("body").to_pylist() == [OUT]
    assert decoded.rejects[0][0] == 1


@pytest.mark.parametrize(
    ("binary", "written"),
    [("base64", "+/8AYWI="), ("base64-url-safe", "-_8AYWI="), ("hex", "fbff006162")],
)
def test_bytea_is_decoded_as_the_connector_writes_it(binary, written):
    form = Debezium("id int, blob bytea, blobs bytea[]", binary=binary)
    row = {"id": 1, "blob": written, "blobs": [None, written, ""]}
    wrong = [f"{written}=", f" {written}", "x!", "YWJ", "YWJ="]
    decoded = decode(
        event("c", None, row), *(event("u", row, {**row, "blob": blob}) for blob in wrong), form=form
    )
    there = b"\xfb\xff\x00ab"
    assert decoded.rows.to_pylist() == [{"id": 1, "blob": there, "blobs": [None, there, b""]}]
    assert [at for at, _ in decoded.rejects] == [1, 2, 3, 4, 5]
    for (_, reason), blob in zip(decoded.rejects, wrong, strict=True):
        assert f"column 'blob', bytea: expected bytes as {binary}, found {blob!r}" in reason
        assert "binary.handling.mode" in reason


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"op": "t", "source": {"schema": "public", "table": "customer"}, "before": None, "after": None},
            "op 't': public.customer was truncated",
        ),
        ({"op": "t", "source": {"db": "shop", "table": "c"}}, "op 't': shop.c was truncated"),
        ({"op": "t"}, "op 't': the table was truncated"),
    ],
)
def test_a_truncate_is_a_reject_that_names_its_table(value, said):
    good = event("c", None, {"id": 5})
    decoded = decode(good, value, {"schema": envelope_schema(), "payload": value}, good)
    assert decoded.kept.to_pylist() == [0, 3]
    assert [at for at, _ in decoded.rejects] == [1, 2]
    for _, reason in decoded.rejects:
        assert said in reason


NOTHING: list[tuple[dict[str, Any], list[str]]] = [
    ({"op": "m", "message": {"prefix": "p", "content": "Yg=="}}, ["op", "ts_ms", "source", "message"]),
    ({"ts_ms": 1}, ["ts_ms"]),
    (
        {"status": "BEGIN", "id": "571:1", "event_count": None, "ts_ms": 1},
        ["status", "id", "event_count", "data_collections", "ts_ms"],
    ),
    ({"status": "END", "id": "571:1", "event_count": 2, "ts_ms": 1}, ["status", "id"]),
    (
        {"source": {}, "databaseName": "d", "ddl": "create table", "tableChanges": []},
        ["source", "ts_ms", "databaseName", "schemaName", "ddl", "tableChanges"],
    ),
]


@pytest.mark.parametrize(("value", "fields"), NOTHING)
def test_event_that_tells_of_no_row_is_counted(value, fields):
    good = event("c", None, {"id": 5})
    schema = {"type": "struct", "fields": [{"type": "string", "field": name} for name in fields]}
    wrapped = {"schema": schema, "payload": value}
    decoded = decode(good, value, wrapped, None, compact(wrapped), compact(value), good)
    assert decoded.kept.to_pylist() == [0, 6]
    assert decoded.rejects == ()
    assert decoded.tombstones == 5


@pytest.mark.parametrize(
    "value",
    [
        {"op": "m"},
        {"op": "m", "message": "p"},
        {"ts_us": 1},
        {},
        {"ts_ms": 1, "id": 2},
        {"status": "BEGIN"},
        {"status": "PAID", "id": "1"},
        {"ddl": "create table"},
    ],
)
def test_a_value_that_only_resembles_such_an_event_is_a_reject(value):
    decoded = decode(value, {"schema": envelope_schema(), "payload": value})
    assert [at for at, _ in decoded.rejects] == [0, 1]
    assert decoded.tombstones == 0


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("pos", "position inside a binlog file"),
        ("row", "position inside a binlog file"),
        ("file", "binlog"),
        ("ts_ms", "a clock"),
        ("txId", "a transaction number"),
        ("event_serial_no", "a position inside a transaction"),
        ("change_lsn", "do not commit in the order of their changes"),
        ("lsn", "do not commit in the order of their changes"),
        ("scn", "do not commit in the order of their changes"),
        ("commit_lsn", "not read by its name"),
        ("gtid", "of several servers"),
        ("", "found none"),
    ],
)
def test_a_version_that_does_not_order_changes_is_refused(version, said):
    with pytest.raises(ConfigurationError, match=said):
        Debezium("id int", version=version)


@pytest.mark.parametrize("version", [(), ("position",), ("file", "pos"), ["position"]])
def test_a_version_is_one_name(version):
    with pytest.raises(ConfigurationError, match="expected version to be"):
        Debezium("id int", version=version)


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ConfigurationError, match="unavailable=''"):
        Debezium("id int", unavailable="")
    with pytest.raises(ConfigurationError, match="expected binary to be 'base64' or .*, found 'bytes'"):
        Debezium("id int", binary="bytes")  # type: ignore[arg-type]


def test_a_reason_names_the_column_that_is_refused():
    of_items = Debezium("id int, n numeric(10,2), day date, name text", "position")

    def why(row: dict[str, Any], position: Any = 7) -> str:
        envelope = {"op": "c", "after": row, "source": {"position": position}}
        [(_, bare)] = (
            find_decoder(of_items).decode(pa.array([json.dumps(envelope).encode()], pa.binary())).rejects
        )
        inside = json.dumps({"payload": envelope}).encode()
        assert [(0, bare)] == [*find_decoder(of_items).decode(pa.array([inside], pa.binary())).rejects]
        return bare

    assert why({"id": 1, "n": 1.005}) == (
        "column 'n', numeric(10,2): expected a number with at most 2 places, found 1.005"
    )
    assert why({"id": 1, "n": True}) == "column 'n', numeric(10,2): expected number_or_string, found boolean"
    assert why({"id": 1, "name": 1}) == "column 'name', text: expected string, found number"
    assert why({"id": 1, "day": "now"}).startswith("column 'day', date: ")
    assert why({"id": 1}, "x") == "column 'position', bigint: expected number, found string"


def test_a_byte_order_mark_does_not_hide_the_schema():
    schema = envelope({"id": typed("int32"), "at": time("int64", "MicroTimestamp")}, {})
    row = {"schema": schema, "payload": {"op": "c", "before": None, "after": {"id": 1, "at": 1}}}
    values = pa.array([b"\xef\xbb\xbf" + compact(row), compact(row)], pa.binary())
    decoded = find_decoder(Debezium("id int, at timestamp")).decode(values)
    assert decoded.rejects == ()
    assert len(set(decoded.rows.column("at").to_pylist())) == 1


FLAT = "it is flattened, as ExtractNewRecordState does. Decode it with Flattened"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"id": 1, "__deleted": "false"}, f"has no op, before or after, but __deleted, id: {FLAT}"),
        ({"id": 1}, f"but id: {FLAT}"),
        ({"__op": "c", "other": 1}, f"but __op: {FLAT}"),
        ({"schema": {"type": "struct"}, "payload": {"id": 1, "__lsn": 5}}, f"but __lsn, id: {FLAT}"),
        ({"specversion": "1.0", "id": "x", "source": "/s", "data": {"op": "c"}}, "the value is a CloudEvent"),
        ({"other": 1}, "expected op c, u, r or d, found none"),
    ],
)
def test_what_is_no_envelope_is_named(value, said):
    ((_, reason),) = decode(value).rejects
    assert said in reason


@pytest.mark.parametrize("schema", [None, {"type": "struct", "fields": [{"field": "op"}]}])
def test_the_envelope_of_a_null_is_a_tombstone(schema):
    good = event("c", None, {"id": 5})
    decoded = decode(good, {"schema": schema, "payload": None}, {"payload": None, "schema": schema}, good)
    assert (decoded.kept.to_pylist(), decoded.rejects, decoded.tombstones) == ([0, 3], (), 2)


@pytest.mark.parametrize("written", ["NaN", "Infinity"])
def test_nan_in_a_column_with_a_precision_says_how_to_declare_it(written):
    schema = envelope({"z": typed("string")}, {})
    value = {"schema": schema, "payload": {"op": "c", "after": {"z": written}}}
    ((_, reason),) = decode(value, form=Debezium("z numeric(12,2)")).rejects
    assert f"found '{written}': declare the column as numeric, without a precision" in reason
    assert ("the target's column may be numeric(12,2)" in reason) == (written == "NaN")
    assert decode(value, form=Debezium("z numeric")).rows.to_pylist() == [{"z": written}]
