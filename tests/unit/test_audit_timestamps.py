"""The auditor takes Kafka's timestamps as the reader does, without sharing its code."""

from typing import Any

import numpy as np

from exactbatch.audit import log_records
from exactbatch.kafka.records import MessageRecords


class Told:
    """A record that tells its timestamp alone: its type, and milliseconds."""

    def __init__(self, kind: int, milliseconds: int) -> None:
        self._told = kind, milliseconds

    def timestamp(self) -> tuple[int, int]:
        return self._told


def test_time_that_record_has_not_or_postgres_cannot_hold_is_null_for_both() -> None:
    nanoseconds = 1_767_225_600_000_000_000
    messages: list[Any] = [
        *(Told(1, ms) for ms in (1_767_225_600_000, -1, -2, 0, nanoseconds, -nanoseconds)),
        Told(0, 0),
        Told(2, 1_767_225_600_123),
    ]
    found = log_records.LogRecords(messages).timestamps()
    assert found.null_count == 4
    assert found.to_pylist() == MessageRecords(messages, np.arange(len(messages))).timestamps().to_pylist()
