"""The exit status of a command tells a difference, a retryable error and a terminal error apart."""

import pytest
from typer.testing import CliRunner

from exactbatch.audit import audit as audit_module
from exactbatch.audit.report import AuditReport, Finding, PartitionAudit, TargetAudit
from exactbatch.cli.app import app
from exactbatch.errors import KafkaUnavailable, TargetMismatch
from exactbatch.settings import KAFKA, POSTGRES

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
