"""What `exactbatch status` says of batches that no asset event has announced."""

from types import SimpleNamespace
from typing import Any

import pytest

from exactbatch.operations import status


@pytest.mark.parametrize(
    ("batches", "others"),
    [
        (1, ""),
        (2, ", nor those of 1 later batch"),
        (3, ", nor those of 2 later batches"),
        (status._SHOWN, f", nor those of {status._SHOWN - 1} or more later batches"),
    ],
)
def test_the_first_batch_is_named_and_later_ones_are_counted(batches, others):
    unannounced: list[Any] = [SimpleNamespace(batch_id=7 + number) for number in range(batches)]
    assert status._unannounced(unannounced) == [
        f"batch 7: no asset event has announced its results{others}. The next run of the DAG announces them."
    ]
    assert status._unannounced([]) == []
