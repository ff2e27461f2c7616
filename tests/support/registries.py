"""A schema registry over HTTP that gives prepared answers."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def registry_with(answers: Mapping[str, tuple[int, Any]]) -> Iterator[str]:
    """Serve answers, a status and JSON by path; yield the address. Other paths are unknown schemas."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            unknown = (404, {"error_code": 40403, "message": "Schema not found"})
            status, answer = answers.get(self.path, unknown)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
