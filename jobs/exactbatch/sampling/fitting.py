"""Decode a sample with a drafted format, and widen its columns as long as that rejects fewer records."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from exactbatch.formats import Format
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoders import find_decoder
from exactbatch.sampling.draft import Draft, DraftColumn

_COLUMN: Final = re.compile(r"column (?P<name>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"), ")
_SHOWN: Final = 80  # characters of a reason


@dataclass(frozen=True, slots=True)
class Fitted:
    """A format that decodes a sample, but for the values of `broken`, each an index and a reason: no column type
    accepts them."""

    columns: tuple[DraftColumn, ...]
    format: Format
    broken: tuple[tuple[int, str], ...]


def fit(draft: Draft, values: pa.BinaryArray) -> Fitted:
    """Return the format of a draft, whose columns are widened where a value is rejected."""
    at = list(range(len(values)))
    columns = list(draft.columns)
    broken: dict[int, str] = {}
    while True:
        format_ = draft.make(columns)
        kept = [index for index in at if index not in broken]
        sample = values.take(pa.array(kept, pa.int64()))
        rejects = decode(format_, sample).rejects
        if not rejects:
            return Fitted(tuple(columns), format_, tuple(sorted(broken.items())))
        widened = _widened(draft, columns, sample, rejects)
        if widened is not None:
            columns = widened
            continue
        # No type accepts these. The other values decide about the types again.
        broken |= {kept[index]: reason for index, reason in rejects}
        columns = list(draft.columns)


def decode(format_: Format, values: pa.BinaryArray) -> Decoded:
    """Decode values as a batch does; one that lacks what has not changed is no reject."""
    return find_decoder(format_).decode_with_unchanged(values)


def find_column(reason: str) -> str | None:
    """Return the name of the column that the reason of a reject names; None if it names none."""
    match = _COLUMN.search(reason)
    return None if match is None else str(ast.literal_eval(match["name"]))


def _widened(
    draft: Draft, columns: Sequence[DraftColumn], values: pa.BinaryArray, rejects: Sequence[tuple[int, str]]
) -> list[DraftColumn] | None:
    """Return the columns, one of them with a wider type for which fewer values are rejected; None if none has one."""
    for at, column in enumerate(columns):
        reasons = _reasons_for(column, rejects)
        best, fewest = column, len(reasons)
        wider = column
        while fewest and len(wider.choices) > 1:
            wider = wider.wider(_short(f"{column.type} does not accept all values: {reasons[0]}"))
            tried = draft.make([*columns[:at], wider, *columns[at + 1 :]])
            if (count := len(_reasons_for(column, decode(tried, values).rejects))) < fewest:
                best, fewest = wider, count
        if best is not column:
            return [*columns[:at], best, *columns[at + 1 :]]
    return None


def _reasons_for(column: DraftColumn, rejects: Sequence[tuple[int, str]]) -> list[str]:
    return [reason for _, reason in rejects if find_column(reason) == column.name]


def _short(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else text[: 2 * _SHOWN] + "…"
