"""The two ways to read from Kafka, and the choice of one of them for all reads of this process."""

from typing import Any, Final

import pytest

from exactbatch.compiled.availability import VARIABLE
from exactbatch.kafka import range_consumer as opening
from exactbatch.kafka.native_client import NativeClient

# "messages" creates an object for each record, "native" does not.
READERS: Final = ("messages", "native")


def read_with(patch: pytest.MonkeyPatch, reader: str, spark: Any = None) -> None:
    """Let batches and audits in this process read with one of READERS until `patch` is undone.

    A range that is read alone, but with the other one, fails with AssertionError. Ranges that are read together, and
    samples, always have an object for each record. The tasks of a session `spark` read in the same way.
    """
    is_native = reader == "native"
    open_consumer: Any = opening.open_consumer

    def checked(*arguments: Any, partitions: int, keeps_records: bool = False, **named: Any) -> Any:
        consumer = open_consumer(*arguments, partitions=partitions, keeps_records=keeps_records, **named)
        assert isinstance(consumer, NativeClient) == (is_native and partitions == 1 and not keeps_records)
        return consumer

    fast_path = "0" if is_native else "off"
    patch.setenv(VARIABLE, fast_path)
    if spark is not None:
        patch.setitem(spark.sparkContext.environment, VARIABLE, fast_path)
    patch.setattr("exactbatch.kafka.reader.open_consumer", checked)
