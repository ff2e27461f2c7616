"""When a run that was cleared had found nothing before."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from exactbatch.ledger import DagRun, EmptyRun
from exactbatch.planning.run import was_empty


@pytest.mark.parametrize(
    ("cleared", "empty", "batches", "expected"),
    [
        (1, 0, [], True),
        (3, 1, [0], True),  # its first batch was superseded, and the next plan was empty
        (0, 0, [], False),  # an automatic retry of the try that found nothing
        (2, 2, [0], False),
        (2, 0, [1], False),  # a version without this record has planned a batch since
        (1, 0, [0], False),  # the retry found something
        (1, 3, [], False),  # of a run that was deleted, and whose successor never reached the ledger
    ],
)
def test_the_last_plan_before_the_clear_decides(cleared, empty, batches, expected):
    plans = [SimpleNamespace(clear_number=number) for number in batches]
    trace = EmptyRun(empty, datetime(2026, 1, 5, tzinfo=UTC))
    assert was_empty(DagRun("d", "r", cleared), plans, trace) is expected
