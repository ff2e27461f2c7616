"""`exactbatch local down --delete` deletes a stack's data only after an answer."""

import pytest
from typer.testing import CliRunner

from exactbatch.errors.exit_status import WRONG_USAGE
from exactbatch.local.commands import app


@pytest.fixture
def data(tmp_path):
    """A file of a stack whose servers do not run."""
    (folder := tmp_path / "dev" / "kafka").mkdir(parents=True)
    (file := folder / "log").touch()
    return file


@pytest.fixture
def down(tmp_path):
    def run(*options):
        done = CliRunner().invoke(app, ["down", "--home", str(tmp_path), *options], env={"COLUMNS": "500"})
        return done.exit_code, done.output

    return run


def test_a_dry_run_deletes_nothing(data, down):
    status, told = down("--delete", "--dry-run")
    assert (status, data.exists()) == (0, True)
    assert f"Would delete {data.parents[1]}." in told


def test_without_a_terminal_nothing_is_deleted(data, down):
    status, told = down("--delete")
    assert (status, data.exists()) == (WRONG_USAGE, True)
    assert f"there is no terminal to ask on: Delete {data.parents[1]}" in told


def test_an_answer_deletes_it(data, down):
    status, _ = down("--delete", "--yes")
    assert (status, data.exists()) == (0, False)


def test_there_is_no_question_without_data(down):
    assert down("--delete") == (0, 'The stack "dev" was down already.\n')
