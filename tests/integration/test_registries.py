"""Registries besides Confluent's as they are: Apicurio's own server, and AWS's own client before a stand-in of Glue."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import fastavro
import httpx
import pytest

from exactbatch import Append, Avro, JsonSchema, Pipeline
from exactbatch.local.child_process import find_port, wait_until
from exactbatch.local.java import fetch_jars, find_java
from exactbatch.testing import Record, decode
from support.environment import HOME

_DEFINITIONS: Final = Path(__file__).parents[1] / "support" / "apicurio"
_SHA256: Final = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
ROW: Final = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
OTHER: Final = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}


def written(schema: Any, value: Any) -> bytes:
    fastavro.schemaless_writer(stream := io.BytesIO(), fastavro.parse_schema(schema), value)
    return stream.getvalue()


def rows(value: Any, *records: bytes | Record) -> list[dict[str, Any]]:
    found = decode(Pipeline(name="p", topics=("t",), value=value, sink=Append("public.p")), records)
    return [*found.rows, *({"reason": each.reason} for each in found.rejects)]


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of Apicurio, in memory."""
    with pytest.MonkeyPatch.context() as patch:
        if "EXACTBATCH_IVY_SETTINGS" not in os.environ:
            patch.setenv("EXACTBATCH_IVY_SETTINGS", str(_DEFINITIONS / "ivysettings.xml"))
        fetched = fetch_jars("apicurio", HOME / "jars", definitions=_DEFINITIONS)
    archive = fetched / "apicurio-registry-app-3.0.9.tar.gz"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == _SHA256
    folder = tmp_path_factory.mktemp("apicurio")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    port = find_port(None)
    log = (folder / "log").open("w")
    server = subprocess.Popen(
        [
            find_java(),
            "-Xmx512m",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={port}",
            "-jar",
            "apicurio-registry-app-3.0.9-runner.jar",
        ],
        cwd=folder,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            return httpx.get(f"{address}/apis/registry/v3/system/info").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        assert wait_until(answers, 120)
        yield address
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def create(apicurio: str, artifact: str, schema: Any, type_: str = "AVRO", **content: Any) -> tuple[int, int]:
    """Create an artifact; return its content ID and its global ID."""
    version = {"content": {"content": json.dumps(schema), "contentType": "application/json", **content}}
    answer = httpx.post(
        f"{apicurio}/apis/registry/v3/groups/shop/artifacts",
        json={"artifactId": artifact, "artifactType": type_, "firstVersion": version},
    )
    answer.raise_for_status()
    found = answer.json()["version"]
    return found["contentId"], found["globalId"]


@pytest.mark.slow
def test_apicurios_ids_of_contents_and_of_versions(apicurio: str) -> None:
    """Two artifacts with the same schema are one content and two versions."""
    create(apicurio, "a", OTHER)
    content, version = create(apicurio, "b", OTHER)
    assert content != version
    body = written(OTHER, {"id": "seven"})
    for ids, number in (("contentId", content), ("globalId", version)):
        for size in (4, 8):
            avro = Avro(
                registry=f"apicurio+{apicurio}/apis/registry/v3?ids={ids}&bytes={size}", fields="id text"
            )
            unknown = b"\0" + (999).to_bytes(size, "big") + body
            assert rows(avro, b"\0" + number.to_bytes(size, "big") + body, unknown) == [
                {"id": "seven"},
                {"reason": "the registry has no schema with the ID 999"},
            ]
        of_header = Record(body, headers=[(f"apicurio.value.{ids}", number.to_bytes(8, "big"))])
        assert rows(avro, of_header) == [{"id": "seven"}]
    as_confluent = Avro(registry=f"{apicurio}/apis/ccompat/v7", fields="id text")
    assert rows(as_confluent, b"\0" + content.to_bytes(4, "big") + body) == [{"id": "seven"}]


@pytest.mark.slow
def test_apicurios_references_and_its_json(apicurio: str) -> None:
    part = {"type": "record", "name": "s.T", "fields": [{"name": "id", "type": "int"}]}
    whole = {"type": "record", "name": "Q", "fields": [{"name": "part", "type": "s.T"}]}
    create(apicurio, "a part/1", part)
    reference = {"name": "s.T", "groupId": "shop", "artifactId": "a part/1", "version": "1"}
    content, _ = create(apicurio, "whole", whole, references=[reference])
    address = f"apicurio+{apicurio}/apis/registry/v3?ids=contentId&bytes=4"
    assert rows(
        Avro(registry=address, fields="part jsonb"), b"\0" + content.to_bytes(4, "big") + b"\x0a"
    ) == [{"part": '{"id":5}'}]
    content, _ = create(apicurio, "json", {"type": "object"}, "JSON")
    value = b"\0" + content.to_bytes(4, "big") + b'{"id": 3}'
    assert rows(JsonSchema("id int", registry=address), value) == [{"id": 3}]
    [reject] = rows(Avro(registry=address, fields="id int"), value)
    assert reject["reason"].endswith("of the registry is JSON, not AVRO")


VERSION: Final = "b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63"
_PROGRAM: Final = """
import json, sys
from uuid import UUID
from exactbatch import Append, Avro, Pipeline
from exactbatch.errors import ExactbatchError
from exactbatch.testing import decode

avro = Avro(registry="glue://eu-west-1", fields="id int")
value = b"\\3\\0" + UUID(sys.argv[1]).bytes + bytes([14])
try:
    found = decode(Pipeline(name="p", topics=("t",), value=avro, sink=Append("public.p")), [value])
    print(json.dumps([list(found.rows), [each.reason for each in found.rejects]]))
except ExactbatchError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture(scope="module")
def boto3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with AWS's own client, which needs other versions of packages than the rest of the tests."""
    packages = tmp_path_factory.mktemp("aws")
    uv = Path(sys.executable).parent / "uv"
    install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", packages, "boto3"]
    subprocess.run(install, check=True, timeout=300)
    return packages


@pytest.fixture
def glue() -> Iterator[dict[str, Any]]:
    """A stand-in of Glue: its address, what it answers, and what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state["asked"].append(
                (self.headers["x-amz-target"], self.headers["authorization"], json.loads(body))
            )
            status, answer = state["answer"]
            self.send_response(status)
            self.send_header("content-type", "application/x-amz-json-1.1")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state: dict[str, Any] = {"address": f"http://127.0.0.1:{server.server_port}", "asked": []}
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


def decode_from(glue: dict[str, Any], boto3: Path, **environment: str) -> Any:
    """Decode a value in a process of its own, with AWS's client."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    identity = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, VERSION],
        env={
            **own,
            **identity,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_GLUE": glue["address"],
            "PYTHONPATH": str(boto3),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_awss_client_asks_glue_for_the_schema_of_a_value(glue: dict[str, Any], boto3: Path) -> None:
    found = {"SchemaVersionId": VERSION, "SchemaDefinition": json.dumps(ROW), "DataFormat": "AVRO"}
    glue["answer"] = 200, {**found, "Status": "AVAILABLE"}
    assert decode_from(glue, boto3) == [[{"id": 7}], []]
    [(target, authorization, asked)] = glue["asked"]
    assert (target, asked) == ("AWSGlue.GetSchemaVersion", {"SchemaVersionId": VERSION})
    assert "/eu-west-1/glue/aws4_request" in authorization


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, {"__type": "EntityNotFoundException"}, f"the registry has no schema with the GUID {VERSION}"),
        (200, {"Status": "FAILURE"}, f"the registry has no schema with the GUID {VERSION}"),
        (200, {"Status": "AVAILABLE", "SchemaDefinition": "{}", "DataFormat": "JSON"}, "is JSON, not AVRO"),
    ],
)
def test_what_glue_does_not_have_is_a_reject(
    glue: dict[str, Any], boto3: Path, status: int, answer: Any, expected: str
) -> None:
    glue["answer"] = status, answer
    found, [reason] = decode_from(glue, boto3)
    assert found == []
    assert expected in reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "ThrottlingException", "RegistryUnavailable"),
        (500, "InternalServiceException", "RegistryUnavailable"),
        (400, "AccessDeniedException", "ConfigurationError"),
    ],
)
def test_errors_of_glue_say_what_to_do(
    glue: dict[str, Any], boto3: Path, status: int, code: str, error: str
) -> None:
    glue["answer"] = status, {"__type": code, "Message": "why"}
    name, message = decode_from(glue, boto3)
    assert name == error
    assert code in message
    assert VERSION in message


@pytest.mark.slow
def test_no_server_no_identity_and_no_client(glue: dict[str, Any], boto3: Path, tmp_path: Path) -> None:
    name, message = decode_from(glue, boto3, AWS_ENDPOINT_URL_GLUE="http://127.0.0.1:1")
    assert (name, "cannot be reached" in message) == ("RegistryUnavailable", True)
    name, message = decode_from(glue, boto3, AWS_ACCESS_KEY_ID="", HOME=str(tmp_path))
    assert (name, "Give the driver and the executors an identity" in message) == ("ConfigurationError", True)
    name, message = decode_from(glue, tmp_path)
    assert (name, "needs the Python package boto3" in message) == ("ConfigurationError", True)
