"""The format JsonSchema: JSON after the header of a schema registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from exactbatch.columns import Column
from exactbatch.formats.format import Decoded, positions
from exactbatch.formats.json import Json
from exactbatch.formats.schema_registry import Inquiry, schema_type
from exactbatch.formats.wire_format import (
    bodies_of,
    check_address,
    most_frequent_first,
    prefixes_of,
    schema_id_of,
    unknown,
)
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

_JSON: Final = "JSON"


@dataclass(frozen=True)
class JsonSchema:
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

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True
    reads_schema_ids: ClassVar[bool] = True

    schema: str
    registry: str = field(kw_only=True)
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)
    body: Json = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        check_address(self.registry)
        object.__setattr__(self, "body", Json(self.schema, epoch=self.epoch))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the JSON."""
        return self.body.columns

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return self.body.gives_several_rows

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values: those whose schema is right in one block."""
        import pyarrow as pa
        import pyarrow.compute as pc

        present, written = positions(values).filter(values.is_valid()), values.drop_null()
        headers = prefixes_of(written)
        rejects: list[tuple[int, str]] = []
        refused = pa.nulls(len(written), pa.bool_()).fill_null(False)
        inquiry = Inquiry()
        for header in most_frequent_first(headers):
            if reason := self._why_refused(header, inquiry):
                matches = pc.equal(headers, pa.scalar(header, pa.binary()))
                refused = pc.or_(refused, matches)
                rejects += [(index, reason) for index in present.filter(matches).to_pylist()]
        taken = pc.invert(refused)
        present = present.filter(taken)
        decoded = self.body.decode(bodies_of(written.filter(taken)))
        rejects += [(present[at].as_py(), reason) for at, reason in decoded.rejects]
        return replace(
            decoded,
            kept=present.take(decoded.kept),
            rejects=tuple(sorted(rejects)),
            tombstones=values.null_count,
        )

    def _why_refused(self, header: bytes, inquiry: Inquiry) -> str | None:
        try:
            schema_id = schema_id_of(header)
            found = schema_type(self.registry, schema_id, self.properties, inquiry)
        except ValueError as error:
            return str(error)
        if found is None:
            return unknown(schema_id)
        return None if found == _JSON else f"schema {schema_id} of the registry is {found}, not {_JSON}"
