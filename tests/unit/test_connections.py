"""Airflow's connections as settings: what is read, and what is refused with the connection's name."""

import json
from typing import Any

import httpx
import pytest
from airflow.sdk import Connection
from psycopg2.extensions import parse_dsn

from exactbatch.airflow import connections as module
from exactbatch.airflow.connections import Connections
from exactbatch.errors import ConfigurationError
from exactbatch.kafka.client_properties import check_properties
from exactbatch.operations.airflow_api import airflow_url


def settings(monkeypatch: pytest.MonkeyPatch, **given: dict[str, Any]) -> Any:
    usual = {
        "kafka_default": {"extra": '{"bootstrap.servers": "k:1"}'},
        "postgres_default": {"host": "db", "schema": "shop", "login": "me", "password": "s3cret"},
    }
    monkeypatch.setattr(
        module.BaseHook,
        "get_connection",
        lambda conn_id: Connection(
            conn_id=conn_id, conn_type=conn_id.partition("_")[0], **{**usual, **given}[conn_id]
        ),
    )
    return Connections().settings()


@pytest.mark.parametrize(
    ("host", "port", "servers"),
    [
        ("a", None, "a:9092"),
        ("a", 39092, "a:39092"),
        ("a:39092", None, "a:39092"),
        ("a:9092, b:9093", None, "a:9092,b:9093"),
        ("a,b", 1, "a:1,b:1"),
        ("[::1]:39092", None, "[::1]:39092"),
        ("[::1]", None, "[::1]:9092"),
        ("SASL_SSL://a:9093", None, "SASL_SSL://a:9093"),
        ("SASL_SSL://a, SSL://b:9093", 9094, "SASL_SSL://a:9094,SSL://b:9093"),
        (
            "SSL://::1, SSL://[::1], SSL://[::1]:9093",
            None,
            "SSL://[::1]:9092,SSL://[::1]:9092,SSL://[::1]:9093",
        ),
        ("::1", 1, "[::1]:1"),
    ],
)
def test_a_host_may_have_its_port(monkeypatch, host, port, servers):
    found = settings(monkeypatch, kafka_default={"host": host, "port": port}).kafka
    assert found["bootstrap.servers"] == servers


@pytest.mark.parametrize("extra", ["{'sslmode': 'verify-full'}", "[1]", '"text"', "sslmode=verify-full"])
@pytest.mark.parametrize("which", ["kafka_default", "postgres_default"])
def test_an_extra_that_is_no_json_object_does_not_turn_tls_off(monkeypatch, which, extra):
    with pytest.raises(
        ConfigurationError, match=f"extra of the Airflow connection '{which}' is not a JSON object"
    ) as caught:
        settings(monkeypatch, **{which: {"host": "h", "extra": extra}})
    assert "verify" not in str(caught.value).replace('{"sslmode": "verify-full"}', "")


def test_a_property_that_has_two_values_is_named(monkeypatch):
    """Of each, one would be taken, and nobody would know which: of the other cluster, or without TLS."""
    twice = '{"security.protocol": "SSL", "security.protocol": "PLAINTEXT", "bootstrap.servers": "k:1"}'
    with pytest.raises(
        ConfigurationError, match="'kafka_default': security.protocol: given twice in one JSON"
    ):
        settings(monkeypatch, kafka_default={"extra": twice})
    extra = '{"bootstrap.servers": "staging:9092", "sasl.password": "s3cret"}'
    with pytest.raises(
        ConfigurationError, match="'kafka_default' has two values of bootstrap.servers: one in"
    ):
        settings(monkeypatch, kafka_default={"host": "prod", "extra": extra})
    with pytest.raises(ConfigurationError, match="has two values of sasl.password") as caught:
        settings(monkeypatch, kafka_default={"login": "me", "password": "0ther", "extra": extra})
    assert "s3cret" not in str(caught.value)
    same = settings(monkeypatch, kafka_default={"host": "staging", "extra": extra}).kafka
    assert same["bootstrap.servers"] == "staging:9092"


@pytest.mark.parametrize(
    ("servers", "provider"),
    [
        ("b-1.shop.abc.kafka.eu-west-1.amazonaws.com:9098", "aws_msk_iam"),
        ("bootstrap.shop.eu.managedkafka.p.cloud.goog:9092", "gcp"),
    ],
)
def test_a_kafka_connection_for_which_airflows_own_hook_makes_tokens_has_the_same_here(
    monkeypatch, servers, provider
):
    extra = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    found = settings(monkeypatch, kafka_default={"extra": json.dumps(extra)}).kafka
    assert found == {**extra, "sasl.oauthbearer.method": provider}


def test_other_brokers_need_the_name_of_a_provider(monkeypatch):
    extra = {
        "bootstrap.servers": "b-1.shop.kafka.eu-west-1.amazonaws.com:9098,other.example.org:9098",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    found = settings(monkeypatch, kafka_default={"extra": json.dumps(extra)}).kafka
    with pytest.raises(
        ConfigurationError, match=r"sasl.oauthbearer.method is missing, which sasl.mechanism=OAUTHB"
    ):
        check_properties(found)


@pytest.mark.parametrize(
    ("extra", "provider"),
    [({"iam": True, "aws_conn_id": "aws"}, "aws_rds_iam"), ({"azure_conn_id": "a"}, "azure")],
)
def test_a_postgres_connection_for_which_airflows_own_hook_gets_a_token_has_the_same_here(
    monkeypatch, extra, provider
):
    connection = {"host": "db", "login": "job", "password": "old", "extra": json.dumps(extra)}
    found = settings(monkeypatch, postgres_default=connection).postgres
    assert parse_dsn(found) == {"host": "db", "user": "job", "password": f"token:{provider}"}


def test_a_connection_of_airflow_names_no_code(monkeypatch):
    """Whoever may edit connections may not therefore run functions."""
    extra = {
        "bootstrap.servers": "b:9092",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "os:system",
    }
    with pytest.raises(
        ConfigurationError, match=r"'kafka_default' names 'os:system' as a provider.*kafka_token="
    ):
        settings(monkeypatch, kafka_default={"extra": json.dumps(extra)})
    with pytest.raises(
        ConfigurationError, match=r"'postgres_default' names 'os:system' as a prov.*postgres_token="
    ):
        settings(monkeypatch, postgres_default={"host": "db", "password": "token:os:system"})


def test_a_dag_names_the_providers(monkeypatch):
    settings(monkeypatch)
    found = Connections(kafka_token="shop:kafka", postgres_token="shop:postgres").settings()
    assert found.kafka["sasl.mechanism"] == "OAUTHBEARER"
    assert found.kafka["sasl.oauthbearer.method"] == "shop:kafka"
    assert parse_dsn(found.postgres)["password"] == "token:shop:postgres"


def test_what_airflows_own_hook_takes_is_left_out(monkeypatch):
    extra = '{"cursor": "dictcursor", "iam": false, "sqlalchemy_scheme": "x", "sslmode": "require"}'
    found = settings(monkeypatch, postgres_default={"host": "db", "extra": extra}).postgres
    assert parse_dsn(found) == {"host": "db", "sslmode": "require"}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            '{"iam": true, "redshift": true}',
            "has 'redshift' in its extra, and Redshift is no target of exactbatch",
        ),
        ('{"colour": "red"}', 'not a libpq parameter: invalid dsn: invalid connection option "colour"'),
    ],
)
def test_what_libpq_does_not_know_is_named(monkeypatch, extra, said):
    with pytest.raises(ConfigurationError, match=f"connection 'postgres_default' .*{said}"):
        settings(monkeypatch, postgres_default={"host": "db", "password": "s3cret", "extra": extra})


def test_pool_not_there_is_error_with_command_that_creates_it(monkeypatch, caplog):
    class Api:
        def __init__(self, status: int) -> None:
            self.status = status

        def __enter__(self) -> "Api":
            return self

        def __exit__(self, *_: Any) -> None: ...

        def get(self, path: str) -> Any:
            assert path == "/api/v2/pools/my%2Fpool"
            return httpx.Response(self.status, json={"slots": 1}, request=httpx.Request("GET", "http://a"))

    connections = Connections(airflow="airflow_default")
    for status in (200, 403, 500):
        monkeypatch.setattr(module, "_api", lambda _, status=status: Api(status))
        connections.check_pool("my/pool")
    monkeypatch.setattr(module, "_api", lambda _: Api(404))
    with pytest.raises(ConfigurationError, match="has no pool 'my/pool'.*`airflow pools set my/pool 1"):
        connections.check_pool("my/pool")


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("http://a", 8080, "http://a:8080"),
        ("https://a", None, "https://a"),
        ("http://a/airflow", 8080, "http://a:8080/airflow"),
        ("https://a/team/airflow/", None, "https://a/team/airflow"),
        (None, None, "http://localhost"),
    ],
)
def test_an_airflow_below_a_path_has_its_port_before_the_path(host, port, url):
    assert airflow_url(host, port) == url


def test_a_connection_names_no_function_of_its_own_for_tokens_of_the_registry(monkeypatch):
    def with_token(token):
        extra = {"bootstrap.servers": "k:1", "schema.registry.bearer.auth.token": token}
        return settings(monkeypatch, kafka_default={"extra": json.dumps(extra)}).kafka

    with pytest.raises(ConfigurationError, match="'kafka_default' names 'os:getcwd'.*may only name gcp"):
        with_token("token:os:getcwd")
    assert with_token("token:gcp")["schema.registry.bearer.auth.token"] == "token:gcp"
