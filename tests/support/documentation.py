"""The pages of the documentation, and the code blocks in them.

A block of Python, SQL or JSON must work as it stands, and so must the commands of a console block. The comment
`<!-- fragment -->` before a block says that it does not: it is a part that a reader completes, or it needs something
that the tests do not have.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.environment import DOCS, ROOT

PAGES: Final = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
_BLOCK: Final = re.compile(
    r"^(?P<fragment> *<!-- fragment -->\n\s*)?^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: the page, the number of its first line, and its code without the indentation of the page."""

    page: Path
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str) -> Iterator[Block]:
    """Yield the blocks of a language, without those that are marked as fragments."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in _BLOCK.finditer(text):
            if found["language"] == language and not found["fragment"]:
                indent = len(found["indent"])
                code = "".join(f"{line[indent:]}\n" for line in found["code"].splitlines())
                yield Block(page, text.count("\n", 0, found.start("code")) + 1, code)
