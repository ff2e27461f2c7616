"""What people read of an audit agrees with what its exit status says."""

import pytest

from exactbatch.audit.audit import Finding, PartitionAudit
from exactbatch.cli import render


def audited(**findings: Finding) -> PartitionAudit:
    return PartitionAudit("flights", 3, 0, 10, records=10, rows=10, **findings)


def test_the_verdict_of_an_exact_audit_says_so() -> None:
    text = str(render.verdict([audited(), audited()]))
    assert text == "exact: 20 records in the log, 20 rows: 0 missing, 0 duplicated, 0 unexpected"


@pytest.mark.parametrize("name", audited().findings)
def test_the_verdict_names_each_kind_of_difference_and_where_it_is(name: str) -> None:
    different = audited(**{name: Finding(2, [4, 7])})
    text = str(render.verdict([audited(), different]))
    assert not different.is_exact
    assert text.startswith("NOT exact: ")
    assert f"2 {name}" in text
    assert text.endswith(f"flights[3] {name}: 2, at offset 4, 7")
