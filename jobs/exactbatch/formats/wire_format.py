"""Confluent's wire format: a byte 0, the schema's ID in 4 bytes, big-endian, then what was written with it.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from typing import Final
from urllib.parse import urlsplit

from exactbatch.errors import ConfigurationError

HEADER: Final = 5  # bytes
_MAGIC: Final = 0
_MOST: Final = 2**31 - 1  # registries count in a signed integer


def schema_id_of(header: bytes) -> int:
    """Return the ID in the first bytes of a value. Raises ValueError unless they are those of the wire format."""
    if len(header) < HEADER or header[0] != _MAGIC:
        raise ValueError(
            f"expected byte 0 and the 4 bytes of a schema ID, found {header[:HEADER].hex(' ') or 'nothing'}"
        )
    schema_id = int.from_bytes(header[1:HEADER], "big")
    if schema_id > _MOST:
        raise ValueError(f"expected a schema ID of at most {_MOST}, found {schema_id}")
    return schema_id


def check_address(registry: str | None) -> None:
    """Raise ConfigurationError for a registry's address that contains a password."""
    if "@" in urlsplit(registry or "").netloc:
        raise ConfigurationError(
            "The address of the schema registry contains a user and password, which errors and pages would show. "
            "Set schema.registry.basic.auth.user.info in the Kafka connection instead."
        )
