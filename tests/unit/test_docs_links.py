"""Links in the documentation lead to a page and a heading, and the index lists every page."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
INDEX: Final = ROOT / "docs" / "README.md"
PAGES: Final = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC: Final = ("exactbatch", "exactbatch.airflow", "exactbatch.testing")
_NAMED: Final = re.compile(r"\b(docs/[\w/-]+\.(?:md|sql|json))\b(?:#([\w-]+))?")
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


def test_the_tests_that_a_page_names_exist():
    named = [name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", text_of(page))]
    assert named
    for path, _, test in (name.partition("::") for name in named):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{path}::{test}"


def test_the_index_lists_every_page():
    indexes = (INDEX, ROOT / "docs" / "errors.md")
    listed = {(index.parent / link).resolve() for index in indexes for link in links(index)}
    assert set(PAGES) - {INDEX, ROOT / "README.md", ROOT / "CHANGELOG.md"} <= listed


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    modules = [import_module(name) for name in PUBLIC if find_spec(name) is not None]
    names = [f"{module.__name__}.{name}" for module in modules for name in module.__all__]
    assert sorted(re.findall(r"^::: (\S+)$", page, re.MULTILINE)) == sorted(names)


@pytest.mark.parametrize("folder", ["jobs", "dags", "plugins"])
def test_pages_and_headings_that_the_code_names_exist(folder):
    for file in sorted((ROOT / folder).rglob("*")):
        if file.suffix in (".py", ".sql", ".js", ".html") and "docs" not in file.parts:
            for name, anchor in _NAMED.findall(file.read_text(encoding="utf-8")):
                target = ROOT / name
                assert target.exists(), f"{file.relative_to(ROOT)}: {name}"
                assert not anchor or anchor in anchors(target), f"{file.relative_to(ROOT)}: {name}#{anchor}"
