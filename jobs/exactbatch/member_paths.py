"""Paths to the members of a JSON value: user.id, items[0].sku, items[].sku. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from exactbatch.errors import ConfigurationError

# The name of a member, or the number of an element of an array, from 0.
Step = str | int

_WHOLE: Final = "$"
_NAME: Final = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^.\[\]"]+)')
_ELEMENT: Final = re.compile(r"\[(?P<index>[0-9]{0,9})\]")


@dataclass(frozen=True, slots=True)
class Path:
    """Where a value is, in parts: the first has the steps from the record's value, and each other one those from an
    element of the array to which the part before it leads. An array between two parts gives a row for each element.

    ((),) is the whole value, (("user", "id"),) is user.id, and (("items",), ("sku",)) is items[].sku.
    """

    parts: tuple[tuple[Step, ...], ...]

    @property
    def arrays(self) -> tuple[tuple[Step, ...], ...]:
        """The parts that lead to arrays whose elements are rows."""
        return self.parts[:-1]

    def __str__(self) -> str:
        return "[]".join(map(_format_text, self.parts)).removeprefix(".") or _WHOLE


def parse_path(text: str, *, column: str) -> Path:
    """Parse a path; `column` is the column that an error names.

    A path is $, the whole value, or names of members between dots. [n] after a name is the element n of an array,
    from 0, and [] is each of its elements. A name with dots, brackets or double quotes is in double quotes, where two
    of them stand for one. Raises ConfigurationError, which names the position.
    """
    if text == _WHOLE:
        return Path(((),))
    parts: list[list[Step]] = [[]]
    at = 0
    while at < len(text) or not at:
        if at and text[at] == "[":
            element = _ELEMENT.match(text, at)
            if element is None:
                raise _error(text, at, column, "expected [] or the number of an element, such as [0],")
            if element["index"]:
                parts[-1].append(int(element["index"]))
            else:
                parts.append([])
            at = element.end()
            continue
        if at:
            if text[at] != ".":
                raise _error(text, at, column, "expected a dot, a bracket or the end of the path,")
            at += 1
        name = _NAME.match(text, at)
        if name is None or name["plain"] == _WHOLE:  # as in JSONPath, where $.a is what is a here
            raise _error(text, at, column, "expected the name of a member,")
        parts[-1].append(name["quoted"].replace('""', '"') if name["quoted"] else name["plain"])
        at = name.end()
    return Path(tuple(map(tuple, parts)))


def _error(text: str, at: int, column: str, expected: str) -> ConfigurationError:
    found = repr(text[at]) if at < len(text) else "its end"
    return ConfigurationError(
        f"column {column!r}, from {text!r}, character {at + 1}: {expected} found {found}. Write a path as "
        f"'user.id', 'items[0].sku' or, for a row of each element, 'items[].sku'; '$' is the whole value, and a name "
        f"with dots, brackets or only a $ is in double quotes."
    )


def _format_text(steps: tuple[Step, ...]) -> str:
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _NAME.fullmatch(step) and not step.startswith('"') and step != _WHOLE:
            text += f".{step}"
        else:
            text += '."{}"'.format(step.replace('"', '""'))
    return text
