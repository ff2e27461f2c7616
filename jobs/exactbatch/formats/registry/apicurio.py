"""Request schemas by Apicurio's own API, version 3."""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from confluent_kafka.schema_registry import Schema, SchemaReference

from exactbatch.formats.registry.location import Apicurio

_READ_AS_JSON: Final = ("AVRO", "JSON")


class ApicurioSchemas:
    """Requests schemas by the API of version 3, through `rest`, Confluent's client of HTTP, which has the credentials,
    limits and retries."""

    def __init__(self, rest: Any, location: Apicurio) -> None:
        self._rest, self._location = rest, location

    def find(self, schema_id: int, _format: str | None) -> Schema | None:
        """Return a schema; None if the registry has no such ID."""
        ids = self._location.ids
        found = self._rest.get("search/versions", {ids: schema_id, "limit": 1})
        versions = found["versions"]
        if not versions:
            return None
        # Contents of the same ID are equal, whatever version of an artifact has them.
        return self._read(f"ids/{ids}s/{schema_id}", versions[0]["artifactType"])

    def find_reference(self, reference: SchemaReference, _format: str | None) -> Schema:
        """Return the schema that a reference of another names."""
        version = self._rest.get(reference.subject)
        return self._read(f"ids/globalIds/{version['globalId']}", version["artifactType"])

    def _read(self, path: str, type_: str) -> Schema:
        if type_ not in _READ_AS_JSON:
            return Schema("", type_)
        content = self._rest.get(path)
        references = [_as_reference(each) for each in self._rest.get(f"{path}/references")]
        return Schema(json.dumps(content), type_, references)


def _as_reference(reference: Mapping[str, Any]) -> SchemaReference:
    """Return a reference whose subject is the path of the version that it names."""
    group, artifact, version = (
        quote(str(reference.get(name) or default), safe="")
        for name, default in (("groupId", "default"), ("artifactId", ""), ("version", ""))
    )
    return SchemaReference(reference["name"], f"groups/{group}/artifacts/{artifact}/versions/{version}", None)
