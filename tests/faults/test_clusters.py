"""A Spark cluster as sites set it up: tasks done twice at a time, executors that come and go, one try for a task.

The master, two workers and the driver are real; all of these settings are on at the same time.
"""

import signal
import time
from typing import Final

import pytest

from exactbatch.errors import StagedRowsDiffer, TasksFailed
from support.environment import LONG
from support.faults.cases import SINKS
from support.faults.cluster import SparkCluster
from support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SITE: Final = {
    # Spark takes a job for a short one where its tasks fit into one executor.
    "spark.executor.cores": "2",
    # A task that takes half a second gets a second attempt beside it.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.speculation.task.duration.threshold": "500ms",
    # An executor that has had no task for two seconds ends, and the blocks that it keeps with it.
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "2s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    # The first task that fails ends its job.
    "spark.task.maxFailures": "1",
}
# The moments at which all attempts of a task wait for each other, by the sink.
AT_ONCE: Final = {
    "append": "stage.before_copy_commit",
    "partition": "partition.before_locks",
    "transform": "stage.before_copy_commit",
    "shuffle": "read.after_records",
    "upsert": "stage.after_copy_commit",
    "aggregate": "stage.before_copy_commit",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of this module alone."""
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"), cores=2, await_executors=0, properties=SITE)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.parametrize("sink", SINKS if LONG else ["append", "partition"])
def test_two_attempts_of_a_task_at_the_same_time_count_once(make_case, sink):
    """Speculation: both attempts of both tasks have read their range, and go on at the same moment."""
    case = make_case(sink)
    batch_id = case.plan()
    with case.held(batch_id, AT_ONCE[sink]) as batch:
        wait_for(lambda: len(batch.waiting()) >= 4)
        assert batch.result().wrote
    assert not case.process(batch_id).wrote
    case.assert_exact()


@pytest.mark.parametrize("sink", SINKS if LONG else ["append"])
def test_executors_that_end_between_batches_and_within_one_are_started_again(make_case, cluster, sink):
    """Dynamic allocation: none is left where nothing is to do, and the next batch gets new ones."""
    case = make_case(sink)
    assert case.process(case.plan()).wrote
    wait_for(lambda: cluster.executors() == [])
    case.produce()
    batch_id = case.plan()
    with case.held(batch_id, "job.after_stage") as batch:
        wait_for(lambda: cluster.executors() == [])
        assert batch.result().wrote
    case.assert_exact()


@pytest.mark.long
def test_blocks_that_end_with_an_idle_executor_are_noticed(make_case, cluster):
    """A transform that had no task for a while would read its records again."""
    case = make_case("shuffle")
    batch_id = case.plan()
    with case.held(batch_id, "transform.after_read") as batch:
        wait_for(lambda: cluster.executors() == [])
        case.refused(batch.result, StagedRowsDiffer)
    case.assert_nothing_written(batch_id)
    assert case.process(batch_id).wrote
    case.assert_exact()


@pytest.mark.parametrize("sink", SINKS if LONG else ["append"])
def test_task_that_fails_once_ends_batch_and_retry_is_exact(make_case, cluster, sink):
    """spark.task.maxFailures is 1."""
    case = make_case(sink)
    batch_id = case.plan()
    moment = "read.after_records"
    case.refused(
        lambda: cluster.process(case.pipeline, batch_id, case.settings, moment, "error"), TasksFailed
    )
    assert case.process(batch_id).wrote
    case.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize("sink", SINKS)
def test_executors_decommissioned_finish_their_tasks_or_lose_them_to_others(make_case, cluster, sink):
    """As a cloud takes its cheap machines away: a signal first, then the end."""
    case = make_case(sink)
    batch_id = case.plan()
    with case.held(batch_id, AT_ONCE[sink]) as batch:
        for executor in cluster.executors()[:1]:
            executor.send_signal(signal.SIGPWR)
        time.sleep(2)
        assert batch.result().wrote
    case.assert_exact()
