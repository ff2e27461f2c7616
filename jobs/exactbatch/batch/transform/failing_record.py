"""Search for the record that a transform fails for, by bisection."""

import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from exactbatch.batch.spark.spark_errors import cause
from exactbatch.batch.transform.transform_plan import convert_nested_to_json, plan_transform
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline

SEARCH_TIME: Final = 120.0  # seconds


@dataclass(frozen=True)
class FailingRecords:
    """Ranges, in order, over whose records a transform fails again, and the error."""

    ranges: list[OffsetRange]
    error: str


class FailingRecordSearch:
    """Runs the transform over all records and, if that fails again, over halves, until one record is left or the
    time is over."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, decoded: DataFrame) -> None:
        self._context, self._pipeline, self._decoded = spark.sparkContext, pipeline, decoded
        self._deadline = time.monotonic() + SEARCH_TIME

    def run(self, ranges: list[OffsetRange]) -> FailingRecords | None:
        """Return a record for which the transform fails by itself, or the records among which it is when the
        time is over; None if there is no such record."""
        failing = self._failing(ranges)
        while failing is not None and (len(failing.ranges) > 1 or len(failing.ranges[0]) > 1):
            lower, upper = _halves(failing.ranges)
            smaller = self._failing(lower) or self._failing(upper)
            if smaller is None and self._is_over:
                return failing
            failing = smaller
        return failing

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _failing(self, ranges: list[OffsetRange]) -> FailingRecords | None:
        if self._is_over:
            return None
        tag = f"exactbatch-search-{uuid.uuid4().hex}"
        timer = threading.Timer(
            max(0.0, self._deadline - time.monotonic()), lambda: self._context.cancelJobsWithTag(tag)
        )
        timer.start()
        self._context.addJobTag(tag)
        try:
            records = self._decoded.where(_are_in(ranges))
            rows = convert_nested_to_json(plan_transform(self._pipeline, records))
            rows.write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            return None if self._is_over else FailingRecords(ranges, cause(error))
        finally:
            self._context.removeJobTag(tag)
            timer.cancel()
        return None


def _halves(ranges: list[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    if len(ranges) > 1:
        return ranges[: len(ranges) // 2], ranges[len(ranges) // 2 :]
    lower, upper = ranges[0].cut(ranges[0].from_offset + len(ranges[0]) // 2)
    assert lower is not None
    assert upper is not None
    return [lower], [upper]


def _are_in(ranges: Sequence[OffsetRange]) -> Any:
    """Return a Spark condition that holds for the records in ranges that follow each other in a batch."""
    first, last = ranges[0], ranges[-1]
    if len(ranges) == 1:
        # Spark skips cached blocks by conditions of this form.
        return (
            (F.col("kafka_topic") == first.topic)
            & (F.col("kafka_partition") == first.partition)
            & F.col("kafka_offset").between(first.from_offset, first.until_offset - 1)
        )
    position = F.struct("kafka_topic", "kafka_partition", "kafka_offset")
    return (position >= _position(first.topic, first.partition, first.from_offset)) & (
        position < _position(last.topic, last.partition, last.until_offset)
    )


def _position(topic: str, partition: int, offset: int) -> Any:
    return F.struct(
        F.lit(topic).alias("kafka_topic"),
        F.lit(partition).cast("int").alias("kafka_partition"),
        F.lit(offset).cast("long").alias("kafka_offset"),
    )
