"""Columns for JSON objects: members of nested objects by their paths, everything else as it is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from exactbatch.formats import Json, JsonSchema
from exactbatch.formats.json.spec import Documents, Encoding
from exactbatch.member_paths import Path, Step
from exactbatch.sampling.column_names import column_name
from exactbatch.sampling.draft import Draft, DraftColumn, list_epochs, schema_text
from exactbatch.sampling.value_types import Choice, Shape, choices_for, has_decimals

_DEPTHS: Final = (4, 3, 2, 1)  # levels of objects whose members become columns
_MANY: Final = 100  # columns above which nested objects stay whole
MOST_COLUMNS: Final = 1500  # a table of Postgres has at most 1,600, and lineage takes some
# Keys of a map are data: an object with many that are rare, or with keys that are numbers, dates or UUIDs.
_MAP_SIZE: Final = 20
_MAP_SHARE: Final = 0.3
_DATA_KEY: Final = re.compile(r"[0-9][0-9.:-]*|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# msgspec cannot look up such a name (formats/json/raw_fields.py), and a path cannot name an empty one.
_UNFINDABLE: Final = re.compile(r'[\\"\x00-\x1f]')


def draft_json(
    objects: Shape,
    *,
    below: Sequence[str] = (),
    encoding: tuple[Encoding, ...] = (),
    documents: Documents = "one",
    registry: str | None = None,
    properties: Mapping[str, Any] | None = None,
    label: str = "JSON objects",
) -> Draft:
    """Return a draft of Json, or of JsonSchema with a registry, for objects; `below` is the path to them."""
    columns, notes = find_columns(objects, below=tuple(below))

    def make(columns: Sequence[DraftColumn]) -> Json | JsonSchema:
        schema, epoch = schema_text(columns), list_epochs(columns)
        if registry is not None:
            return JsonSchema(schema, registry=registry, epoch=epoch, properties=properties or {})
        only = encoding[0] if len(encoding) == 1 else encoding
        return Json(schema, epoch=epoch, encoding=only, documents=documents)

    return Draft(label, columns, make, notes)


def find_columns(
    objects: Shape, *, below: tuple[Step, ...]
) -> tuple[tuple[DraftColumn, ...], tuple[str, ...]]:
    """Return columns for objects, and notes about what is left out or stays whole."""
    notes = []
    for depth in _DEPTHS:
        members = list(_members(objects, below, depth))
        if len(members) <= _MANY or depth == _DEPTHS[-1]:
            break
    else:
        raise AssertionError("unreachable")
    if depth < _DEPTHS[0]:
        notes.append(f"more than {_MANY} columns: objects below level {depth} are whole, as jsonb")
    if len(members) > MOST_COLUMNS:
        members = sorted(members, key=lambda member: -(member[1].count - member[1].nulls))
        left_out = ", ".join(str(Path((steps,))) for steps, _ in members[MOST_COLUMNS:][:3])
        notes.append(
            f"{len(members)} members, and a table of Postgres has at most 1,600 columns: the rarest "
            f"{len(members) - MOST_COLUMNS:,}, such as {left_out}, are left out"
        )
        members = members[:MOST_COLUMNS]
    columns: dict[str, DraftColumn] = {}
    has_numbers_in_texts = any(has_decimals(shape.texts) for _, shape in members)
    for steps, shape in members:
        own = steps[len(below) :]
        if unfindable := [step for step in own if not step or _UNFINDABLE.search(str(step))]:
            notes.append(
                f"the member {unfindable[0]!r} is left out: Json cannot look up a member of this name"
            )
            continue
        name = column_name("_".join(map(str, own)), columns)
        columns[name] = DraftColumn(
            name,
            choices_for(shape, str(own[-1]), numbers_in_texts=has_numbers_in_texts),
            None if steps == (name,) else Path((steps,)),
            nulls=objects.objects - shape.count + shape.nulls,
            why=_why_renamed(str(own[-1]), name) if len(own) == 1 else "",
        )
    if not columns:
        whole = Choice("jsonb", why="the objects have no member that could be a column")
        columns["document"] = DraftColumn("document", (whole,), Path((below,)))
    return tuple(columns.values()), tuple(notes)


def _members(objects: Shape, below: tuple[Step, ...], depth: int) -> Iterator[tuple[tuple[Step, ...], Shape]]:
    """Yield the members that become columns, with the steps to each."""
    for name, shape in objects.members.items():
        steps = (*below, name)
        if depth > 1 and shape.kinds == {"object"} and shape.members and not _is_map(shape):
            yield from _members(shape, steps, depth - 1)
        else:
            yield steps, shape


def _is_map(shape: Shape) -> bool:
    names = shape.members
    if sum(bool(_DATA_KEY.fullmatch(name)) for name in names) * 2 > len(names):
        return True
    present = sum(member.count for member in names.values())
    return len(names) > _MAP_SIZE and present < _MAP_SHARE * len(names) * shape.objects


def _why_renamed(member: str, name: str) -> str:
    if name == f"{member}_":
        return f"{member} is a word of SQL, or a column that exactbatch adds"
    return ""
