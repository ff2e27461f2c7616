"""`exactbatch init` and a ledger of an older version: nothing goes back, so it asks."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exactbatch.ledger import ledger_version, migrate, newest_version
from exactbatch.ledger.schema import migrations

MODULE = """
from exactbatch import *
one = Pipeline(name="one", topics=("t",), value=Json("id int"), sink=Append("public.one"))
many = Tables(
    name="many", topics=TopicPattern("never-(?P<table>.*)"),
    pipeline=lambda topic: Pipeline(name="x", topics=("t",), value=Json("id int"), sink=Append("public.x")),
)
"""
PIPELINES = pytest.mark.parametrize("reference", ["one", "many"])


@pytest.fixture
def old(empty, tmp_path):
    """A connection to a database whose ledger is one version behind."""
    (folder := tmp_path / "migrations").mkdir()
    for version, text in migrations()[:-1]:
        (folder / f"{version:04d}_old.sql").write_text(text)
    migrate(empty, folder)
    return empty


@pytest.fixture
def init(settings, tmp_path):
    """Run `exactbatch init`; `answer` is typed on a terminal, which there is only then."""
    (tmp_path / "asked.py").write_text(MODULE)
    environment = {**os.environ, **settings.as_environment()}
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), str(Path("jobs").resolve())))

    def run(reference: str, *options: str, answer: str = "") -> Any:
        terminal, its_end = pty.openpty()
        if answer:
            os.write(terminal, f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, "-m", "exactbatch.cli", "init", f"asked:{reference}", *options],
            env=environment,
            stdin=its_end if answer else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        os.close(terminal)
        os.close(its_end)
        return done

    return run


def test_a_new_ledger_needs_no_answer(empty, init):
    done = init("one")
    assert (done.returncode, ledger_version(empty)) == (0, newest_version()), done.stderr
    assert "Created the ledger" in done.stdout
    again = init("one")
    assert (again.returncode, "registered already" in again.stdout) == (0, True), "nothing to upgrade"


@PIPELINES
def test_without_a_terminal_an_old_ledger_is_left_as_it_is(old, init, reference):
    before, newest = ledger_version(old), newest_version()
    done = init(reference)
    assert (done.returncode, done.stdout) == (3, "")
    told = " ".join(done.stderr.split())
    assert f"has version {before}, and this exactbatch needs version {newest}." in told
    assert "Nothing was changed." in told
    assert "--yes" in told
    assert ledger_version(old) == before == newest - 1


@PIPELINES
def test_yes_upgrades_an_old_ledger_without_a_terminal(old, init, reference):
    done = init(reference, "--yes", "--json")
    assert ledger_version(old) == newest_version(), done.stderr
    if reference == "one":
        assert (done.returncode, json.loads(done.stdout)["migrated_to"]) == (0, [newest_version()])


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_on_a_terminal_the_answer_decides(old, init, answer, status):
    done = init("one", answer=answer)
    assert done.returncode == status, done.stderr
    assert "Are its DAGs paused and the database backed up?" in " ".join(done.stderr.split())
    assert ledger_version(old) == newest_version() - (answer == "n")
