"""JSON after the header of a schema registry: the registry says whether a header is of a JSON schema."""

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, positions
from exactbatch.formats.json.decoder import JsonDecoder
from exactbatch.formats.json_schema.spec import JsonSchema
from exactbatch.formats.registry.prefixes import cut_bodies, cut_prefixes, most_frequent_first
from exactbatch.formats.registry.schemas import Inquiry, schema_type
from exactbatch.formats.registry.wire_format import read_schema_id, unknown

_JSON: Final = "JSON"


class JsonSchemaDecoder(Decoder[JsonSchema]):
    """Decodes JSON after its header."""

    def __init__(self, spec: JsonSchema) -> None:
        super().__init__(spec)
        self._body = JsonDecoder(spec.body)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values: those whose schema is right in one block."""
        present, written = positions(values).filter(values.is_valid()), values.drop_null()
        headers = cut_prefixes(written)
        inquiry = Inquiry()
        reasons = {
            header: reason
            for header in most_frequent_first(headers)
            if (reason := self._why_refused(header, inquiry))
        }
        refused = pc.is_in(headers, pa.array(list(reasons), pa.binary()))
        rejects = list(
            zip(
                present.filter(refused).to_pylist(),
                map(reasons.__getitem__, headers.filter(refused).to_pylist()),
                strict=True,
            )
        )
        taken = pc.invert(refused)
        present = present.filter(taken)
        decoded = self._body.decode(cut_bodies(written.filter(taken)))
        rejects += [(present[at].as_py(), reason) for at, reason in decoded.rejects]
        return replace(
            decoded,
            kept=present.take(decoded.kept),
            rejects=tuple(sorted(rejects)),
            tombstones=values.null_count,
        )

    def _why_refused(self, header: bytes, inquiry: Inquiry) -> str | None:
        try:
            schema_id = read_schema_id(header)
            found = schema_type(self.spec.registry, schema_id, self.spec.properties, inquiry)
        except ValueError as error:
            return str(error)
        if found is None:
            return unknown(schema_id)
        return None if found == _JSON else f"schema {schema_id} of the registry is {found}, not {_JSON}"
