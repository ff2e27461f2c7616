"""A job that Spark gives no slot is given up."""

import threading
import time
from typing import Any

import pytest
from pyspark import InheritableThread

from exactbatch.batch.spark.waiting_jobs import launch_timeout
from exactbatch.errors import TasksFailed


@pytest.fixture
def full(spark):
    """Spark, whose two slots another job holds."""

    def hold(numbers: Any) -> Any:
        time.sleep(30)
        return numbers

    def job() -> None:
        spark.sparkContext.setJobGroup("held", "holds all slots")
        with pytest.raises(Exception, match="cancelled"):
            spark.sparkContext.parallelize([1, 2], 2).mapPartitions(hold).collect()

    thread = InheritableThread(target=job)
    thread.start()
    tracker = spark.sparkContext.statusTracker()
    while not any(
        stage and stage.numActiveTasks == 2
        for stage in map(tracker.getStageInfo, tracker.getActiveStageIds())
    ):
        time.sleep(0.05)
    yield spark
    spark.sparkContext.cancelJobGroup("held")
    thread.join(40)
    assert not thread.is_alive()


def test_a_job_that_gets_no_slot_is_given_up(full):
    context = full.sparkContext
    context.setLocalProperty("spark.job.description", "as it was")
    began = time.monotonic()
    with (
        pytest.raises(TasksFailed, match=r"^batch 1: Spark has run no task for 2 s, .* launch_timeout sets"),
        launch_timeout(full, 2, "batch 1"),
    ):
        context.parallelize([1], 1).collect()
    assert 2 < time.monotonic() - began < 28  # the job that holds the slots lasts 30 s
    assert context.getLocalProperty("spark.job.description") == "as it was"
    context.setLocalProperty("spark.job.description", None)
    assert [each.name for each in threading.enumerate() if each.name == "jobs"] == []
