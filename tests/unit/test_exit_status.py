"""The exit status of a command tells a difference, a retryable error and a terminal error apart."""

import re
import sys
import tomllib
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import process_batch
from exactbatch.audit.audit_result import AuditReport, Differences, PartitionAudit, TargetAudit
from exactbatch.cli import audit as audit_command
from exactbatch.cli.app import COMMANDS, app, load_command
from exactbatch.errors import KafkaUnavailable, TargetMismatch
from exactbatch.errors.exit_status import CHECK_FAILED, RETRYABLE, TERMINAL, WRONG_USAGE
from exactbatch.local.commands import app as local_app
from exactbatch.settings import KAFKA, POSTGRES
from support.environment import ROOT

EXACT = AuditReport([PartitionAudit("flights", 0, 0, 10, records=10, rows=10)], TargetAudit())
DIFFERENT = AuditReport(
    [PartitionAudit("flights", 0, 0, 10, records=10, missing=Differences(1, [4]))], TargetAudit()
)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(EXACT, 0), (DIFFERENT, 3), (KafkaUnavailable("no broker"), 1), (TargetMismatch("no table"), 42)],
    ids=["exact", "different", "retryable", "terminal"],
)
def test_the_exit_status_of_an_audit(monkeypatch, outcome, status):
    def audit(*_: object, **__: object) -> AuditReport:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setenv(KAFKA, '{"bootstrap.servers": "localhost:1"}')
    monkeypatch.setenv(POSTGRES, "host=localhost port=1")
    monkeypatch.setattr(audit_command, "audit_target", audit)
    result = CliRunner().invoke(app, ["audit", "flights"])
    assert result.exit_code == status, result.output


def test_the_documented_exit_statuses_are_those_of_the_code():
    page = (ROOT / "docs" / "errors.md").read_text()
    assert re.findall(r"^\| (\d{1,3}) \|", page, re.MULTILINE) == ["0", "1", "2", "3", "42", "130"]
    assert {RETRYABLE, WRONG_USAGE, CHECK_FAILED, TERMINAL} == {1, 2, 3, 42}


@pytest.mark.parametrize(
    ("reference", "status", "told"),
    [
        ("never_there", 2, "there is no module 'pipelines.never_there'"),
        ("named:other", 2, "expected a Pipeline named 'other' in named, found nothing of that name"),
        ("named:", 2, "expected a pipeline as 'module:name'"),
        ("named:p.orders", 2, "'named:p' is one pipeline, and no Tables. Leave out '.orders'."),
        ("named/p.py", 2, "expected the name of a pipeline, found the path 'named/p.py'"),
        ("broken:p", 42, "the module 'broken' cannot be imported: ZeroDivisionError"),
        ("lacking:p", 42, "the module 'lacking' cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_wrong_name_is_wrong_usage_and_a_module_that_fails_is_not(
    tmp_path, monkeypatch, reference, status, told
):
    (tmp_path / "named.py").write_text(
        "from exactbatch import *\n"
        "p = Pipeline(name='p', topics='t', value=Json('id int'), sink=Append('public.p'))\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "lacking.py").write_text("import never_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "named", raising=False)
    done = CliRunner().invoke(app, ["plan", reference])
    assert (done.exit_code, told in " ".join(done.stderr.split())) == (status, True), done.stderr
    # Airflow must not retry any of them.
    monkeypatch.setattr("sys.argv", ["process_batch.py", "--pipeline", reference, "--batches", "p:1:"])
    if ":" in reference and "." not in reference:
        assert process_batch.main() == TERMINAL


def commands(app: typer.Typer) -> dict[str, Any]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_that_prints_takes_json():
    without = {
        name
        for name, command in {
            **commands(app),
            **{name: load_command(name) for name in COMMANDS},
            **{f"local {k}": v for k, v in commands(local_app).items()},
        }.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    # `connect` and `local psql` become another program, two print a file, and `local` has commands of its own.
    assert without == {"connect", "executor-requirements", "local", "local psql", "roles"}


@pytest.mark.parametrize(
    ("command", "file"),
    [("roles", "docs/roles.sql"), ("executor-requirements", "requirements-executor.txt")],
)
def test_a_command_prints_a_file_that_is_in_the_package(command, file):
    assert CliRunner().invoke(app, [command]).stdout == (ROOT / file).read_text()
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert file in packaged["exactbatch"]


def test_the_command_that_is_two_now_names_both():
    done = CliRunner().invoke(app, ["init", "flights"])
    told = " ".join(done.stderr.replace("│", " ").split())
    assert done.exit_code == WRONG_USAGE
    assert "`exactbatch register PIPELINE` registers a pipeline" in told
    assert "`exactbatch migrate` upgrades a ledger" in told
