"""Rejects that a driver holds are bounded by all that a record has."""

import pytest

from exactbatch.batch.rows import rejected
from exactbatch.batch.rows.rejected import Rejected, reject_batches
from exactbatch.kafka.records import KafkaRecord


@pytest.mark.parametrize(
    "record",
    [
        KafkaRecord(0, None, b"v" * 100, None),
        KafkaRecord(0, b"k" * 100, None, []),
        KafkaRecord(0, None, None, [("trace", b"h" * 60), ("none", None), ("more", b"h" * 40)]),
    ],
    ids=["value", "key", "headers"],
)
def test_a_batch_ends_with_so_many_bytes(monkeypatch, record):
    monkeypatch.setattr(rejected, "_HELD_BYTES", 200)
    found = reject_batches(Rejected("t", 0, record, "bad", 1) for _ in range(5))
    assert [len(batch) for batch in found] == [2, 2, 1]
