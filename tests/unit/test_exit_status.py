"""The exit status of a command tells a difference, a retryable error and a terminal error apart."""

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from exactbatch.audit import audit as audit_module
from exactbatch.audit.report import AuditReport, Finding, PartitionAudit, TargetAudit
from exactbatch.cli.app import app
from exactbatch.errors import KafkaUnavailable, TargetMismatch
from exactbatch.errors.exit_status import CHECK_FAILED, RETRYABLE, TERMINAL
from exactbatch.local.commands import app as local_app
from exactbatch.settings import KAFKA, POSTGRES
from support.environment import ROOT

EXACT = AuditReport([PartitionAudit("flights", 0, 0, 10, records=10, rows=10)], TargetAudit())
DIFFERENT = AuditReport(
    [PartitionAudit("flights", 0, 0, 10, records=10, missing=Finding(1, [4]))], TargetAudit()
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
    monkeypatch.setattr(audit_module, "audit", audit)
    result = CliRunner().invoke(app, ["audit", "flights"])
    assert result.exit_code == status, result.output


def test_the_documented_exit_statuses_are_those_of_the_code():
    page = (ROOT / "docs" / "errors.md").read_text()
    assert re.findall(r"^\| (\d{1,3}) \|", page, re.MULTILINE) == ["0", "1", "2", "3", "42", "130"]
    assert {RETRYABLE, CHECK_FAILED, TERMINAL} == {1, 3, 42}


def commands(app: typer.Typer) -> dict[str, Any]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_that_prints_takes_json():
    without = {
        name
        for name, command in {
            **commands(app),
            **{f"local {k}": v for k, v in commands(local_app).items()},
        }.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    # `connect` and `local psql` become another program, and `local` has commands of its own.
    assert without == {"connect", "local", "local psql"}
