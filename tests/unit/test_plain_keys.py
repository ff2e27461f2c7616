"""Text and Raw of a type: the keys and values that Kafka's own serializers write."""

import struct
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from exactbatch import Json, Pipeline, Raw, Text, Upsert, WithKeyAndHeaders
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoders import find_decoder
from exactbatch.testing import Record, load

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def decode(form, *values):
    decoded = find_decoder(form).decode(pa.array(values, pa.binary()))
    [name] = decoded.rows.schema.names
    return decoded.rows.column(name).to_pylist(), dict(decoded.rejects)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("id int", "-7", -7),
        ("id bigint", str(2**63 - 1), 2**63 - 1),
        ("n numeric", "7.10", "7.10"),
        ("n numeric(10,2)", "7.1", Decimal("7.10")),
        ("x double precision", "1e3", 1000.0),
        ("b boolean", "true", True),
        ("at timestamptz", "2026-01-01 10:00:00Z", datetime(2026, 1, 1, 10, tzinfo=UTC)),
        ("u uuid", str(ID), str(ID)),
        ("name text", ' "a", b', ' "a", b'),
    ],
)
def test_text_of_a_type(schema, text, value):
    assert decode(Text(schema), text.encode(), None) == ([value, None], {})


def test_text_that_is_not_of_the_type_is_a_reject():
    bad = ("", " 7", "7 ", "7\n", '"7"', "1,2", "0x10", "7.0", "x", str(2**31))
    found, rejects = decode(Text("id int"), b"1", *map(str.encode, bad), b"\xff", b"2")
    assert (found, len(rejects)) == ([1, 2], len(bad) + 1)
    assert rejects[1] == "column 'id', integer: expected a value, found the text ''"
    assert set(decode(Text("n numeric"), b"NaN", b"0x1")[1]) == {0, 1}
    assert set(decode(Text("id int"), b'"7"', b"1")[1]) == {0}  # in a block that CSV would take


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ("id smallint", struct.pack(">h", -2), -2),
        ("id int", struct.pack(">i", 7), 7),
        ("id bigint", struct.pack(">q", -(2**62)), -(2**62)),
        ("x real", struct.pack(">f", 1.5), 1.5),
        ("x double precision", struct.pack(">d", 0.1), 0.1),
        ("u uuid", ID.bytes, str(ID)),
        ("b bytea", b"\0a", b"\0a"),
    ],
)
def test_bytes_of_a_type_have_its_width(schema, written, value):
    assert decode(Raw(schema), written, None, written) == ([value, None, value], {})
    if "bytea" not in schema:
        bad = (b"", written[:-1], written + b"\0")
        found, rejects = decode(Raw(schema), written, *bad)
        assert found == [value]
        assert [reason.partition(": ")[2] for reason in rejects.values()] == [
            f"expected {len(written)} bytes, found {len(each)}" for each in bad
        ]


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize(
    ("key", "write"),
    [(Text("id bigint"), lambda n: str(n).encode()), (Raw("id bigint"), lambda n: struct.pack(">q", n))],
    ids=["text", "binary"],
)
def test_tombstones_of_plain_keys_delete(history, key, write):
    sink = Upsert("public.t", key=("id",), history=history)
    value = Json("id bigint, name text")
    pipeline = Pipeline(name="p", topics=("t",), value=value, message_key=key, sink=sink, max_rejects=2)
    records = [Record(b'{"id": %d, "name": "a"}' % number, write(number)) for number in (1, 256)]
    loaded = load(pipeline, [*records, Record(None, write(1)), Record(None, b"seven77"), Record(None, None)])
    assert loaded.target == [{"id": 256, "name": "a"}]
    assert [reject.reason.startswith("key: column 'id'") for reject in loaded.rejects] == [True, False]
    beside = Pipeline(
        name="p",
        topics=("t",),
        value=WithKeyAndHeaders(Json("name text"), key=key),
        message_key=key,
        sink=sink,
    )
    assert load(beside, records).target == [{"id": 1, "name": "a"}, {"id": 256, "name": "a"}]


def test_what_the_formats_cannot_take_is_refused():
    for make, schema in (
        (Raw, "x text"),
        (Raw, "x int[]"),
        (Text, "x bytea"),
        (Text, "x int[]"),
        (Text, "a int, b int"),
    ):
        with pytest.raises(ConfigurationError):
            make(schema)
    assert [column.name for column in Text('"A b" text').columns] == ["A b"]
