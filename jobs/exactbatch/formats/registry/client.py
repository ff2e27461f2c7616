"""Read schemas from a registry: Confluent's or one that answers as it does, Apicurio's own API, or AWS Glue.

confluent-kafka's SchemaRegistryClient sends the requests: it retries them, and knows TLS client certificates,
basic and bearer authentication. An answer may take limited bytes and a limited time, from the connection to the last
byte: the timeout of httpx is for each read, so that a server that sends a byte now and then would hold a task for ever.
"""

import base64
import json
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Final, Protocol
from uuid import UUID

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.common.schema_registry_client import is_retriable
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError
from fastavro.repository.base import AbstractSchemaRepository
from fastavro.schema import load_schema

from exactbatch.errors import ConfigurationError, RegistryUnavailable
from exactbatch.formats.registry.apicurio import ApicurioSchemas
from exactbatch.formats.registry.location import Apicurio, Confluent, Glue, find_location
from exactbatch.formats.registry.registry_properties import (
    PREFIX,
    TOKEN,
    find_token_provider,
    sends_password_openly,
)
from exactbatch.formats.registry.schemas import Inquiry
from exactbatch.formats.registry.wire_format import SchemaId
from exactbatch.tokens.providers import forget_token, get_token

MOST_BYTES: Final = 16 * 1024 * 1024
_TIMEOUT: Final = 10.0  # seconds for each request
_LACKING_FOR: Final = 30.0  # seconds for which an unknown ID is not asked for again
# Each is a request. A schema that really is split has dozens.
_MOST_REFERENCES: Final = 500
_DEEPEST_REFERENCE: Final = 50
# The registry answers, and has no schema with this ID: 40403; Apicurio's, if its IDs are those of versions of
# artifacts, 40402, and 40401 in its version 2.
_UNKNOWN_SCHEMA: Final = frozenset({40401, 40402, 40403})
_AVRO: Final = "AVRO"
_PROTOBUF: Final = "PROTOBUF"
_SERIALIZED: Final = (
    "serialized"  # the format of a Protobuf schema that needs no parser: a FileDescriptorProto
)
_OWN_FILE: Final = "default"  # the name of a schema's own file, which no import has
_WHOLE: Final = "exactbatch:schema"  # Avro does not allow this name, so that no reference has it


class _Limits(threading.local):
    """The limits of the request that this thread sends: when it ends, on the monotonic clock, and the bytes left."""

    ends = float("inf")
    bytes_left = MOST_BYTES


def limit_answers(session: Any, seconds: float) -> None:
    """Limit each request of an httpx client to `seconds` in total, and each answer to MOST_BYTES.

    A request then raises TimeoutError, and ValueError for an answer that is larger, or compressed although that was
    not asked for.
    """
    limits = _Limits()

    def begin(_request: Any) -> None:
        limits.ends, limits.bytes_left = time.monotonic() + seconds, MOST_BYTES

    def refuse_compressed(response: Any) -> None:
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise ValueError(f"expected an answer without compression, found {encoding[:20]!r}")

    session.headers["accept-encoding"] = "identity"
    session.event_hooks = {"request": [begin], "response": [refuse_compressed]}
    # httpx has no public way to give a transport a network backend, and one that is given replaces those of proxies.
    for transport in (session._transport, *session._mounts.values()):
        if transport is not None:
            transport._pool._network_backend = _Backend(transport._pool._network_backend, limits, seconds)


class _Limited:
    """What has a limited time."""

    def __init__(self, inner: Any, limits: _Limits, seconds: float) -> None:
        self._inner, self._limits, self._seconds = inner, limits, seconds

    def _left(self, timeout: float | None) -> float:
        left = self._limits.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {self._seconds:g} s")
        return left if timeout is None else min(left, timeout)


class _Backend(_Limited):
    """Opens connections, as a network backend of httpcore does."""

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> "_Stream":
        stream = self._inner.connect_tcp(host, port, timeout=self._left(timeout), **options)
        return _Stream(stream, self._limits, self._seconds)


class _Stream(_Limited):
    """A connection, as a network stream of httpcore is."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._inner.read(max_bytes, timeout=self._left(timeout))
        self._limits.bytes_left -= len(data)
        if self._limits.bytes_left < 0:
            raise ValueError(f"expected an answer of at most {MOST_BYTES // 1024**2} MiB, found a larger one")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout=self._left(timeout))

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "_Stream":
        stream = self._inner.start_tls(
            ssl_context, server_hostname=server_hostname, timeout=self._left(timeout)
        )
        return _Stream(stream, self._limits, self._seconds)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class Schemas(Protocol):
    """What asks one kind of registry. Raises the errors of its client."""

    def find(self, schema_id: Any, format_: str | None) -> Schema | None:
        """Return a schema, in a format that the registry knows for its type; None for an unknown ID."""
        ...

    def find_reference(self, reference: SchemaReference, format_: str | None) -> Schema:
        """Return the schema that a reference of another names."""
        ...


class ConfluentSchemas:
    """Asks Confluent's registry, or one that answers as it does."""

    def __init__(self, client: SchemaRegistryClient, url: str) -> None:
        self._client, self._url = client, url

    def find(self, schema_id: SchemaId, format_: str | None) -> Schema | None:
        try:
            if isinstance(schema_id, UUID):
                return self._client.get_schema_by_guid(str(schema_id), fmt=format_)
            return self._client.get_schema(schema_id, fmt=format_)
        except SchemaRegistryError as error:
            if error.http_status_code == HTTPStatus.NOT_FOUND and error.error_code in _UNKNOWN_SCHEMA:
                return None
            if error.http_status_code == HTTPStatus.NOT_FOUND and isinstance(schema_id, UUID):
                raise ConfigurationError(
                    f"The schema registry at {self._url} answered HTTP status 404 for the schema with the GUID "
                    f"{schema_id}, which a record's header names. Correct its address in the pipeline; or let it be "
                    f"one that has schemas by GUID, as Confluent's has since Confluent Platform 8."
                ) from error
            raise

    def find_reference(self, reference: SchemaReference, format_: str | None) -> Schema:
        # A version that was deleted since is still the one that the values were written with.
        return self._client.get_version(
            str(reference.subject), reference.version or "latest", deleted=True, fmt=format_
        ).schema


class _BearerTokens(httpx.Auth):
    """Sends the token of a provider with each request, and a new one if the registry refuses it."""

    def __init__(self, provider: str, url: str) -> None:
        self._provider, self._connection = provider, {"schema.registry.url": url}

    def auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        self._set_token(request)
        response = yield request
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            forget_token(self._provider, self._connection)
            self._set_token(request)
            yield request

    def _set_token(self, request: Any) -> None:
        request.headers["Authorization"] = f"Bearer {get_token(self._provider, self._connection).value}"


class SchemaReader:
    """Reads schemas from one registry."""

    def __init__(self, registry: str, properties: Mapping[str, Any]) -> None:
        self._registry = registry
        self._schemas_of = self._connect(properties)
        self._schemas: dict[SchemaId, str] = {}
        self._files: dict[SchemaId, list[tuple[str, bytes]]] = {}
        self._fetched: dict[tuple[SchemaId, str | None], Schema] = {}
        self._refused: dict[SchemaId, str] = {}
        # Until when, on the monotonic clock, an unknown ID is not asked for again.
        self._lacking: dict[tuple[SchemaId, str | None], float] = {}

    def fetched(
        self, schema_id: SchemaId, inquiry: Inquiry | None, format_: str | None = None
    ) -> Schema | None:
        """Return a schema of any type, in a format that the registry knows for its type; None for an unknown id."""
        wanted, now = (schema_id, format_), time.monotonic()
        if wanted in self._fetched:
            return self._fetched[wanted]
        if self._lacking.get(wanted, now) > now:
            return None
        if inquiry is not None:
            inquiry.check(schema_id)
        schema = self._get_any(schema_id, format_)
        if schema is not None:
            self._fetched[wanted] = schema
            return schema
        if inquiry is not None:
            inquiry.lacks(schema_id)
        self._lacking = {each: until for each, until in self._lacking.items() if until > now}
        self._lacking[wanted] = time.monotonic() + _LACKING_FOR
        return None

    def files(self, schema_id: SchemaId, inquiry: Inquiry | None) -> list[tuple[str, bytes]] | None:
        if schema_id in self._files:
            return self._files[schema_id]
        schema = self.fetched(schema_id, inquiry, _SERIALIZED)
        if schema is None or schema.schema_type != _PROTOBUF:
            return None
        what = f"schema {schema_id}"
        with self._refusal(schema_id):
            files = dict(self._referenced_files(schema, what, set()))
        self._files[schema_id] = [*files.items(), (_OWN_FILE, self._read_file(schema, what))]
        return self._files[schema_id]

    @contextmanager
    def _refusal(self, schema_id: SchemaId) -> Iterator[None]:
        """If a schema turned out to be unusable before, raise the same ValueError without further requests."""
        if schema_id in self._refused:
            raise ValueError(self._refused[schema_id])
        try:
            yield
        except ValueError as error:
            self._refused[schema_id] = str(error)
            raise

    def _referenced_files(
        self, schema: Schema, what: str, met: set[str], depth: int = 1
    ) -> Iterator[tuple[str, bytes]]:
        for name, referenced in self._references(schema, what, met, depth, _SERIALIZED):
            yield from self._referenced_files(referenced, what, met, depth + 1)
            yield name, self._read_file(referenced, f"{what}'s reference {name}")

    def _read_file(self, schema: Schema, what: str) -> bytes:
        with self._errors(what):
            return base64.b64decode(str(schema.schema_str), validate=True)

    def schema(self, schema_id: SchemaId, inquiry: Inquiry | None) -> str | None:
        if schema_id not in self._schemas:
            schema = self.fetched(schema_id, inquiry)
            if schema is None:
                return None
            with self._refusal(schema_id):
                self._schemas[schema_id] = self._read_text(schema, f"schema {schema_id}")
        return self._schemas[schema_id]

    def _connect(self, properties: Mapping[str, Any]) -> Schemas:
        match find_location(self._registry):
            case Glue(region):
                try:
                    # It imports boto3, which its users install.
                    from exactbatch.formats.registry.glue import GlueSchemas
                except ModuleNotFoundError as error:
                    raise ConfigurationError(
                        f"AWS Glue's registry needs the Python package boto3, and {error.name} is not installed here. "
                        f"Install it on the driver and on every executor."
                    ) from error
                return GlueSchemas(region)
            case Apicurio() as location:
                client = self._connect_over_http(location.url, properties)
                return ApicurioSchemas(client._rest_client, location)
            case Confluent(url):
                return ConfluentSchemas(self._connect_over_http(url, properties), url)

    def _connect_over_http(self, url: str, properties: Mapping[str, Any]) -> SchemaRegistryClient:
        if (address := sends_password_openly(self._registry, properties)) is not None:
            raise ConfigurationError(
                f"The registry's client would send its password or token to {address} without encryption. Write the "
                f"address with https, or remove {PREFIX}basic.auth.user.info and {PREFIX}bearer.auth.* from the Kafka "
                f"connection."
            )
        own = {name.removeprefix(PREFIX): value for name, value in properties.items()}
        settings = {"timeout": _TIMEOUT, **own, "url": url}
        provider = find_token_provider(properties)
        if provider is not None:
            del settings[TOKEN]
        try:
            client = SchemaRegistryClient(settings)
            rest = client._rest_client
            if provider is not None:
                rest.session.auth = _BearerTokens(provider, url)
            for session in (rest.session, getattr(rest.bearer_field_provider, "client", None)):
                if session is not None:
                    limit_answers(session, settings["timeout"])
            return client
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(
                f"The client of the schema registry at {self._registry!r} cannot start: {error}. Correct the "
                f"registry's address in the pipeline, or the {PREFIX}* properties of the Kafka connection."
            ) from error

    def _get_any(self, schema_id: SchemaId, format_: str | None) -> Schema | None:
        with self._errors(f"schema {schema_id}"):
            return self._schemas_of.find(schema_id, format_)

    def _read_text(self, schema: Schema, what: str) -> str:
        """Return an Avro schema with the schemas that it references, as JSON text."""
        text = self._checked(schema, what)
        if not schema.references:
            return text
        referenced = dict(self._referenced(schema, what, set()))

        class Fetched(AbstractSchemaRepository):
            def load(self, name: str) -> Any:
                return json.loads(text if name == _WHOLE else referenced[name])

        try:
            parsed = load_schema(_WHOLE, repo=Fetched())
        except Exception as error:  # fastavro's errors about a schema have no common base
            raise ValueError(
                f"{what} of the registry and its references ({', '.join(sorted(referenced))}) do not form an Avro "
                f"schema: {type(error).__name__}: {error}"
            ) from None
        if isinstance(parsed, dict):  # without what fastavro notes for itself
            parsed = {key: value for key, value in parsed.items() if not key.startswith("__")}
        return json.dumps(parsed)

    def _referenced(
        self, schema: Schema, what: str, met: set[str], depth: int = 1
    ) -> Iterator[tuple[str, str]]:
        """Yield the name and text of every schema that a schema references, directly or not."""
        for name, referenced in self._references(schema, what, met, depth, None):
            part = f"{what}'s reference {name}"
            yield name, self._checked(referenced, part)
            yield from self._referenced(referenced, part, met, depth + 1)

    def _references(
        self, schema: Schema, what: str, met: set[str], depth: int, format_: str | None
    ) -> Iterator[tuple[str, Schema]]:
        """Yield the names and schemas of the references of a schema whose names were not met before, and note the
        names.

        If references name several versions of one schema, the first one that is met counts, depth first, as for the
        serializer: resolveReferences() in io.confluent.kafka.schemaregistry.AbstractSchemaProvider. Raises ValueError
        for too many references, and for those that nest too deeply.
        """
        for reference in schema.references or ():
            if (name := str(reference.name)) not in met:
                met.add(name)
                if len(met) > _MOST_REFERENCES or depth > _DEEPEST_REFERENCE:
                    raise ValueError(
                        f"{what[:100]}: expected at most {_MOST_REFERENCES} referenced schemas, and "
                        f"{_DEEPEST_REFERENCE} levels of them, found more"
                    )
                with self._errors(f"{what}'s reference {name}"):
                    found = self._schemas_of.find_reference(reference, format_)
                yield name, found

    def _checked(self, schema: Schema, what: str) -> str:
        if not isinstance(schema.schema_str, str):
            raise ConfigurationError(
                f"The registry at {self._registry} sent no schema text for {what}. Check that the address is "
                f"that of a schema registry."
            )
        if (schema.schema_type or _AVRO) != _AVRO:
            raise ValueError(f"{what} of the registry is {schema.schema_type}, not {_AVRO}")
        return schema.schema_str

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raise the client's errors as RegistryUnavailable or ConfigurationError."""
        try:
            yield
        except SchemaRegistryError as error:
            status = error.http_status_code
            if is_retriable(status) or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise RegistryUnavailable(
                    f"The schema registry at {self._registry} answered HTTP status {status} for {what}. Try again."
                ) from error
            raise ConfigurationError(
                f"The schema registry at {self._registry} answered HTTP status {status} for {what}. Correct its "
                f"address in the pipeline, or the credentials in {PREFIX}basic.auth.user.info or "
                f"{PREFIX}bearer.auth.* of the Kafka connection."
            ) from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise RegistryUnavailable(
                f"The schema registry at {self._registry} cannot be reached for {what}: {type(error).__name__}: "
                f"{error}. Check that it is up, and its address."
            ) from error
        except OAuthTokenError as error:
            raise RegistryUnavailable(
                f"The token for the schema registry at {self._registry} cannot be fetched: {error.message}. Check "
                f"{PREFIX}bearer.auth.* in the Kafka connection."
            ) from error
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError, httpx.InvalidURL) as error:
            raise ConfigurationError(
                f"The server at {self._registry} did not answer as a schema registry does when asked for {what}: "
                f"{type(error).__name__}: {error}. Correct the registry's address in the pipeline."
            ) from error
