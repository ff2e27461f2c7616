"""One set of client properties serves both Kafka clients, and what one of them refuses is said so."""

from typing import Any

import pytest

from exactbatch.errors import ConfigurationError
from exactbatch.kafka_client import admin_properties, check_properties, reader_properties

BROKER = {"bootstrap.servers": "one:9092, two:9092"}


def refusal(properties: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        check_properties(properties)
    return str(refused.value)


def test_both_clients_reach_the_same_brokers() -> None:
    assert admin_properties(BROKER)["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert reader_properties(BROKER)["bootstrap.servers"] == "one:9092, two:9092"


def test_both_clients_have_the_same_identity() -> None:
    given = {
        **BROKER,
        "client.id": "me",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "user",
        "sasl.password": "secret",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/cert.pem",
        "ssl.key.location": "/key.pem",
        "ssl.key.password": "key secret",
        "ssl.endpoint.identification.algorithm": "none",
    }
    admin = admin_properties(given)
    assert admin.pop("bootstrap_timeout_ms") > 0
    assert admin == {
        "bootstrap_servers": ["one:9092", "two:9092"],
        "client_id": "me",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "user",
        "sasl_plain_password": "secret",
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/cert.pem",
        "ssl_keyfile": "/key.pem",
        "ssl_password": "key secret",
        "ssl_check_hostname": False,
    }
    assert given.items() <= reader_properties(given).items()


def test_a_password_of_digits_may_be_a_number_in_json() -> None:
    """librdkafka takes every value as text; kafka-python would fail over it once it connects."""
    admin = admin_properties({**BROKER, "sasl.username": 1, "sasl.password": 20, "ssl.key.password": 3})
    assert [admin[name] for name in ("sasl_plain_username", "sasl_plain_password", "ssl_password")] == [
        "1",
        "20",
        "3",
    ]


def test_librdkafka_s_other_name_for_the_mechanism_is_known_too() -> None:
    assert admin_properties({**BROKER, "sasl.mechanisms": "PLAIN"})["sasl_mechanism"] == "PLAIN"


def test_host_names_are_checked_unless_told_otherwise() -> None:
    assert admin_properties({**BROKER, "ssl.endpoint.identification.algorithm": "https"})[
        "ssl_check_hostname"
    ]


def test_the_time_to_connect_can_be_set() -> None:
    given = {**BROKER, "socket.connection.setup.timeout.ms": "1500"}
    assert admin_properties(given)["bootstrap_timeout_ms"] == 1500


def test_what_only_concerns_reading_is_kept_from_the_admin_client() -> None:
    given = {**BROKER, "fetch.wait.max.ms": 10}
    assert admin_properties(given) == admin_properties(BROKER)
    assert reader_properties(given)["fetch.wait.max.ms"] == 10


@pytest.mark.parametrize(
    "given", [{}, {"bootstrap.servers": ""}, {"client.id": "me"}, {"bootstrap_servers": "one:9092"}]
)
def test_bootstrap_servers_are_required(given: dict[str, Any]) -> None:
    message = refusal(given)
    assert message.startswith(
        f"expected the Kafka property bootstrap.servers, found {', '.join(given) or 'none'}. Set it in"
    )
    assert "EXACTBATCH_KAFKA" in message


@pytest.mark.parametrize(
    "name", ["sasl.oauthbearer.config", "ssl.keystore.location", "enable.ssl.certificate.verification"]
)
def test_a_security_property_that_kafka_python_lacks_is_refused_by_its_name(name: str) -> None:
    message = refusal({**BROKER, name: "x"})
    assert f"found {name!r}, which kafka-python, which plans, has no equivalent for" in message
    assert "sasl.mechanism, " in message
    assert "client.id" not in message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"no.such.property": 1}, 'No such configuration property: "no.such.property"'),
        ({"fetch.wait.max.ms": "soon"}, "fetch.wait.max.ms"),
        ({"security.protocol": "telnet"}, "security.protocol"),
    ],
)
def test_what_librdkafka_refuses_names_librdkafka(given: dict[str, Any], said: str) -> None:
    message = refusal({**BROKER, **given})
    assert message.startswith(
        "expected Kafka client properties that librdkafka, which reads, accepts; it says: "
    )
    assert said in message
    assert message.endswith("Correct the Kafka connection.")


@pytest.mark.parametrize(
    ("name", "value"),
    [("bootstrap.servers", ["one:9092"]), ("socket.connection.setup.timeout.ms", "soon")],
)
def test_a_value_that_cannot_be_translated_is_refused(name: str, value: Any) -> None:
    assert refusal({**BROKER, name: value}) == (
        f"expected the Kafka property {name} as librdkafka writes it, found {value!r}. Correct the Kafka "
        f"connection."
    )


@pytest.mark.parametrize(
    ("name", "value", "fixed"),
    [
        ("auto.offset.reset", "earliest", "'error'"),
        ("isolation.level", "read_uncommitted", "'read_committed'"),
        ("enable.auto.commit", "true", "False"),
        ("enable.partition.eof", False, "True"),
        ("allow.auto.create.topics", True, "False"),
        ("enable.auto.offset.store", True, "False"),
    ],
)
def test_what_makes_a_read_exact_cannot_be_changed(name: str, value: Any, fixed: str) -> None:
    assert refusal({**BROKER, name: value}) == (
        f"expected the Kafka property {name} to be left alone, found {value!r}: a range is read exactly only "
        f"with {fixed}. Remove it from the Kafka connection."
    )


def test_a_fixed_property_may_be_given_as_it_is() -> None:
    given = {**BROKER, "enable.auto.commit": "false", "isolation.level": "read_committed"}
    check_properties(given)
    assert reader_properties(given)["enable.auto.commit"] is False


def test_good_properties_are_accepted_without_a_broker() -> None:
    check_properties({**BROKER, "client.id": "me", "security.protocol": "ssl"})


def test_properties_of_a_schema_registry_are_not_for_the_clients() -> None:
    given = {**BROKER, "schema.registry.basic.auth.user.info": "me:secret"}
    check_properties(given)
    assert not any("registry" in name for name in {**admin_properties(given), **reader_properties(given)})
    assert "found schema.registry.user" in refusal({**given, "schema.registry.user": "me"})
