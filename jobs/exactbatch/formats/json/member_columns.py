"""Members of JSON objects as the columns of rows, by the paths of their fields, with the defaults of missing ones.

msgspec decodes all objects at once, and makes a Python object of each. So it reads only the members that Arrow would
alter, as unchanged text, and those where a missing one has to be told from a null.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column, Field
from exactbatch.errors import ConfigurationError
from exactbatch.formats.bounds import check_size
from exactbatch.formats.connect.times import from_epoch
from exactbatch.formats.declared_fields import is_kept_as_text
from exactbatch.formats.json.blocks import as_stored, read_objects, readable, why_refused
from exactbatch.formats.json.fields import Members, Positions, filled, in_rows, layouts, members_at
from exactbatch.formats.json.raw_fields import (
    ESCAPED_NAME,
    TOO_DEEP,
    column_of_written,
    joined_as_array,
)
from exactbatch.member_paths import Path, Step

_NULL: Final = b"null"
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)
_NOT_OF_TYPE: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)` - at `\$\[\d+\]\.?(.*)`")


def members_as_text(objects: pa.StringArray, path: Path, column: Column) -> Members:
    """Return the texts to which a path leads in JSON objects, checked to be of the column's type; null for a missing
    member and for a JSON null.

    Raises ValueError as fields_as_text() does, and for a parent that is neither an object or array nor null.
    """
    written, members = _written(objects, path)
    texts: list[Any] = [text or _NULL for text in written]
    if column.element is not None:
        texts = [_ELEMENTS.decode(text) for text in texts]
    members.values = column_of_written(column, texts)
    return members


def is_missing(objects: pa.StringArray, path: Path, values: pa.Array) -> pa.BooleanArray:
    """Return for each of the values to which a path leads whether it is missing, and not a null that is written."""
    names = [step for step in path.parts[0] if isinstance(step, str)]
    if path.arrays or not names:
        return _is_missing(objects, path)
    # A text without the name has no such member.
    named = pc.or_(
        pc.match_substring(objects, json.dumps(names[-1], ensure_ascii=False)),
        pc.match_substring_regex(objects, ESCAPED_NAME),
    )
    is_null = values.is_null()
    missing = pc.and_not(is_null, named).to_numpy(zero_copy_only=False).copy()
    asked = pc.and_(is_null, named)
    found = _is_missing(objects.filter(asked), path)
    missing[np.flatnonzero(asked.to_numpy(zero_copy_only=False))] = found.to_numpy(zero_copy_only=False)
    return pa.array(missing)


def _is_missing(objects: pa.StringArray, path: Path) -> pa.BooleanArray:
    if not len(objects):
        return pa.array([], pa.bool_())
    written, _ = _written(objects, path)
    return pa.array([not text for text in written], pa.bool_())


def _written(objects: pa.StringArray, path: Path) -> tuple[list[bytes], Members]:
    """Return the texts to which a path leads, b"" for a missing one, and the parents of its arrays."""
    members = Members(objects)
    if path.parts == ((),):
        return [text.encode() for text in objects.to_pylist()], members
    try:
        nodes = _decoder(path).decode(joined_as_array(objects))
        _refuse_members_given_twice(objects, path)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except msgspec.ValidationError as error:
        raise ValueError(_NOT_OF_TYPE.sub(r"\3: expected \1, found \2", str(error))) from None
    if len(nodes) != len(objects):
        raise ValueError(f"found {len(nodes)} objects in {len(objects)} values")
    for number, steps in enumerate(path.parts):
        if number:
            parents = [parent for parent, array in enumerate(nodes) for _ in array or ()]
            members.parents.append(np.array(parents, np.int64))
            nodes = [element for array in nodes for element in array or ()]
        nodes = _followed(nodes, steps)
    return [b"" if node is None else bytes(node) for node in nodes], members


def _followed(nodes: list[Any], steps: Sequence[Step]) -> list[Any]:
    for step in steps:
        if isinstance(step, str):
            nodes = [None if node is None else node.member for node in nodes]
        else:
            nodes = [node[step] if node is not None and step < len(node) else None for node in nodes]
    return nodes


@cache
def _decoder(path: Path) -> Any:
    """Return a decoder of a list of objects, into structs that have only the members of the path."""
    type_: Any = msgspec.Raw
    for number, steps in reversed(list(enumerate(path.parts))):
        for step in reversed(steps):
            is_text = type_ is msgspec.Raw
            if isinstance(step, int):
                type_ = _build_list_type(type_)
                continue
            member = ("member", type_, msgspec.Raw(b"")) if is_text else ("member", type_ | None, None)
            type_ = msgspec.defstruct("Node", [member], rename={"member": step}, gc=False)
        if number:
            type_ = _build_list_type(type_)
    return msgspec.json.Decoder(list[type_])


def _build_list_type(type_: Any) -> Any:
    return list[type_] if type_ is msgspec.Raw else list[type_ | None]


def _refuse_members_given_twice(objects: pa.StringArray, path: Path) -> None:
    """Parse the objects in which a name of the path occurs twice as text, or any name has an escape; raise ValueError
    for a member of the path that is given twice."""
    suspect = pc.match_substring_regex(objects, ESCAPED_NAME)
    for name in {step for steps in path.parts for step in steps if isinstance(step, str)}:
        written = json.dumps(name, ensure_ascii=False)
        suspect = pc.or_(suspect, pc.greater(pc.count_substring(objects, written), 1))
    for text in objects.filter(suspect).to_pylist():
        # Numbers stay text: Python limits the digits of an integer that it parses.
        nodes = [json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)]
        for number, steps in enumerate(path.parts):
            if number:
                nodes = [element for node in nodes if isinstance(node, list) for element in node]
            for step in steps:
                nodes = list(_read_members(nodes, step))


def _read_members(nodes: list[Any], step: Step) -> Iterator[Any]:
    for node in nodes:
        if isinstance(step, int):
            if isinstance(node, list):
                yield from node[step : step + 1]
        elif isinstance(node, tuple):
            values = [value for name, value in node if name == step]
            if len(values) > 1:
                raise ValueError(f"field {step!r} was specified twice")
            yield from values


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
