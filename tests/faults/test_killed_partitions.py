"""commit="partition": drivers and executors that are killed around the commits of their ranges."""

import signal
from pathlib import Path

import pytest

from exactbatch import Pipeline
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.environment import LONG
from support.faults.drivers import MakeLoaded, World, wait_for

# How many ranges are committed by then, at least and at most: two are processed at a time.
DRIVER_MOMENTS = {
    "job.before_ranges": 0,
    "job.after_ranges": 2,
    "partition.before_batch_commit": 2,
}
EXECUTOR_MOMENTS = (
    "partition.before_commit",
    "partition.after_commit",
    *(("partition.before_locks", "partition.after_locks") if LONG else ()),
)


def committed(world: World, batch_id: int) -> int:
    """How many ranges of a batch are committed."""
    with transaction(world.connection):
        return len(Ledger(world.connection).committed_ranges(batch_id))


def test_a_driver_that_is_killed_between_the_ranges_and_the_batch_is_finished_by_its_retry(
    world: World, make_loaded: MakeLoaded
) -> None:
    """What its executors have committed stays, and is not written again."""
    launched = []
    for moment, ranges in DRIVER_MOMENTS.items():
        pipeline = make_loaded(commit="partition")
        batch_id = world.plan(pipeline)
        launched.append((pipeline, batch_id, ranges, world.launch(pipeline, batch_id, f"{moment}=kill")))
        if len(launched) % 2 == 0:
            launched[-1][-1].wait()  # two JVMs at a time
    for pipeline, batch_id, ranges, driver in launched:
        assert driver.wait() == -signal.SIGKILL, driver.output
        assert world.batch(batch_id).status == "planned"
        assert committed(world, batch_id) == ranges
        before = world.rows(pipeline, "xmin::text, ctid::text, id")
        assert len(before) == 15 * ranges
        published = world.retry(pipeline, batch_id)
        assert (published.wrote, published.batch.records, published.batch.rejected) == (True, 32, 2)
        assert ranges == 0 or world.rows(pipeline, "xmin::text, ctid::text, id") == before
        world.assert_exact(pipeline, rows=30, rejected=2)


@pytest.mark.long
def test_a_driver_that_is_killed_before_it_hears_of_the_commit_of_its_batch_is_finished(
    world: World, make_loaded: MakeLoaded
) -> None:
    pipeline = make_loaded(commit="partition")
    batch_id = world.plan(pipeline)
    driver = world.launch(pipeline, batch_id, "partition.after_batch_commit=kill")
    assert driver.wait() == -signal.SIGKILL, driver.output
    batch = world.batch(batch_id)
    assert batch.status == "committed"
    again = world.retry(pipeline, batch_id)
    assert (again.wrote, again.batch) == (False, batch)
    world.assert_exact(pipeline, rows=30, rejected=2)


def test_an_executor_that_is_killed_around_its_commit_is_tried_again_and_writes_once(
    world: World, make_loaded: MakeLoaded, tmp_path: Path
) -> None:
    """A Python worker is killed at each step of a range; Spark tries the task again in the same job."""
    for pair in (EXECUTOR_MOMENTS[:2], EXECUTOR_MOMENTS[2:]):
        launched = []
        for moment in pair:
            pipeline = make_loaded(commit="partition")
            once = tmp_path / moment
            batch_id = world.plan(pipeline)
            driver = world.launch(pipeline, batch_id, f"{moment}=kill:{once}")
            launched.append((pipeline, batch_id, driver, once))
        for pipeline, batch_id, driver, once in launched:
            assert driver.wait() == 0, driver.output
            assert once.exists(), "a worker was killed there"
            batch = world.batch(batch_id)
            assert (batch.status, batch.rows, batch.rejected) == ("committed", 30, 2)
            world.assert_exact(pipeline, rows=30, rejected=2)


@pytest.mark.long
def test_executors_that_are_killed_in_every_try_fail_the_job_and_the_batch_can_be_tried_again(
    world: World, make_loaded: MakeLoaded
) -> None:
    """Before the commit nothing is there; after it, a try finds the range committed and does not get that far."""
    before, after = make_loaded(commit="partition"), make_loaded(commit="partition")
    before_id, after_id = world.plan(before), world.plan(after)
    drivers = [
        world.launch(before, before_id, "partition.before_commit=kill"),
        world.launch(after, after_id, "partition.after_commit=kill"),
    ]
    assert drivers[0].wait() == 1, drivers[0].output
    assert "a task failed to commit its range" in drivers[0].error_line("TasksFailed")
    assert drivers[1].wait() == 0, drivers[1].output
    world.assert_nothing_written(before, before_id)
    world.retry(before, before_id)
    for pipeline in (before, after):
        world.assert_exact(pipeline, rows=30, rejected=2)


@pytest.mark.long
def test_an_executor_that_outlives_its_driver_commits_its_range_once_or_not_at_all(
    world: World, make_loaded: MakeLoaded, tmp_path: Path
) -> None:
    """Its Python worker waits before its locks; meanwhile a newer plan takes the batch's place."""
    # Long enough that Postgres does not end the transaction that is held open.
    pipeline: Pipeline = make_loaded(commit="partition", publish_timeout=100)
    gate = tmp_path / "gate"
    batch_id = world.plan(pipeline)
    driver = world.launch(pipeline, batch_id, f"partition.before_locks=hold:{gate}")
    wait_for(Path(f"{gate}.held").exists, driver=driver)
    successor = world.plan(pipeline)
    assert world.retry(pipeline, successor).batch.rows == 30
    gate.touch()
    assert driver.wait() == 42, driver.output
    assert "was superseded by one that was planned later" in driver.error_line("Fenced")
    assert world.batch(batch_id).status == "superseded"
    assert committed(world, batch_id) == 0
    world.assert_exact(pipeline, rows=30, rejected=2)
