"""What `exactbatch prune` says of the batches that it folds."""

from datetime import UTC, datetime

import pytest

from exactbatch.cli.render import pruning_lines
from exactbatch.operations.prune import Pruning
from support.pipelines import flights_pipeline


@pytest.mark.parametrize(("runs", "said"), [(1, "1 DAG run from"), (2, "2 DAG runs from")])
def test_runs_that_are_forgotten_are_counted_in_words(runs, said):
    nothing, last = pruning_lines(
        flights_pipeline(), Pruning(datetime(2026, 1, 5, tzinfo=UTC), 0, 0, None, runs)
    )
    assert nothing.startswith("flights: no batch from before")
    assert last.startswith(f"{said} before 2026-01-05 00:00:00 UTC ")


@pytest.mark.parametrize(
    ("batches", "ranges", "said"),
    [
        (1, 1, "1 batch with 1 range is to be folded, up to batch 9: "),
        (2, 3, "2 batches with 3 ranges are to be folded, up to batch 9: "),
    ],
)
def test_batches_are_counted_in_words(batches, ranges, said):
    first = pruning_lines(flights_pipeline(), Pruning(datetime(2026, 1, 5, tzinfo=UTC), batches, ranges, 9))[
        0
    ]
    assert first == (
        f"flights: {said}committed before 2026-01-05 00:00:00 UTC, or planned before then and superseded."
    )
