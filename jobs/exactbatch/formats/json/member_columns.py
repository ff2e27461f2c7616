"""Members of JSON objects as the columns of rows, by the paths of their fields, with the defaults of missing ones."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from exactbatch.columns import Field
from exactbatch.errors import ConfigurationError
from exactbatch.formats.bounds import check_size
from exactbatch.formats.declared_fields import is_kept_as_text
from exactbatch.formats.epoch import from_epoch
from exactbatch.formats.json.blocks import as_stored, read_objects, readable, why_refused
from exactbatch.formats.json.fields import Members, Positions, filled, in_rows, layouts, members_at
from exactbatch.formats.json.nested_text import is_missing, members_as_text
from exactbatch.member_paths import Path


def read_members(
    text: pa.StringArray,
    fields: Sequence[Field],
    epoch: Mapping[str, str],
    defaults: Mapping[str, pa.Scalar],
) -> tuple[pa.RecordBatch, Positions | None]:
    """Return rows with the columns of some fields, and the object that each row is of: None if each object is one row.

    `text` are JSON objects, `epoch` is that of Json, and `defaults` are the values of the fields' defaults by column.
    Raises ValueError for objects with a member that does not fit, and TooLarge for rows that are too large.
    """
    as_text = [each for each in fields if is_kept_as_text(each.column)]
    parsed = [each for each in fields if each not in as_text]
    members = dict(zip(parsed, _parsed(text, parsed, epoch), strict=True))
    for each in as_text:
        members[each] = members_as_text(text, each.path, each.column)
    size = 0
    for each in fields:
        if each.default is not None:
            values = members[each].values
            missing = partial(is_missing, text, each.path, values)
            members[each].values = filled(values, missing, defaults[each.column.name])
            check_size(0, size := size + members[each].values.nbytes)
    columns, origins = in_rows([members[each] for each in fields], len(text))
    if not columns:
        return pa.RecordBatch.from_pylist([], pa.schema([])), None
    return pa.RecordBatch.from_arrays(columns, [each.column.name for each in fields]), origins


def _parsed(text: pa.StringArray, fields: Sequence[Field], epoch: Mapping[str, str]) -> Iterator[Members]:
    """Yield the members of fields that Arrow's reader parses, with their staged types."""
    members: dict[Field, Members] = {}
    types = {
        each: pa.int64() if each.column.name in epoch else readable(each.column.arrow_type) for each in fields
    }
    for schema, of_schema in layouts(types) or [(pa.schema([]), [])]:
        table = read_objects(text, schema)
        if of_schema:
            read = pa.StructArray.from_arrays(
                [_whole(column) for column in table.columns], table.schema.names
            )
            members |= {each: members_at(read, each.path) for each in of_schema}
    for each in fields:
        name, stored = each.column.name, each.column.arrow_type
        table = pa.table({name: members[each].values})
        if unit := epoch.get(name):
            table = pa.table({name: from_epoch(table.column(0), unit, stored)})
        members[each].values = _whole(as_stored(table, pa.schema([(name, stored)])).column(0))
        yield members[each]


def read_defaults(fields: Sequence[Field], epoch: Mapping[str, str]) -> Mapping[str, pa.Scalar]:
    """Return the values of the defaults, by column: each is read as the member that it stands for.

    Raises ConfigurationError for a literal that its column does not take.
    """
    return {each.column.name: _read_default(each, epoch) for each in fields if each.default is not None}


def _read_default(field: Field, epoch: Mapping[str, str]) -> pa.Scalar:
    column, default = field.column, field.default
    assert default is not None
    is_json = not default.is_quoted or column.element is not None or column.type in ("json", "jsonb")
    written = default.text if is_json else json.dumps(default.text)
    value = pa.array([f"{{{json.dumps(column.name)}:{written}}}"])
    plain = Field(column, Path(((column.name,),)))
    try:
        json.loads(written)  # a text of two members, between the braces above, would be one object
    except ValueError:
        reason = f"column {column.name!r}, {column.type}: it is not JSON"
    else:
        try:
            return read_members(value, [plain], epoch, {})[0].column(0)[0]
        except ValueError:
            reason = why_refused(
                value.cast(pa.binary()),
                [column],
                lambda some: read_members(value, [plain] if some else [], epoch, {}),
            )
    raise ConfigurationError(
        f"default {default.text!r}: {reason}. Write text, dates and times in single quotes, JSON and arrays as JSON in "
        f"single quotes, and numbers, true, false and null without quotes."
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
