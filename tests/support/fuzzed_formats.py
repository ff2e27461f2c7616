"""Decode hostile records of one format until a time has passed, in a process whose address space is bounded.

`python -m support.fuzzed_formats avro 60 1` tries the format for 60 s with the seed 1. The exit status is 0 only if
each record was counted once, whatever it was; the last line says how many records there were.
"""

import base64
import gzip
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from exactbatch import Append, Pipeline
from exactbatch.errors import ConfigurationError
from exactbatch.formats import (
    Avro,
    Csv,
    Custom,
    Debezium,
    Flattened,
    Json,
    JsonSchema,
    Protobuf,
    Raw,
    Text,
    WithKeyAndHeaders,
)
from exactbatch.testing import Record, decode
from support.registry import Registry, registry_server

ADDRESS_SPACE: Final = 2 * 1024**3
_IDS: Final = 20  # schemas at a time
_LARGEST: Final = 72 * 1024**2  # bytes of a value before it is compressed: more than it may decompress to
_TOGETHER: Final = 32 * 1024**2  # bytes that a batch decodes together; more only if the last record is larger

Make = Callable[[random.Random, Registry], tuple[Any, Callable[[], bytes]]]


def json_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(12 if depth < 4 else 8)
    match kind:
        case 0 | 1:
            return chance.choice([0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, chance.randrange(10**6)])
        case 2:
            return chance.choice([0.5, 1e308, -0.0, 1e-40, chance.random()])
        case 3 | 4:
            return chance.choice(
                ["", "x", "é", "\0", "2024-02-30", "2024-01-01T00:00:00Z", "NaN", "\ud800", "1.5", "AQ=="]
            )
        case 5:
            return "x" * chance.choice([10, 1000, 100_000, 900_000])
        case 6:
            return None
        case 7:
            return chance.random() < 0.5
        case 8 | 9:
            one = json_value(chance, depth + 2)
            return [one] * chance.choice([0, 1, 3, 3, 1000]) if len(json.dumps(one)) < 1000 else [one]
        case _:
            names = chance.choices(
                ["id", "a", "b", "items", "payload", "n", "after", "op"], k=chance.randrange(5)
            )
            return {name: json_value(chance, depth + 1) for name in names}


def json_text(chance: random.Random) -> bytes:
    match chance.randrange(12):
        case 0:
            return b'{"a": ' + b"[" * (n := chance.choice([10, 1000, 100_000])) + b"]" * n + b"}"
        case 1:
            return b'{"items": [' + b",".join([b"{}"] * chance.choice([1, 1000, 300_000])) + b"]}"
        case 2:
            note = b"x" * chance.choice([10, 500_000])
            return (
                b'{"a": "'
                + note
                + b'", "items": ['
                + b",".join([b'{"n": 1}'] * chance.choice([1, 1500]))
                + b"]}"
            )
        case 3:
            return b'{"a": ' + b"9" * chance.choice([20, 5000, 500_000]) + b"}"
        case 4:
            return b'{"n": 1e' + b"9" * chance.choice([2, 10, 100]) + b"}"
        case _:
            named = {
                name: json_value(chance) for name in ("id", "a", "b", "n", "items") if chance.random() < 0.6
            }
            return json.dumps(named, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")


def mutated(chance: random.Random, value: bytes) -> bytes:
    at = chance.randrange(len(value) + 1)
    match chance.randrange(10):
        case 0:
            return value[:at]
        case 1:
            return value[:at] + chance.randbytes(chance.randrange(8)) + value[at:]
        case 2:
            return value[:at] + value[max(0, at - 50) : at] * chance.choice([1, 100]) + value[at:]
        case 3:
            return chance.randbytes(chance.choice([0, 1, 20, 2000]))
        case _:
            return value


TYPES: Final = (
    *(
        "smallint",
        "int",
        "bigint",
        "real",
        "double precision",
        "numeric",
        "numeric(10,2)",
        "numeric(60,5)",
        "boolean",
    ),
    *(
        "text",
        "uuid",
        "date",
        "timestamptz",
        "timestamp",
        "json",
        "jsonb",
        "int[]",
        "text[]",
        "jsonb[]",
        "interval",
    ),
)


def columns(chance: random.Random, *, plain: bool = False) -> str:
    paths = [
        "",
        " from 'b.a'",
        " from 'items[].n'",
        " from 'items[].a'",
        " from 'items[0].a'",
        " default '1'",
    ]
    names = ["id", "a", "b", "n", "items"]
    return ", ".join(
        f"{name} {chance.choice(TYPES)}{'' if plain else chance.choice(paths)}"
        for name in chance.sample(names, chance.randrange(1, 5))
    )


def of_json(chance: random.Random, _registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    encodings = tuple(chance.choices(["gzip", "zstd", "base64"], k=chance.choice([0, 0, 1, 2])))
    documents = chance.choice(["one", "one", "lines", "array", "concatenated"])

    def value() -> bytes:
        many = 1 if documents == "one" else chance.choice([0, 1, 5, 100])
        text = [json_text(chance) for _ in range(min(many, 3))]
        text *= 1 + min(many // 3, _LARGEST // (1 + sum(map(len, text))))
        whole = {"one": b"".join, "lines": b"\n".join, "concatenated": b" ".join}.get(documents, b",".join)(
            text
        )
        whole = b"[" + whole + b"]" if documents == "array" else whole
        if documents != "one" and chance.random() < 0.05:
            whole = chance.choice([b"{}\n", b"{},", b"[],", b'"', b"{", b" ", b"1,"]) * chance.choice(
                [100, 3_000_000]
            )
            whole = b"[" + whole + b"{}]" if documents == "array" else whole
        for each in reversed(encodings):
            whole = _ENCODERS[each](whole)
        return whole

    return Json(columns(chance), encoding=encodings, documents=documents), value  # type: ignore[arg-type]


def _zstd(value: bytes) -> bytes:
    return bytes(pa.compress(value, codec="zstd", asbytes=True))


_ENCODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda value: gzip.compress(value, 1),
    "base64": base64.b64encode,
    "zstd": _zstd,
}


def of_lines(chance: random.Random, _registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    fields = [
        chance.choice([each for each in TYPES if "[" not in each]) for _ in range(chance.randrange(1, 5))
    ]

    def value() -> bytes:
        written = [str(json_value(chance, 9)) for _ in fields]
        return ",".join(written).encode(errors="surrogatepass") * chance.choice([1, 1, 1, 50])

    return Csv(", ".join(f"c{number} {type_}" for number, type_ in enumerate(fields))), value


def of_text(chance: random.Random, _registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    if chance.random() < 0.5:
        format_: Any = Raw(f"a {chance.choice(['bytea', 'int', 'bigint', 'real', 'uuid', 'smallint'])}")
    else:
        format_ = Text(f"a {chance.choice([each for each in TYPES if '[' not in each])}")
    return format_, lambda: str(json_value(chance, 9)).encode(errors="surrogatepass")


def avro_type(chance: random.Random, names: list[str], depth: int = 0) -> Any:
    kind = chance.randrange(14 if depth < 5 else 6)
    if kind < 6:
        return chance.choice(
            [
                *("null", "boolean", "int", "long", "float", "double", "string", "bytes", *names[-3:]),
                {
                    "type": "bytes",
                    "logicalType": "decimal",
                    "precision": chance.choice([4, 38, 76]),
                    "scale": 2,
                },
                {"type": "long", "logicalType": "timestamp-micros"},
                {"type": "int", "logicalType": "date"},
                {"type": "long", "logicalType": "time-micros"},
                {"type": "string", "logicalType": "uuid"},
            ]
        )
    if kind < 8:
        return {"type": "array", "items": avro_type(chance, names, depth + 1)}
    if kind == 8:
        return {"type": "map", "values": avro_type(chance, names, depth + 1)}
    if kind == 9:
        return ["null", avro_type(chance, names, depth + 1)]
    name = f"T{len(names)}"
    names.append(name)
    if kind == 10:
        return {"type": "fixed", "name": name, "size": chance.choice([0, 1, 16])}
    if kind == 11:
        return {"type": "enum", "name": name, "symbols": ["A", "B" * chance.choice([1, 200])]}
    fields = [avro_type(chance, names, depth + 1) for _ in range(chance.choice([0, 1, 2, 2, 3, 40]))]
    if chance.random() < 0.3:
        fields.append(["null", name])
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(fields)],
    }


def doubling(levels: int) -> Any:
    type_: Any = {"type": "record", "name": "n0", "fields": []}
    for level in range(1, levels):
        fields = [{"name": "a", "type": type_}, {"name": "b", "type": f"n{level - 1}"}]
        type_ = {"type": "record", "name": f"n{level}", "fields": fields}
    return type_


def varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def avro_body(chance: random.Random) -> bytes:
    parts = []
    for _ in range(chance.choice([0, 1, 3, 10, 100])):
        number = chance.choice([0, 0, 1, 2, 2, 3, 20, 1000, 2**20, 2**40, 2**62, 2**64 - 1])
        parts.append(
            chance.choice([varint(number), bytes(chance.randrange(4)), chance.randbytes(4), b"\x02A"])
        )
    return b"".join(parts) + bytes(chance.choice([0, 0, 1, 5, 1000, 500_000]))


def of_avro(chance: random.Random, registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    def schema() -> Any:
        fields = [avro_type(chance, names) for _ in range(chance.randrange(1, 4))]
        if chance.random() < 0.2:
            fields.append(doubling(chance.choice([3, 30, 60])) if "n0" not in names else "null")
        named = zip(("id", "a", "b", "n"), fields, strict=False)
        return {
            "type": "record",
            "name": "V",
            "fields": [{"name": name, "type": type_} for name, type_ in named],
        }

    names: list[str] = []
    if chance.random() < 0.4:
        return Avro(json.dumps(schema())), lambda: avro_body(chance)
    for number in range(_IDS):
        names.clear()
        registry.has(number, schema())
    return (
        Avro(registry=registry.address, fields=columns(chance, plain=True)),
        lambda: b"\0" + chance.randrange(_IDS).to_bytes(4, "big") + avro_body(chance),
    )


def proto_file(chance: random.Random) -> bytes:
    file = FileDescriptorProto(name="f.proto", package="f", syntax=chance.choice(["proto2", "proto3"]))
    for level in range(3):
        message = file.message_type.add(name=f"M{level}")
        for number in range(1, chance.choice([2, 5, 3000 if level else 5])):
            message.field.add(
                name=f"f{number}", number=number, type=chance.choice([1, 3, 4, 5, 8, 9, 12, 18]), label=1
            )
        for number, name in ((4001, "id"), (4002, "a"), (4003, "n")):
            message.field.add(
                name=name, number=number, type=chance.choice([3, 9, 12, 5]), label=chance.choice([1, 3])
            )
        inner = f".f.M{min(level + 1, 2)}"
        for number, name in ((1 << 14, "items"), (9 << 11, "b")):
            message.field.add(
                name=name, number=number, type=11, label=3 if name == "items" else 1, type_name=inner
            )
    serialized: bytes = FileDescriptorSet(file=[file]).SerializeToString()
    return serialized


def proto_body(chance: random.Random) -> bytes:
    def field(number: int) -> bytes:
        wire_type = chance.choice([0, 1, 2, 2, 2, 3, 5])
        content = {
            0: varint(chance.choice([0, 1, 2**63, 5])),
            1: bytes(8),
            3: varint(number << 3 | 4),
            5: bytes(4),
        }
        inner = chance.choice([b"", b"x", b"\x08\x01", bytes(chance.randrange(50))])
        return varint(number << 3 | wire_type) + content.get(wire_type, varint(len(inner)) + inner)

    numbers = [1, 2, 3, 4001, 4002, 4003, 1 << 14, 9 << 11, 77]
    fields = [field(chance.choice(numbers)) for _ in range(chance.choice([0, 1, 5, 20]))]
    many = [varint((1 << 14) << 3 | 2) + b"\0"] * chance.choice([0, 0, 1, 1000, 150_000])
    return b"".join([*fields, *many])


def of_protobuf(chance: random.Random, _registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    schema = chance.choice(
        ["id bigint, a text", "a jsonb, b jsonb", "a text, n bigint from 'items[].n'", "b jsonb from '$'"]
    )
    return Protobuf(schema, descriptor=proto_file(chance), message="f.M0"), lambda: proto_body(chance)


def connect_schema(chance: random.Random, depth: int = 0) -> Any:
    kinds = ["int32", "int64", "string", "bytes", "boolean", "double", "float", "int8"]
    names = [
        "io.debezium.time.MicroTimestamp",
        "org.apache.kafka.connect.data.Decimal",
        "io.debezium.time.Date",
        "x",
        None,
    ]
    if depth < 3 and chance.random() < 0.3:
        fields = [{"field": name, **connect_schema(chance, depth + 1)} for name in ("id", "a", "b", "n")]
        return {"type": "struct", "fields": fields}
    if depth < 3 and chance.random() < 0.2:
        return {"type": "array", "items": connect_schema(chance, depth + 1)}
    return {
        "type": chance.choice(kinds),
        "name": chance.choice(names),
        "parameters": {"scale": chance.choice(["2", "-1", "x", "100000"])},
        "optional": True,
    }


def event(chance: random.Random) -> bytes:
    def row() -> Any:
        return (
            {name: json_value(chance, 3) for name in ("id", "a", "b", "n")}
            if chance.random() < 0.9
            else json_value(chance)
        )

    op = chance.choice(["c", "u", "d", "r", "t", "m", None, 5])
    envelope: Any = {"before": row(), "after": row(), "op": op, "source": json_value(chance, 2)}
    if chance.random() < 0.2:
        envelope = (
            {
                **dict.fromkeys(("id", "a"), json_value(chance, 3)),
                "__deleted": chance.choice(["true", "false", 1]),
                "__op": op,
            }
            if chance.random() < 0.9
            else row()
        )
    if chance.random() < 0.5:
        fields = [
            {"field": name, "type": "struct", "fields": connect_schema(chance).get("fields", [])}
            for name in ("before", "after")
        ]
        envelope = {
            "schema": {"type": "struct", "fields": [*fields, {"field": "op", "type": "string"}]},
            "payload": envelope,
        }
    return json.dumps(envelope, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")


def of_debezium(chance: random.Random, _registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    return Debezium(columns(chance, plain=True)), lambda: event(chance)


def of_flattened(chance: random.Random, _registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    return Flattened(columns(chance, plain=True)), lambda: chance.choice([event, json_text])(chance)


def of_debezium_avro(chance: random.Random, registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    for number in range(_IDS):
        names: list[str] = []
        fields = [{"name": name, "type": avro_type(chance, names)} for name in ("id", "a", "b", "n")]
        row = {"type": "record", "name": "Row", "fields": fields}
        z = doubling(chance.choice([3, 30])) if chance.random() < 0.3 else avro_type(chance, names)
        envelope = [("before", ["null", row]), ("after", ["null", "Row"]), ("op", "string"), ("z", z)]
        named = [{"name": name, "type": type_} for name, type_ in envelope]
        registry.has(number, {"type": "record", "name": "Envelope", "fields": named})
    format_ = chance.choice([Debezium, Flattened])(columns(chance, plain=True), registry=registry.address)
    return (
        format_,
        lambda: (
            b"\0"
            + chance.randrange(_IDS).to_bytes(4, "big")
            + chance.choice([b"\0\x02", b"\x02"])
            + avro_body(chance)
        ),
    )


def of_json_schema(chance: random.Random, registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    registry.has(1, {}, schemaType="JSON")
    return JsonSchema(columns(chance), registry=registry.address), lambda: b"\0\0\0\0\1" + json_text(chance)


def of_custom(chance: random.Random, _registry: Registry) -> tuple[Any, Callable[[], bytes]]:
    times = chance.choice([1, 1000, 1_000_000])

    def function(given: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        text = [value.hex() * times for value in given.column("value").to_pylist()]
        return pa.record_batch(
            {"value_index": given.column("value_index"), "a": pa.array(text, pa.string())}
        ), {}

    return Custom(function, "a text"), lambda: chance.randbytes(chance.choice([0, 1, 30, 200]))


FORMATS: Final[dict[str, Make]] = {
    "json": of_json,
    "csv": of_lines,
    "text": of_text,
    "avro": of_avro,
    "protobuf": of_protobuf,
    "debezium": of_debezium,
    "debezium-avro": of_debezium_avro,
    "flattened": of_flattened,
    "json-schema": of_json_schema,
    "custom": of_custom,
}


def blocks(chance: random.Random, registry: Registry, name: str) -> Iterator[tuple[Any, list[Record]]]:
    """Yield formats, some with keys and headers, and records."""
    while True:
        try:
            format_, value = FORMATS[name](chance, registry)
            key, key_value = FORMATS[chance.choice(["text", "json", name])](chance, registry)
            with_message = WithKeyAndHeaders(
                format_,
                key=key if chance.random() < 0.5 else None,
                all_headers="all_headers" if chance.random() < 0.3 else None,
            )
            used = with_message if chance.random() < 0.4 else format_
            Pipeline(name="fuzz", topics=("t",), value=used, sink=Append("public.t"))
        except ConfigurationError:
            continue
        for _ in range(3):
            records: list[Record] = []
            wanted = chance.choice([1, 3, 10])
            while len(records) < wanted and sum(map(_size, records)) < _TOGETHER:
                records.append(
                    Record(
                        None if chance.random() < 0.05 else mutated(chance, value()),
                        key=mutated(chance, key_value()) if chance.random() < 0.8 else None,
                        headers=[("h", chance.randbytes(chance.choice([0, 10, 100_000])))]
                        if chance.random() < 0.3
                        else (),
                    )
                )
            yield used, records


def _size(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"")


def count_rejects(format_: Any, records: list[Record]) -> int:
    """Decode records, and return how many are rejects. Their rows are gone before others are made."""
    pipeline = Pipeline(name="fuzz", topics=("t",), value=format_, sink=Append("public.t"))
    try:
        loaded = decode(pipeline, records)
    except BaseException:
        sys.stdout.write(f"{format_!r}\n{[each.value and each.value[:2000] for each in records]!r}\n")
        raise
    with_rows = loaded.records - len(loaded.rejects) - loaded.tombstones - loaded.dropped
    assert loaded.records == len(records)
    assert with_rows >= 0
    assert all(len(reject.reason) < 10_000 for reject in loaded.rejects)
    return len(loaded.rejects)


def main(name: str, seconds: float, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    chance, end, count, rejected, slowest = random.Random(seed), time.monotonic() + seconds, 0, 0, 0.0
    with registry_server() as registry:
        for format_, records in blocks(chance, registry, name):
            before = time.monotonic()
            count, rejected = count + len(records), rejected + count_rejects(format_, records)
            slowest = max(slowest, time.monotonic() - before)
            if time.monotonic() > end:
                break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.write(
        f"{name}: {count} records, {rejected} rejects, {peak} MB, slowest block {slowest:.1f} s\n"
    )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
