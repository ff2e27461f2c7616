"""A schema registry for tests."""

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

from exactbatch.formats.registry import schemas


@dataclass
class Registry:
    """A schema registry over HTTP, as far as a reader sees it."""

    address: str
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    authorization: str | None = None  # without it, requests are refused
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def has(self, schema_id: int, schema: Any, *, guid: UUID | None = None, **more: Any) -> None:
        """Answer with a schema: by its ID and, as registries do since Confluent Platform 8, by its GUID."""
        is_protobuf = more.get("schemaType") == "PROTOBUF"
        answer = {"schema": schema if isinstance(schema, str) and is_protobuf else json.dumps(schema), **more}
        paths = [f"/schemas/ids/{schema_id}"]
        if guid is not None:
            answer["guid"] = str(guid)
            paths.append(f"/schemas/guids/{guid}")
        for path in paths:
            self.answers[path] = (200, answer)
            if is_protobuf:
                self.answers[f"{path}?format=serialized"] = (200, answer)

    def answers_with(self, schema_id: int, status: int, answer: Any) -> None:
        self.answers[f"/schemas/ids/{schema_id}"] = (status, answer)


@contextmanager
def registry_server(tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append((self.path, self.headers.get("Authorization")))
            unknown = (404, {"error_code": 40403, "message": "Schema not found"})
            status, answer = registry.answers.get(self.path, unknown)
            if registry.authorization not in (None, self.headers.get("Authorization")):
                status, answer = 401, {"error_code": "40101"}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    registry = Registry(f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}")
    schemas._reader.cache_clear()  # it has the answers of an earlier stand-in that had the same port
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield registry
    server.shutdown()
    server.server_close()


@contextmanager
def registry_with(answers: Mapping[str, tuple[int, Any]]) -> Iterator[str]:
    """Serve answers, a status and JSON by path; yield the address. Other paths are unknown schemas."""
    with registry_server() as registry:
        registry.answers.update(answers)
        yield registry.address
