"""The pages that `exactbatch explain` prints: one for each error class, and all other topics."""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

PAGES: Final = resources.files("exactbatch") / "docs"
_FOLDERS: Final = (".", "howto", "reference")  # of the topics; each page has a name of its own
_LINK: Final = re.compile(r"!?\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]+)?\)")
_HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The page of an error class or of a topic.

    name      name of the class, or of the topic
    markdown  the page for a terminal: links name the command that prints the page that they lead to
    summary   its first paragraph: what the error means
    sections  its sections by heading
    """

    name: str
    markdown: str
    summary: str
    sections: dict[str, str]


def explained_errors() -> list[str]:
    """Return the names of all error classes that have a page, in alphabetical order."""
    files = (file for file in (PAGES / "errors").iterdir() if file.name.endswith(".md"))
    names = (file.read_text(encoding="utf-8").partition("\n")[0] for file in files)
    return sorted(name.removeprefix("# ") for name in names)


def explained_topics() -> list[str]:
    """Return the names of all other pages, in alphabetical order: poolers, roles, upgrade …"""
    return sorted(_topics())


def explain(name: str) -> Explanation:
    """Return the page of an error class or of a topic by its name. Raises FileNotFoundError if there is none."""
    page = _topics().get(name) or PAGES / "errors" / page_name(name)
    text = page.read_text(encoding="utf-8")
    markdown = text if page.name.endswith(".sql") else _LINK.sub(_without_link, text)
    head, *parts = _HEADING.split(markdown)
    sections = {heading: body.strip() for heading, body in zip(parts[::2], parts[1::2], strict=True)}
    return Explanation(name, markdown, head.partition("\n\n")[2].partition("\n\n")[0].strip(), sections)


def hint(error: Exception) -> str:
    """Return the sentence that names the page of an error's class or of its nearest base class; empty without one."""
    return next(filter(None, (find_hint(class_.__name__) for class_ in type(error).__mro__)), "")


def find_hint(name: str) -> str:
    """Return the sentence that names the page of an error class, by its name; empty without a page."""
    if not (PAGES / "errors" / page_name(name)).is_file():
        return ""
    return f"`exactbatch explain {name}` explains the causes and what to do."


def page_name(error: str) -> str:
    """Return the name of the file about an error class: offsets-lost.md for OffsetsLost."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", error).lower() + ".md"


@cache
def _topics() -> dict[str, Traversable]:
    files = (file for folder in _FOLDERS for file in (PAGES / folder).iterdir())
    return {
        PurePosixPath(file.name).stem: file
        for file in files
        if file.name.endswith((".md", ".sql")) and file.name != "README.md"
    }


def _without_link(link: re.Match[str]) -> str:
    """Return a link's text, with the command that prints the page that it leads to."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if "://" in target:
        return f"{text} ({target}{anchor})"
    path = PurePosixPath(target)
    if path.stem not in _topics():
        return text
    command = f"`exactbatch explain {path.stem}`"
    return command if text.endswith(path.name) else f"{text} ({command})"
