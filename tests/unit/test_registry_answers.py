"""What a schema registry lacks, or has and no format can use, is a reject of the record; the others are rows."""

import base64
import io
import json

import fastavro
import pytest

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Avro, Debezium, Flattened, JsonSchema, Protobuf, with_registry
from support.decoding import decode
from support.protobuf_schema import shop_class, shop_file
from support.registry import registry_server

ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": []}},
        {"name": "op", "type": "string"},
    ],
}
EVENT = {"before": None, "after": {"id": 7}, "source": {}, "op": "c"}
PROTO = base64.b64encode(shop_file().SerializeToString()).decode()
GARBAGE = b"\0\xff\xff\xff\xff\x81\x13\x07"


def framed(schema_id, body):
    return b"\0" + schema_id.to_bytes(4, "big") + body


def avro_body(schema, value):
    fastavro.schemaless_writer(body := io.BytesIO(), fastavro.parse_schema(schema), value)
    return body.getvalue()


# Of each format: how it is made, the answer for its schema, and a body of the row {"id": 7}.
FORMATS = {
    "Avro": (
        lambda address: Avro(registry=address, columns="id int"),
        {"schema": json.dumps(ROW)},
        avro_body(ROW, {"id": 7}),
    ),
    "Debezium": (
        lambda address: Debezium("id int", version=None, registry=address),
        {"schema": json.dumps(ENVELOPE)},
        avro_body(ENVELOPE, EVENT),
    ),
    "Flattened": (
        lambda address: Flattened("id int", registry=address),
        {"schema": json.dumps(ROW)},
        avro_body(ROW, {"id": 7}),
    ),
    "JsonSchema": (
        lambda address: JsonSchema("id int", registry=address),
        {"schema": "{}", "schemaType": "JSON"},
        b'{"id": 7}',
    ),
    "Protobuf": (
        lambda address: Protobuf("id int from 'f_int32'", registry=address),
        {"schema": PROTO, "schemaType": "PROTOBUF"},
        b"\x02\x02" + shop_class("Order")(f_int32=7).SerializeToString(),
    ),
}


@pytest.fixture
def registry():
    with registry_server() as server:
        yield server


@pytest.fixture(params=FORMATS)
def known(request, registry):
    """A format without retries, a value of a row, and a function that gives an ID another answer."""
    make, answer, body = FORMATS[request.param]

    def answers(schema_id, status, given):
        for query in ("", "?format=serialized"):
            registry.answers[f"/schemas/ids/{schema_id}{query}"] = (status, given)

    answers(1, 200, answer)
    form = with_registry(make(registry.address), {"schema.registry.max.retries": 0})
    return form, framed(1, body), answers


def the_reject_beside_a_row(form, good, bad):
    """Why a value is refused between two that are rows."""
    decoded = decode(form, good, bad, good)
    assert decoded.rows.to_pylist() == [{"id": 7}, {"id": 7}]
    [(index, why)] = decoded.rejects
    assert index == 1
    return why


def test_bytes_that_are_no_id_of_a_schema_are_a_reject_and_the_registry_is_not_asked(known, registry):
    """Confluent's registry answers 404 without 40403 for such an ID, as a server does that is no registry."""
    form, good, answers = known
    answers(0xFFFF_FFFF, 404, {"error_code": 404})
    answers(2**31, 404, {"error_code": 404})
    for bad, schema_id in ((GARBAGE, 0xFFFF_FFFF), (framed(2**31, b""), 2**31)):
        why = the_reject_beside_a_row(form, good, bad)
        assert why == f"expected a schema ID of at most 2147483647, found {schema_id}"
    assert {path.partition("?")[0] for path, _ in registry.asked} == {"/schemas/ids/1"}


RECORD = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": %s}]}'


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": "message A {}", "schemaType": "OTHER"},
        {"schema": "{}"},
        {"schema": "no JSON"},
        {"schema": RECORD % '{"type": "bytes", "logicalType": "decimal"}'},
        {"schema": RECORD % '{"type": "int", "logicalType": ["date"]}'},
        {"schema": RECORD % '{"type": "error", "name": "E", "fields": []}'},
    ],
)
def test_a_schema_that_the_format_cannot_use_rejects_its_records_alone(known, answer):
    form, good, answers = known
    answers(2, 200, answer)
    the_reject_beside_a_row(form, good, framed(2, b"\0\0\0"))


# Apicurio answers 40401 or 40402 for the ID of a schema if it uses global IDs (legacy-id-mode).
@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_an_id_that_the_registry_lacks_is_a_reject(known, code):
    form, good, answers = known
    answers(2**31 - 1, 404, {"error_code": code})
    assert "with the ID 2147483647" in the_reject_beside_a_row(form, good, framed(2**31 - 1, b"\0"))


def test_an_unknown_id_costs_one_request_a_block_and_may_be_registered_later(known, registry):
    form, good, answers = known
    decode(form, good)
    registry.asked.clear()
    late = framed(3, good[5:])
    decoded = decode(form, *[late] * 1_000, good)
    assert (decoded.kept.to_pylist(), len(decoded.rejects)) == ([1_000], 1_000)
    assert [path.partition("?")[0] for path, _ in registry.asked] == ["/schemas/ids/3"]
    answers(3, *registry.answers["/schemas/ids/1"])
    assert decode(form, late).rows.to_pylist() == [{"id": 7}]


@pytest.mark.parametrize("answer", [{"error_code": 404}, {}, "no such page"])
def test_another_404_may_be_a_wrong_address_and_ends_the_batch(known, answer):
    form, good, answers = known
    answers(5, 404, answer)
    with pytest.raises(ConfigurationError, match="answered HTTP status 404 for schema 5"):
        decode(form, good, framed(5, b"\0"))
