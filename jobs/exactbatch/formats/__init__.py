"""How value bytes become columns: one file for each format."""

from exactbatch.formats.avro import Avro
from exactbatch.formats.csv import Csv
from exactbatch.formats.custom import Custom
from exactbatch.formats.debezium import Debezium
from exactbatch.formats.flattened import Flattened
from exactbatch.formats.format import Decoded, Format
from exactbatch.formats.json import Json
from exactbatch.formats.json_schema import JsonSchema
from exactbatch.formats.message import WithMessage
from exactbatch.formats.protobuf import Protobuf
from exactbatch.formats.raw import Raw
from exactbatch.formats.record_headers import headers_as_json
from exactbatch.formats.text import Text
from exactbatch.formats.upsert_changes import as_changes, epoch_starts, with_epochs
from exactbatch.formats.with_registry import registries_of, with_registry

__all__ = [
    "Avro",
    "Csv",
    "Custom",
    "Debezium",
    "Decoded",
    "Flattened",
    "Format",
    "Json",
    "JsonSchema",
    "Protobuf",
    "Raw",
    "Text",
    "WithMessage",
    "as_changes",
    "epoch_starts",
    "headers_as_json",
    "registries_of",
    "with_epochs",
    "with_registry",
]
