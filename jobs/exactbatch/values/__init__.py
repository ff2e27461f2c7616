"""How value bytes become columns: one file for each format."""

from exactbatch.values.avro import Avro
from exactbatch.values.changes import as_changes
from exactbatch.values.connected import connected
from exactbatch.values.csv import Csv
from exactbatch.values.custom import Custom
from exactbatch.values.debezium import Debezium
from exactbatch.values.format import Decoded, Format
from exactbatch.values.json import Json
from exactbatch.values.message import WithMessage, headers_as_json
from exactbatch.values.raw import Raw
from exactbatch.values.text import Text

__all__ = [
    "Avro",
    "Csv",
    "Custom",
    "Debezium",
    "Decoded",
    "Format",
    "Json",
    "Raw",
    "Text",
    "WithMessage",
    "as_changes",
    "connected",
    "headers_as_json",
]
