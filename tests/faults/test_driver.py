"""Drivers that lose their JVM, hang, run twice or are overtaken: the target stays exact, and the log says why.

The fault matrix kills drivers and workers (test_matrix.py).
"""

import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from exactbatch import Pipeline, Tuning
from exactbatch.errors import PostgresUnavailable
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.faults.drivers import SECRET, BatchLauncher, load
from support.topics import Topic
from support.waiting import wait_for


@pytest.mark.long
def test_of_two_launches_of_one_batch_one_commits_and_both_end_well(world, make_loaded, tmp_path):
    pipeline = make_loaded()
    batch_id = world.plan(pipeline)
    gates = [tmp_path / "one", tmp_path / "two"]
    drivers = [world.launch(pipeline, batch_id, f"job.after_stage=hold:{gate}") for gate in gates]
    for gate, driver in zip(gates, drivers, strict=True):
        wait_for(Path(f"{gate}.held").exists, driver=driver)
    assert SECRET not in " ".join(drivers[0].arguments)
    assert "org.apache.spark" in " ".join(drivers[0].arguments)
    assert world.staged() == 60, "neither launch dropped the other's staging tables"
    for gate in gates:
        gate.touch()
    assert [driver.wait() for driver in drivers] == [0, 0], drivers[0].output + drivers[1].output
    committed = f"batch {batch_id} committed: 32 records, 30 rows, 2 rejected, 0 tombstones, 0 dropped"
    nothing = f"batch {batch_id} was committed before: nothing written"
    assert sorted((committed in driver.output, nothing in driver.output) for driver in drivers) == [
        (False, True),
        (True, False),
    ]
    assert len(world.rows(pipeline, "distinct xmin::text, kafka_partition, kafka_offset")) == 30
    world.assert_exact(pipeline, rows=30, rejected=2)
    assert world.staged() == 0


@pytest.mark.slow
def test_driver_whose_jvm_is_killed_says_so_and_its_retry_is_exact(world, make_loaded, tmp_path):
    pipeline = make_loaded()
    batch_id = world.plan(pipeline)
    gate = tmp_path / "gate"
    driver = world.launch(pipeline, batch_id, f"job.before_stage=hold:{gate}")
    wait_for(Path(f"{gate}.held").exists, driver=driver)
    for each in psutil.Process(driver.pid).children(recursive=True):
        if each.name() == "java":
            each.kill()
    gate.touch()
    assert driver.wait() == 1, driver.output
    assert "the driver's JVM exited before the batch finished" in driver.error_line("TasksFailed")
    world.assert_nothing_written(pipeline, batch_id)
    assert world.retry(pipeline, batch_id).wrote
    world.assert_exact(pipeline, rows=30, rejected=2)


@pytest.mark.slow
def test_overtaken_driver_is_fenced_and_stopped_one_holds_nobody_up_for_long(world, make_loaded, tmp_path):
    """One driver is held back until its successor has committed; another one hangs inside publish."""
    late, hung = make_loaded(), make_loaded(tuning=Tuning(lock_timeout="3 seconds"))
    late_id, hung_id = world.plan(late), world.plan(hung)
    gate = tmp_path / "gate"
    late_driver = world.launch(late, late_id, f"job.after_stage=hold:{gate}")
    hung_driver = world.launch(hung, hung_id, "publish.before_commit=stop")
    wait_for(Path(f"{gate}.held").exists, driver=late_driver)
    successor = world.plan(late)
    assert world.retry(late, successor).wrote
    gate.touch()

    wait_for(lambda: _state(hung_driver.pid) == "T", driver=hung_driver)
    begin = time.monotonic()
    assert world.retry(hung, _plan_patiently(world, hung)).wrote
    assert time.monotonic() - begin < 3 + 60, "lock_timeout and what a busy machine takes"
    hung_driver.signal(signal.SIGCONT)

    assert late_driver.wait() == 42, late_driver.output
    line = late_driver.error_line("Fenced")
    assert f"was superseded by batch {successor}" in line
    assert hung_driver.wait() == 1, hung_driver.output
    assert "the connection to Postgres was lost" in hung_driver.error_line("PostgresUnavailable")
    for pipeline, batch_id in ((late, late_id), (hung, hung_id)):
        assert world.batch(batch_id).status == "superseded"
        world.assert_exact(pipeline, rows=30, rejected=2)


def _plan_patiently(world: BatchLauncher, pipeline: Pipeline) -> int:
    """Plan again while the pipeline is locked, as Airflow would."""
    while True:
        with suppress(PostgresUnavailable):
            return world.plan(pipeline)


def _state(pid: int) -> str:
    """R, S, D or T (stopped), as the kernel says."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.long
def test_executor_that_outlives_its_driver_commits_its_range_once_or_not_at_all(world, make_loaded, tmp_path):
    """Its Python worker waits before its locks; meanwhile a newer plan takes the batch's place."""
    # Long enough that Postgres does not end the transaction that is held open.
    pipeline: Pipeline = make_loaded(commit="partition", tuning=Tuning(lock_timeout="100 seconds"))
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
    with transaction(world.connection):
        assert not Ledger(world.connection).batches.read_committed_ranges([batch_id])[batch_id]
    world.assert_exact(pipeline, rows=30, rejected=2)


@pytest.mark.slow
def test_a_driver_tells_by_its_status_whether_a_retry_can_help(world, make_loaded, make_topic):
    """And by one line of its log what happened."""
    nowhere = world.start(["--pipeline", "pipelines.flihgts:flights", "--batches", "flights:1:"], {})
    unset = world.start(
        ["--pipeline", "pipelines.flights:flights", "--batches", "flights:1:"], {"EXACTBATCH_KAFKA": ""}
    )
    assert nowhere.wait() == 42, nowhere.output
    assert "there is no module 'pipelines.flihgts'" in nowhere.error_line("ConfigurationError")
    assert unset.wait() == 42, unset.output
    assert "the environment variable EXACTBATCH_KAFKA is not set" in unset.error_line("ConfigurationError")

    strict, down = make_loaded(), make_loaded()
    for topic in strict.topics:
        load(Topic(topic, dict(world.settings.kafka)))
    batch_id, other_id = world.plan(strict), world.plan(down)
    rejecting = world.launch(strict, batch_id)
    settings = type(world.settings)(
        kafka=world.settings.kafka, postgres=f"host=127.0.0.1 port=1 dbname=x user=u password={SECRET}"
    )
    unreachable = world.launch(down, other_id, settings=settings)
    assert rejecting.wait() == 42, rejecting.output
    assert "; max_rejects=2 allows 2. Nothing was written" in rejecting.error_line("TooManyRejects")
    world.assert_nothing_written(strict, batch_id)
    assert unreachable.wait() == 1, unreachable.output
    assert "cannot connect to Postgres" in unreachable.error_line("PostgresUnavailable")
    assert world.staged() == 0
