"""The page of guards names tests that are there."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def test_each_test_that_the_page_names_is_there():
    page = (ROOT / "docs" / "guards.md").read_text()
    code = "".join(each.read_text() for each in (ROOT / "tests").rglob("test_*.py"))
    files = {each.name for each in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"`(test_\w+)(…|\.py)?`", page)
    assert len(named) > 60
    for name, end in named:
        if end == ".py":
            assert f"{name}.py" in files
        else:
            assert f"def {name}" + ("" if end else "(") in code, name
