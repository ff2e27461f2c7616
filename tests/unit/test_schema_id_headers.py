"""Records whose headers name the schemas of their values and keys: every format that reads schemas from a registry."""

import io
import json
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from exactbatch import Append, Avro, Debezium, Json, JsonSchema, Pipeline, Protobuf, Upsert, WithKeyAndHeaders
from exactbatch.errors import ConfigurationError, RegistryUnavailable
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.message.record_headers import UNREADABLE, Unreadable
from exactbatch.formats.registry.frames import framed
from exactbatch.testing import DecodedRecords, Record, decode, load
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import envelope, typed
from support.protobuf_schema import shop_class, shop_proto
from support.registry import registry_server

VALUE, KEY = "__value_schema_id", "__key_schema_id"
AVRO, JSON, PROTOBUF, EVENTS, ID, OTHER = (UUID(int=number) for number in range(1, 7))
SIX = {
    "type": "record",
    "name": "Six",
    "fields": [{"name": name, "type": "long"} for name in ("id", *"abcde")],
}
ONE = {"type": "record", "name": "One", "fields": [{"name": "id", "type": "long"}]}
ENVELOPE = envelope({"id": typed("int64")}, {"lsn": typed("int64")})
EXPECTED = "expected byte 1 and the 16 bytes of a schema's GUID, or byte 0 and the 4 bytes of its ID"


@pytest.fixture(scope="module")
def registry():
    """A registry that knows each schema by its ID and its GUID, which are one number."""
    with registry_server() as served:
        served.has(1, SIX, guid=AVRO)
        served.has(2, ONE, guid=ID)
        served.has(5, ONE, guid=ID)
        served.has(3, {}, guid=JSON, schemaType="JSON")
        served.has(7, shop_proto(), guid=PROTOBUF, schemaType="PROTOBUF")
        served.has(4, avro_schema(ENVELOPE), guid=EVENTS)
        yield served


def header(guid: UUID, indexes: bytes = b"") -> bytes:
    return b"\1" + guid.bytes + indexes


def prefix(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def avro(schema: Any, **row: int) -> bytes:
    fastavro.schemaless_writer(stream := io.BytesIO(), schema, row)
    return stream.getvalue()


def six(number: int) -> bytes:
    return avro(SIX, id=number, **dict.fromkeys("abcde", 0))


def order(number: int) -> bytes:
    return shop_class("Order")(f_int64=number).SerializeToString()


def event(number: int) -> bytes:
    source = {"lsn": number}
    return avro_body(
        ENVELOPE, {"before": None, "after": {"id": number}, "source": source, "op": "c", "ts_ms": 1}
    )


# For each format: how it is made at an address, a value, and its schema by header and by prefix.
FORMATS = {
    "Avro": (lambda at: Avro(registry=at, fields="id bigint"), six, header(AVRO), prefix(1)),
    "JsonSchema": (
        lambda at: JsonSchema("id bigint", registry=at),
        lambda number: b'{"id": %d}' % number,
        header(JSON),
        prefix(3),
    ),
    "Protobuf": (
        lambda at: Protobuf("id bigint from 'f_int64'", registry=at),
        order,
        header(PROTOBUF, b"\2\2"),
        prefix(7) + b"\2\2",
    ),
    "Debezium": (lambda at: Debezium("id bigint", registry=at), event, header(EVENTS), prefix(4)),
}


def pipeline(value: Any, **options: Any) -> Pipeline:
    return Pipeline(**{"name": "p", "topics": ("t",), "value": value, "sink": Append("public.t")} | options)


def ids(loaded: DecodedRecords) -> list[Any]:
    return [row["id"] for row in loaded.rows]


def reasons(loaded: DecodedRecords) -> dict[int, str]:
    return {reject.offset: reject.reason for reject in loaded.rejects}


def test_a_bare_body_that_looks_like_a_prefix_is_what_its_header_says(registry):
    body = avro(SIX, id=0, a=0, b=0, c=0, d=1, e=21)
    assert body.hex() == "00000000022a"
    value = Avro(registry=registry.address, fields="id bigint")
    assert ids(decode(pipeline(value), [Record(body, headers=[(VALUE, header(AVRO))])])) == [0]
    assert ids(decode(pipeline(value), [body])) == [21]  # nothing says that it is another one


@pytest.mark.parametrize("name", FORMATS)
def test_headers_and_prefixes_in_one_topic(registry, name):
    make, body, of_header, of_prefix = FORMATS[name]
    by_id = b"\0" + of_prefix[1:]
    records = [
        Record(body(0), headers=[(VALUE, of_header)]),
        of_prefix + body(1),
        Record(body(2), headers=[("other", b"x"), (VALUE, by_id)]),
        Record(None, headers=[(VALUE, of_header)]),
        Record(None, headers=[(VALUE, b"bad")]),
        Record(body(3), headers=[(VALUE, b"bad"), (VALUE, of_header)]),  # the last one counts
        Record(of_prefix + body(4), headers=[(KEY, of_header)]),  # a header of the key
        Record(of_prefix + body(5), headers=[(VALUE.upper(), of_header)]),
    ]
    loaded = decode(pipeline(make(registry.address)), records)
    assert (ids(loaded), loaded.rejects, loaded.tombstones) == ([0, 1, 2, 3, 4, 5], [], 2)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (None, "null"),
        (b"", "nothing"),
        (b"\0\0\0\0", "00 00 00 00"),
        (b"\2" + bytes(16), "02" + 16 * " 00"),
        (header(OTHER)[:-1], "01" + 15 * " 00"),
        (header(OTHER) + b"\7\7", "01" + 15 * " 00" + " 06 … (19 bytes)"),
        (prefix(1) + b"\7\7", "00 00 00 00 01 07 07"),
    ],
)
def test_a_header_that_is_no_prefix_is_a_reject_that_names_it(registry, name, found, shown):
    make, body, _, of_prefix = FORMATS[name]
    # Each of these values would be a row without its header.
    loaded = decode(pipeline(make(registry.address)), [Record(of_prefix + body(1), headers=[(VALUE, found)])])
    indexes = ", and then the indexes of a message type" if name == "Protobuf" else ""
    assert reasons(loaded) == {0: f"header {VALUE!r}: {EXPECTED}{indexes}, found {shown}"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_header_is_never_taken_for_a_prefix(registry, name):
    make, body, of_header, of_prefix = FORMATS[name]
    loaded = decode(
        pipeline(make(registry.address)), [Record(of_prefix + body(1), headers=[(VALUE, of_header)])]
    )
    assert (loaded.rows, len(loaded.rejects)) == ([], 1)
    # Serializers write a GUID into headers alone.
    loaded = decode(pipeline(make(registry.address)), [of_header + body(1)])
    assert reasons(loaded) == {
        0: f"expected byte 0 and the 4 bytes of a schema ID, found {of_header[:5].hex(' ')}"
    }


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_guid_is_a_reject_and_a_registry_without_an_answer_is_none(registry, name):
    make, body, *_ = FORMATS[name]
    indexes, kind = (b"\0", "Protobuf schema") if name == "Protobuf" else (b"", "schema")
    record = Record(body(1), headers=[(VALUE, header(OTHER, indexes))])
    loaded = decode(pipeline(make(registry.address)), [record])
    assert reasons(loaded) == {0: f"the registry has no {kind} with the GUID {OTHER}"}
    with pytest.raises(RegistryUnavailable, match=f"for schema {OTHER}"):
        decode(pipeline(make("http://127.0.0.1:1")), [record])


def test_a_registry_that_does_not_know_guids_is_an_error_that_says_so(registry):
    guid = UUID(int=99)
    registry.answers[f"/schemas/guids/{guid}"] = (404, {"error_code": 404, "message": "HTTP 404 Not Found"})
    record = Record(b"{}", headers=[(VALUE, header(guid))])
    with pytest.raises(
        ConfigurationError, match=f"404 for the schema with the GUID {guid}, which a record's header"
    ):
        decode(pipeline(JsonSchema("id int", registry=registry.address)), [record])


def test_a_schema_of_another_type_is_a_reject(registry):
    value = JsonSchema("id bigint", registry=registry.address)
    loaded = decode(pipeline(value), [Record(b"{}", headers=[(VALUE, header(AVRO))])])
    assert reasons(loaded) == {0: f"schema {AVRO} of the registry is AVRO, not JSON"}


def test_an_empty_value_is_one_of_its_schema(registry):
    value = Protobuf("id bigint from 'f_int64'", registry=registry.address)
    loaded = decode(pipeline(value), [Record(b"", headers=[(VALUE, header(PROTOBUF, b"\2\2"))])])
    assert ids(loaded) == [0]


def test_schemas_by_guid_have_references(registry):
    guid = UUID(int=20)
    registry.has(
        20,
        {"type": "record", "name": "R", "fields": [{"name": "id", "type": "Id"}]},
        guid=guid,
        references=[{"name": "Id", "subject": "ids", "version": 3}],
    )
    inner = json.dumps({"type": "record", "name": "Id", "fields": [{"name": "n", "type": "long"}]})
    path = "/subjects/ids/versions/3?deleted=true"
    registry.answers[path] = (200, {"schema": inner, "id": 21, "version": 3})
    value = Avro(registry=registry.address, fields="id jsonb")
    loaded = decode(pipeline(value), [Record(b"\x0e", headers=[(VALUE, header(guid))])])
    assert ids(loaded) == ['{"n":7}'], loaded.rejects


def test_keys_have_a_header_of_their_own(registry):
    value = WithKeyAndHeaders(
        Avro(registry=registry.address, fields="id bigint"),
        key=Avro(registry=registry.address, fields="key bigint"),
    )
    key_schema = {"type": "record", "name": "K", "fields": [{"name": "key", "type": "long"}]}
    guid = UUID(int=30)
    registry.has(30, key_schema, guid=guid)
    both = [(KEY, header(guid)), (VALUE, header(AVRO))]
    bare = avro(key_schema, key=0)
    loaded = decode(
        pipeline(value),
        [
            Record(six(1), bare, headers=both),
            Record(prefix(1) + six(2), bare, headers=both[:1]),
            Record(six(3), prefix(30) + bare, headers=both[1:]),
            Record(prefix(1) + six(4), prefix(30) + bare),
            Record(six(5), None, headers=both),
            Record(six(6), bare, headers=[(KEY, b"\1"), both[1]]),
        ],
    )
    assert [(row["id"], row["key"]) for row in loaded.rows] == [(1, 0), (2, 0), (3, 0), (4, 0), (5, None)]
    assert reasons(loaded) == {5: f"key: header {KEY!r}: {EXPECTED}, found 01"}


@pytest.mark.parametrize("name", ["Avro", "JsonSchema", "Protobuf"])
def test_tombstones_delete_by_the_header_of_their_key(registry, name):
    make, body, of_header, of_prefix = FORMATS[name]
    format_ = make(registry.address)
    upsert = pipeline(format_, message_key=format_, sink=Upsert("public.t", key=("id",)), max_rejects=3)
    with_header = [(KEY, of_header)]
    loaded = load(
        upsert,
        [
            *(Record(of_prefix + body(number), of_prefix + body(number)) for number in range(5)),
            Record(None, body(0), headers=with_header),
            Record(None, of_prefix + body(1)),
            Record(None, body(2), headers=[*with_header, (VALUE, b"bad")]),
            Record(None, of_prefix + body(3), headers=[(KEY, b"bad")]),
            Record(None, None, headers=with_header),
            Record(None, None, headers=[(KEY, b"bad")]),
        ],
    )
    assert [row["id"] for row in loaded.target] == [3, 4]
    found = reasons(loaded)
    assert found[8].startswith(f"key: header {KEY!r}: expected byte 1 ")
    assert found[8].endswith("found 62 61 64")
    assert (found[9], found[10]) == ("key: expected a key, found null",) * 2


def test_a_record_whose_headers_cannot_be_read_is_a_reject(registry):
    class Messages:
        def last_headers(self, _name: str) -> dict[int, Unreadable]:
            return {1: Unreadable()}

    value = JsonSchema("id int", registry=registry.address)
    values = pa.array([prefix(3) + b'{"id": %d}' % number for number in range(3)])
    decoded = framed(value, "value", values, Messages()).decode(find_decoder(value).decode)
    assert decoded.rows.column("id").to_pylist() == [0, 2]
    assert decoded.rejects == ((1, UNREADABLE),)


def test_formats_without_a_registry_take_the_body_as_it_is():
    headers = [(VALUE, b"bad")]
    assert ids(decode(pipeline(Json("id int")), [Record(b'{"id": 1}', headers=headers)])) == [1]
    assert ids(decode(pipeline(Avro(json.dumps(ONE))), [Record(avro(ONE, id=3), headers=headers)])) == [3]
