"""Confluent's schema registry: which schema a value was written with."""

import json
from collections.abc import Mapping
from typing import Any, Final

from exactbatch.errors import ConfigurationError, RegistryUnavailable

PREFIX: Final = "schema.registry."
_USER: Final = "schema.registry.basic.auth.user.info"
_CERTIFICATES: Final = "schema.registry.ssl.ca.location"
_TIMEOUT: Final = 10.0  # seconds
_UNKNOWN_SCHEMA: Final = 40403  # the registry's own code: it is there, and has no such schema

# A schema never changes under its id: each is fetched once for each process.
_fetched: dict[tuple[str, int], str] = {}


def registry_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the Kafka client properties that are about the registry.

    Raises ConfigurationError for one that is not known.
    """
    found = {name: value for name, value in properties.items() if name.startswith(PREFIX)}
    if unknown := sorted(found.keys() - {_USER, _CERTIFICATES}):
        raise ConfigurationError(
            f"expected {_USER} and {_CERTIFICATES} as properties of a schema registry, found "
            f"{', '.join(unknown)}. Correct the Kafka connection."
        )
    return found


def writer_schema(registry: str, schema_id: int, properties: Mapping[str, Any]) -> str | None:
    """The Avro schema, as JSON text, that the registry has under an id; None where it knows no such id.

    Raises RegistryUnavailable where the registry does not answer, and ConfigurationError where it refuses, is
    none, or has something else than a whole Avro schema under this id.
    """
    if (registry, schema_id) not in _fetched:
        schema = _fetch(registry, schema_id, properties)
        if schema is None:
            return None
        _fetched[registry, schema_id] = schema
    return _fetched[registry, schema_id]


def _fetch(registry: str, schema_id: int, properties: Mapping[str, Any]) -> str | None:
    import ssl

    import httpx

    address = f"{registry.rstrip('/')}/schemas/ids/{schema_id}"
    user = properties.get(_USER)
    name, _, secret = str(user).partition(":")
    certificates = properties.get(_CERTIFICATES)
    try:
        answer = httpx.get(
            address,
            auth=None if user is None else (name, secret),
            verify=True if certificates is None else ssl.create_default_context(cafile=certificates),
            timeout=_TIMEOUT,
        )
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, OSError) as error:
        raise ConfigurationError(
            f"expected to ask the schema registry at {registry!r}, found: {error}. Correct its address, or "
            f"{_CERTIFICATES}."
        ) from error
    except httpx.TransportError as error:
        raise RegistryUnavailable(
            f"expected the schema registry at {registry} to tell schema {schema_id}, found "
            f"{type(error).__name__}: {error}. Check that it is up, and its address."
        ) from error
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.is_server_error:
        raise RegistryUnavailable(
            f"expected the schema registry at {registry} to tell schema {schema_id}, found HTTP status "
            f"{answer.status_code}. Try again."
        )
    found = _object(answer.text)
    if answer.status_code == httpx.codes.NOT_FOUND and found.get("error_code") == _UNKNOWN_SCHEMA:
        return None
    if not answer.is_success or not isinstance(found.get("schema"), str):
        raise ConfigurationError(
            f"expected the schema registry at {registry} to tell schema {schema_id}, found HTTP status "
            f"{answer.status_code} from {address}. Correct its address, or {_USER} in the Kafka connection."
        )
    if found.get("schemaType", "AVRO") != "AVRO" or found.get("references"):
        raise ConfigurationError(
            f"expected schema {schema_id} of the registry at {registry} to be an Avro schema without references, "
            f"found {found.get('schemaType', 'AVRO')} with {len(found.get('references', ()))} references. Decode "
            f"such values by a function with Custom."
        )
    return str(found["schema"])


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
