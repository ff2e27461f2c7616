"""The decoder of each format."""

from collections.abc import Mapping
from typing import Any, Final

from exactbatch.formats.avro.decoder import AvroDecoder
from exactbatch.formats.avro.spec import Avro
from exactbatch.formats.csv.decoder import CsvDecoder
from exactbatch.formats.csv.spec import Csv
from exactbatch.formats.custom.decoder import CustomDecoder
from exactbatch.formats.custom.spec import Custom
from exactbatch.formats.debezium.decoder import DebeziumDecoder
from exactbatch.formats.debezium.flattened import FlattenedDecoder
from exactbatch.formats.debezium.spec import Debezium, Flattened
from exactbatch.formats.decoder import Decoder
from exactbatch.formats.format import Format
from exactbatch.formats.json.decoder import JsonDecoder, JsonSchemaDecoder
from exactbatch.formats.json.spec import Json, JsonSchema
from exactbatch.formats.protobuf.decoder import ProtobufDecoder
from exactbatch.formats.protobuf.spec import Protobuf
from exactbatch.formats.single.decoder import RawDecoder, TextDecoder
from exactbatch.formats.single.spec import Raw, Text

DECODERS: Final[Mapping[type[Format], type[Decoder[Any]]]] = {
    Avro: AvroDecoder,
    Csv: CsvDecoder,
    Custom: CustomDecoder,
    Debezium: DebeziumDecoder,
    Flattened: FlattenedDecoder,
    Json: JsonDecoder,
    JsonSchema: JsonSchemaDecoder,
    Protobuf: ProtobufDecoder,
    Raw: RawDecoder,
    Text: TextDecoder,
}


def find_decoder(spec: Format) -> Decoder[Any]:
    """Return what decodes the values of a format. RecordDecoder decodes the records of WithKeyAndHeaders."""
    return next(DECODERS[class_] for class_ in type(spec).__mro__ if class_ in DECODERS)(spec)
