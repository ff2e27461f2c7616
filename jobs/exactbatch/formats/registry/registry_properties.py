"""The properties of the client of schema registries: which there are, and where they would send a secret."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from exactbatch.errors import ConfigurationError
from exactbatch.formats.avro.spec import Avro
from exactbatch.formats.debezium.spec import Debezium
from exactbatch.formats.format import Format
from exactbatch.formats.json.spec import JsonSchema
from exactbatch.formats.message.spec import WithKeyAndHeaders
from exactbatch.formats.protobuf.spec import Protobuf
from exactbatch.formats.registry.location import APICURIO
from exactbatch.tokens.token import LOOPBACK

PREFIX: Final = "schema.registry."
TOKEN: Final = "bearer.auth.token"
_PROVIDER: Final = "token:"  # before the name of a provider of tokens, in the place of a token
_ISSUER: Final = "bearer.auth.issuer.endpoint.url"
# Left out are properties of the client that are Python functions, or that a reader of schemas does not use.
_PROPERTIES: Final = frozenset(
    {
        "basic.auth.user.info",
        "bearer.auth.client.id",
        "bearer.auth.client.secret",
        "bearer.auth.credentials.source",
        "bearer.auth.identity.pool.id",
        "bearer.auth.issuer.endpoint.query",
        _ISSUER,
        "bearer.auth.logical.cluster",
        "bearer.auth.scope",
        TOKEN,
        "max.retries",
        "proxy",
        "retries.max.wait.ms",
        "retries.wait.ms",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "timeout",
    }
)
_NUMBERS: Final = frozenset({"max.retries", "retries.max.wait.ms", "retries.wait.ms", "timeout"})
_CUSTOM: Final = "CUSTOM"  # takes the token from a Python function

AnyFormat = TypeVar("AnyFormat", bound=Format | None)


def registry_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Kafka client properties that configure the registry's client.

    Raises ConfigurationError for an unknown property, and for a value of the wrong type.
    """
    own = {name: value for name, value in properties.items() if name.startswith(PREFIX)}
    for name, value in sorted(own.items()):
        short = name.removeprefix(PREFIX)
        if short not in _PROPERTIES or (short, value) == ("bearer.auth.credentials.source", _CUSTOM):
            raise ConfigurationError(
                f"The Kafka connection has an unsupported property of the schema registry: {name}. "
                f"Supported are {', '.join(PREFIX + supported for supported in sorted(_PROPERTIES))}."
            )
        type_ = (int, float) if short in _NUMBERS else str
        if isinstance(value, bool) or not isinstance(value, type_):
            expected = "a number" if short in _NUMBERS else "text"
            raise ConfigurationError(
                f"Property {name} of the Kafka connection: expected {expected}, found {type(value).__name__}."
            )
    _check_provider(find_token_provider(own))
    return own


def find_token_provider(properties: Mapping[str, Any]) -> str | None:
    """Return the provider of the registry's tokens that schema.registry.bearer.auth.token=token:NAME names, or None."""
    token = str(properties.get(PREFIX + TOKEN, ""))
    return token.removeprefix(_PROVIDER) if token.startswith(_PROVIDER) else None


def _check_provider(name: str | None) -> None:
    """Raise ConfigurationError for a provider that has no tokens for a registry."""
    if name is not None and ":" not in name and name != "gcp":
        raise ConfigurationError(
            f"The Kafka property {PREFIX}{TOKEN} names the provider of tokens {name!r}. Name gcp, or a function of "
            f"your own as token:module:function. For OAuth, set {PREFIX}bearer.auth.credentials.source=OAUTHBEARER."
        )


def is_open(address: str) -> bool:
    """True for an address whose requests, and the passwords in them, others in the network can read."""
    parts = urlsplit(address.removeprefix(APICURIO))
    return parts.scheme == "http" and parts.hostname not in LOOPBACK


def sends_password_openly(registry: str, properties: Mapping[str, Any]) -> str | None:
    """Return the address, of a registry or an issuer of tokens, to which these properties would send a password or
    token over http; None if there is none, and for a loopback address."""
    secrets = [
        name for name in properties if name.startswith((f"{PREFIX}basic.auth.", f"{PREFIX}bearer.auth."))
    ]
    addresses = f"{registry},{properties.get(PREFIX + _ISSUER, '')}".split(",") if secrets else []
    return next(filter(is_open, map(str.strip, addresses)), None)


def with_registry(format_: AnyFormat, properties: Mapping[str, Any]) -> AnyFormat:
    """Return the format with the Kafka client properties that configure the schema registry's client.

    Raises ConfigurationError for an unsupported property of the registry.
    """
    match format_:
        case Avro() | Debezium() | JsonSchema() | Protobuf():
            return replace(format_, properties=registry_properties(properties))
        case WithKeyAndHeaders():
            return replace(
                format_,
                value=with_registry(format_.value, properties),
                key=with_registry(format_.key, properties),
                headers={name: with_registry(header, properties) for name, header in format_.headers.items()},
            )
        case _:
            return format_


def list_registries(format_: Format | None) -> set[str]:
    """Return the addresses of the schema registries that a format asks."""
    match format_:
        case Avro() | Debezium() | JsonSchema() | Protobuf():
            return set() if format_.registry is None else {format_.registry}
        case WithKeyAndHeaders():
            return set().union(*map(list_registries, (format_.value, format_.key, *format_.headers.values())))
        case _:
            return set()
