"""Providers of tokens: what they return, how long it is kept, and what is said if they fail."""

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import azure.identity
import google.auth
import jwt
import pytest
from confluent_kafka import KafkaError

from exactbatch.errors import ConfigurationError, TokenUnavailable
from exactbatch.kafka.client_errors import connection_refused
from exactbatch.operations.doctor.servers import connection_finding
from exactbatch.postgres.dsn import _with_token, refused_connection
from exactbatch.tokens import Token, providers
from exactbatch.tokens.clouds import _google_kafka_token, _region
from exactbatch.tokens.oidc import request_oidc_token
from exactbatch.tokens.providers import find_provider, forget_token, get_token
from support.token_server import TokenServer, forget_all_tokens, token_server


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with token_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _none_kept() -> Iterator[None]:
    forget_all_tokens()
    yield
    forget_all_tokens()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, in seconds since 1970, that providers.py sees."""
    clock = SimpleNamespace(now=1_000_000.0)
    monkeypatch.setattr(providers, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a user's, `my_tokens`, without functions."""
    module = ModuleType("my_tokens")
    monkeypatch.setitem(sys.modules, "my_tokens", module)
    return module


def test_a_token_is_kept_for_four_fifths_of_its_lifetime(module: Any, clock: SimpleNamespace) -> None:
    made = list[Token]()

    def mint(connection: Any) -> Token:
        made.append(Token(f"{connection['user']}-{len(made)}", clock.now + 100))
        return made[-1]

    module.mint = mint
    assert get_token("my_tokens:mint", {"user": "a"}).value == "a-0"
    clock.now += 79.9
    assert get_token("my_tokens:mint", {"user": "a"}).value == "a-0"
    clock.now += 0.2
    assert get_token("my_tokens:mint", {"user": "a"}).value == "a-1"
    assert get_token("my_tokens:mint", {"user": "b"}).value == "b-2"  # another connection has its own
    forget_token("my_tokens:mint", {"user": "a"})
    assert get_token("my_tokens:mint", {"user": "a"}).value == "a-3"
    assert get_token("my_tokens:mint", {"user": "b"}).value == "b-2"


def test_a_server_that_refuses_a_token_refuses_none_of_another_server(module: Any) -> None:
    module.mint = lambda _connection: Token(f"t{time.monotonic_ns()}", time.time() + 3600)
    name = "my_tokens:mint"
    kafka = {"bootstrap.servers": "k:1", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": name}
    dsn, postgres = f"host=127.0.0.1 user=job password=token:{name}", {"host": "127.0.0.1", "user": "job"}
    connections = kafka, {**postgres, "password": f"token:{name}"}, {"schema.registry.url": "http://r"}

    def tokens() -> list[Token]:
        return [get_token(name, each) for each in connections]

    first = tokens()
    assert connection_refused(kafka, KafkaError(KafkaError._AUTHENTICATION)) is not None
    second = tokens()
    assert [new == old for new, old in zip(second, first, strict=True)] == [False, True, True]
    refused = 'FATAL:  password authentication failed for user "job"'
    assert isinstance(refused_connection(refused, dsn, with_options=True), TokenUnavailable)
    assert [new == old for new, old in zip(tokens(), second, strict=True)] == [True, False, True]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("text", "expected the provider 'my_tokens:mint' to return an exactbatch.tokens.Token, found str"),
        (Token("s3cret", 1.0), "returned a token that expired 999999 s ago"),
        (
            OSError("no route"),
            "the provider 'my_tokens:mint' returned no token: OSError: no route. Check that",
        ),
        (RecursionError(), "returned no token: RecursionError"),
    ],
)
def test_a_provider_that_fails_is_named(
    module: Any, clock: SimpleNamespace, returned: Any, said: str
) -> None:
    def mint(_connection: Any) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    module.mint = mint
    with pytest.raises(TokenUnavailable) as caught:
        get_token("my_tokens:mint", {})
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.retryable


def test_a_provider_that_hangs_is_named_and_left_behind(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def mint(_connection: Any) -> Token:
        released.wait()
        return Token("late", time.time() + 60)

    module.mint = mint
    monkeypatch.setattr(providers, "_TIMEOUT", 0.2)
    said = "the provider 'my_tokens:mint' returned no token: TimeoutError: no answer within 0.2 s"
    started = time.monotonic()
    with pytest.raises(TokenUnavailable, match=said) as caught:
        get_token("my_tokens:mint", {})
    assert caught.value.retryable
    assert time.monotonic() - started < 6
    released.set()
    assert get_token("my_tokens:mint", {}).value == "late"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "kerberos",
            "there is no provider of tokens 'kerberos'. Use oidc, aws_msk_iam, aws_rds_iam, azure, gcp, or a",
        ),
        (
            "my_tokens:absent",
            "the provider of tokens 'my_tokens:absent' cannot be imported here: module 'my_tokens'",
        ),
        ("no_such_module:mint", "cannot be imported here: No module named 'no_such_module'"),
        (":mint", "cannot be imported here: Empty module name"),
        ("my_tokens:value", "the provider of tokens 'my_tokens:value' is no function"),
    ],
)
def test_a_provider_that_does_not_exist_is_no_reason_to_retry(module: Any, name: str, said: str) -> None:
    module.value = 1
    with pytest.raises(ConfigurationError) as caught:
        find_provider(name)
    assert said in str(caught.value)


def test_no_repr_shows_a_token() -> None:
    assert "s3cret" not in repr(Token("s3cret", 1.0))


@pytest.mark.parametrize(
    ("value", "expires_at"), [("", 1.0), (b"x", 1.0), ("x", float("nan")), ("x", float("inf"))]
)
def test_what_is_no_token_is_refused(value: Any, expires_at: float) -> None:
    with pytest.raises(ValueError, match="token is text|seconds since 1970"):
        Token(value, expires_at)


def test_an_oidc_server_is_asked_as_rfc_6749_says(server: TokenServer) -> None:
    server.lifetime = 60
    before = time.time()
    token = request_oidc_token({**server.properties, "sasl.oauthbearer.extensions": "pool=a,cluster=b=c"})
    assert before + 60 <= token.expires_at <= time.time() + 60
    assert jwt.decode(token.value, options={"verify_signature": False})["sub"] == "job"
    assert token.extensions == {"pool": "a", "cluster": "b=c"}
    assert server.issued == [{"grant_type": ["client_credentials"], "scope": ["topics"]}]


def test_a_token_without_a_lifetime_has_that_of_its_claims(server: TokenServer) -> None:
    server.lifetime = 60
    server.refusal = 200, {"access_token": server.token()}
    assert 0 < request_oidc_token(server.properties).expires_at - time.time() <= 61


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (
            401,
            {"error": "invalid_client"},
            "answered HTTP status 401 (invalid_client). Check sasl.oauthbearer.client.",
        ),
        (
            400,
            {"error": "invalid_scope", "error_description": "x" * 999},
            f"(invalid_scope: {'x' * 200}). Check",
        ),
        (500, b"<html>", "answered HTTP status 500. Check"),
        (302, {}, "answered HTTP status 302. Check"),
        (200, b"<html>", "did not answer with a token and its lifetime: JSONDecodeError"),
        (200, [], "did not answer with a token and its lifetime: TypeError"),
        (200, {"expires_in": 60}, "did not answer with a token and its lifetime: KeyError: 'access_token'"),
        (200, {"access_token": "opaque"}, "did not answer with a token and its lifetime: IndexError"),
        (
            200,
            {"access_token": "", "expires_in": 60},
            "did not answer with a token and its lifetime: ValueError",
        ),
        (
            200,
            {"access_token": "x", "expires_in": "soon"},
            "did not answer with a token and its lifetime: ValueError",
        ),
        (200, b"[" * 60_000, "did not answer with a token and its lifetime: RecursionError"),
        (
            200,
            b" " * 70_000,
            "did not answer with a token and its lifetime: an answer of more than 65536 bytes",
        ),
    ],
)
def test_an_answer_without_a_token_says_what_came(
    server: TokenServer, status: int, answer: Any, said: str
) -> None:
    server.refusal = status, answer
    with pytest.raises(TokenUnavailable) as caught:
        request_oidc_token(server.properties)
    assert f"the server of tokens at {server.address}/token" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"sasl.oauthbearer.client.secret": ""},
            "the Kafka property sasl.oauthbearer.client.secret is missing",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "http://login.example.org/token"},
            "Write an address with https",
        ),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"}, "Write an address with https"),
        ({"sasl.oauthbearer.token.endpoint.url": 7}, "Write an address with https"),
        (
            {"sasl.oauthbearer.extensions": "pool"},
            "is 'pool', and must be name=value pairs, separated by commas",
        ),
        (
            {"https.ca.location": "/nowhere.pem"},
            "https.ca.location is '/nowhere.pem', which is no file of cert",
        ),
    ],
)
def test_oidc_properties_are_checked_before_a_secret_is_sent(
    server: TokenServer, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        request_oidc_token(server.properties | change)
    assert said in str(caught.value)
    assert server.issued == []


@pytest.mark.parametrize(
    ("mode", "host", "is_sent"),
    [
        ("verify-full", "db.example.org", True),
        ("require", "db.example.org", False),
        (None, "db.example.org", False),
        (None, "127.0.0.1", True),
        (None, "/var/run/postgresql", True),
        ("disable", "localhost", True),
    ],
)
def test_postgres_gets_a_token_only_where_nobody_else_can(
    module: Any, mode: str | None, host: str, is_sent: bool
) -> None:
    module.mint = lambda connection: Token(f"for {connection['host']} {connection['user']}", time.time() + 9)
    dsn = f"host={host} user=job password=token:my_tokens:mint" + ("" if mode is None else f" sslmode={mode}")
    if is_sent:
        assert f"password='for {host} job'" in _with_token(dsn)
        return
    with pytest.raises(
        ConfigurationError, match=f"sslmode={mode}: whoever answers for 'db.example.org' would get one"
    ):
        _with_token(dsn)


def test_a_password_is_left_alone() -> None:
    for dsn in ("host=db password=tokens", "host=db", "postgresql://job:x@db/shop"):
        assert _with_token(dsn) == dsn


def test_a_host_without_a_region_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="the host 'db.example.org' names no region of AWS"):
        _region("db.example.org")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert _region("db.example.org") == "eu-west-3"


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("shop.abc.eu-west-1.rds.amazonaws.com", "eu-west-1"),
        ("shop.cluster-abc.us-gov-east-1.rds.amazonaws.com", "us-gov-east-1"),
        ("b-1.shop.abc.kafka.eu-central-1.amazonaws.com", "eu-central-1"),
        ("boot-x.c1.kafka-serverless.ap-southeast-2.amazonaws.com", "ap-southeast-2"),
    ],
)
def test_a_host_of_aws_names_its_region(host: str, region: str) -> None:
    assert _region(host) == region


@pytest.mark.parametrize(
    ("connection", "scope"),
    [
        (
            {"bootstrap.servers": "shop.servicebus.windows.net:9093"},
            "https://shop.servicebus.windows.net/.default",
        ),
        ({"host": "shop.postgres.database.azure.com"}, "https://ossrdbms-aad.database.windows.net/.default"),
    ],
)
def test_entra_id_is_asked_for_the_scope_of_the_service(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, str], scope: str
) -> None:
    asked = list[str]()

    class Credential:
        def get_token(self, scope: str) -> Any:
            asked.append(scope)
            return SimpleNamespace(token="entra", expires_on=int(time.time()) + 3600)

    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Credential)
    assert get_token("azure", connection).value == "entra"
    assert asked == [scope]


def test_google_is_asked_for_the_scope_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[list[str]]()
    expiry = datetime.utcnow() + timedelta(hours=1)
    credentials = SimpleNamespace(
        token="access", expiry=expiry, service_account_email="job@shop.iam", refresh=lambda _request: None
    )

    def default(scopes: list[str]) -> Any:
        asked.append(scopes)
        return credentials, "project"

    monkeypatch.setattr(google.auth, "default", default)
    postgres = get_token("gcp", {"host": "10.0.0.2"})
    assert postgres.value == "access"
    assert 3500 < postgres.expires_at - time.time() <= 3600
    kafka = get_token("gcp", {"bootstrap.servers": "b:9092"})
    assert kafka.value.count(".") == 2
    assert asked == [
        ["https://www.googleapis.com/auth/sqlservice.login"],
        ["https://www.googleapis.com/auth/cloud-platform"],
    ]


def test_googles_brokers_get_three_parts_in_base64() -> None:
    header, claims, token = _google_kafka_token("access", "job@shop.iam", 1234.5).split(".")

    def decode(part: str) -> bytes:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    assert json.loads(decode(header)) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    found = json.loads(decode(claims))
    assert (found["exp"], found["iss"], found["scope"], found["sub"]) == (
        1234.5,
        "Google",
        "kafka",
        "job@shop.iam",
    )
    assert decode(token) == b"access"


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigurationError) as caught:
        get_token("aws_rds_iam", {"host": "h.eu-west-1.rds.amazonaws.com", "user": "job"})
    assert "the connection's tokens need the Python package of boto3, which is not installed here" in str(
        caught.value
    )


def test_doctor_does_not_call_a_refused_token_a_wrong_password() -> None:
    refused = TokenUnavailable(
        "Kafka at b:1 does not accept the token of the provider 'oidc': SASL authentication error."
    )
    finding = connection_finding("Kafka", "EXACTBATCH_KAFKA", refused)
    assert finding.found == str(refused)
    assert "password" not in (finding.remedy or "")
