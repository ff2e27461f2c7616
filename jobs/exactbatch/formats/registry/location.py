"""Find the registry of schemas that the option `registry` of a format names.

    http(s)://host:port                                Confluent's registry, or one that answers as it does
    glue://eu-west-1                                   AWS Glue, in this region
    apicurio+http(s)://host/apis/registry/v3?ids=…     Apicurio's own API, for values that its own serializers frame

Confluent's registry has its contexts at addresses of their own, such as https://host/contexts/.staging.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal
from urllib.parse import parse_qs, urlsplit

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError

Ids = Literal["contentId", "globalId"]

_GLUE: Final = "glue://"
APICURIO: Final = "apicurio+"
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
# The width of IDs before values: Default4ByteIdHandler and Legacy8ByteIdHandler of io.apicurio.registry.serde.
_ID_BYTES: Final = {"4": 4, "8": 8}
_IDS: Final[tuple[Ids, ...]] = ("contentId", "globalId")


@dataclass(frozen=True, slots=True)
class Confluent:
    """Confluent's registry, or one that answers as it does: its `url`, or several, separated by commas."""

    url: str


@dataclass(frozen=True, slots=True)
class Glue:
    """AWS Glue's registries of one region."""

    region: str


@dataclass(frozen=True, slots=True)
class Apicurio:
    """Apicurio's own API, at `url`.

    Attributes:
        url: the address of its version 3
        ids: what the IDs of records count: contents, or versions of artifacts. The same number is another schema.
        id_bytes: bytes of an ID before a value, 4 or 8
    """

    url: str
    ids: Ids
    id_bytes: int


Location = Confluent | Glue | Apicurio


@cache
def find_location(registry: str) -> Location:
    """Return what an address means. Raises ConfigurationError for one that means nothing, or has a password in it."""
    parts = urlsplit(registry)
    if "@" in parts.netloc:
        raise ConfigurationError(
            "The address of the schema registry contains a user and password, which errors and pages would show. "
            "Set schema.registry.basic.auth.user.info in the Kafka connection instead."
        )
    if registry.startswith(_GLUE):
        region = registry.removeprefix(_GLUE)
        if not _REGION.fullmatch(region):
            raise ConfigurationError(
                f"The registry {registry!r} names no region of AWS. Write it as glue://eu-west-1; a record names its "
                f"schema by a UUID, so that no name of a registry is needed."
            )
        return Glue(region)
    if not registry.startswith(APICURIO):
        return Confluent(registry)
    asked = parse_qs(parts.query, keep_blank_values=True)
    ids = next((each for each in _IDS if asked.get("ids") == [each]), None)
    id_bytes = _ID_BYTES.get(asked.get("bytes", [""])[0])
    if ids is None or id_bytes is None or asked.keys() != {"ids", "bytes"}:
        raise ConfigurationError(
            f"The registry {registry!r} does not say what its IDs are. Write it as "
            f"apicurio+https://host/apis/registry/v3?ids=contentId&bytes=4, with the producers' "
            f"apicurio.registry.use-id (contentId or globalId), and 8 bytes for their Legacy8ByteIdHandler."
        )
    return Apicurio(parts._replace(query="").geturl().removeprefix(APICURIO), ids, id_bytes)


def check_address(registry: str | None) -> None:
    """Raise ConfigurationError as find_location() does, if there is a registry."""
    if registry is not None:
        find_location(registry)


def list_name_columns(
    schema_name: str | None, columns: Sequence[Column], registry: str | None
) -> tuple[Column, ...]:
    """Return the column for the names of the schemas that values were written with; () if there is none.

    Raises ConfigurationError for a name that another column has, and without a registry: all values have one schema.
    """
    if schema_name is None:
        return ()
    if registry is None:
        raise ConfigurationError(
            f"schema_name={schema_name!r}: all values have the same schema without a registry. Remove it."
        )
    if schema_name in [column.name for column in columns]:
        raise ConfigurationError(
            f"schema_name={schema_name!r}: a field has a column of this name, too. Choose another name."
        )
    return (Column(schema_name, "text"),)


def check_has_files(registry: str | None) -> None:
    """Raise ConfigurationError for a registry that does not offer Protobuf's schemas without their text, which only
    Protobuf's compiler reads; and as find_location() does."""
    if registry is not None and not isinstance(find_location(registry), Confluent):
        raise ConfigurationError(
            f"Protobuf: the registry {registry!r} has schemas as text alone, which only Protobuf's compiler reads. "
            f"Use a registry with Confluent's API."
        )
