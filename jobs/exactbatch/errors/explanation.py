"""The page of each error class: why it happens and how to recover. The files are those of docs/errors."""

import re
from dataclasses import dataclass
from importlib import resources
from typing import Final

PAGES: Final = resources.files("exactbatch.errors") / "pages"
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]+)?\)")
_HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The page of an error class.

    error     name of the class
    markdown  the page for a terminal: links name the file or the error that they lead to
    summary   its first paragraph: what the error means
    sections  its sections by heading
    """

    error: str
    markdown: str
    summary: str
    sections: dict[str, str]


def explained_errors() -> list[str]:
    """Return the names of all error classes that have a page, in alphabetical order."""
    names = (file.read_text(encoding="utf-8").partition("\n")[0] for file in PAGES.iterdir())
    return sorted(name.removeprefix("# ") for name in names)


def explain(error: str) -> Explanation:
    """Return the page of an error class by its name. Raises FileNotFoundError if there is none."""
    text = (PAGES / page_name(error)).read_text(encoding="utf-8")
    markdown = _LINK.sub(_without_link, text)
    head, *parts = _HEADING.split(markdown)
    sections = {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return Explanation(error, markdown, head.partition("\n\n")[2].partition("\n\n")[0].strip(), sections)


def hint(error: Exception) -> str:
    """Return the sentence that names the page of an error's class or of its nearest base class; empty without one."""
    return next(filter(None, (hint_of(class_.__name__) for class_ in type(error).__mro__)), "")


def hint_of(name: str) -> str:
    """Return the sentence that names the page of an error class, by its name; empty without a page."""
    if not (PAGES / page_name(name)).is_file():
        return ""
    return f"`exactbatch explain {name}` explains the causes and what to do."


def page_name(error: str) -> str:
    """Return the name of the file about an error class: offsets-lost.md for OffsetsLost."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", error).lower() + ".md"


def _without_link(link: re.Match[str]) -> str:
    """Return a link's text, with the file of this repository that it leads to."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if "/" not in target or "://" in target:
        return text if "://" not in target else f"{text} ({target}{anchor})"
    path = f"docs/{target.removeprefix('../')}"
    return path if text == target.removeprefix("../") else f"{text} ({path}{anchor})"
