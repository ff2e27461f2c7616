"""The help of all commands: panels, `-h`, and no type for flags; and the versions that a program has."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from exactbatch.cli.app import COMMANDS, PANELS, app
from exactbatch.ledger import newest_version
from exactbatch.local.commands import app as local_app

LOCAL = [each.callback.__name__ for each in local_app.registered_commands if each.callback is not None]
ASKED = [[], *([name] for name in COMMANDS), ["local"], *(["local", name] for name in LOCAL)]


def help_of(words: list[str], option: str) -> str:
    done = CliRunner().invoke(app, [*words, option], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_short_and_long_help_are_the_same_and_no_flag_has_a_type(words):
    shown = help_of(words, "-h")
    assert "Show this message and exit" in shown
    assert shown == help_of(words, "--help")
    assert "bool" not in shown


def test_each_command_is_in_its_panel():
    shown = help_of([], "--help")
    titles = [*PANELS, "Local"]
    places = [shown.index(f"─ {title} ─") for title in titles]
    assert places == sorted(places)
    for title, begin, end in zip(titles, places, [*places[1:], len(shown)], strict=True):
        lines = [line.removeprefix("│ ") for line in shown[begin:end].splitlines()]
        found = [line.split()[0] for line in lines if line[:1].islower()]
        assert found == (list(PANELS[title]) if title in PANELS else ["local"])


@pytest.mark.parametrize("words", [["--help"], ["--version"]], ids=str)
def test_no_command_is_imported_to_be_listed(words):
    script = f"""
import json, sys
from typer.testing import CliRunner
from exactbatch.cli.app import app
assert CliRunner().invoke(app, {words}).exit_code == 0
print(json.dumps(list(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = set(json.loads(done.stdout))
    names = {f"exactbatch.cli.{name.replace('-', '_')}" for name in COMMANDS} | {"exactbatch.cli.try_"}
    assert imported & (names | {"exactbatch.kafka", "exactbatch.local", "pyspark", "airflow"}) == set()


def test_versions(monkeypatch):
    monkeypatch.setattr("exactbatch.cli.app.package_version", lambda: "1.2.3")
    done = CliRunner().invoke(app, ["--version"])
    python = ".".join(map(str, sys.version_info[:3]))
    lines = ["exactbatch 1.2.3", f"Python {python}", f"ledger version {newest_version()}"]
    assert (done.exit_code, done.stdout.splitlines()) == (0, lines)
