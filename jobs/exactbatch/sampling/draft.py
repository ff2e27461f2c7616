"""A proposed format: its columns, each with wider types to fall back to, and how to make the format from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from exactbatch.formats import Format
from exactbatch.member_paths import Path
from exactbatch.sampling.column_names import quoted_if_needed
from exactbatch.sampling.value_types import Choice


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
    """A format that suits a sample as far as its values look; fitting.py makes sure by decoding them.

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
