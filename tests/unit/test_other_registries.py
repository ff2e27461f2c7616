"""Registries besides Confluent's: AWS Glue's frames, Apicurio's own API and frames, contexts, and tokens for them."""

import io
import json
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from exactbatch import Append, Avro, Debezium, Json, JsonSchema, Pipeline, Protobuf, Upsert
from exactbatch.errors import ConfigurationError, RegistryUnavailable, TokenUnavailable
from exactbatch.formats.bounds import TooLarge
from exactbatch.formats.registry.frames import reframe, unframe
from exactbatch.formats.registry.registry_properties import with_registry
from exactbatch.sampling.key_and_sink import TopicFacts
from exactbatch.sampling.proposal import propose
from exactbatch.sampling.registry_columns import RegistryAddress, as_sent, with_schema_ids
from exactbatch.testing import Record, decode
from exactbatch.tokens import Token
from exactbatch.tokens.providers import get_token
from support.registry import Registry, registry_server
from support.token_server import forget_all_tokens

GLUE = "glue://eu-west-1"
VERSION = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")  # as in AWS's documentation
ROW = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
OTHER = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}
NO_RETRIES = {"schema.registry.max.retries": 0}


def avro_body(schema: Any, value: Any) -> bytes:
    fastavro.schemaless_writer(stream := io.BytesIO(), schema, value)
    return stream.getvalue()


class NoHeaders:
    def last_headers(self, _name: str) -> dict[int, Any]:
        return {}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_server() as server:
        yield server


def unframe_all(registry: str, *values: bytes | None) -> tuple[list[bytes | None], Mapping[int, str]]:
    found = unframe(registry, "value", pa.array(values, pa.binary()), NoHeaders())  # type: ignore[arg-type]
    return found.values.to_pylist(), found.refused


def test_glues_frames_become_confluents_by_guid() -> None:
    body = avro_body(ROW, {"id": 7})
    plain, compressed = (
        b"\3\0" + VERSION.bytes + body,
        b"\3\5" + VERSION.bytes + zlib.compress(body * 1000),
    )
    values, refused = unframe_all(GLUE, plain, None, compressed, b"\3\0" + VERSION.bytes)
    prefix = b"\1" + VERSION.bytes
    assert values == [prefix + body, None, prefix + body * 1000, prefix]
    assert not refused
    assert reframe(GLUE, prefix + body) == plain


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "found nothing"),
        (b"\0\0\0\0\1x", "found 00 00 00 00 01 78"),
        (b"\3\0" + VERSION.bytes[:-1], "expected byte 3, a byte 0 or 5 and the 16 bytes"),
        (b"\3\1" + VERSION.bytes + b"x", "expected byte 3, a byte 0 or 5"),
        (b"\3\5" + VERSION.bytes + b"xx", "cannot be decompressed by zlib"),
        (b"\3\5" + VERSION.bytes + zlib.compress(b"x" * 99)[:-1], "does not end where the value does"),
        (b"\3\5" + VERSION.bytes + zlib.compress(b"x") + b"x", "does not end where the value does"),
        (b"\3\5" + VERSION.bytes + zlib.compress(bytes(64 * 1024**2 + 1)), "to more than 67108864 bytes"),
    ],
)
def test_another_frame_than_glues_is_a_reject_alone(value: bytes, why: str) -> None:
    good = b"\3\0" + VERSION.bytes + b"x"
    values, refused = unframe_all(GLUE, good, value, good)
    assert values == [b"\1" + VERSION.bytes + b"x", b"", b"\1" + VERSION.bytes + b"x"]
    assert list(refused) == [1]
    assert why in refused[1]


def test_small_values_of_glue_cannot_fill_the_memory() -> None:
    """A worker decodes fewer together then."""
    large = b"\3\5" + VERSION.bytes + zlib.compress(bytes(60 * 1024**2))
    with pytest.raises(TooLarge):
        unframe_all(GLUE, *[large] * 5)


def has(registry: Registry, ids: str, number: int, schema: Any, type_: str = "AVRO", **more: Any) -> None:
    """Let a stand-in of Apicurio have a schema, as version 3.0.9 answers."""
    version = {"globalId": number, "contentId": number, "artifactType": type_, "version": "1"}
    registry.answers[f"/search/versions?{ids}={number}&limit=1"] = 200, {"count": 1, "versions": [version]}
    registry.answers[f"/ids/{ids}s/{number}"] = 200, schema
    registry.answers[f"/ids/{ids}s/{number}/references"] = 200, more.get("references", [])


def apicurio(registry: Registry, ids: str = "contentId", id_bytes: int = 4) -> str:
    unknown = 200, {"count": 0, "versions": []}
    for number in (8, 9):
        registry.answers[f"/search/versions?{ids}={number}&limit=1"] = unknown
    return f"apicurio+{registry.address}?ids={ids}&bytes={id_bytes}"


def pipeline(value: Any, **options: Any) -> Pipeline:
    return Pipeline(name="p", topics=("t",), value=value, **{"sink": Append("public.p"), **options})


def test_ids_of_apicurio_in_4_and_in_8_bytes(registry: Registry) -> None:
    body = avro_body(ROW, {"id": 7})
    for ids, id_bytes in (("contentId", 4), ("globalId", 8)):
        has(registry, ids, 7, ROW)
        avro = Avro(registry=apicurio(registry, ids, id_bytes), fields="id int")
        good = b"\0" + (7).to_bytes(id_bytes, "big") + body
        found = decode(
            pipeline(avro),
            [Record(value) for value in (good, b"\0" + (8).to_bytes(id_bytes, "big") + body, good[:-1])],
        )
        assert found.rows == [{"id": 7}]
        assert [each.reason.partition(":")[0] for each in found.rejects] == [
            "the registry has no schema with the ID 8",
            "the body does not end with the last field of its schema",
        ]


def test_the_ids_of_apicurio_are_of_the_kind_that_the_address_says(registry: Registry) -> None:
    """The same number is another schema, which could decode the bytes."""
    has(registry, "contentId", 7, ROW)
    has(registry, "globalId", 7, OTHER)
    value = b"\0\0\0\0\7" + avro_body(ROW, {"id": 7})
    by_content = Avro(registry=apicurio(registry, "contentId"), fields="id int")
    by_version = Avro(registry=apicurio(registry, "globalId"), fields="id int")
    assert decode(pipeline(by_content), [Record(value)]).rows == [{"id": 7}]
    assert not decode(pipeline(by_version), [Record(value)]).rows


def test_headers_of_apicurio_name_the_schemas_of_bare_values(registry: Registry) -> None:
    has(registry, "globalId", 7, ROW)
    avro = Avro(registry=apicurio(registry, "globalId", 8), fields="id int")
    body, id_ = avro_body(ROW, {"id": 0}), (7).to_bytes(8, "big")
    headers: list[list[tuple[str, bytes]]] = [
        [("apicurio.value.globalId", id_)],
        [("apicurio.value.globalId", id_), ("apicurio.value.encoding", b"BINARY")],
        [("apicurio.value.globalId", id_), ("apicurio.value.encoding", b"JSON")],
        [("apicurio.value.globalId", id_[1:])],
        [("apicurio.value.contentId", id_)],
        [("apicurio.key.globalId", id_)],
        [("apicurio.value.globalId", bytes(8))],
    ]
    found = decode(pipeline(avro), [Record(body, headers=each) for each in headers])
    assert found.rows == [{"id": 0}] * 2
    assert {each.offset: each.reason for each in found.rejects} == {
        2: "header 'apicurio.value.encoding': expected BINARY, found b'JSON'",
        3: "header 'apicurio.value.globalId': expected an ID in 8 bytes, found 00 00 00 00 00 00 07",
        4: "header 'apicurio.value.contentId': expected one with the globalId, as the pipeline's registry says with "
        "ids=globalId",
        5: "expected byte 0 and the 8 bytes of an ID of Apicurio, found 00",
        6: "expected an ID of Apicurio from 1 to 2147483647, found 0",
    }


def test_keys_have_headers_of_their_own(registry: Registry) -> None:
    has(registry, "contentId", 7, ROW)
    avro = Avro(registry=apicurio(registry), fields="id int")
    body = avro_body(ROW, {"id": 5})
    upsert = pipeline(avro, message_key=avro, sink=Upsert("public.p", key=("id",)))
    deleted = Record(None, key=body, headers=[("apicurio.key.contentId", (7).to_bytes(8, "big"))])
    written = Record(b"\0\0\0\0\7" + body, key=b"\0\0\0\0\7" + body)
    loaded = decode(
        upsert, [written, deleted, Record(None, key=body, headers=[("apicurio.value.contentId", b"7")])]
    )
    assert [(row["id"], row["deleted"]) for row in loaded.rows] == [(5, False), (5, True)]
    [reject] = loaded.rejects
    assert reject.offset == 2


def test_references_of_apicurio(registry: Registry) -> None:
    part = {"type": "record", "name": "s.T", "fields": [{"name": "id", "type": "int"}]}
    whole = {"type": "record", "name": "Q", "fields": [{"name": "part", "type": "s.T"}]}
    reference = {"groupId": "a/b", "artifactId": "t 1", "version": "2", "name": "s.T"}
    has(registry, "contentId", 7, whole, references=[reference])
    registry.answers["/groups/a%2Fb/artifacts/t%201/versions/2"] = (
        200,
        {"globalId": 4, "artifactType": "AVRO"},
    )
    registry.answers["/ids/globalIds/4"] = 200, part
    registry.answers["/ids/globalIds/4/references"] = 200, []
    avro = Avro(registry=apicurio(registry), fields="part jsonb")
    assert decode(pipeline(avro), [Record(b"\0\0\0\0\7\x0a")]).rows == [{"part": '{"id":5}'}]


def test_json_and_events_of_apicurio(registry: Registry) -> None:
    has(registry, "contentId", 7, {"type": "object"}, "JSON")
    value = JsonSchema("id int", registry=apicurio(registry))
    assert decode(pipeline(value), [Record(b'\0\0\0\0\7{"id": 3}')]).rows == [{"id": 3}]
    avro = Avro(registry=apicurio(registry), fields="id int")
    [reject] = decode(pipeline(avro), [Record(b"\0\0\0\0\7\2")]).rejects
    assert reject.reason == "schema 7 of the registry is JSON, not AVRO"


def test_another_address_than_apicurios_is_an_error(registry: Registry) -> None:
    avro = Avro(registry=apicurio(registry), fields="id int")
    with pytest.raises(ConfigurationError, match="answered HTTP status 404 for schema 7"):
        decode(pipeline(avro), [Record(b"\0\0\0\0\7\2")], kafka=NO_RETRIES)
    registry.answers["/search/versions?contentId=7&limit=1"] = 503, {}
    with pytest.raises(RegistryUnavailable, match="503"):
        decode(pipeline(avro), [Record(b"\0\0\0\0\7\2")], kafka=NO_RETRIES)


@pytest.mark.parametrize(
    ("registry_", "why"),
    [
        ("glue://", "names no region of AWS"),
        ("glue://eu-west-1/shop", "names no region of AWS"),
        ("apicurio+https://host/apis/registry/v3", "does not say what its IDs are"),
        ("apicurio+https://host?ids=contentId", "does not say what its IDs are"),
        ("apicurio+https://host?ids=id&bytes=4", "does not say what its IDs are"),
        ("apicurio+https://host?ids=contentId&bytes=5", "does not say what its IDs are"),
        ("apicurio+https://host?ids=contentId&bytes=4&x=1", "does not say what its IDs are"),
        ("apicurio+https://me:secret@host?ids=contentId&bytes=4", "contains a user and password"),
    ],
)
def test_an_address_that_means_nothing_is_an_error(registry_: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as raised:
        Avro(registry=registry_, fields="id int")
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match=why):
        Debezium("id int", registry=registry_)


def test_protobuf_needs_a_registry_that_has_its_files() -> None:
    for address in (GLUE, "apicurio+https://host?ids=contentId&bytes=4"):
        with pytest.raises(ConfigurationError, match="has schemas as text alone"):
            Protobuf("id int", registry=address)


def test_a_password_is_not_sent_to_apicurio_in_the_open() -> None:
    avro = Avro(registry="apicurio+http://registry.example?ids=contentId&bytes=4", fields="id int")
    properties = {"schema.registry.basic.auth.user.info": "me:secret"}
    with pytest.raises(ConfigurationError, match="without encryption"):
        decode(pipeline(avro), [Record(b"\0\0\0\0\7\2")], kafka=properties)


def test_a_context_is_an_address_of_its_own(registry: Registry) -> None:
    registry.answers["/contexts/.staging/schemas/ids/1"] = 200, {"schema": json.dumps(ROW)}
    avro = Avro(registry=f"{registry.address}/contexts/.staging", fields="id int")
    assert decode(pipeline(avro), [Record(b"\0\0\0\0\1" + avro_body(ROW, {"id": 7}))]).rows == [{"id": 7}]


given: list[str] = []


def provide_token(connection: Mapping[str, Any]) -> Token:
    """A provider of tokens: the registry's address and how many it gave before."""
    token = f"{connection['schema.registry.url'].rpartition(':')[2]}-{len(given)}"
    given.append(token)
    return Token(token, time.time() + 3600)


def fail(_connection: Mapping[str, Any]) -> Token:
    raise OSError("no route to the server")


def decode_with_token(registry: Registry, provider: str, value: bytes) -> list[dict[str, Any]]:
    avro = Avro(registry=registry.address, fields="id int")
    properties = {**NO_RETRIES, "schema.registry.bearer.auth.token": f"token:{__name__}:{provider}"}
    return list(decode(pipeline(avro), [Record(value)], kafka=properties).rows)


def test_a_registry_gets_the_token_of_a_provider_and_a_new_one_after_a_refusal(registry: Registry) -> None:
    given.clear()
    forget_all_tokens()
    port = registry.address.rpartition(":")[2]
    registry.has(1, ROW)
    registry.has(2, ROW)
    registry.authorization = f"Bearer {port}-0"
    body = avro_body(ROW, {"id": 7})
    assert decode_with_token(registry, "provide_token", b"\0\0\0\0\1" + body) == [{"id": 7}]
    registry.authorization = f"Bearer {port}-1"
    assert decode_with_token(registry, "provide_token", b"\0\0\0\0\2" + body) == [{"id": 7}]
    assert given == [f"{port}-0", f"{port}-1"]
    registry.has(3, ROW)
    registry.authorization = "Bearer another"
    with pytest.raises(ConfigurationError, match="answered HTTP status 401"):
        decode_with_token(registry, "provide_token", b"\0\0\0\0\3" + body)


def provide_any(connection: Mapping[str, Any]) -> Token:
    return Token(f"{sorted(connection)}-{time.monotonic_ns()}", time.time() + 3600)


def test_a_registry_that_refuses_a_token_refuses_none_of_kafka_and_postgres(registry: Registry) -> None:
    forget_all_tokens()
    others = {"bootstrap.servers": "kafka:9092"}, {"host": "db"}
    name = f"{__name__}:provide_any"
    before = [get_token(name, each) for each in others]
    registry.has(1, ROW)
    registry.authorization = "Bearer another"
    with pytest.raises(ConfigurationError, match="answered HTTP status 401"):
        decode_with_token(registry, "provide_any", b"\0\0\0\0\1\2")
    assert len(registry.asked) == 2
    assert [get_token(name, each) for each in others] == before


def test_a_token_that_cannot_be_had_is_an_error_that_is_retried(registry: Registry) -> None:
    with pytest.raises(TokenUnavailable, match="no route to the server"):
        decode_with_token(registry, "fail", b"\0\0\0\0\1\2")
    assert registry.asked == []


def test_a_provider_of_the_registry_is_gcp_or_a_function() -> None:
    avro = Avro(registry="https://host", fields="id int")
    with pytest.raises(ConfigurationError, match="Name gcp, or a function of your own"):
        with_registry(avro, {"schema.registry.bearer.auth.token": "token:azure"})


def facts(values: list[bytes], registry: str | None) -> TopicFacts:
    address = None if registry is None else RegistryAddress(registry, {})
    framed = pa.array(values, pa.binary())
    return TopicFacts(
        keys=pa.nulls(len(values), pa.binary()),
        values=with_schema_ids("value", framed, NoHeaders(), address),  # type: ignore[arg-type]
        partitions=[0] * len(values),
        is_compacted=False,
        registry=address,
    )


@pytest.mark.parametrize(("id_bytes", "ids"), [(4, "contentId"), (8, "globalId")])
def test_new_proposes_a_pipeline_for_apicurios_frames(registry: Registry, id_bytes: int, ids: str) -> None:
    has(registry, ids, 7, ROW)
    address = apicurio(registry, ids, id_bytes)
    value = b"\0" + (7).to_bytes(id_bytes, "big") + avro_body(ROW, {"id": 7})
    found = facts([value, value], address)
    proposal = propose("p", "t", "public.p", found)
    assert proposal.pipeline.value == Avro(registry=address, fields="id integer")
    assert as_sent(found.values[0].as_py(), None, found.registry) == (value, None, [])
    assert decode(proposal.pipeline, [Record(value)]).rows == [{"id": 7}]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b"\3\0" + VERSION.bytes + b"\2", "--registry glue://REGION"),
        (b"\0" * 8 + b"\7\2", "apicurio+https://host/apis/registry/v3"),
    ],
)
def test_new_names_the_registry_that_framed_the_values(value: bytes, named: str) -> None:
    with pytest.raises(ConfigurationError, match="another registry's serializers") as raised:
        propose("p", "t", "public.p", facts([value] * 3, None))
    assert named in str(raised.value)


def test_json_alone_is_of_no_registry() -> None:
    proposal = propose("p", "t", "public.p", facts([b'{"id": 1}'], None))
    assert isinstance(proposal.pipeline.value, Json)
