"""Failpoints are declared once: a name that does not exist is an error wherever it is used."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import exactbatch
from exactbatch.failpoints import FAILPOINTS, Actions


def called() -> list[str]:
    """The names with which the program calls failpoint()."""
    calls = [
        node
        for path in Path(exactbatch.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint"
    ]
    return [ast.literal_eval(call.args[0]) for call in calls]


def test_each_failpoint_is_in_the_program():
    assert set(called()) == FAILPOINTS


def test_the_environment_names_failpoints_and_their_actions():
    text = "publish.after_commit=kill; job.after_stage = hold:/tmp/go;"
    assert Actions.parse(text) == {"publish.after_commit": "kill", "job.after_stage": "hold:/tmp/go"}
    assert Actions.parse("") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "publish.after_comit=kill",
            "expected a failpoint, one of .*publish.after_commit.*; found 'publish.after_comit'",
        ),
        ("publish.after_commit=die", "failpoint publish.after_commit: expected an action .*, found 'die'"),
        ("publish.after_commit", "failpoint publish.after_commit: expected an action .*, found ''"),
    ],
)
def test_a_typo_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Actions.parse(text)
    program = subprocess.run(
        [sys.executable, "-c", "import exactbatch.failpoints"],
        env={**os.environ, "EXACTBATCH_FAILPOINTS": text},
        capture_output=True,
        text=True,
        check=False,
    )
    assert program.returncode == 1
    assert "ValueError" in program.stderr


def test_a_test_that_misspells_a_failpoint_fails(monkeypatch):
    with pytest.raises(ValueError, match="expected a failpoint"):
        monkeypatch.setitem(Actions(), "job.after_staging", "error")
