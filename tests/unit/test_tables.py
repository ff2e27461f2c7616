"""The verdict that people read agrees with the exit status of an audit."""

import pytest

from exactbatch.audit.audit_result import AuditReport, Differences, PartitionAudit, TargetAudit
from exactbatch.cli import render


def report(partition: dict[str, Differences], target: dict[str, int]) -> AuditReport:
    partitions = [
        PartitionAudit("flights", number, 0, 10, records=10, rows=10, **findings)
        for number, findings in ((2, {}), (3, partition))
    ]
    return AuditReport(partitions, TargetAudit(**target))


def test_the_verdict_of_an_exact_audit_says_so():
    exact = report({}, {})
    assert exact.is_exact
    text = str(render.verdict(exact))
    assert text == "exact: 20 records in the log, 20 rows: 0 missing, 0 duplicated, 0 unexpected"


@pytest.mark.parametrize("kind", PartitionAudit("flights", 0, 0, 1).findings)
def test_verdict_names_each_kind_of_difference_and_where_it_is(kind):
    different = report({kind: Differences(2, [4, 7])}, {})
    text = str(render.verdict(different))
    assert not different.is_exact
    assert text.startswith("NOT exact: ")
    assert f"2 {kind}" in text
    assert text.endswith(f"flights[3] {kind}: 2, at offset 4, 7")


@pytest.mark.parametrize("kind", TargetAudit().findings)
def test_the_verdict_names_each_difference_of_the_target(kind):
    different = report({}, {kind: 2})
    text = str(render.verdict(different))
    assert not different.is_exact
    assert text.startswith("NOT exact: ")
    assert text.endswith(f"{kind}: 2")
