"""Rejects that a driver holds are bounded by all that a record has."""

import pytest

from exactbatch.batch.rows import rejects
from exactbatch.batch.rows.rejects import Rejected, reject_batches
from exactbatch.kafka.records import Record


@pytest.mark.parametrize(
    "record",
    [
        Record(0, None, b"v" * 100, None),
        Record(0, b"k" * 100, None, []),
        Record(0, None, None, [("trace", b"h" * 60), ("none", None), ("more", b"h" * 40)]),
    ],
    ids=["value", "key", "headers"],
)
def test_a_batch_ends_with_so_many_bytes(monkeypatch, record):
    monkeypatch.setattr(rejects, "_HELD_BYTES", 200)
    found = reject_batches(Rejected("t", 0, record, "bad", 1) for _ in range(5))
    assert [len(batch) for batch in found] == [2, 2, 1]
