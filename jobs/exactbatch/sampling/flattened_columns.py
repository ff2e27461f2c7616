"""Columns for change events that ExtractNewRecordState has flattened, and whether events are such."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Flattened
from exactbatch.formats.debezium.flattened.spec import DELETED, OP
from exactbatch.sampling.debezium_columns import (
    PLACEHOLDER,
    ChangeEvent,
    columns_of_rows,
    has_decimals_in_text,
    named,
)
from exactbatch.sampling.draft import Draft, DraftColumn, EventKey, list_epochs, schema_text
from exactbatch.sampling.json_shape import find_shape

# The name of the schema of a row, after that of its topic.
_ROW: Final = ".Value"


def is_flattened(event: ChangeEvent) -> bool:
    """True for a row with a field that the transformation adds, or with the schema that Debezium has for rows."""
    is_row = event.type is not None and event.type.type == "struct" and event.type.name.endswith(_ROW)
    return is_row or DELETED in event.envelope or OP in event.envelope


def flattened_draft(
    events: Sequence[ChangeEvent], *, registry: str | None = None, properties: Mapping[str, Any] | None = None
) -> Draft:
    """Return a draft of Flattened for events; most of them are flattened.

    Raises ConfigurationError if none of them has a field that a table can have.
    """
    rows = find_shape([_present(event.envelope) for event in events if is_flattened(event)])
    types = [event.type for event in events if is_flattened(event) and event.type is not None]
    is_typed = len(types) == rows.objects
    columns, notes = columns_of_rows(rows, types if is_typed else None)
    columns = [column for column in columns if column.name != DELETED]
    if not columns:
        raise ConfigurationError(
            f"none of the {len(events):,} sampled events has a field for a column. Nothing was written. Sample the "
            f"topic again once it has changes, or sample more: --records."
        )
    options: dict[str, Any] = {"registry": registry, "properties": properties or {}}
    if not is_typed and has_decimals_in_text(rows, columns):
        options["decimals"] = "string"

    def make(columns: Sequence[DraftColumn]) -> Flattened:
        return Flattened(schema_text(columns), epoch=list_epochs(columns), **options)

    kind = "as Avro" if registry else "with their schemas" if is_typed else "without schemas"
    label = f"change events of Debezium, flattened by ExtractNewRecordState, {kind}"
    return Draft(label, named(columns), make, tuple(notes), EventKey())


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value != PLACEHOLDER}
