"""docs/architecture.md names the stops of a batch: each function exists, and is called where the page says."""

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text()


class Stop(NamedTuple):
    number: int
    file: str
    function: str
    caller: str


STOPS: Final = [
    Stop(int(number), file, function, caller)
    for number, file, function, caller in re.findall(
        r"^\| (\d+) \| `([^`]+)` \| `(\w+)` \| `([^`]+)` \|", PAGE, re.MULTILINE
    )
]


def definitions(file: str) -> set[str]:
    """The functions and classes of a module."""
    return {
        node.name
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_a_batch_has_at_most_ten_stops_and_passes_each_file_once():
    assert [stop.number for stop in STOPS] == list(range(1, len(STOPS) + 1))
    assert 5 <= len(STOPS) <= 10
    assert len({stop.file for stop in STOPS}) == len(STOPS)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.function)
def test_a_stop_exists_and_is_called_where_the_page_says(stop):
    assert stop.function in definitions(stop.file)
    used = [
        node
        for node in ast.walk(ast.parse((ROOT / stop.caller).read_text()))
        if isinstance(node, ast.Name) and node.id == stop.function and isinstance(node.ctx, ast.Load)
    ]
    assert used


@pytest.mark.parametrize(
    ("file", "name"),
    re.findall(r"^\| [^|`]*(?:`[^`|]*`[^|`]*)?\| `([^`]+\.py)` \| `(\w+)` \|$", PAGE, re.MULTILINE),
)
def test_an_answer_exists(file, name):
    assert name in definitions(file)


def test_the_folders_are_those_of_the_package():
    named = set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE))
    package = ROOT / "jobs" / "exactbatch"
    assert named == {path.parent.name for path in package.glob("*/__init__.py")}
