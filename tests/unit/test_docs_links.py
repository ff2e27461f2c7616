"""Links lead to a page and a heading, each page can be reached, and pages for users name no tests."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC: Final = ("exactbatch", "exactbatch.airflow", "exactbatch.testing")
_NAMED: Final = re.compile(r"\b(docs/[\w/-]+\.(?:md|sql|json))\b(?:#([\w-]+))?")
# Left out of navigation and search: generated matrices. They keep their addresses, as the pages of errors do.
MATRICES: Final = [DOCS / "value-matrix.md", DOCS / "evidence" / "faults.md"]
_FENCED: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def decode_text(page: Path) -> str:
    """Return a page without its fenced code."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.+?) *$", decode_text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Return the targets of a page's relative links."""
    targets = re.findall(r"\]\(([^)\s]+)\)", decode_text(page))
    return [target for target in targets if not target.startswith(("https://", "http://", "mailto:"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_the_tests_that_a_page_names_exist():
    named = [
        name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", decode_text(page))
    ]
    assert named
    for path, _, test in (name.partition("::") for name in named):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{path}::{test}"


def navigation(*, contributing: bool) -> list[Path]:
    """Return the pages of the navigation, with or without those for contributors."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    sections = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    parts = [
        part
        for section in sections
        for name, part in section.items()
        if contributing or name != "Contributing"
    ]
    return [DOCS / name for part in parts for name in pages_of(part)]


def pages_of(part: str | list[dict[str, object]]) -> list[str]:
    """Return the pages below a part of the navigation."""
    if isinstance(part, str):
        return [part]
    return [page for entry in part for below in entry.values() for page in pages_of(below)]  # type: ignore[arg-type]


def test_every_page_is_in_the_navigation_or_a_page_of_an_error_or_a_matrix():
    errors = sorted((DOCS / "errors").glob("*.md"))
    expected = sorted(DOCS.rglob("*.md"))
    assert sorted([*navigation(contributing=True), *errors, *MATRICES]) == expected


def test_every_page_can_be_reached_by_links_from_the_first_one():
    reached, waiting = set(), [DOCS / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
            waiting += [
                target for target in targets if target.suffix == ".md" and target.is_relative_to(DOCS)
            ]
    assert reached == set(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", navigation(contributing=False), ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_for_users_names_no_test_and_nothing_of_the_sources(page):
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    modules = {file.name for file in (ROOT / "tests").rglob("test_*.py") if file.parent.name != "pipelines"}
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = [
        *(name for name in re.findall(r"\btest_\w+\.py\b", text) if name in modules),
        *re.findall(r"\btests/(?:unit|integration|faults|e2e|browser|soak|benchmarks|support)\b", text),
        *re.findall(r"\bjobs/exactbatch/[\w/.]+", text),
        *re.findall(rf"(?:`|^\$ )(make (?:{'|'.join(targets)}))\b", text, re.MULTILINE),
    ]
    assert named == []


def test_links_of_pages_have_names_and_not_files():
    named = [
        f"{page.relative_to(ROOT)}: {text}"
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for text in re.findall(r"\[([\w/-]+\.md)\]\((?!https:)", decode_text(page))
    ]
    assert named == []


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
