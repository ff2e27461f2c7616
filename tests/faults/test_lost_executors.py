"""Executors of a Spark cluster that are killed: Spark does their tasks again, and the result is exact.

Two workers of a standalone cluster run one executor each. SIGKILL ends the executor's JVM; its Python worker is
ended by its parent, or lives on where that parent was killed as well, and goes on with what it did.
"""

from typing import Final

import pytest

from exactbatch import failpoints
from exactbatch.batch.spark.python_daemon import MODULE, PROPERTY
from exactbatch.errors import StagedRowsDiffer
from exactbatch.local.child_process import wait_until_ended
from support.environment import LONG
from support.faults.cluster import SparkCluster
from support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of this module alone, whose executors have the daemon that has loaded exactbatch."""
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"), properties={PROPERTY: MODULE})
    try:
        yield cluster
    finally:
        cluster.close()


def lose(cluster: SparkCluster, *, orphans: bool = False, how_many: int = 1) -> None:
    """SIGKILL executors; their Python workers outlive them as orphans, or are ended."""
    executors = cluster.executors()
    assert len(executors) == 2
    doomed = executors[:how_many]
    daemons = [child for each in doomed for child in each.children()]
    workers = [child for each in daemons for child in each.children()]
    for each in [*(daemons if orphans else []), *doomed]:
        each.kill()
    assert wait_until_ended([*doomed, *daemons], timeout_s=30)
    if orphans:
        assert workers
        assert all(each.is_running() for each in workers)
    else:
        assert wait_until_ended(workers, timeout_s=30)


# (sink, moment, whether the Python worker lives on, how many of two executors are lost)
LOST: Final = [
    ("append", "stage.before_copy_commit", True, 1),
    ("partition", "partition.before_locks", True, 1),
    ("upsert", "read.after_records", False, 1),
    ("append", "stage.after_copy_commit", False, 1),
    ("append", "read.after_records", False, 2),
    ("append", "job.after_stage", False, 1),
    ("append", "stage.before_copy_commit", False, 2),
    ("upsert", "stage.after_copy_commit", True, 1),
    ("aggregate", "stage.before_copy_commit", True, 2),
    ("aggregate", "stage.after_copy_commit", False, 1),
    ("transform", "read.after_records", False, 1),
    ("transform", "stage.before_copy_commit", True, 1),
    ("transform", "stage.after_copy_commit", False, 1),
    ("shuffle", "read.after_records", False, 1),
    ("shuffle", "stage.before_copy_commit", True, 1),
    ("shuffle", "stage.after_copy_commit", False, 1),
    ("partition", "read.after_records", True, 1),
    ("partition", "partition.after_locks", True, 1),
    ("partition", "partition.before_commit", True, 1),
    ("partition", "partition.before_commit", False, 2),
    ("partition", "partition.after_commit", False, 1),
]
# A block that was read is lost with its executor: what is read again may not be mixed with what was staged.
READ_AGAIN: Final = {("shuffle", "stage.before_copy_commit"), ("shuffle", "stage.after_copy_commit")}


@pytest.mark.parametrize(("sink", "moment", "orphans", "how_many"), LOST if LONG else LOST[:1])
def test_tasks_of_lost_executor_are_done_again_and_result_is_exact(
    make_case, cluster, sink, moment, orphans, how_many
):
    """Where the Python worker lives on, it commits what nobody counts, or finds its range committed."""
    case = make_case(sink)
    batch_id = case.plan()
    with case.held(batch_id, moment) as batch:
        if moment in failpoints.ON_EXECUTORS:
            wait_for(lambda: len(batch.waiting()) == 2)
        lose(cluster, orphans=orphans, how_many=how_many)
        if (sink, moment) in READ_AGAIN:
            case.refused(batch.result, StagedRowsDiffer)
        else:
            assert batch.result().wrote
    assert case.process(batch_id).wrote is ((sink, moment) in READ_AGAIN)
    case.assert_exact()


def test_block_lost_with_its_executor_is_noticed_and_retry_is_exact(make_case, cluster):
    """Spark reads it again without a word, as another task attempt."""
    case = make_case("shuffle")
    batch_id = case.plan()
    with case.held(batch_id, "transform.after_read") as batch:
        lose(cluster)
        said = case.refused(batch.result, StagedRowsDiffer)
    assert "Spark lost some of the decoded records before all rows were staged" in said
    case.assert_nothing_written(batch_id)
    assert case.process(batch_id).wrote
    case.assert_exact()
