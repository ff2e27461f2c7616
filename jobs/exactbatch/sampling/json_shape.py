"""What the values of a JSON member are: how many of each kind, and the values themselves."""

import json
from dataclasses import dataclass, field
from typing import Any


class Number(str):
    """The text of a JSON number, as it is written."""

    __slots__ = ()


@dataclass(slots=True)
class Shape:
    """All values that one member has in a sample. `texts` and `numbers` hold them as they are written."""

    count: int = 0
    nulls: int = 0
    booleans: int = 0
    numbers: list[Number] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    arrays: int = 0
    objects: int = 0
    members: "dict[str, Shape]" = field(default_factory=dict)
    _element: "Shape | None" = None

    def add(self, value: Any) -> None:
        """Take in one value, as parse_json() returns it."""
        self.count += 1
        match value:
            case None:
                self.nulls += 1
            case bool():
                self.booleans += 1
            case Number():
                self.numbers.append(value)
            case str():
                self.texts.append(value)
            case list():
                self.arrays += 1
                for each in value:
                    self.element.add(each)
            case dict():
                self.objects += 1
                for name, member in value.items():
                    self.members.setdefault(name, Shape()).add(member)

    @property
    def element(self) -> "Shape":
        """All elements of all arrays."""
        if self._element is None:
            self._element = Shape()
        return self._element

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of values other than null: boolean, number, text, array, object."""
        counts = {
            "boolean": self.booleans,
            "number": len(self.numbers),
            "text": len(self.texts),
            "array": self.arrays,
            "object": self.objects,
        }
        return frozenset(kind for kind, count in counts.items() if count)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, with numbers as Number.

    Raises ValueError for text that is not JSON, such as NaN, for bytes that are not UTF-8 or begin with a byte order
    mark, and for more levels of nesting than Python parses.
    """
    if isinstance(text, bytes):
        text = text.decode()  # json.loads() would read UTF-16 as well, which no format does
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("too many levels of nesting") from None


def find_shape(values: "list[Any]") -> Shape:
    """Return the shape of values that parse_json() has returned."""
    shape = Shape()
    for value in values:
        shape.add(value)
    return shape


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
