"""The code blocks of a page of the documentation that a test carries out: files to write, and commands with output."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_BLOCK: Final = re.compile(
    r"^(<!-- not run by the test -->\n)?```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S
)
_ANYTHING: Final = "…"


@dataclass(frozen=True)
class File:
    """A block with a title: the content of a file."""

    name: str
    content: str


@dataclass(frozen=True)
class Command:
    """A command after `$`, and the lines of output that the page shows."""

    text: str
    output: list[str] = field(default_factory=list)

    def missing(self, found: str) -> str | None:
        """Return the first line of output that `found` does not have after those before it; None if it has all.

        White space counts as one space, and … as any text.
        """
        lines = [" ".join(line.split()) for line in found.splitlines()]
        for expected in self.output:
            words = " ".join(expected.split())
            pattern = ".*".join(re.escape(part.strip()) for part in words.split(_ANYTHING))
            index = next((i for i, line in enumerate(lines) if re.fullmatch(f"{pattern}", line)), None)
            if index is None:
                return expected
            lines = lines[index + 1 :]
        return None


def steps_of(page: Path) -> list[File | Command]:
    """Return the files and commands of a page in their order."""
    steps: list[File | Command] = []
    for skipped, language, title, content in _BLOCK.findall(page.read_text()):
        if skipped:
            continue
        if title:
            steps.append(File(title, content))
        elif language == "console":
            steps += _commands(content)
    return steps


def _commands(content: str) -> list[Command]:
    commands: list[Command] = []
    for line in content.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line.removeprefix("$ ")))
        elif line.strip():
            commands[-1].output.append(line)
    return commands
