"""Links in the documentation lead to a page and a heading, and the index lists every page."""

import re
from pathlib import Path
from typing import Final

import pytest

import exactbatch
import exactbatch.airflow

ROOT: Final = Path(__file__).parents[2]
INDEX: Final = ROOT / "docs" / "README.md"
PAGES: Final = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    """Return a page without its fenced code."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.+?) *$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Return the targets of a page's relative links."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    return [target for target in targets if not target.startswith(("https://", "http://", "mailto:"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_the_index_lists_every_page():
    indexes = (INDEX, ROOT / "docs" / "errors.md")
    listed = {(index.parent / link).resolve() for index in indexes for link in links(index)}
    assert set(PAGES) - {INDEX, ROOT / "README.md", ROOT / "CHANGELOG.md"} <= listed


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    names = [
        f"{module.__name__}.{name}" for module in (exactbatch, exactbatch.airflow) for name in module.__all__
    ]
    assert sorted(re.findall(r"^::: (\S+)$", page, re.MULTILINE)) == sorted(names)


def test_messages_name_pages_that_exist():
    for module in (ROOT / "jobs").rglob("*.py"):
        for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|sql)\b", module.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{module.relative_to(ROOT)}: {name}"
