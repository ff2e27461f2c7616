"""How value bytes become columns: the specifications, which DAG files import. decoders.py has what decodes."""

from exactbatch.formats.avro.spec import Avro
from exactbatch.formats.csv.spec import Csv
from exactbatch.formats.custom.spec import Custom
from exactbatch.formats.debezium.flattened.spec import Flattened
from exactbatch.formats.debezium.spec import Debezium
from exactbatch.formats.format import Format
from exactbatch.formats.json.spec import Json
from exactbatch.formats.json_schema.spec import JsonSchema
from exactbatch.formats.message.spec import WithMessage
from exactbatch.formats.protobuf.spec import Protobuf
from exactbatch.formats.raw.spec import Raw
from exactbatch.formats.text.spec import Text

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
    "WithMessage",
]
