"""Hooks of mkdocs: which pages the search leaves out or ranks, which are wide, how lists are indented, what the cells
of a table are called on a phone, and the version below each page.
"""

import html
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
_NOT_SEARCHED: Final = ("errors/", "value-matrix.md", "evidence/faults.md")
# A page that has the words of all others comes after the page that is about them.
_BOOSTS: Final = {
    "requirements.md": 4.0,
    "howto/upgrade.md": 2.0,
    "deploy.md": 1.5,
    "reference/python.md": 3.0,
    "targets.md": 1.5,
    "reference/commands.md": 0.5,
    "reference/ledger.md": 0.5,
    "glossary.md": 0.5,
    "architecture.md": 0.3,
    "guards.md": 0.2,
    "evidence/soak.md": 0.3,
}
# Their tables need the place of the table of contents.
_WIDE: Final = (
    *("evidence/benchmark.md", "evidence/ablation.md", "evidence/faults.md", "errors.md", "guards.md"),
    "architecture.md",
    "value-matrix.md",
)
_STACKED: Final = 3  # columns of a table whose rows a phone shows one cell below the other: see wide.css
_ITEM: Final = re.compile(r"(?:[-*+]|\d+\.) +")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version and the license at the foot of each page."""
    version = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    config.copyright = f"exactbatch {version} · Apache License 2.0"
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Set what a page's own front matter would set, which `exactbatch explain` would print."""
    name = page.file.src_uri
    search: dict[str, Any] = page.meta.setdefault("search", {})
    if name.startswith(_NOT_SEARCHED):
        search["exclude"] = True
    if name in _BOOSTS:
        search["boost"] = _BOOSTS[name]
    if name in _WIDE:
        page.meta["hide"] = ["toc"]
    return indent_items(markdown)


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Label the cells of tables that are too wide for a phone."""
    return re.sub(r"<table>.*?</table>", lambda found: label_cells(found[0]), content, flags=re.DOTALL)


def label_cells(table: str) -> str:
    """Return a table of HTML with the heading of its column as `data-label` of each cell, if it has many columns."""
    headings = [re.sub(r"<[^>]+>", "", each) for each in re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)]
    if len(headings) < _STACKED:
        return table
    labels = [html.escape(html.unescape(each)) for each in headings]

    def row(found: re.Match[str]) -> str:
        label = iter(labels)
        return re.sub(r"<td(?=[ >])", lambda _: f'<td data-label="{next(label, "")}"', found[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)


def indent_items(markdown: str) -> str:
    """Return a page in which everything within an item of a list is indented by four spaces for each level.

    The pages indent by the width of the marker, as GitHub reads it: Python-Markdown would end the list there. It also
    needs an empty line after an item of several paragraphs.
    """
    lines: list[str] = []
    items: list[int] = []  # the columns at which the texts of the open items begin
    shift, loose, fence = 0, False, ""
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if not fence and text:
            while items and indent < items[-1]:
                items.pop()
            shift = max(4 * len(items) - indent, 0)
            if _ITEM.match(text):
                if loose and lines[-1]:
                    lines.append("")
                loose = False
        lines.append(" " * shift + line if text else "")
        loose = loose or bool(items and not text)
        if text.startswith("```"):
            fence = "" if fence else text
        elif not fence and (marker := _ITEM.match(text)):
            items.append(indent + len(marker[0]))
    return "\n".join(lines)
