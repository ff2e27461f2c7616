"""A proposed format: its columns, each with wider types to fall back to, and how to make the format from them.

A sample is decoded with it, and its columns are widened as long as that rejects fewer records.
"""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from exactbatch.formats import Format
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoders import find_decoder
from exactbatch.member_paths import Path
from exactbatch.sampling.column_names import quoted_if_needed
from exactbatch.sampling.value_types import Choice

_COLUMN: Final = re.compile(r"column (?P<name>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"), ")
_SHOWN: Final = 80  # characters of a reason


@dataclass(frozen=True, slots=True)
class DraftColumn:
    """A column: the first of `choices` is proposed, the others are wider. `path` is that of `from`, if it needs one.

    `nulls` counts the records in which it is null or missing, and `why` says what a reader may disagree with.
    """

    name: str
    choices: tuple[Choice, ...]
    path: Path | None = None
    nulls: int = 0
    why: str = ""

    @property
    def type(self) -> str:
        """The proposed type."""
        return self.choices[0].type

    @property
    def epoch(self) -> str | None:
        """The unit of a time that is a number."""
        return self.choices[0].epoch

    @property
    def reasons(self) -> str:
        """What a reader may disagree with, for the name and for the type."""
        return "; ".join(filter(None, (self.why, self.choices[0].why)))

    @property
    def text(self) -> str:
        """The column as a schema writes it."""
        path = "" if self.path is None else " from '{}'".format(str(self.path).replace("'", "''"))
        return f"{quoted_if_needed(self.name)} {self.type}{path}"

    def wider(self, why: str) -> "DraftColumn":
        """Return the column with its next choice, which is for the reason `why`."""
        following, *others = self.choices[1:]
        return replace(self, choices=(replace(following, why=why), *others))


@dataclass(frozen=True, slots=True)
class EventKey:
    """What change events say of their sink: the key, if message keys do not say it."""

    key: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A format that suits a sample as far as its values look; fit() makes sure by decoding them.

    `label` names the format on the screen, and `changes` is None unless the values are change events.
    """

    label: str
    columns: tuple[DraftColumn, ...]
    make: Callable[[Sequence[DraftColumn]], Format]
    notes: tuple[str, ...] = ()
    changes: EventKey | None = None


def are_most(count: int, of: int) -> bool:
    """True if enough values of a sample have a format to propose it: the others are named as broken records."""
    return 10 * count >= 9 * of


def schema_text(columns: Sequence[DraftColumn]) -> str:
    """Return the columns as a schema: in one line if they are few, otherwise one in each line."""
    texts = [column.text for column in columns]
    if len(line := ", ".join(texts)) <= 60:
        return line
    return "\n" + "".join(f"    {text},\n" for text in texts).removesuffix(",\n") + "\n"


def list_epochs(columns: Sequence[DraftColumn]) -> dict[str, str]:
    """Return the units of times that are numbers, by column."""
    return {column.name: column.epoch for column in columns if column.epoch is not None}


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
    return find_decoder(format_).decode_with_unavailable(values)


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
