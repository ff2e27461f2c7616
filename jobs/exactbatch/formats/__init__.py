"""The specifications of formats, which DAG files import; decoders.py lists their decoders."""

from exactbatch.formats.avro.spec import Avro
from exactbatch.formats.csv.spec import Csv
from exactbatch.formats.custom.spec import Custom
from exactbatch.formats.debezium.spec import Debezium, Flattened
from exactbatch.formats.format import Format
from exactbatch.formats.json.spec import Json, JsonSchema
from exactbatch.formats.message.spec import WithKeyAndHeaders
from exactbatch.formats.protobuf.spec import Protobuf
from exactbatch.formats.single.spec import Raw, Text

__all__ = [
    "Avro",
    "Csv",
    "Custom",
    "Debezium",
    "Flattened",
    "Format",
    "Json",
    "JsonSchema",
    "Protobuf",
    "Raw",
    "Text",
    "WithKeyAndHeaders",
]
