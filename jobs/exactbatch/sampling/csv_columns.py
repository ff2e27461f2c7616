"""Columns for lines of CSV: the delimiter, the text that stands for null, and a type for each field."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from exactbatch.formats import Csv
from exactbatch.sampling.column_names import column_name
from exactbatch.sampling.draft import Draft, DraftColumn, are_most, schema_text
from exactbatch.sampling.value_types import NO_BIGINT, NO_DOUBLE, Choice, is_bigint, is_double

_DELIMITERS: Final = (",", ";", "\t", "|")
_FEWEST_FIELDS: Final = 3  # many lines of logs have one comma, between seconds and milliseconds
_NULLS: Final = ("", "NA", "N/A", "NULL", "null", "\\N", "None", "-", "nan", "NaN")
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BOOLEAN: Final = re.compile(r"true|false|True|False|TRUE|FALSE")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(?P<offset>Z|[+-]\d\d:?\d\d)?")
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEADER: Final = re.compile(r"[A-Za-z_][\w .-]*")
_TEXT: Final = Choice("text")


def draft_csv(texts: Sequence[str]) -> Draft | None:
    """Return a draft of Csv if lines have the same number of fields; None for other text."""
    for delimiter in _DELIMITERS:
        lines = [fields for text in texts if (fields := _fields(text, delimiter)) is not None]
        counts = Counter(map(len, lines))
        if not counts:
            continue
        (count, number) = counts.most_common(1)[0]
        found = [line for line in lines if len(line) == count]
        if count >= _FEWEST_FIELDS and are_most(number, len(texts)) and not _is_prose(found):
            return _draft(found, delimiter)
    return None


def _is_prose(lines: Sequence[Sequence[str]]) -> bool:
    """True if a field always begins with a space, as what follows a comma in a sentence does."""
    return any(all(cell.startswith(" ") for cell in cells) for cells in list(zip(*lines, strict=True))[1:])


def _draft(lines: Sequence[Sequence[str]], delimiter: str) -> Draft:
    notes = []
    header, rows = _without_header(lines)
    if header:
        notes.append("a record is a header, which no schema can skip: its fields are text like all others")
        rows = lines
    else:
        notes.append("CSV in records has no names: the columns are numbered. Rename them in the module")
    null = max(_NULLS, key=lambda text: (_typed(rows, text), -_NULLS.index(text)))
    columns: dict[str, DraftColumn] = {}
    for number, cells in enumerate(zip(*rows, strict=True), 1):
        name = column_name(header[number - 1] if header else f"column_{number}", columns)
        present = [cell for cell in cells if cell != null]
        columns[name] = DraftColumn(name, _choices(present), nulls=len(cells) - len(present))
    if null:
        notes.append(f"{null} stands for null: more columns then have numbers or times")

    def make(columns: Sequence[DraftColumn]) -> Csv:
        return Csv(schema_text(columns), delimiter=delimiter, null=null)

    shown = {"\t": "tabs"}.get(delimiter, repr(delimiter))
    return Draft(f"lines of CSV, delimited by {shown}", tuple(columns.values()), make, tuple(notes))


def _fields(text: str, delimiter: str) -> list[str] | None:
    """Return the fields of one line; None for text that is not one line of CSV."""
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    return lines[0] if len(lines) == 1 else None


def _without_header(lines: Sequence[Sequence[str]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the names of the fields if one of the records is a header, and the other records."""
    for index, line in enumerate(lines):
        others = [*lines[:index], *lines[index + 1 :]]
        if not others or len(set(line)) < len(line) or not all(map(_HEADER.fullmatch, line)):
            continue
        typed = [_choices([each[at] for each in others])[0] != _TEXT for at in range(len(line))]
        if any(typed) and not any(_choices([cell])[0] != _TEXT for cell in line):
            return line, others
        break
    return (), lines


def _typed(rows: Sequence[Sequence[str]], null: str) -> int:
    """Return how many fields have another type than text if this text stands for null."""
    count = 0
    for cells in zip(*rows, strict=True):
        present = [cell for cell in cells if cell != null]
        count += bool(present) and _choices(present)[0] != _TEXT
    return count


def _choices(cells: Sequence[str]) -> tuple[Choice, ...]:
    """Return types for the fields of a column that are not null, the best one first."""

    def all_match(pattern: re.Pattern[str]) -> bool:
        return all(map(pattern.fullmatch, cells))

    if not cells:
        return (Choice("text", why="null in the whole sample"),)
    if all_match(_INTEGER):
        if all(map(is_bigint, cells)):
            return (Choice("bigint"), Choice("numeric"), _TEXT)
        return (Choice("numeric", why=NO_BIGINT), _TEXT)
    if all_match(_NUMBER):
        if all(map(is_double, cells)):
            return (Choice("double precision"), Choice("numeric"), _TEXT)
        return (Choice("numeric", why=NO_DOUBLE), _TEXT)
    for pattern, type_ in ((_BOOLEAN, "boolean"), (_DATE, "date"), (_UUID, "uuid")):
        if all_match(pattern):
            return (Choice(type_), _TEXT)
    if all_match(_MOMENT):
        offsets = [_MOMENT.fullmatch(cell)["offset"] is not None for cell in cells]  # type: ignore[index] # they match
        if all(offsets):
            return (Choice("timestamptz"), _TEXT)
        if not any(offsets):
            return (Choice("timestamp", why="the times have no offset"), _TEXT)
    return (_TEXT,)
