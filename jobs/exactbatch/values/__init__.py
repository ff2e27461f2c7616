"""How value bytes become columns: one file for each format."""

from exactbatch.values.changes import as_changes
from exactbatch.values.debezium import Debezium
from exactbatch.values.format import Decoded, Format
from exactbatch.values.json import Json
from exactbatch.values.raw import Raw
from exactbatch.values.text import Text

__all__ = ["Debezium", "Decoded", "Format", "Json", "Raw", "Text", "as_changes"]
