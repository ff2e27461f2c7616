"""`exactbatch migrate` and a ledger of an older version: nothing goes back, so it asks."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exactbatch.errors.exit_status import WRONG_USAGE
from exactbatch.ledger import check_schema, ledger_version, migrate, newest_version
from exactbatch.ledger.schema import migrations
from exactbatch.postgres.connection import transaction

MODULE = """
from exactbatch import *
one = Pipeline(name="one", topics=("t",), value=Json("id int"), sink=Append("public.one"))
many = Tables(
    name="many", topics=TopicPattern("never-(?P<table>.*)"),
    pipeline=lambda topic: Pipeline(name="x", topics=("t",), value=Json("id int"), sink=Append("public.x")),
)
"""


@pytest.fixture
def old(empty, tmp_path):
    """A connection to a database whose ledger is one version behind."""
    (folder := tmp_path / "migrations").mkdir()
    for version, text in migrations()[:-1]:
        (folder / f"{version:04d}_old.sql").write_text(text)
    migrate(empty, folder)
    return empty


@pytest.fixture
def run(settings, tmp_path):
    """Run `exactbatch …`; `answer` is typed on a terminal, which there is only then."""
    (tmp_path / "asked.py").write_text(MODULE)
    environment = {**os.environ, **settings.as_environment()}
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), str(Path("jobs").resolve())))

    def run(*arguments: str, answer: str = "") -> Any:
        terminal, its_end = pty.openpty()
        if answer:
            os.write(terminal, f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, "-m", "exactbatch.cli", *arguments],
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


@pytest.mark.parametrize("arguments", [["migrate"], ["register", "asked:one"]], ids=" ".join)
def test_a_new_ledger_needs_no_answer(empty, run, arguments):
    done = run(*arguments)
    assert (done.returncode, ledger_version(empty)) == (0, newest_version()), done.stderr
    assert "Created the ledger" in done.stdout
    again = run(*arguments)
    assert again.returncode == 0, "nothing to upgrade"
    assert ("nothing to do" if arguments == ["migrate"] else "registered already") in again.stdout


def test_without_a_terminal_an_old_ledger_is_left_as_it_is(old, run):
    before, newest = ledger_version(old), newest_version()
    done = run("migrate")
    assert (done.returncode, done.stdout) == (WRONG_USAGE, "")
    told = " ".join(done.stderr.split())
    assert f"has version {before}, and this exactbatch needs version {newest}." in told
    assert "Nothing was changed." in told
    assert "--yes" in told
    assert ledger_version(old) == before == newest - 1


def test_yes_upgrades_an_old_ledger_without_a_terminal(old, run):
    done = run("migrate", "--yes", "--json")
    assert (done.returncode, ledger_version(old)) == (0, newest_version()), done.stderr
    assert json.loads(done.stdout) == {"version": newest_version(), "migrated_to": [newest_version()]}


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_on_a_terminal_the_answer_decides(old, run, answer, status):
    done = run("migrate", answer=answer)
    assert done.returncode == status, done.stderr
    assert "Are its DAGs paused and the database backed up?" in " ".join(done.stderr.split())
    assert ledger_version(old) == newest_version() - (answer == "n")


@pytest.mark.parametrize("reference", ["one", "many"])
def test_nothing_is_registered_in_an_old_ledger(old, run, reference):
    done = run("register", f"asked:{reference}", "--yes")
    assert (done.returncode, done.stdout) == (42, "")
    assert "Run `exactbatch migrate` to upgrade it." in " ".join(done.stderr.split())
    assert ledger_version(old) == newest_version() - 1


def test_a_dry_run_prints_the_sql_that_creates_a_ledger(empty, run):
    done = run("migrate", "--dry-run")
    assert (done.returncode, ledger_version(empty)) == (0, None), done.stderr
    with transaction(empty) as cursor:
        cursor.execute("select to_regnamespace('exactbatch')")
        assert cursor.fetchone() == (None,)
        cursor.execute(done.stdout.removeprefix("begin;").removesuffix("commit;\n"))
    check_schema(empty)
    assert "nothing to do" in run("migrate", "--dry-run").stdout
    assert json.loads(run("migrate", "--dry-run", "--json").stdout)["sql"] == ""


def test_a_dry_run_prints_the_sql_of_an_upgrade(old, run):
    told = json.loads(run("migrate", "--dry-run", "--json").stdout)
    assert (told["version"], told["needed"]) == (newest_version() - 1, newest_version())
    assert ledger_version(old) == newest_version() - 1
    assert "create schema" not in told["sql"]
    with transaction(old) as cursor:
        cursor.execute(told["sql"].removeprefix("begin;").removesuffix("commit;"))
    check_schema(old)


def test_a_dry_run_registers_nothing(empty, run):
    done = run("register", "asked:one", "--dry-run")
    assert (done.returncode, ledger_version(empty)) == (0, None), done.stderr
    assert "The ledger would be created, and one registered." in done.stdout
    migrate(empty)
    assert (
        "Pipeline one → public.one would be registered." in run("register", "asked:one", "--dry-run").stdout
    )
    assert registered(empty) == []
    assert "is registered." in run("register", "asked:one").stdout
    assert registered(empty) == ["one"]
    assert "was registered already" in run("register", "asked:one", "--dry-run").stdout


@pytest.mark.parametrize(
    ("options", "question"),
    [(["--rename", "one"], "Replace the name one by two"), (["--accept-identity"], "forgets its previous")],
    ids=["rename", "identity"],
)
def test_what_the_ledger_forgets_is_asked_for(empty, run, tmp_path, options, question):
    run("register", "asked:one")
    changed = MODULE.replace('name="one"', 'name="two"' if "--rename" in options else 'name="one"')
    changed = changed.replace("public.one", "public.one" if "--rename" in options else "public.moved")
    (tmp_path / "asked.py").write_text(changed)
    refused = run("register", "asked:one", *options, answer="n")
    assert (refused.returncode, question in " ".join(refused.stderr.split())) == (1, True), refused.stderr
    before = targets(empty)
    assert before == [("one", "public.one")]
    assert run("register", "asked:one", *options, "--dry-run").returncode == 0
    assert targets(empty) == before
    done = run("register", "asked:one", *options, answer="y")
    assert done.returncode == 0, done.stderr
    assert targets(empty) != before


def registered(connection):
    return [name for name, _ in targets(connection)]


def targets(connection):
    with transaction(connection) as cursor:
        cursor.execute("select name, target from exactbatch.pipeline")
        return [tuple(row) for row in cursor.fetchall()]
