"""Decide which Kafka client properties a connection may have, by their names in librdkafka. Pure, no I/O.

Properties are allowed one by one: a property in none of these lists is refused. Names, aliases and defaults are those
of librdkafka's CONFIGURATION.md; confluent-kafka adds callbacks and `default.topic.config`. Most of the module is these
lists.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exactbatch.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Fixed:
    """A property that exactbatch sets, to the only value that it allows."""

    value: bool | int | str
    why: str


FIXED: Final[Mapping[str, Fixed]] = {
    "auto.offset.reset": Fixed("error", "any other value makes a read skip missing records silently"),
    "isolation.level": Fixed("read_committed", "records of aborted transactions would become rows"),
    "check.crcs": Fixed(True, "a record damaged by a disk or the network would be stored as it is"),
    "enable.partition.eof": Fixed(
        True, "without it, a read of a range that ends in invisible records never ends"
    ),
    "enable.auto.commit": Fixed(False, "only the ledger records how far a pipeline has come"),
    "enable.auto.offset.store": Fixed(False, "only the ledger records how far a pipeline has come"),
    "allow.auto.create.topics": Fixed(False, "a deleted topic would be created again, empty"),
    "statistics.interval.ms": Fixed(
        1000, "a read uses the statistics to detect progress where no record is visible"
    ),
}
# Of these, a connection that other consumers share usually has another value, which has no effect on a batch.
OVERRIDDEN: Final = frozenset(
    {"auto.offset.reset", "enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store"}
)
# Another name of a fixed property.
_ALIASES_OF_FIXED: Final[Mapping[str, str]] = {"auto.commit.enable": "enable.auto.commit"}

# Both clients get these: where the brokers are, and who the client is. kafka/client_properties.py translates them.
SHARED: Final[frozenset[str]] = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "reconnect.backoff.max.ms",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)
# A property of these that only one client knows would make the clients connect differently, or as different users.
_SECURITY_PREFIXES: Final = ("sasl.", "ssl.", "https.", "security.", "enable.sasl.", "enable.ssl.")

_SASL: Final = ("sasl_plaintext", "sasl_ssl")
_TLS: Final = ("ssl", "sasl_ssl")
# The mechanisms that both clients have, in the only spelling that librdkafka takes, and GSSAPI, which it may lack.
_PASSWORDS: Final = "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_BY_TOKEN: Final = "OAUTHBEARER"
# Names the provider of tokens: one of exactbatch.tokens.providers.
TOKEN_METHOD: Final = "sasl.oauthbearer.method"
# A provider gets these. No client does: each gets the provider's tokens.
TOKENS: Final[frozenset[str]] = frozenset(
    {
        "https.ca.location",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.extensions",
        TOKEN_METHOD,
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
    }
)
# Properties of logins and TLS, and the protocols that use them.
_PROTOCOLS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "sasl.username": _SASL,
    "sasl.password": _SASL,
    "sasl.oauthbearer.method": _SASL,
    "ssl.ca.location": _TLS,
    "ssl.certificate.location": _TLS,
    "ssl.key.location": _TLS,
}

# Only librdkafka, which reads, gets these: they affect the speed, duration and memory of a read.
READING: Final[frozenset[str]] = frozenset(
    {
        "api.version.request.timeout.ms",
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "debug",
        "enable.metrics.push",
        "enable.random.seed",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.id",
        "log.connection.close",
        "log.thread.name",
        "log_level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "message.max.bytes",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "receive.message.max.bytes",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    }
)
# Those of them that a producer of results gets, too: they affect connections.
PRODUCING: Final[frozenset[str]] = frozenset(
    {
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "debug",
        "log_level",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "topic.metadata.refresh.interval.ms",
    }
)
# The allowed properties that are whole numbers: librdkafka reads "64MB" as 64, and "010" as 8.
_NUMBERS: Final = re.compile(r".*\.(ms|bytes|kbytes|ttl|messages|connection|flight)|log_level")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
# Two names of one property.
_SYNONYMS: Final[Mapping[str, str]] = {
    "sasl.mechanisms": "sasl.mechanism",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "max.in.flight": "max.in.flight.requests.per.connection",
}

# Producers and members of a group use these, or librdkafka no longer does: a connection that other programs share may
# have them, and neither client gets them.
UNUSED: Final[frozenset[str]] = frozenset(
    {
        "acks",
        "auto.commit.interval.ms",
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "consume.callback.max.messages",
        "coordinator.query.interval.ms",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "message.copy.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "partition.assignment.strategy",
        "partitioner",
        "produce.offset.report",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queuing.strategy",
        "reconnect.backoff.jitter.ms",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "socket.blocking.max.ms",
        "sticky.partitioning.linger.ms",
        "topic.metadata.refresh.fast.cnt",
        "transaction.timeout.ms",
        "transactional.id",
    }
)

_FUNCTION: Final = (
    "it is a callback or another object of the program, which exactbatch sets itself or does not use"
)
_OLD_PROTOCOL: Final = "librdkafka would use a protocol without transactions and leader epochs"
_OWN_OFFSETS: Final = "only the ledger records how far a pipeline has come"
_INTERNAL: Final = "it is internal to librdkafka"
_MOCK: Final = "it replaces the brokers with a mock cluster"
# Properties that a connection may not have, and the reason.
REFUSED: Final[Mapping[str, str]] = {
    "metadata.broker.list": (
        "kafka-python, which plans, does not know this name and could plan from brokers other than those that "
        "librdkafka reads from; list the brokers in bootstrap.servers"
    ),
    "default.topic.config": "its contents take precedence over the properties that make a read exact",
    "default_topic_conf": "its contents take precedence over the properties that make a read exact",
    "plugin.library.paths": "a plugin can change, drop and add records",
    "interceptors": "an interceptor can change, drop and add records",
    "topic.blacklist": "a topic of the pipeline would look deleted",
    "test.mock.num.brokers": _MOCK,
    "test.mock.broker.rtt": _MOCK,
    "offset.store.method": _OWN_OFFSETS,
    "offset.store.path": _OWN_OFFSETS,
    "offset.store.sync.interval.ms": _OWN_OFFSETS,
    "api.version.request": _OLD_PROTOCOL,
    "api.version.fallback.ms": _OLD_PROTOCOL,
    "broker.version.fallback": _OLD_PROTOCOL,
    "socket.max.fails": "with any value other than its default, 1, client and broker can get out of step",
    "enabled_events": "events would accumulate in memory, because nothing consumes them",
    "log.queue": "log lines would accumulate in memory, because nothing consumes them",
    "builtin.features": "it describes how librdkafka was built, and sets nothing",
    "internal.termination.signal": _INTERNAL,
    "opaque": _INTERNAL,
    "ssl_ca": _INTERNAL,
    "ssl_certificate": _INTERNAL,
    "ssl_engine_callback_data": _INTERNAL,
    "ssl_key": _INTERNAL,
    **dict.fromkeys(
        (
            "background_event_cb",
            "closesocket_cb",
            "connect_cb",
            "consume_cb",
            "dr_cb",
            "dr_msg_cb",
            "error_cb",
            "log_cb",
            "logger",
            "msg_order_cmp",
            "oauth_cb",
            "oauthbearer_token_refresh_cb",
            "offset_commit_cb",
            "on_commit",
            "on_delivery",
            "open_cb",
            "partitioner_cb",
            "rebalance_cb",
            "resolve_cb",
            "socket_cb",
            "stats_cb",
            "throttle_cb",
        ),
        _FUNCTION,
    ),
}
# librdkafka also accepts properties of topics with this prefix, which would take precedence over the fixed ones.
_OF_TOPICS: Final = "topic."

_BREAKS_JSON: Final = re.compile(r'["\\\x00-\x1f]')


def allowed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that a client uses, in their order, without the fixed ones.

    Raises ConfigurationError for a property that is not allowed, and for an invalid value.
    """
    _check_mechanism(properties)
    for name, value in properties.items():
        _check(name, value)
    _check_protocol(properties)
    for name, other in _SYNONYMS.items():
        if name in properties and other in properties and properties[name] != properties[other]:
            raise _wrong(
                f"the Kafka properties {name} and {other} are two names of one property, with two values. Keep one"
            )
    return {name: value for name, value in properties.items() if name in SHARED or name in READING}


def uses_tokens(properties: Mapping[str, Any]) -> bool:
    """True if a connection logs in with tokens."""
    return _BY_TOKEN in (properties.get("sasl.mechanism"), properties.get("sasl.mechanisms"))


def is_number(name: str) -> bool:
    """True if an allowed property is a whole number."""
    return _NUMBERS.fullmatch(name) is not None


def is_security(name: str) -> bool:
    """True if a property determines the client's identity, or which brokers it trusts."""
    return name.startswith(_SECURITY_PREFIXES)


def _check_mechanism(properties: Mapping[str, Any]) -> None:
    """Refuse a login that one of the clients lacks, or for which both of them have another default."""
    given = [name for name in ("sasl.mechanism", "sasl.mechanisms") if name in properties]
    for name in given:
        mechanism = str(properties[name]).upper()
        if mechanism == properties[name] == _BY_TOKEN:
            _check_tokens(name, properties)
            continue
        if mechanism not in (*_MECHANISMS, _BY_TOKEN):
            why = ", which is not supported"
        elif mechanism != properties[name]:
            why = ", and must be in capitals"
        else:
            continue
        raise _wrong(
            f"the Kafka property {name} is {properties[name]!r}{why}. Use {_PASSWORDS} with sasl.username and "
            f"sasl.password, {_BY_TOKEN} with {TOKEN_METHOD}, or a client certificate (`exactbatch explain security` "
            f"has examples),"
        )
    if not uses_tokens(properties) and (unused := sorted(TOKENS & properties.keys())):
        raise _wrong(
            f"the Kafka property {unused[0]} has no effect: only logins with tokens use it. Set sasl.mechanism to "
            f"{_BY_TOKEN}, or remove {unused[0]}"
        )
    if not given and str(properties.get("security.protocol")).lower() in _SASL:
        raise _wrong(
            f"the Kafka property sasl.mechanism is missing, which security.protocol "
            f"{properties['security.protocol']} needs. Set it to {_PASSWORDS}"
        )


def _check_tokens(mechanism: str, properties: Mapping[str, Any]) -> None:
    """Refuse a login with tokens that no provider makes, and one that has a password, too."""
    if not properties.get(TOKEN_METHOD):
        raise _wrong(
            f"the Kafka property {TOKEN_METHOD} is missing, which {mechanism}={_BY_TOKEN} needs: it says what requests "
            f"the tokens. Set it to oidc or to a function of your own, as module:function (`exactbatch explain "
            f"security`),"
        )
    if given := [name for name in ("sasl.username", "sasl.password") if name in properties]:
        raise _wrong(
            f"the Kafka property {given[0]} has no effect: with {mechanism}={_BY_TOKEN}, a token is the login. Remove "
            f"it, or set sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret instead,"
        )


def _check_protocol(properties: Mapping[str, Any]) -> None:
    """Refuse a login, or TLS files, that the protocol does not use: both clients would connect without them."""
    protocol = str(properties.get("security.protocol", "plaintext")).lower()
    for name, protocols in _PROTOCOLS_OF.items():
        if name in properties and protocol not in protocols:
            raise _wrong(
                f"the Kafka property {name} has no effect: security.protocol is {protocol}, and both clients "
                f"would connect without it. Set security.protocol to {' or '.join(protocols)}, or remove {name}"
            )


def _check(name: str, value: Any) -> None:
    if why := REFUSED.get(name):
        raise _wrong(f"the Kafka property {name} is not allowed: {why}. Remove it")
    if not isinstance(value, str | int | float):
        raise _wrong(
            f"the Kafka property {name} is {_kind(value)}, and must be text, a number, true or false. Correct it"
        )
    if fixed := FIXED.get(_ALIASES_OF_FIXED.get(name, name)):
        if name not in OVERRIDDEN and str(value).lower() != str(fixed.value).lower():
            raise _wrong(
                f"the Kafka property {name} is {value!r}, and exactbatch needs {fixed.value!r}: {fixed.why}. "
                f"Remove it"
            )
    elif name in SHARED or name in READING:
        if name == "client.id" and _BREAKS_JSON.search(str(value)):
            raise _wrong(
                f"the Kafka property client.id is {value!r}, which breaks the JSON of librdkafka's statistics. "
                f"Remove quotation marks, backslashes and control characters"
            )
        if is_number(name) and (isinstance(value, bool) or not _NUMBER.fullmatch(str(value))):
            raise _wrong(f"the Kafka property {name} is {value!r}, and must be a whole number. Correct it")
    elif name in TOKENS:
        return
    elif is_security(name):
        known = sorted(filter(is_security, SHARED))
        raise _wrong(
            f"the Kafka property {name} is not allowed: kafka-python, which plans, has no equivalent and would "
            f"connect differently from librdkafka, which reads. Use one of {', '.join(known)}"
        )
    elif name in UNUSED:
        return
    elif name.startswith(_OF_TOPICS):
        raise _wrong(
            f"the Kafka property {name} is not allowed: properties of topics take precedence over those that make "
            f"a read exact. Remove it"
        )
    else:
        raise _wrong(
            f"the Kafka property {name} is not allowed: exactbatch does not know it, and it might change what is "
            f"read. Correct its name, or remove it"
        )


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    return "a function" if callable(value) else f"a {type(value).__name__}"


def _wrong(fact: str) -> ConfigurationError:
    return ConfigurationError(
        f"{fact} in the Kafka connection (EXACTBATCH_KAFKA, or Airflow's kafka_default)."
    )
