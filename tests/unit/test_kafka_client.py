"""One set of client properties serves both Kafka clients, and what one of them refuses is said so."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from exactbatch.errors import ConfigurationError
from exactbatch.kafka.client_properties import (
    admin_properties,
    check_properties,
    limit_fetches,
    reader_properties,
)
from exactbatch.kafka.properties import FIXED, READING, REFUSED, SHARED, UNUSED, is_number, is_security

DOCS: Final = Path(__file__).parents[2] / "docs" / "kafka.md"
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
    given = {"sasl.username": 1, "sasl.password": 20, "ssl.key.password": 3}
    admin = admin_properties({**BROKER, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **given})
    assert [admin[name] for name in ("sasl_plain_username", "sasl_plain_password", "ssl_password")] == [
        "1",
        "20",
        "3",
    ]


@pytest.mark.parametrize(
    ("name", "protocol", "others"),
    [
        ("sasl.username", None, "sasl_plaintext or sasl_ssl"),
        ("sasl.password", "SSL", "sasl_plaintext or sasl_ssl"),
        ("ssl.ca.location", "SASL_PLAINTEXT", "ssl or sasl_ssl"),
        ("ssl.certificate.location", "plaintext", "ssl or sasl_ssl"),
        ("ssl.key.location", None, "ssl or sasl_ssl"),
    ],
)
def test_login_or_tls_that_protocol_does_not_have_is_refused(
    name: str, protocol: str | None, others: str
) -> None:
    """Both clients would connect without it, and say nothing."""
    given = {**BROKER, name: "planted", **({"security.protocol": protocol} if protocol else {})}
    given["sasl.mechanism"] = "PLAIN"
    message = refusal(given)
    assert (
        f"{name} has no effect: security.protocol is {(protocol or 'plaintext').lower()}, and both" in message
    )
    assert f"Set security.protocol to {others}, or remove {name} in the Kafka connection" in message
    assert "planted" not in message


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        ("oauthbearer", "and must be in capitals"),
        ("AWS_MSK_IAM", "which is not supported"),
        ("SCRAM-SHA-1", "which is not supported"),
        ("", "which is not supported"),
        ("scram-sha-512", "and must be in capitals"),
    ],
)
def test_a_login_that_a_client_lacks_is_refused_at_once_with_those_that_work(
    name: str, mechanism: str, why: str
) -> None:
    login = {"sasl.username": "me", "sasl.password": "s3cret"}
    message = refusal({**BROKER, "security.protocol": "SASL_SSL", name: mechanism, **login})
    assert message.startswith(f"the Kafka property {name} is {mechanism!r}, ")
    assert why in message
    assert (
        "Use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 with sasl.username and sasl.password, OAUTHBEARER with "
        "sasl.oauthbearer.method, or a client certificate" in message
    )
    assert message.endswith("in the Kafka connection (EXACTBATCH_KAFKA, or Airflow's kafka_default).")
    assert "s3cret" not in message


BY_TOKEN: Final = {**BROKER, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            BY_TOKEN,
            "the Kafka property sasl.oauthbearer.method is missing, which sasl.mechanism=OAUTHBEARER needs",
        ),
        (
            {**BY_TOKEN, "sasl.oauthbearer.method": "oidc", "sasl.password": "s3cret"},
            "the Kafka property sasl.password has no effect: with sasl.mechanism=OAUTHBEARER, a token is the login",
        ),
        (
            {**BROKER, "sasl.oauthbearer.method": "oidc"},
            "the Kafka property sasl.oauthbearer.method has no effect: only logins with tokens use it",
        ),
        (
            {**BY_TOKEN, "sasl.oauthbearer.method": "oidc", "oauth_cb": "tokens.make"},
            "the Kafka property oauth_cb is not allowed",
        ),
        (
            {**BY_TOKEN, "security.protocol": "PLAINTEXT", "sasl.oauthbearer.method": "oidc"},
            "the Kafka property sasl.oauthbearer.method has no effect: security.protocol is plaintext",
        ),
    ],
)
def test_a_login_with_tokens_has_a_provider_and_nothing_else(given: dict[str, str], said: str) -> None:
    message = refusal(given)
    assert message.startswith(said)
    assert "s3cret" not in message


def test_a_login_has_a_mechanism() -> None:
    """Without one, librdkafka would use Kerberos."""
    message = refusal(
        {**BROKER, "security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": "p"}
    )
    assert message.startswith(
        "the Kafka property sasl.mechanism is missing, which security.protocol SASL_SSL needs. Set it to PLAIN, "
        "SCRAM-SHA-256 or SCRAM-SHA-512 in the Kafka connection"
    )


def test_kerberos_is_refused_where_librdkafka_lacks_it() -> None:
    message = refusal({**BROKER, "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})
    assert message == (
        "the Kafka property sasl.mechanism is GSSAPI (Kerberos), which this librdkafka lacks, as do all in PyPI's "
        "packages of confluent-kafka. Use SCRAM or a client certificate, or build confluent-kafka "
        "with Kerberos: `exactbatch explain security`."
    )


def test_librdkafka_s_other_name_for_the_mechanism_is_known_too() -> None:
    assert admin_properties({**BROKER, "sasl.mechanisms": "PLAIN"})["sasl_mechanism"] == "PLAIN"


def test_host_names_are_checked_unless_told_otherwise() -> None:
    assert admin_properties({**BROKER, "ssl.endpoint.identification.algorithm": "https"})[
        "ssl_check_hostname"
    ]


def test_the_time_to_connect_can_be_set() -> None:
    given = {**BROKER, "socket.connection.setup.timeout.ms": "1500"}
    assert admin_properties(given)["bootstrap_timeout_ms"] == 1500


def test_what_only_concerns_reading_is_kept_from_admin_client() -> None:
    given = {**BROKER, "fetch.wait.max.ms": 10}
    assert admin_properties(given) == admin_properties(BROKER)
    assert reader_properties(given)["fetch.wait.max.ms"] == 10


@pytest.mark.parametrize(
    "given", [{}, {"bootstrap.servers": ""}, {"client.id": "me"}, {"bootstrap_servers": "one:9092"}]
)
def test_bootstrap_servers_are_required(given: dict[str, Any]) -> None:
    message = refusal(given)
    assert message.startswith(
        f"the Kafka property bootstrap.servers is missing (properties: {', '.join(given) or 'none'}). Set it in"
    )
    assert "EXACTBATCH_KAFKA" in message


@pytest.mark.parametrize(
    "name", ["sasl.oauthbearer.config", "ssl.keystore.location", "enable.ssl.certificate.verification"]
)
def test_security_property_that_kafka_python_lacks_is_refused_by_its_name(name: str) -> None:
    message = refusal({**BROKER, name: "x"})
    assert (
        f"the Kafka property {name} is not allowed: kafka-python, which plans, has no equivalent" in message
    )
    assert "sasl.mechanism, " in message
    assert "client.id" not in message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fetch.wait.max.ms": 300_001}, "fetch.wait.max.ms"),
        ({"security.protocol": "telnet"}, "security.protocol"),
        ({"ssl.ca.location": "/nowhere.pem", "security.protocol": "ssl"}, "ssl.ca.location"),
        ({"debug": "everything"}, "debug"),
    ],
)
def test_what_librdkafka_refuses_names_librdkafka(given: dict[str, Any], said: str) -> None:
    message = refusal({**BROKER, **given})
    assert message.startswith("librdkafka, which reads, rejects the Kafka client properties: ")
    assert said in message
    assert message.endswith("Correct the Kafka connection.")


def test_brokers_are_given_as_text() -> None:
    assert refusal({**BROKER, "bootstrap.servers": 9092}) == (
        "the Kafka property bootstrap.servers is 9092, which librdkafka does not accept. Correct the Kafka "
        "connection."
    )


@pytest.mark.parametrize("value", ["abc", "", "10s", "010", "1e6", 1.5, 1e6, True, "0x10", " 5", "5\n"])
@pytest.mark.parametrize("name", ["queued.min.messages", "socket.connection.setup.timeout.ms", "log_level"])
def test_a_number_is_a_whole_number_for_both_clients(name: str, value: Any) -> None:
    assert refusal({**BROKER, name: value}).startswith(
        f"the Kafka property {name} is {value!r}, and must be a whole number. Correct it in the Kafka connection"
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        ({"auto.offset.reset": "latest", "sasl.password": "s3cret"}, "an object"),
        (["s3cret"], "a list"),
        (print, "a function"),
    ],
)
@pytest.mark.parametrize("name", ["client.id", "linger.ms", "sasl.password", "auto.offset.reset", "no.such"])
def test_a_value_is_text_a_number_or_a_boolean(name: str, value: Any, kind: str) -> None:
    message = refusal({**BROKER, name: value})
    assert message.startswith(
        f"the Kafka property {name} is {kind}, and must be text, a number, true or false"
    )
    assert "s3cret" not in message


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize("value", ["x", {"auto.offset.reset": "latest"}, True, print])
def test_a_back_door_is_refused_with_the_reason(name: str, value: Any) -> None:
    message = refusal({**BROKER, name: value})
    assert message.startswith(
        f"the Kafka property {name} is not allowed: {REFUSED[name]}. Remove it in the Kafka"
    )


@pytest.mark.parametrize("name", ["auto.offset.reset", "enable.auto.commit", "acks"])
def test_a_property_of_topics_does_not_go_around_the_fixed_ones(name: str) -> None:
    """librdkafka takes `topic.auto.offset.reset` for the default of all topics."""
    assert "properties of topics take precedence over those that make a read exact" in refusal(
        {**BROKER, f"topic.{name}": "latest"}
    )


def test_an_unknown_property_is_refused_by_its_name_alone() -> None:
    message = refusal({**BROKER, "no.such.property": "s3cret"})
    assert "the Kafka property no.such.property is not allowed: exactbatch does not know it" in message
    assert "s3cret" not in message


def test_two_names_of_one_property_have_one_value() -> None:
    check_properties({**BROKER, "sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"})
    assert "sasl.mechanisms and sasl.mechanism are two names of one" in refusal(
        {**BROKER, "sasl.mechanism": "PLAIN", "sasl.mechanisms": "SCRAM-SHA-256"}
    )


def test_what_producers_and_groups_use_reaches_no_client() -> None:
    given = {**BROKER, **dict.fromkeys(UNUSED, "x")}
    check_properties(given)
    assert admin_properties(given) == admin_properties(BROKER)
    assert reader_properties(given) == reader_properties(BROKER)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("isolation.level", "read_uncommitted"),
        ("enable.partition.eof", False),
        ("allow.auto.create.topics", True),
        ("check.crcs", "false"),
        ("statistics.interval.ms", 0),
    ],
)
def test_what_makes_a_read_exact_cannot_be_changed(name: str, value: Any) -> None:
    fixed = FIXED[name]
    assert refusal({**BROKER, name: value}).startswith(
        f"the Kafka property {name} is {value!r}, and exactbatch needs {fixed.value!r}: {fixed.why}. Remove it"
    )


def test_a_connection_that_other_consumers_share_is_read_as_exactly(caplog: pytest.LogCaptureFixture) -> None:
    shared = {
        **BROKER,
        "group.id": "airflow",
        "enable.auto.commit": "true",
        "auto.commit.enable": True,
        "auto.offset.reset": "beginning",
        "enable.auto.offset.store": "true",
    }
    with caplog.at_level("INFO"):
        check_properties(shared)
    [line] = caplog.messages
    assert line.startswith(
        "the Kafka connection has auto.commit.enable=True, auto.offset.reset=beginning, enable.auto.commit=true, "
        "enable.auto.offset.store=true, which batches ignore"
    )
    assert reader_properties(shared) == {**reader_properties(BROKER), "group.id": "airflow"}
    assert admin_properties(shared) == admin_properties(BROKER)


@pytest.mark.parametrize("use", [admin_properties, reader_properties])
def test_both_clients_refuse_the_same(use: Callable[[dict[str, Any]], Any]) -> None:
    for name, value in (
        ("default.topic.config", {"auto.offset.reset": "latest"}),
        ("check.crcs", False),
        ("queued.min.messages", "abc"),
    ):
        with pytest.raises(ConfigurationError, match=f"the Kafka property {name} "):
            use({**BROKER, name: value})


def test_every_property_of_librdkafka_is_in_one_list(tmp_path: Path) -> None:
    """A version that knows more is looked at before it reads."""
    lists = [FIXED, SHARED, READING, UNUSED, REFUSED]
    known = [name for each in lists for name in each]
    assert len(known) == len(set(known))
    types = properties_of_librdkafka(tmp_path)
    assert {"auto.offset.reset", "queued.min.messages", "plugin.library.paths"} <= types.keys()
    aliases = {"auto.commit.enable"}
    unlisted = {name for name in types.keys() - set(known) - aliases if not is_security(name)}
    assert unlisted == set()
    numbers = {name for name in SHARED | READING if types[name] == "integer"}
    assert {name for name in SHARED | READING if is_number(name)} == numbers


def properties_of_librdkafka(folder: Path) -> dict[str, str]:
    """The type of each property, by its name, as librdkafka itself shows them: its CONFIGURATION.md."""
    import confluent_kafka

    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
    libc, librdkafka = ctypes.CDLL(None), ctypes.CDLL(str(path))
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(bytes(folder / "properties.md"), b"w"))
    librdkafka.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    rows = re.findall(r"^([a-z_.]+) +\|.*<br>\*Type: ([^*]+)\*", (folder / "properties.md").read_text(), re.M)
    return dict(rows)


def test_the_documentation_has_the_tables_of_the_code() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = select_rows(
        ("property", "value", "why"),
        [(f"`{n}`", f"`{each.value}`", each.why) for n, each in FIXED.items()],
    )
    assert table in text, f"put this into {DOCS}:\n{table}"
    in_one_line = " ".join(text.split())  # the page wraps the lists
    for names in (SHARED, READING):
        listed = ", ".join(f"`{name}`" for name in sorted(names))
        assert listed in in_one_line, f"put this into {DOCS}:\n{listed}"


def select_rows(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    assert "unsupported property of the schema registry: schema.registry.user." in refusal(
        {**given, "schema.registry.user": "me"}
    )


@pytest.mark.parametrize(
    ("properties", "limited"),
    [
        ({}, {"fetch.message.max.bytes": 100}),
        ({"fetch.message.max.bytes": "5000"}, {"fetch.message.max.bytes": 100}),
        ({"fetch.message.max.bytes": 50}, {"fetch.message.max.bytes": 50}),
        ({"max.partition.fetch.bytes": 5000}, {"max.partition.fetch.bytes": 100}),
    ],
)
def test_fetches_are_limited_under_the_name_that_the_connection_uses(properties, limited):
    assert limit_fetches({"client.id": "x", **properties}, 100) == {"client.id": "x", **limited}


@pytest.mark.parametrize("client_id", ['team "a"', "CORP\\svc", "two\nlines"])
def test_a_client_id_that_breaks_the_statistics_is_refused(client_id: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"client\.id is .*breaks the JSON of librdkafka's statistics"
    ):
        check_properties({**BROKER, "client.id": client_id})
    check_properties({**BROKER, "client.id": "team-ä {1}"})
