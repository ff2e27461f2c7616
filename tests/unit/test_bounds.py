"""What a record may become is bounded, and no value ends a batch: the record at fault is a reject."""

import base64
import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from exactbatch import Append, Pipeline
from exactbatch.compiled.rows_arrow import _text
from exactbatch.errors import ConfigurationError, RegistryUnavailable
from exactbatch.formats import (
    Avro,
    Csv,
    Custom,
    Debezium,
    Json,
    Protobuf,
    Raw,
    Text,
    WithKeyAndHeaders,
    bounds,
)
from exactbatch.formats.bounds import InParts
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.json.decoder import JsonDecoder
from exactbatch.formats.json.raw_fields import TOO_DEEP
from exactbatch.kafka.native_records import _binary
from exactbatch.kafka.reader import _next_size, _pieces
from exactbatch.testing import Record, decode
from support.registry import Registry, registry_server

TOPIC = "t"


def outcome(value: Any, *records: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows and the reasons of rejects by offset of records, which are values or Records."""
    pipeline = Pipeline(name="bounds", topics=(TOPIC,), value=value, sink=Append("public.t"))
    loaded = decode(pipeline, [each if isinstance(each, Record) else Record(each) for each in records])
    return loaded.rows, {reject.offset: reject.reason for reject in loaded.rejects}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_server() as registry:
        yield registry


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may become 1,000 rows, or rows of 1 MB."""
    monkeypatch.setattr(bounds, "MOST_ROWS", 1000)
    monkeypatch.setattr(bounds, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(bounds, "_TOGETHER", 250_000)


LONG_NOTE = json.dumps({"id": 1, "note": "x" * 400_000, "items": [{"s": 1}, {"s": 2}, {"s": 3}]}).encode()
MANY = b'{"items": [' + b",".join([b"{}"] * 1001) + b"]}"
ROWS = "the record becomes 1,001 rows, and a record may become at most 1,000"
BYTES = "bytes, and a record may become at most 1,000,000"


def items_message(items: int, note: str = "") -> bytes:
    return b"\x0a\x00" * items + (b"\x12" + varint(len(note)) + note.encode() if note else b"")


def varint(number: int) -> bytes:
    return (b"" if number < 0x80 else bytes([number & 0x7F | 0x80])) + (
        varint(number >> 7) if number >= 0x80 else bytes([number])
    )


def descriptor(fields: int = 1) -> bytes:
    """message Order { repeated Item items = 1; string note = 2; } with this number of fields in an Item."""
    file = FileDescriptorProto(name="o.proto", package="o", syntax="proto3")
    item = file.message_type.add(name="Item")
    for number in range(1, fields + 1):
        item.field.add(name=f"f{number}", number=number, type=3, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="items", number=1, type=11, label=3, type_name=".o.Item")
    order.field.add(name="note", number=2, type=9, label=1)
    return FileDescriptorSet(file=[file]).SerializeToString()


def protobuf(schema: str, fields: int = 1) -> Protobuf:
    return Protobuf(schema, descriptor=descriptor(fields), message="o.Order")


LARGER = [
    (Json("s int from 'items[].s'"), MANY, ROWS),
    (Json("note text, s int from 'items[].s'"), LONG_NOTE, BYTES),
    (Json("note text, note2 text from 'note', note3 jsonb from 'note'"), LONG_NOTE, BYTES),
    (Json("s int from 'items[].s', t text from 'items[].t' default 'zzzz'"), MANY, ROWS),
    (Json("id int", encoding="gzip", documents="lines"), gzip.compress(b"{}\n" * 1001), ROWS),
    (
        Json("id int", encoding=("base64",), documents="array"),
        base64.b64encode(b"[" + b"{}," * 1000 + b"{}]"),
        ROWS,
    ),
    (Json("id int", documents="concatenated"), b"{}" * 1001, ROWS),
    (Json("note text", encoding="gzip"), gzip.compress(b'{"note": "%s"}' % (b"x" * 1_000_001)), BYTES),
    (Json("a text default 'aaaaaaaaaa', b text default 'b'", documents="lines"), b"{}\n" * 1001, ROWS),
    (protobuf("f1 bigint from 'items[].f1'"), items_message(1001), ROWS),
    (protobuf("note text, f1 bigint from 'items[].f1'"), items_message(3, "x" * 400_000), BYTES),
    (Text("a"), b"x" * 1_000_001, BYTES),
    (Raw("a"), b"x" * 1_000_001, BYTES),
    (Csv("a text"), b"x" * 1_000_001, BYTES),
    (
        WithKeyAndHeaders(Json("s int from 'items[].s'"), key=Raw("k")),
        Record(MANY.replace(b"{},", b"", 900), key=b"x" * 20_000),
        BYTES,
    ),
    (
        WithKeyAndHeaders(Json("s int from 'items[].s'"), all_headers="h"),
        Record(MANY.replace(b"{},", b"", 900), headers=[("a", b"x" * 20_000)]),
        BYTES,
    ),
    (
        WithKeyAndHeaders(Json("s int from 'items[].s'"), headers={"a": Text("h")}),
        Record(MANY.replace(b"{},", b"", 900), headers=[("a", b"x" * 20_000)]),
        BYTES,
    ),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("format_", "larger", "why"), LARGER, ids=range(len(LARGER)))
def test_a_record_that_becomes_more_is_a_reject_and_its_neighbours_are_rows(format_, larger, why):
    """Their neighbours are null, a value without rows, or a row, whatever the format makes of an empty value."""
    _, alone = outcome(format_, larger)
    assert alone.keys() == {0}
    assert alone[0].endswith(why)
    others = [None, Record(b""), None]
    _, without = outcome(format_, *others)
    _, rejects = outcome(format_, others[0], larger, others[1], larger, others[2])
    assert rejects[1] == rejects[3] == alone[0]
    assert len(rejects) == 2 + len(without)


def times_1000(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
    text = [value.as_py().decode() * 1000 for value in batch.column("value")]
    return pa.record_batch({"value_index": batch.column("value_index"), "a": text}), {}


@pytest.mark.usefixtures("small")
def test_a_function_s_row_that_is_too_large_is_a_reject():
    rows, rejects = outcome(Custom(times_1000, "a text"), b"a", b"b" * 1001, b"c" * 900, b"d" * 900)
    assert [row["a"][:1] for row in rows] == ["a", "c", "d"]
    assert list(rejects) == [1]


class Values:
    """Records that are only values."""

    def __init__(self, values: list[bytes]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def part(self, start: int, stop: int) -> "Values":
        return Values(self.values[start:stop])


def decoded_in_parts(format_: Any, values: list[bytes]) -> list[tuple[int, int, list[tuple[int, str]]]]:
    """For each part, how many values it has, how many rows, and its rejects."""
    parts = InParts()
    return [
        (len(part), len(decoded.rows), list(decoded.rejects))
        for block in (values, values)
        for part, decoded in parts.decode(
            Values(block), lambda some: find_decoder(format_).decode(pa.array(some.values, pa.binary()))
        )
    ]


@pytest.mark.usefixtures("small")
def test_records_are_decoded_in_parts_that_are_not_too_large():
    """Each becomes 0.8 MB: two of them do not fit. The second block is cut at once, as the first one was in the end."""
    value = json.dumps({"note": "x" * 400_000, "items": [{"s": 1}, {"s": 2}]}).encode()
    assert decoded_in_parts(Json("note text, s int from 'items[].s'"), [value] * 4) == [(1, 2, [])] * 8


def test_records_become_large_parts_again_after_a_large_record():
    values = [b'{"note": "%s"}' % (b"x" * 70_000_000), *[b'{"note": "x"}'] * 50]
    assert decoded_in_parts(Json("note text"), values) == [(51, 51, []), (48, 48, []), (3, 3, [])]


FAILURES = [
    (TypeError("x"), "the record cannot be decoded: TypeError: x"),
    (OverflowError("x"), "the record cannot be decoded: OverflowError: x"),
    (pa.ArrowNotImplementedError("x"), "the record cannot be decoded: ArrowNotImplementedError: x"),
    (pa.ArrowInvalid("x"), "the record cannot be decoded: ArrowInvalid: x"),
    (SystemError("x"), "the record cannot be decoded: SystemError: x"),
    (MemoryError(), "decoding the record takes more memory than the worker may use"),
    (RecursionError(), TOO_DEEP),
]


def failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Json fail with an error for a block that has the value `bad`."""
    decode = JsonDecoder.decode

    def decode_unless_bad(self: JsonDecoder, values: pa.BinaryArray) -> Any:
        if b"bad" in values.to_pylist():
            raise error
        return decode(self, values)

    monkeypatch.setattr(JsonDecoder, "decode", decode_unless_bad)


@pytest.mark.parametrize(("error", "why"), FAILURES, ids=[type(error).__name__ for error, _ in FAILURES])
def test_no_exception_of_one_value_ends_a_batch(error, why, monkeypatch):
    failing(error, monkeypatch)
    good = [b'{"id": %d}' % number for number in range(20)]
    rows, rejects = outcome(Json("id int"), *good, b"bad", *good, b"bad")
    assert [row["id"] for row in rows] == [*range(20), *range(20)]
    assert rejects == {20: why, 41: why}


@pytest.mark.parametrize(
    "error",
    [RegistryUnavailable("x"), ConfigurationError("x"), ConnectionResetError("x"), ModuleNotFoundError("x")],
)
def test_a_failure_of_a_server_or_of_the_set_up_is_no_reject(error, monkeypatch):
    failing(error, monkeypatch)
    with pytest.raises(Exception, match="x"):
        outcome(Json("id int"), b'{"id": 1}', b"bad")


def test_an_error_of_no_record_is_no_reject(monkeypatch):
    def decode(self: JsonDecoder, values: pa.BinaryArray) -> Any:
        raise AttributeError("a mistake")

    monkeypatch.setattr(JsonDecoder, "decode", decode)
    with pytest.raises(Exception, match="a mistake"):
        outcome(Json("id int"), b"{}")


def record_of(*fields: Any) -> dict[str, Any]:
    named = [{"name": f"f{number}", "type": type_} for number, type_ in enumerate(fields)]
    return {"type": "record", "name": f"R{len(fields)}", "fields": named}


def doubling(levels: int) -> Any:
    """A record of two records, each of two records, and so on: it takes no byte."""
    type_: Any = {"type": "record", "name": "n0", "fields": []}
    for level in range(1, levels):
        fields = [{"name": "a", "type": type_}, {"name": "b", "type": f"n{level - 1}"}]
        type_ = {"type": "record", "name": f"n{level}", "fields": fields}
    return type_


COUNT = b"\x80\x80\x80\x80\x80\x40"  # 2^40
NO_BYTES = [
    ({"type": "array", "items": "null"}, COUNT + b"\x00"),
    ({"type": "array", "items": {"type": "null", "doc": "nothing"}}, COUNT + b"\x00"),
    ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, COUNT + b"\x00"),
    ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, COUNT + b"\x00"),
    ({"type": "array", "items": record_of("null", "null")}, COUNT + b"\x00"),
    ({"type": "array", "items": {"type": "array", "items": "null"}}, b"\x02" + COUNT + b"\x00\x00"),
    ({"type": "map", "values": doubling(20)}, b"\x02\x02k\x00"),
    (doubling(40), b""),
    (["null", doubling(40)], b"\x02"),
    ({"type": "array", "items": record_of("int", *["null"] * 1000)}, b"\xd0\x0f" + b"\x02" * 1000 + b"\x00"),
]


@pytest.mark.parametrize(("type_", "body"), NO_BYTES, ids=range(len(NO_BYTES)))
@pytest.mark.parametrize("header", [b"", b"\0\0\0\0\7"], ids=["schema", "registry"])
def test_parts_of_avro_that_take_no_bytes_are_bounded(type_, body, header, registry):
    schema = {
        "type": "record",
        "name": "V",
        "fields": [{"name": "id", "type": "int"}, {"name": "z", "type": type_}],
    }
    registry.has(7, schema)
    format_ = (
        Avro(registry=registry.address, fields="id int")
        if header
        else Avro(json.dumps(schema), fields="id int")
    )
    rows, rejects = outcome(format_, b"?", header + b"\x0e" + body)
    assert rows == []
    assert "parts that take no bytes" in rejects[1]


def test_an_array_of_a_few_nulls_is_a_value():
    schema = json.dumps({"type": "array", "items": "null"})
    assert outcome(Avro(schema, fields="a text[]"), b"\x06\x00") == ([{"a": [None, None, None]}], {})


def test_events_and_keys_of_avro_are_bounded_too(registry):
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
    z = {"name": "z", "type": {"type": "array", "items": "null"}}
    fields = [{"name": "op", "type": "string"}, {"name": "after", "type": ["null", row]}, z]
    registry.has(7, {"type": "record", "name": "Envelope", "fields": fields})
    registry.has(8, {"type": "record", "name": "Key", "fields": [{"name": "k", "type": "int"}, z]})
    event, key = b"\0\0\0\0\7\x02c\x02\x0e", b"\0\0\0\0\x08\x0e"
    value = Debezium("id int", registry=registry.address)
    rows, rejects = outcome(value, event + b"\x00", event + COUNT + b"\x00")
    assert [row["id"] for row in rows] == [7]
    assert "parts that take no bytes" in rejects[1]
    with_key = WithKeyAndHeaders(Json("a int"), key=Avro(registry=registry.address, fields="k int"))
    rows, rejects = outcome(
        with_key, Record(b'{"a":1}', key=key + b"\x00"), Record(b'{"a":1}', key=key + COUNT + b"\x00")
    )
    assert rows == [{"a": 1, "k": 7}]
    assert "parts that take no bytes" in rejects[1]


def test_types_that_name_types_within_types_are_read_once(registry):
    """Copies of them would be 2^60."""
    fields = [{"name": "op", "type": "string"}, {"name": "after", "type": ["null", doubling(60)]}]
    registry.has(7, {"type": "record", "name": "Envelope", "fields": fields})
    rows, rejects = outcome(Debezium("id int", registry=registry.address), b"\0\0\0\0\7\x02d\x00")
    assert (rows, list(rejects)) == ([], [0])


def test_long_names_in_schemas_are_refused():
    """JSON repeats the name of a field, and text the symbol of an enum, which take a byte in a body."""
    for type_ in (record_of("int"), {"type": "enum", "name": "M", "symbols": ["A"]}):
        text = json.dumps({"type": "array", "items": type_})
        for name in ("f0", '"A"'):
            long = text.replace(name, name[:1] + "x" * 300 + name[1:])
            if long != text:
                with pytest.raises(ConfigurationError, match="at most 255 characters, found one of 30"):
                    Avro(long)
    file = FileDescriptorSet.FromString(descriptor())
    file.file[0].message_type[0].field[0].name = "x" * 300
    with pytest.raises(ConfigurationError, match="at most 255 characters, found one of 300"):
        Protobuf("a jsonb from 'items'", descriptor=file.SerializeToString(), message="o.Order")


def test_messages_of_protobuf_that_take_two_bytes_are_bounded():
    """Each takes as much memory as a message in which all fields are set."""
    wide = protobuf("note text", fields=2000)
    many = items_message(20_000)
    assert outcome(wide, b"\x12\x01x", many, b"\x12\x01y") == (
        [{"note": "x"}, {"note": "y"}],
        {1: "the record becomes rows of 268,454,160 bytes, and a record may become at most 268,435,456"},
    )
    # What the parser skips hides nothing from the count: an unknown group, an unknown text, an unset end.
    for hidden in (b"\x7b\x7c", b"\x7a\x01x", b"\x7d1234", b"\x79" + b"12345678"):
        assert outcome(wide, hidden + many)[0] == []
    assert outcome(protobuf("note text", fields=20), many + b"\x12\x01x") == ([{"note": "x"}], {})


def test_bytes_beyond_32_bits_are_no_array():
    """The memory is reserved and never touched."""
    for size in (2**31 + 5, 2**32 + 10):  # the last end of the second wraps around to a positive number
        data, ends = np.empty(size, np.uint8), np.array([0, size - 3, size])
        with pytest.raises(ValueError, match="an array has less than 2 GiB"):
            _binary(data, ends, np.array([1, 1], np.uint64))


def test_texts_of_copy_rows_beyond_32_bits_are_no_array(monkeypatch):
    def ends_of_4_gib(_rows: Any, _starts: Any, _lengths: Any, ends: Any, _text: Any) -> None:
        ends[:] = [2**32 + 7, 2**32 + 10]

    monkeypatch.setattr("exactbatch.compiled.rows_arrow.column_text", ends_of_4_gib)
    with pytest.raises(ValueError, match="offsets"):
        _text(pa.string(), np.zeros(8, np.uint8), np.zeros(2, np.int64), np.array([1, 1], np.int32))


def test_large_keys_make_small_pieces_and_fetches():
    sizes = np.full(3000, 900_000)
    pieces = list(_pieces(sizes))
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert max(int(sizes[start:stop].sum()) for start, stop in pieces) <= 32 * 1024 * 1024
    assert _next_size(4096, 3000, int(sizes.sum())) == 18
