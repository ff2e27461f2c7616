"""What a schema registry lacks, or has and no format can use, is a reject of the record; the others are rows."""

import base64
import gzip
import io
import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import chain, product, repeat

import fastavro
import pytest

from exactbatch.errors import ConfigurationError, RegistryUnavailable
from exactbatch.formats import Avro, Debezium, Flattened, JsonSchema, Protobuf
from exactbatch.formats.registry.registry_properties import with_registry
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
NO_RETRIES = {"schema.registry.max.retries": 0}
GARBAGE = b"\0\xff\xff\xff\xff\x81\x13\x07"


def framed(schema_id, body):
    return b"\0" + schema_id.to_bytes(4, "big") + body


def avro_body(schema, value):
    fastavro.schemaless_writer(body := io.BytesIO(), fastavro.parse_schema(schema), value)
    return body.getvalue()


# Of each format: how it is made, the answer for its schema, and a body of the row {"id": 7}.
FORMATS = {
    "Avro": (
        lambda address: Avro(registry=address, fields="id int"),
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
    form = with_registry(make(registry.address), NO_RETRIES)
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


@pytest.mark.parametrize("answer", [{"error_code": 404}, {}, "no such page"])
def test_another_404_may_be_a_wrong_address_and_ends_the_batch(known, answer):
    form, good, answers = known
    answers(5, 404, answer)
    with pytest.raises(ConfigurationError, match="answered HTTP status 404 for schema 5"):
        decode(form, good, framed(5, b"\0"))


def test_an_unknown_id_is_asked_for_once_in_a_while_and_may_be_registered_later(known, registry, monkeypatch):
    form, good, answers = known
    decode(form, good)
    registry.asked.clear()
    late = framed(3, good[5:])
    for _ in range(2):
        decoded = decode(form, *[late] * 1_000, good)
        assert (decoded.kept.to_pylist(), len(decoded.rejects)) == ([1_000], 1_000)
    assert [path.partition("?")[0] for path, _ in registry.asked] == ["/schemas/ids/3"]
    answers(3, *registry.answers["/schemas/ids/1"])
    now = time.monotonic()
    monkeypatch.setattr("exactbatch.formats.registry.client.time.monotonic", lambda: now + 31)
    assert decode(form, late).rows.to_pylist() == [{"id": 7}]


def test_a_block_asks_in_vain_for_20_ids_and_first_for_those_of_most_records(known, registry):
    form, good, _ = known
    unknown = [framed(100 + number, b"\0") for number in range(50)]
    decoded = decode(form, *unknown, good, good)
    assert decoded.kept.to_pylist() == [50, 51]
    assert len({path.partition("?")[0] for path, _ in registry.asked}) == 21
    reasons = [why.partition(":")[0] for _, why in decoded.rejects]
    assert sum("was not asked for schema" in why for why in reasons) == 30
    assert sum("has no" in why for why in reasons) == 20
    decode(form, *unknown)
    assert len({path.partition("?")[0] for path, _ in registry.asked}) == 41
    with pytest.raises(RegistryUnavailable):
        decode(with_registry(replace(form, registry="http://127.0.0.1:1"), NO_RETRIES), unknown[0])


BODIES = (b"[" * 100_000, b"[1]", b"7", b'"x"', b"null")


def test_an_answer_that_is_no_json_object_is_a_clear_error(known):
    form, _, answers = known
    for schema_id, (status, body) in enumerate(product((200, 404), BODIES), start=4):
        answers(schema_id, status, body)
        with pytest.raises(
            ConfigurationError, match=rf"for schema {schema_id}|did not answer as a schema registry"
        ):
            decode(form, framed(schema_id, b"\0"))


def test_a_schema_that_is_no_text_is_a_clear_error_or_a_reject(known):
    form, good, answers = known
    for schema_id, schema in enumerate(({"type": "int"}, ["int"], 7, "[" * 100_000), start=4):
        answers(schema_id, 200, {"schema": schema, "schemaType": registry_type(form)})
        if isinstance(form, JsonSchema):
            continue  # it does not read the schema
        with suppress(ConfigurationError):
            rejects = decode(form, framed(schema_id, b"\0"), good).rejects
            assert [index for index, _ in rejects] == [0]


def registry_type(form):
    return {"Protobuf": "PROTOBUF", "JsonSchema": "JSON"}.get(type(form).__name__, "AVRO")


def drip(server, seconds, *parts):
    """Answer each connection with these bytes, one part after the other."""
    server.settimeout(seconds)
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(4096)
                for part in chain(*parts):
                    connection.sendall(part)
                    time.sleep(0.2)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


@pytest.mark.parametrize(
    "sent", [[[HEAD], repeat(b" ")], [[HEAD[:17]], repeat(b"x")]], ids=["body", "headers"]
)
def test_a_request_ends_although_bytes_keep_coming(sent):
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server, 10, *sent), daemon=True).start()
        form = Avro(registry=f"http://127.0.0.1:{server.getsockname()[1]}", fields="id int")
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable, match="no whole answer within 1 s|ReadTimeout"):
            decode(with_registry(form, {**NO_RETRIES, "schema.registry.timeout": 1}), framed(1, b"\0"))
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("sent", [HEAD, HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n"], ids=["plain", "gzip"])
def test_an_answer_has_at_most_16_mib(sent):
    big = gzip.compress(b" " * 2**25) if b"gzip" in sent else b" " * 2**25
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server, 10, [sent + big]), daemon=True).start()
        form = Avro(registry=f"http://127.0.0.1:{server.getsockname()[1]}", fields="id int")
        with pytest.raises(ConfigurationError, match="at most 16 MiB|without compression"):
            decode(with_registry(form, NO_RETRIES), framed(1, b"\0"))


@pytest.mark.parametrize("form", ["Avro", "Protobuf"])
def test_references_have_a_limit(registry, form):
    make, answer, _ = FORMATS[form]

    def reference(name):
        return {"name": name, "subject": name, "version": 1}

    registry.answers = Endless(answer, reference)
    decoded = decode(with_registry(make(registry.address), NO_RETRIES), framed(1, b"\0"))
    assert "at most 500 referenced schemas, and 50 levels of them" in decoded.rejects[0][1]
    assert len(registry.asked) == 51
    registry.asked.clear()
    registry.answers = {}
    many = {**answer, "references": [reference(f"r{number}") for number in range(600)]}
    for query in ("", "?format=serialized"):
        registry.answers[f"/schemas/ids/2{query}"] = (200, many)
        for number in range(600):
            path = (
                f"/subjects/r{number}/versions/1?{query.removeprefix('?')}{'&' if query else ''}deleted=true"
            )
            registry.answers[path] = (200, {**answer, "subject": "x", "version": 1, "id": 5})
    registry.answers = Endless(answer, reference, known=registry.answers)
    decoded = decode(with_registry(make(registry.address), NO_RETRIES), framed(2, b"\0"))
    assert "at most 500 referenced schemas" in decoded.rejects[0][1]


class Endless(dict):
    """Answers in which every schema references another one; those under `known` reference none."""

    def __init__(self, answer, reference, known=None):
        super().__init__(known or {})
        self.answer, self.reference, self.count = answer, reference, 0

    def get(self, path, default=None):
        if path in self:
            return self[path]
        if path.startswith("/subjects/r"):
            return 200, {**self.answer, "subject": "x", "version": 1, "id": 5}
        self.count += 1
        more = {"references": [self.reference(f"n{self.count}")], "subject": "x", "version": 1, "id": 5}
        return 200, {**self.answer, **more}


@pytest.mark.parametrize(
    "secret",
    [
        {"schema.registry.basic.auth.user.info": "me:s3cret"},
        {
            "schema.registry.bearer.auth.credentials.source": "STATIC_TOKEN",
            "schema.registry.bearer.auth.token": "s3cret",
            "schema.registry.bearer.auth.logical.cluster": "lsrc-1",
            "schema.registry.bearer.auth.identity.pool.id": "pool-1",
        },
    ],
)
def test_a_password_is_sent_over_http_to_this_machine_alone(registry, secret):
    registry.has(1, ROW)
    value = framed(1, avro_body(ROW, {"id": 7}))

    def decoded_with(address):
        return decode(with_registry(Avro(registry=address, fields="id int"), {**NO_RETRIES, **secret}), value)

    for address in ("http://registry.example.org:8081", "https://a.example.org, http://registry.example.org"):
        with pytest.raises(
            ConfigurationError, match=r"to http://registry\.example\.org.* without encryption"
        ) as error:
            decoded_with(address)
        assert "s3cret" not in str(error.value)
    assert decoded_with(registry.address).rows.to_pylist() == [{"id": 7}]
    [(_, authorization)] = registry.asked
    assert authorization is not None
