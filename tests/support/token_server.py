"""An OpenID Connect server for tests: it signs tokens for one client, and publishes the key that verifies them."""

import base64
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from exactbatch.tokens import providers

ISSUER: Final = "https://tokens.example.org"
AUDIENCE: Final = "kafka"
CLIENT: Final = "job"
SECRET: Final = "s3cret: of job"


@dataclass
class TokenServer:
    """What the server answers, and what it was asked.

    Attributes:
        listens_at: host and port
        address: the URL that clients get
        lifetime: of its tokens, in seconds
        refusal: a status and an answer instead of tokens
        audience: for whom its tokens are
        leeway: for how many seconds is_valid() takes a token that has expired: machines of tests can be slow
        issued: the form of each request that got a token
    """

    listens_at: tuple[str, int]
    address: str
    lifetime: float = 3600
    refusal: tuple[int, Any] | None = None
    audience: str = AUDIENCE
    leeway: float = 30
    issued: list[dict[str, list[str]]] = field(default_factory=list)
    key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )

    @property
    def properties(self) -> dict[str, Any]:
        """The Kafka client properties of a login with these tokens, without the brokers."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"{self.address}/token",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": "topics",
        }

    @property
    def keys_url(self) -> str:
        """The address of the keys that verify tokens."""
        return f"{self.address}/keys"

    def keys(self) -> dict[str, Any]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**public, "kid": "1", "alg": "RS256", "use": "sig"}]}

    def token(self) -> str:
        now = time.time()
        lasting = {"iat": int(now), "exp": math.ceil(now + self.lifetime)}  # some readers drop fractions
        claims = {"iss": ISSUER, "aud": self.audience, "sub": CLIENT, **lasting}
        return jwt.encode({**claims, "scope": "topics"}, self.key, "RS256", {"kid": "1"})

    def is_valid(self, token: str) -> bool:
        """True for a token that this server has signed, and that has not expired, or not long ago."""
        try:
            jwt.decode(
                token, self.key.public_key(), ["RS256"], audience=AUDIENCE, issuer=ISSUER, leeway=self.leeway
            )
        except jwt.InvalidTokenError:
            return False
        return True

    def answer_token(self, authorization: str | None, form: dict[str, list[str]]) -> tuple[int, Any]:
        """The status and the answer for a request of a token."""
        if self.refusal is not None:
            return self.refusal
        login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if authorization != f"Basic {login}":
            return 401, {"error": "invalid_client", "error_description": "unknown client, or wrong secret"}
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        self.issued.append(form)
        return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime}


@contextmanager
def token_server() -> Iterator[TokenServer]:
    """Run a server of tokens."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self._send(*server.answer_token(self.headers.get("Authorization"), form))

        def do_GET(self) -> None:
            self._send(200, server.keys())

        def _send(self, status: int, answer: Any) -> None:
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = listening.server_port
    server = TokenServer(("127.0.0.1", port), f"http://127.0.0.1:{port}")
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()


def forget_all_tokens() -> None:
    """Let this process request new tokens."""
    providers._tokens.clear()
