# ruff: noqa: E501 - a value that is written in one line is easier to read
"""What decoding a bad record costs, compared with a good one: for each format, and for each way to be bad.

Prints microseconds for each record of a block of good ones and of a block of bad ones, and their ratio.
"""

import argparse
import gzip
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from rich.console import Console

from exactbatch import Avro, Csv, Custom, Debezium, Flattened, Json, JsonSchema, Protobuf, Raw, Text
from exactbatch.formats.decoders import find_decoder
from support.registry import Registry, registry_server

_MOST: Final = 20  # times as long as a good record
Value = Callable[[int], bytes]


@dataclass(frozen=True)
class Case:
    """A format, and for a number a good value, and bad ones by what is wrong with them."""

    format_: Any
    good: Value
    bad: Mapping[str, Value]


def text(template: str) -> Value:
    """Return what puts a number into a text."""
    return lambda number: (template % number if "%" in template else template).encode()


def texts(*templates: str) -> dict[str, Value]:
    return {template: text(template) for template in templates}


_JSON: Final = texts(
    '{"id":"%d"}', '{"id":%d.5}', '{"id":9%012d}', '{"id":1%d,"id":2}', '{"id":1e40%d}', '{"at":"%d"}',
    '{"at":"2024-13-%02d"}', '{"at":"2024-01-01T00:00:00.1234567%d"}', '{"at":"0000-01-01","id":%d}', '{"price":"x%d"}',
    '{"price":0.00%d}', '{"price":[%d]}', '{"price":"1e%d"}', '{"price":1e-%d}', '{"ratio":1e39%d}', '{"ratio":-4e38,"id":%d}',
    '{"note":%d}', '{"note":"%d\\u0000"}', '{"note":"%d\\ud800"}', '{"id":NaN,"note":"%d"}', '{"id":Infinity,"note":"%d"}',
    "%d", "", '{"a":%d', '{"a":%d,}', '{"a" %d}', '{"a":%d}{}', '{"note":"%d\n"}', '{"note":"\\q%d"}',
    '{"doc":"\\u0000%d"}', '{"ids":[1,"x%d"]}', '{"ids":{"a":%d}}', '{"day":"0000-01-%d"}', '{"big":"x%d"}', '{"n":"x%d","big":{}}',
) | {
    "not UTF-8": lambda number: b'{"note":"\xff%d"}' % number,
    "UTF-16": lambda number: '{"id":1}'.encode("utf-16"),
    "500 levels": lambda number: b'{"a":' + b"[" * 600 + b"]" * 600 + b',"id":"%d"}' % number,
    "2,000 levels": lambda number: b'{"a":' + b"[" * 2000 + b"]" * 2000 + b',"id":%d}' % number,
}  # fmt: skip
_JSON_COLUMNS: Final = (
    "id int, at timestamptz, price numeric(10,2), ratio real, note text, doc jsonb, ids int[], day date, big numeric(38,30), "
    "n numeric"
)
_JSON_GOOD: Final = text(
    '{"id":%d,"at":"2024-01-02T03:04:05Z","price":1.25,"ratio":0.5,"note":"some text","doc":{"a":1},"ids":[1,2],'
    '"day":"2024-01-02","big":1.5,"n":12}'
)
_FEW_JSON: Final = {each: _JSON[each] for each in (
    '{"id":"%d"}', '{"id":%d.5}', '{"id":9%012d}', '{"note":%d}', '{"note":"%d\\u0000"}', "%d", '{"id":%d',
) if each in _JSON} | texts('{"id":%d')  # fmt: skip
_CSV: Final = texts(
    "%da,,,,,", "%d", "%d,,,,,,", "9%012d,,,,,x", "1,%d,,,,", "1,2024-13-%02d,,,,x", "1.%d,,,,,", "x%d,,,,,\n", '"%da","",,,,',
    '1,,,,,"%d', "0x%d,,,,,", "+%d,,,,,", " %dx,,,,,", "1,,,,,a\nb%d", "1,,,,,\n%d,,,,,", "x%d\n1,,,,,", "1,,,,,a\0b%d",
    "a\0%d,,,,,", '1,,,,,x"%d', '1a%d,,,,,x"y', '"1"%dx,,,,,', '"%d"x"y",,,,,', "1,,nan%d,,,", "1,,NaN,,,%d",
    "1,,1e400,,,%d", "1,,1e39%d,,,", "1,,,1e5x%d,,", "1,,,123456789.%d,,", "1,,,1.23%d,,", "1,,,1e-60,,%d", "1,,,,1e50,%d",
    "1,,,,1e5x%d,", "1,,,,NaN,%d", "1,2024-01-01T00:00:00.1234567Z,,,,%d", "1,2024-01-01T00:00:00,,,,%d", "1,0000-01-01T00:00:00Z,,,,%d",
    "1,2024-01-01T00:00:00 x,,,,%d", "",
) | {"not UTF-8": lambda number: b"1,,,,,\xff%d" % number}  # fmt: skip


def numbered_json(number: int) -> bytes:
    return b'{"id":%d,"note":"some text"}' % number


def encode(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


_ROW: Final = {"type": "record", "name": "Row", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}, {"name": "kind", "type": "string"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]}  # fmt: skip
_BARE_ROW: Final = {**_ROW, "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}, {"name": "kind", "type": "string"},
    {"name": "price", "type": "bytes"}, {"name": "at", "type": "long"},
]}  # fmt: skip
_EVENT: Final = {"type": "record", "name": "Envelope", "fields": [
    {"name": "before", "type": ["null", _ROW]}, {"name": "after", "type": ["null", "Row"]},
    {"name": "source", "type": {"type": "record", "name": "Source", "fields": [{"name": "seq", "type": ["null", "long"]}]}},
    {"name": "op", "type": "string"},
]}  # fmt: skip
_BARE_EVENT: Final = {
    **_EVENT,
    "fields": [{"name": "before", "type": ["null", _BARE_ROW]}, *_EVENT["fields"][1:]],
}


def avro_row(number: int, **changes: Any) -> dict[str, Any]:
    row = {"id": number, "note": "some text", "kind": "x", "price": b"\x7d", "at": 1_700_000_000_000_000}
    return row | changes


def avro(number: int, **changes: Any) -> bytes:
    return encode(fastavro.parse_schema(_BARE_ROW), avro_row(number, **changes))


def avro_cases() -> dict[str, Value]:
    return {
        "U+0000 in text": lambda number: avro(number, note="a\0b"),
        "U+0000 in the last text": lambda number: avro(number, kind="a\0b"),
        "the body ends early": lambda number: avro(number)[:-1],
        "bytes left over": lambda number: avro(number) + b"\1",
        "not UTF-8": lambda number: avro(number).replace(b"some", b"\xff\xffme"),
        "branch out of range": lambda number: encode({"type": "long"}, number) + b"\x09" + avro(1)[3:],
        "decimal too large": lambda number: avro(number, price=b"\x7f\xff\xff"),
        "integer out of range": lambda number: avro(2**40 + number),
        "time before 4713 BC": lambda number: avro(number, at=-(2**62)),
        "empty": lambda _number: b"",
    }


def event(
    number: int, op: str = "c", before: Any = None, after: Any = "row", seq: Any = 5, **changes: Any
) -> bytes:
    row = avro_row(number, **changes) if after == "row" else after
    value = {"before": before, "after": row, "source": {"seq": seq}, "op": op}
    return encode(fastavro.parse_schema(_BARE_EVENT), value)


def avro_events() -> dict[str, Value]:
    left_out = "__debezium_unavailable_value"
    return {
        "U+0000 in text": lambda number: event(number, note="a\0b"),
        "no row": lambda number: event(number, after=None),
        "truncate": lambda number: event(number, "t", after=None),
        "unknown op": lambda number: event(number, "x"),
        "no position": lambda number: event(number, seq=None),
        "value left out": lambda number: event(number, "u", note=left_out),
        "integer out of range": lambda number: event(2**40 + number),
        "decimal too large": lambda number: event(number, price=b"\x7f\xff\xff"),
        "time out of range": lambda number: event(number, at=-(2**62)),
        "the body ends early": lambda number: event(number)[:-1],
        "bytes left over": lambda number: event(number) + b"\1",
        "message (no reject)": lambda number: event(number, "m", after=None),
    }


def proto() -> tuple[bytes, Any]:
    file = FileDescriptorProto(name="o.proto", package="o", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, (name, type_) in enumerate({"id": 3, "note": 9, "kind": 9, "size": 3}.items(), start=1):
        order.field.add(name=name, number=number, type=type_, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    return FileDescriptorSet(file=[file]).SerializeToString(), GetMessageClass(
        pool.FindMessageTypeByName("o.Order")
    )


def custom(given: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
    text = given.column("value").cast(pa.string())
    return pa.record_batch({"value_index": given.column("value_index"), "a": text, "b": text}), {}


def after(header: bytes, bad: Mapping[str, Value], **more: Value) -> dict[str, Value]:
    def with_header(value: Value) -> Value:
        return lambda number: header + value(number)

    return {what: with_header(value) for what, value in bad.items()} | more


def unknown_ids(number: int) -> bytes:
    return b"\0" + (1000 + number).to_bytes(4, "big") + b"\x02"


@contextmanager
def cases() -> Iterator[dict[str, Case]]:
    """Yield the formats, by name, while a registry runs."""
    with registry_server() as registry:
        yield _cases(registry)


def _cases(registry: Registry) -> dict[str, Case]:
    registry.has(1, _ROW)
    registry.has(2, _EVENT)
    registry.has(3, {}, schemaType="JSON")
    row_columns = "id int, note text, kind text, price numeric(3,2), at timestamptz"
    own = {"no registry's ID": text("%d"), "unknown ID": lambda n: b"\0\0\0\0\x63" + b"%d" % n}
    descriptor, order = proto()
    good = {"id": 1, "note": "some text", "kind": "x", "size": 5}

    def message(number: int, **changes: Any) -> bytes:
        serialized: bytes = order(**{**good, "id": number, **changes}).SerializeToString()
        return serialized

    envelope = '{"before":null,"after":{"id":%s,"note":%s,"kind":"x"},"source":{"seq":5},"op":"c"}'
    events = {
        "text for a number": text(envelope % ('"%d"', '"x"')),
        "a fraction": text(envelope % ("%d.5", '"x"')),
        "a number for text": text(envelope % ("1", "%d")),
        "U+0000": text(envelope % ("%d", '"a\\u0000"')),
        "half a pair": text(envelope % ("%d", '"a\\ud800"')),
        "cut": text(envelope.removesuffix("}") % ("%d", '"x"')),
        "out of range": text(envelope % ("9%015d", '"x"')),
        "no row": text('{"before":null,"after":null,"op":"c","source":{"seq":%d}}'),
        "unknown op": text('{"before":null,"after":{"id":%d},"op":"x","source":{"seq":5}}'),
        "truncate": text('{"before":null,"after":null,"op":"t","source":{"seq":%d}}'),
        "no op": text('{"before":null,"after":{"id":%d}}'),
        "no envelope": text('{"id":%d}'),
        "no position": text(
            '{"before":null,"after":{"id":%d,"note":"x","kind":"x"},"op":"c","source":{"seq":null}}'
        ),
        "position is text": text(
            '{"before":null,"after":{"id":%d,"note":"x","kind":"x"},"op":"c","source":{"seq":"x"}}'
        ),
        "no source": text('{"before":null,"after":{"id":%d,"note":"x","kind":"x"},"op":"c"}'),
        "value left out": text(envelope % ("%d", '"__debezium_unavailable_value"')),
        "a document": text('{"before":null,"after":"{\\"id\\":\\"x%d\\"}","op":"c","source":{"seq":5}}'),
        "no object": text("%d"),
        "message (no reject)": text('{"op":"m","message":{"prefix":"%d"}}'),
    }
    schema = json.dumps({"type": "struct", "fields": [
        {"field": field, "type": "struct", "optional": True, "fields": [
            {"field": "id", "type": "int64"}, {"field": "note", "type": "string"}, {"field": "kind", "type": "string"},
            {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True},
        ]} for field in ("before", "after")
    ] + [{"field": "op", "type": "string"}, {"field": "source", "type": "struct", "fields": [{"field": "seq", "type": "int64"}]}]},
        separators=(",", ":"))  # fmt: skip

    def with_schema(value: Value) -> Value:
        return lambda number: b'{"schema":%s,"payload":%s}' % (schema.encode(), value(number))

    timed = envelope.replace('"kind":"x"', '"kind":"x","at":%s')
    flat = texts(
        '{"id":"%d","note":"x"}', '{"id":1,"note":%d}', '{"id":%d.5}', '{"id":%d', "%d", '{"id":%d,"note":"a\\u0000"}',
        '{"other":%d}', '{"id":%d,"__op":"x"}', '{"id":%d,"note":"__debezium_unavailable_value","__op":"u"}',
        '{"id":%d,"__deleted":1}', '{"id":{"a":%d}}', '{"id":%d,"note":[]}',
    )  # fmt: skip
    lines = texts('{"id":1}\n{"id":"%d"}', "x%d", '{"id":%d', "")
    return {
        "Json": Case(Json(_JSON_COLUMNS), _JSON_GOOD, _JSON),
        "Json, two columns": Case(Json("id int, note text"), numbered_json, _FEW_JSON),
        "Json, paths": Case(
            Json("id int from 'a.id', sku text from 'a.items[0].sku', note text default 'x'"),
            text('{"a":{"id":%d,"items":[{"sku":"x"}]},"note":"y"}'),
            texts('{"a":%d}', '{"a":{"id":"%d"}}', '{"a":{"id":%d.5}}', '{"note":%d}', "%d", '{"a":{"items":%d}}',
                  '{"a":{"items":[%d]}}', '{"a":{"items":[{"sku":%d}]}}', '{"a":{"id":%d}', '{"note":"\\u0000%d"}'),
        ),
        "Json, elements": Case(
            Json("id int, n int from 'items[].n'"),
            text('{"id":%d,"items":[{"n":1},{"n":2}]}'),
            texts('{"id":1,"items":[{"n":1},{"n":"%d"}]}', '{"id":1,"items":[{"n":%d.5}]}', '{"id":"%d","items":[]}',
                  '{"id":%d,"items":5}', '{"id":%d,"items":[5]}', '{"id":%d,"items":[{"n":1.5},{"n":"x"}]}', '{"id":%d,"items":[[]]}'),
        ),
        "Json, gzip": Case(
            Json("id int, note text", encoding="gzip"),
            lambda number: gzip.compress(numbered_json(number), 1),
            {
                "not gzip": text("x%d"),
                "gzip cut": lambda number: gzip.compress(numbered_json(number), 1)[:-9],
                "gzip damaged": lambda number: gzip.compress(numbered_json(number), 1)[:-12] + bytes(12),
                "no JSON": lambda number: gzip.compress(b"x%d" % number, 1),
                "text for a number": lambda number: gzip.compress(b'{"id":"%d"}' % number, 1),
            },
        ),
        "Json, base64": Case(
            Json("id int, note text", encoding="base64"), lambda number: b"eyJpZCI6MX0=", texts("=%d", "e30=x%d")
        ),
        "Json, lines": Case(Json("id int", documents="lines"), text('{"id":%d}\n{"id":2}'), lines),
        "Json, concatenated": Case(Json("id int", documents="concatenated"), text('{"id":%d}{"id":2}'), lines),
        "Json, array": Case(
            Json("id int", documents="array"),
            text('[{"id":%d},{"id":2}]'),
            texts('[{"id":"%d"}]', "[5,%d]", "[%d", "x%d", "[{},%d]", '[{"id":%d},null]'),
        ),
        "JsonSchema": Case(
            JsonSchema("id int, note text", registry=registry.address),
            lambda number: b"\0\0\0\0\3" + numbered_json(number),
            after(b"\0\0\0\0\3", _FEW_JSON, **own) | {"many unknown IDs": unknown_ids},
        ),
        "Csv": Case(
            Csv("id int, at timestamptz, ratio real, price numeric(10,2), big numeric(38,30), note text"),
            text("%d,2024-01-02T03:04:05Z,0.5,1.25,1.5,some text"),
            _CSV,
        ),
        "Csv, texts": Case(
            Csv("a text, b text, c uuid"),
            text("%d,some text,x"),
            texts("a,b", "a,b,c,%d", "a,b\n,%d", "a,b\n,c\n%d", "a,\0%d,", 'a,"b,%d', 'a"b%d', 'a,"b"c%d', "", '"a,b"'),
        ),
        "Text": Case(
            Text("id bigint"), text("%d"), texts("%da", "\0%d", '"%d"', "0x%d", "+%d", " %d", "%d,", "%d\n", "1.%d")
        ),
        "Text, numeric": Case(Text("id numeric"), text("%d"), texts("%da", "NaN", "1e5x%d", "1e%d0000000", "-%d-")),
        "Text, real": Case(Text("id real"), text("%d"), texts("%da", "NaN", "1e5x%d", "1e400", "-%d-", "inf")),
        "Text, text": Case(
            Text("a"),
            text("text %d"),
            {"U+0000": text("\0%d"), "not UTF-8": lambda number: b"\xff%d" % number},
        ),
        "Raw": Case(Raw("id bigint"), lambda number: number.to_bytes(8, "big"), texts("%d", "")),
        "Avro": Case(Avro(json.dumps(_ROW), fields=row_columns.replace("numeric(3,2)", "numeric(4,2)").replace("id int", "id bigint")), avro, {
            what: value for what, value in avro_cases().items() if what != "integer out of range"
        }),
        "Avro, registry": Case(
            Avro(registry=registry.address, fields=row_columns.replace("numeric(3,2)", "numeric(4,2)").replace("id int", "id bigint")),
            lambda number: b"\0\0\0\0\1" + avro(number),
            after(b"\0\0\0\0\1", {w: v for w, v in avro_cases().items() if w != "integer out of range"}, **own) | {"many unknown IDs": unknown_ids},
        ),
        "Debezium, Avro": Case(
            Debezium("id bigint, note text, kind text, price numeric(4,2), at timestamptz", "seq", registry=registry.address),
            lambda number: b"\0\0\0\0\2" + event(number),
            after(b"\0\0\0\0\2", avro_events(), **own),
        ),
        "Flattened, Avro": Case(
            Flattened("id bigint, note text, kind text, price numeric(4,2), at timestamptz", registry=registry.address),
            lambda number: b"\0\0\0\0\1" + avro(number),
            after(b"\0\0\0\0\1", avro_cases(), **own),
        ),
        "Debezium": Case(Debezium("id int, note text, kind text", "seq"), text(envelope % ("%d", '"x"')), events),
        "Debezium, schema": Case(
            Debezium("id int, note text, kind text, at timestamptz", "seq"),
            with_schema(text(timed % ("%d", '"x"', "1700000000000000"))),
            {what: with_schema(value) for what, value in events.items() if what != "no object"}
            | {
                "time out of range": with_schema(text(timed % ("%d", '"x"', "-4000000000000000000"))),
                "schema of no row": text('{"schema":{"type":"struct","fields":[]},"payload":{"id":%d}}'),
                "many schemas": text('{"schema":{"type":"struct","name":"%d"},"payload":{"id":1}}'),
            },
        ),
        "Debezium, MongoDB": Case(
            Debezium("id int from '_id', note text"),
            text('{"before":null,"after":"{\\"_id\\":%d,\\"note\\":\\"x\\"}","op":"c"}'),
            texts('{"before":null,"after":"{\\"_id\\":\\"x%d\\"}","op":"c"}', '{"before":null,"after":"{\\"_id\\":%d","op":"c"}',
                  '{"before":null,"after":"{\\"_id\\":{\\"$date\\":%d}}","op":"c"}', '{"before":null,"after":"{\\"note\\":{\\"a\\":%d}}","op":"c"}'),
        ),
        "Flattened": Case(Flattened("id int, note text"), text('{"id":%d,"note":"x"}'), flat),
        "Protobuf": Case(
            Protobuf("id int, note text, kind text, size bigint", descriptor=descriptor, message="o.Order"),
            message,
            {
                "integer out of range": lambda number: message(2**40 + number),
                "U+0000": lambda number: message(number, kind="a\0b"),
                "no message": text("x%d"),
                "the message ends early": lambda number: message(number)[:-3],
                "not UTF-8": lambda number: message(number).replace(b"some", b"\xff\xffme"),
                "another wire type": lambda number: message(number) + b"\x25abcd",
            },
        ),
        "Custom": Case(Custom(custom, "a text, b text"), text("text %d"), texts("a\0%d")),
    }  # fmt: skip


def seconds(format_: Any, values: list[bytes], times: int) -> tuple[float, Any]:
    """Return the processor seconds that decoding takes, the fewest of some times."""
    block, best = pa.array(values, pa.binary()), float("inf")
    for _ in range(times):
        start = time.process_time()
        decoded = find_decoder(format_).decode(block)
        best = min(best, time.process_time() - start)
    return best, decoded


def main() -> None:
    """Measure each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000, help="of a block: a batch has 10,000")
    parser.add_argument("--formats", nargs="+", help="only these")
    parser.add_argument("--over", type=float, default=0, help="print only ratios above this one")
    arguments = parser.parse_args()
    console = Console(width=150)
    with cases() as found:
        for name, case in found.items():
            if arguments.formats and name not in arguments.formats:
                continue
            good, decoded = seconds(case.format_, [case.good(n) for n in range(arguments.records)], 3)
            assert not decoded.rejects, (name, decoded.rejects[:3])
            each = good / arguments.records * 1e6
            for what, value in case.bad.items():
                few = arguments.records // 20
                first, decoded = seconds(case.format_, [value(n) for n in range(10, 10 + few)], 1)
                records = few
                if first / few * 1e6 < 100 * each:
                    records = arguments.records
                    first, decoded = seconds(case.format_, [value(n) for n in range(10, 10 + records)], 1)
                cost = first / records * 1e6
                if cost / each >= arguments.over:
                    note = "" if len(decoded.rejects) == records else f" ({len(decoded.rejects)} rejects)"
                    mark = "  !" if cost > _MOST * each else ""
                    console.print(
                        f"{name:20} {what[:60]!r:62} {each:7.2f} {cost:9.2f} {cost / each:8.1f}{mark}{note}",
                        highlight=False,
                        markup=False,
                    )


if __name__ == "__main__":
    main()
