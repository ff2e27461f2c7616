"""The format JsonSchema: JSON after the header of a schema registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from exactbatch.columns import Column
from exactbatch.formats.declared_fields import check_address
from exactbatch.formats.format import Format
from exactbatch.formats.json.spec import Json
from exactbatch.options import check_types


@dataclass(frozen=True)
class JsonSchema(Format):
    """Values as Confluent's JSON Schema serializer writes them: byte 0, the ID of a schema in 4 bytes, and JSON; or
    JSON alone, and the schema in a header.

    schema    the columns, with paths and defaults, as for Json
    registry  the address of the schema registry, such as "http://host:8081"
    epoch     as for Json

    The registry must have a JSON schema under the ID; otherwise the record is a reject. The columns decide what a value
    has to be: the schema itself is not evaluated. A null value is a tombstone.

    Raises ConfigurationError for an invalid schema; decode() raises RegistryUnavailable if the registry cannot be
    reached.
    """

    schema: str
    registry: str = field(kw_only=True)
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        check_address(self.registry)
        _ = self.body

    @cached_property
    def body(self) -> Json:
        """The format of the JSON."""
        return Json(self.schema, epoch=self.epoch)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the JSON."""
        return self.body.columns

    @property
    def reads_schema_ids(self) -> bool:
        """True: a registry has the schemas of the values."""
        return True

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return self.body.gives_several_rows
