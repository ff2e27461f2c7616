"""A short soak: every sink under random faults, exact to the record. `make soak` has the long form."""

import os

import pytest

from soak.run import Soak
from soak.summary import table
from support.environment import HOME
from support.faults.servers import Kind

pytestmark = pytest.mark.slow

# The faults of this seed come again in each run; EXACTBATCH_SEED gives others.
SEED = 7


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", Kind)
def test_every_record_is_accounted_for_under_random_faults(kind):
    seed = int(os.environ.get("EXACTBATCH_SEED", SEED))
    soak = Soak(HOME, f"test-{os.getpid()}-soak", seed=seed, seconds=25, rate=150, every=2.5, kind=kind)
    report = soak.run()
    assert report.failure is None, f"seed {seed}, {report.folder}: {report.failure}"
    assert report.faults.total() >= 2, report.faults
    assert report.audits >= len(report.accounted)
    assert report.results > 0
    assert not report.crashes
    assert all(each.produced > 0 for each in report.accounted.values())
    assert table(report).row_count > 10
