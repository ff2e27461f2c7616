"""A Postgres that is full, locked, restarted or out of connections in the middle of a batch.

Each batch fails with an error that says so and leaves nothing behind, or Spark tries its task again; once the
trouble is over, the same batch is exact.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Tuning, failpoints
from exactbatch.batch import job as batch_job
from exactbatch.batch.staging import staging_tables
from exactbatch.errors import ExactbatchError, Fenced, PostgresUnavailable, StagedRowsDiffer, TasksFailed
from exactbatch.local.child_process import wait_until_ended
from exactbatch.local.postgres import hand_over, postgres_account
from exactbatch.postgres.connection import connect
from support.environment import LONG
from support.faults.cases import RECORDS, Case
from support.faults.held import InProcess
from support.stacks import new_stack
from support.waiting import wait_for


@pytest.fixture(scope="module")
def server():
    """A Postgres of this module alone, with few connections."""
    stack = new_stack("faults")
    try:
        stack.postgres.configure({}, {"max_connections": "20", "shared_buffers": "16MB"})
        stack.postgres.start()
        yield stack.postgres
    finally:
        stack.down(delete=True)


MakeCase = Callable[..., Case]


@pytest.fixture
def make_case(spark, server, make_topic, tmp_path):
    """A pipeline with a sink by its name, in a database of its own: make_case("append")."""

    made: list[str] = []

    def make(sink: str, tablespace: str = "pg_default", **changes: Any) -> Case:
        topic = make_topic(2)
        execute(server, f"create database {topic.name} tablespace {tablespace}")
        made.append(topic.name)
        return Case(
            InProcess(spark), topic, make_dsn(server.dsn, dbname=topic.name), tmp_path, sink, **changes
        )

    yield make
    for name in made:
        execute(server, f"drop database {name} with (force)")


def execute(server: Any, statement: str) -> None:
    """Run what no transaction can do."""
    with closing(psycopg2.connect(server.dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)


@contextmanager
def no_connection_left(dsn: str) -> Iterator[None]:
    """Take every connection that the server gives."""
    with ExitStack() as taken:

        def take() -> None:
            while True:
                taken.enter_context(closing(psycopg2.connect(dsn)))

        with pytest.raises(psycopg2.OperationalError, match="too many clients already"):
            take()
        yield


CONNECTING: Final = [("append", "job.before_stage"), ("partition", "job.before_ranges")]


@pytest.mark.parametrize(("sink", "moment"), CONNECTING if LONG else CONNECTING[:1])
def test_server_without_connections_is_named_and_retry_is_exact(make_case, sink, moment):
    """For the driver at its start, and for tasks whose driver came in time."""
    case = make_case(sink)
    batch_id = case.plan()
    with no_connection_left(case.dsn):
        said = case.refused(lambda: case.process(batch_id), PostgresUnavailable)
    assert "too many clients already" in said
    with case.held(batch_id, moment) as batch, no_connection_left(case.dsn):
        said = case.refused(batch.result, TasksFailed)
    assert "too many clients already" in said
    case.assert_nothing_written(batch_id)
    assert case.process(batch_id).wrote
    case.assert_exact()


def test_rejects_that_find_no_connection_left_are_named_and_retry_is_exact(make_case):
    """A record that does not fit the target is staged as a reject by the driver, after the tasks."""
    case = make_case("append", max_rejects=1)
    assert case.process(case.plan()).wrote
    execute_in(case, f"alter table public.{case.pipeline.name} alter id type smallint")
    case.topic.produce(case.value(100_000))
    batch_id = case.plan()
    with case.held(batch_id, "job.after_stage") as batch, no_connection_left(case.dsn):
        said = case.refused(batch.result, PostgresUnavailable)
    assert "the server has no free session" in said
    assert "too many clients already" in said
    assert case.process(batch_id).batch.rejected == 1
    case.sent += 1
    case.assert_audited()


@pytest.fixture(scope="module")
def small_disk(server):
    """A file system of a few MB that holds the tablespace `small`."""
    # Not in the server's folder: Postgres asks access() for tablespaces, which does not count its capabilities.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0755", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small file system takes the rights of root: {mounted.stderr.strip()}")
    try:
        (folder / "data").mkdir()
        if (account := postgres_account()) is not None:
            hand_over(folder / "data", account)
        execute(server, f"create tablespace small location '{folder / 'data'}'")
        yield folder
    finally:
        server.stop()
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a file system to its last byte."""
    ballast = disk / "ballast"
    try:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert os.statvfs(disk).f_bavail == 0
        yield
    finally:
        ballast.unlink()


FULL: Final = [
    ("append", "job.after_stage", PostgresUnavailable),
    ("upsert", "job.after_stage", PostgresUnavailable),
    ("aggregate", "job.after_stage", PostgresUnavailable),
    ("append", "job.before_stage", TasksFailed),
    ("partition", "job.before_ranges", TasksFailed),
]


@pytest.mark.parametrize(("sink", "moment", "error"), FULL if LONG else FULL[:2])
def test_a_full_disk_is_named_and_the_retry_is_exact(make_case, small_disk, sink, moment, error):
    """It fills up before tasks stage their rows, or between staging and publish."""
    case = make_case(sink, tablespace="small")
    batch_id = case.plan()
    with case.held(batch_id, moment) as batch, full(small_disk):
        said = case.refused(batch.result, error)
    assert "No space left on device" in said
    case.assert_nothing_written(batch_id)
    assert case.process(batch_id).wrote
    case.assert_exact()


def execute_in(case: Case, statement: str) -> None:
    """Run a statement in the database of a case."""
    with session(case, statement):
        pass


@contextmanager
def session(case: Case, *statements: str) -> Iterator[Any]:
    """Another session that has done these in a transaction which is open."""
    with closing(psycopg2.connect(case.dsn)) as connection:
        with connection.cursor() as cursor:
            for each in statements:
                cursor.execute(each)
            yield cursor
        connection.commit()


TIMEOUTS: Final = [
    # (sink, where it waits first, the pipeline's timeouts, error, what the message says)
    (
        "append",
        "job.after_stage",
        {"lock_timeout": "3 seconds"},
        PostgresUnavailable,
        "a lock was not granted within the lock_timeout",
    ),
    (
        "upsert",
        "job.after_stage",
        {"statement_timeout": "3 seconds"},
        PostgresUnavailable,
        "statement timeout",
    ),
    ("partition", "job.before_ranges", {"lock_timeout": "3 seconds"}, TasksFailed, "lock timeout"),
    (
        "aggregate",
        "job.after_stage",
        {"lock_timeout": "1 second"},
        PostgresUnavailable,
        "a lock was not granted within the lock_timeout",
    ),
]


@pytest.mark.parametrize(("sink", "moment", "timeouts", "error", "words"), TIMEOUTS if LONG else TIMEOUTS[:2])
def test_target_locked_is_named_after_timeout_and_retry_is_exact(
    make_case, sink, moment, timeouts, error, words
):
    """The lock_timeout or the statement_timeout of the pipeline; that of a login does not count."""
    case = make_case(sink, tuning=Tuning(**{"lock_timeout": "1 minute", **timeouts}))
    batch_id = case.plan()
    with (
        case.held(batch_id, moment, lock_timeout="1ms", statement_timeout="1ms") as batch,
        session(case, f"lock table public.{case.pipeline.name} in share mode"),
    ):
        assert words in case.refused(batch.result, error)
    case.assert_nothing_written(batch_id)
    assert case.process(batch_id).wrote
    case.assert_exact()


def test_deadlock_with_another_writer_is_named_and_retry_is_exact(make_case):
    """Publish writes rows in the order of their keys, and another session in the reverse order."""
    case = make_case("upsert")
    case.process(case.plan())
    case.produce()
    batch_id = case.plan()
    touch = f"update public.{case.pipeline.name} set name = name where id = {{}}"
    with (
        case.held(batch_id, "publish.after_advance", deadlock_timeout="3s") as batch,
        session(case, "set deadlock_timeout = '1h'", touch.format(RECORDS - 1)) as cursor,
    ):
        batch.let_go()
        wait_for(lambda: case.rows("select from pg_stat_activity where wait_event_type = 'Lock'"))
        cursor.execute(touch.format(0))  # waits, until publish gives way
        said = case.refused(batch.result, PostgresUnavailable)
    assert "to resolve a deadlock with another session" in said
    assert case.process(batch_id).wrote
    case.assert_exact()


def terminate(case: Case, application: str) -> None:
    """End the sessions that bear this name; one that is about to end by itself may be gone before."""
    asked = dict(
        case.rows(
            "select pid, pg_terminate_backend(pid, 60000) from pg_stat_activity "
            f"where application_name = '{application}' and datname = '{case.pipeline.name}'"
        )
    )
    assert True in asked.values()
    sessions = f"select pid from pg_stat_activity where application_name = '{application}'"
    wait_for(lambda: not {pid for (pid,) in case.rows(sessions)} & asked.keys())


TASKS: Final = [
    ("append", "stage.before_copy_commit"),
    ("partition", "partition.before_commit"),
    ("append", "read.after_records"),
    ("upsert", "read.after_records"),
    ("aggregate", "stage.before_copy_commit"),
    ("partition", "read.after_records"),
    ("partition", "partition.before_locks"),
]


@pytest.mark.parametrize(("sink", "moment"), TASKS if LONG else TASKS[:1])
def test_tasks_whose_connection_is_ended_before_their_commit_are_tried_again(make_case, sink, moment):
    """In the middle of COPY, and before the transaction of the COPY commits; Spark does it."""
    case = make_case(sink)
    with case.held(case.plan(), moment) as batch:
        terminate(case, "exactbatch task")
        assert batch.result().wrote
    case.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize("sink", ["append", "partition"])
def test_a_copy_may_take_longer_than_the_login_lets_a_statement(make_case, sink):
    case = make_case(sink)
    with case.held(case.plan(), "read.after_records", statement_timeout="4s") as batch:
        time.sleep(4.5)
        assert batch.result().wrote
    case.assert_exact()


def restart(server: Any, number: signal.Signals) -> None:
    """End the server by a signal, and start it again."""
    if number == signal.SIGKILL:
        server.kill()
    else:  # what `pg_ctl -m immediate` does
        postmaster = psutil.Process(server.pid)
        postmaster.send_signal(number)
        assert wait_until_ended([postmaster], timeout_s=30)
    server.start()


# (sink, moment, signal, whether the batch was committed)
RESTARTS: Final = [
    ("append", "job.after_stage", signal.SIGKILL, False),
    ("upsert", "publish.after_commit", signal.SIGKILL, True),
    ("append", "publish.before_commit", signal.SIGQUIT, False),
    ("aggregate", "publish.after_insert", signal.SIGKILL, False),
    ("partition", "partition.before_commit", signal.SIGQUIT, False),
    ("append", "publish.after_commit", signal.SIGQUIT, True),
    ("upsert", "publish.after_insert", signal.SIGQUIT, False),
    ("aggregate", "publish.before_commit", signal.SIGQUIT, False),
    ("append", "stage.before_copy_commit", signal.SIGKILL, False),
    ("aggregate", "read.after_records", signal.SIGKILL, False),
    ("partition", "partition.after_locks", signal.SIGKILL, False),
    ("partition", "partition.before_batch_commit", signal.SIGKILL, False),
    ("partition", "partition.after_batch_commit", signal.SIGQUIT, True),
]


@pytest.mark.parametrize(("sink", "moment", "number", "committed"), RESTARTS if LONG else RESTARTS[:2])
def test_server_restarted_fails_batch_and_retry_is_exact(make_case, server, sink, moment, number, committed):
    """Spark tries tasks again, but the driver has lost its connection, and the staging tables are empty."""
    case = make_case(sink)
    batch_id = case.plan()
    with case.held(batch_id, moment) as batch:
        restart(server, number)
        case.refused(batch.result, PostgresUnavailable, StagedRowsDiffer, TasksFailed)
    if sink != "partition" and not committed:
        case.assert_nothing_written(batch_id)
    assert case.process(batch_id).wrote is not committed
    if committed:
        # Nothing was launched that could drop the staging tables; the next batch does it.
        case.produce()
        assert case.process(case.plan()).wrote
    case.assert_exact()


def test_server_that_takes_no_writes_is_named_and_retry_is_exact(make_case, server):
    """As a standby does, or a server whose provider has closed it because its disk is full."""
    case = make_case("append")
    batch_id = case.plan()
    read_only = f"alter database {case.pipeline.name} set default_transaction_read_only"
    execute(server, f"{read_only} = on")
    said = case.refused(lambda: case.process(batch_id), PostgresUnavailable)
    assert "the server is a standby or read-only" in said
    execute(server, f"{read_only} = off")
    assert case.process(batch_id).wrote
    case.assert_exact()


@contextmanager
def stopped_at(moment: str, case: Case, batch_id: int, folder: Path) -> Iterator[Callable[[], str]]:
    """Process a batch whose publish runs in a process of its own, which stops at a moment.

    Gives what lets it go on, and tells what it ends with.
    """
    said, children = folder / "said", []

    def stopping(publish: Callable[..., Any]) -> Callable[..., Any]:
        def run(_connection: Any, *arguments: Any, **named: Any) -> Any:
            child = os.fork()
            if child == 0:
                failpoints.actions[moment] = "stop"
                try:
                    publish(
                        connect(case.dsn, application="stopped", timeout=case.pipeline.tuning.lock_seconds),
                        *arguments,
                        **named,
                    )
                    said.write_text("committed")
                except ExactbatchError as error:
                    said.write_text(f"{type(error).__name__}: {error}")
                finally:
                    os._exit(0)
            children.append(child)
            _, status = os.waitpid(child, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"{moment} did not come"
            raise Stopped

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_job, "publish", stopping(batch_job.publish))
        # The launch's staging tables stay: its driver has not ended.
        patch.setattr(staging_tables, "_drop", lambda *_: None)
        with pytest.raises(Stopped):
            case.process(batch_id)

    def go_on() -> str:
        os.kill(children[0], signal.SIGCONT)
        os.waitpid(children[0], 0)
        children.clear()
        return said.read_text()

    try:
        yield go_on
    finally:
        for each in children:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)


class Stopped(Exception):
    """The process that publishes was stopped."""


# (sink, moment, whether a newer plan takes the batch's place, rather than another launch of the batch)
STOPS: Final = [
    ("append", "publish.before_commit", False),
    ("upsert", "publish.after_insert", True),
    ("append", "publish.after_advance", False),
    ("append", "publish.after_insert", True),
    ("upsert", "publish.before_commit", False),
    ("aggregate", "publish.after_insert", False),
    ("aggregate", "publish.before_commit", True),
]


@pytest.mark.parametrize(("sink", "moment", "replan"), STOPS if LONG else STOPS[:1])
def test_driver_stopped_in_publish_is_overtaken_and_ends_without_trace(
    make_case, tmp_path, sink, moment, replan
):
    """Its transaction is ended by the server after lock_timeout, and its locks go with it."""
    case = make_case(sink, tuning=Tuning(lock_timeout="3 seconds"))
    batch_id = case.plan()
    with stopped_at(moment, case, batch_id, tmp_path) as go_on:
        wait_for(lambda: not case.rows("select from pg_stat_activity where application_name = 'stopped'"))
        successor = case.plan() if replan else batch_id
        assert case.process(successor).wrote
        before = case.rows(f"select xmin::text, ctid::text, * from public.{case.pipeline.name}")
        said = go_on()
    assert said.startswith("PostgresUnavailable: the connection to Postgres was lost")
    assert case.rows(f"select xmin::text, ctid::text, * from public.{case.pipeline.name}") == before
    if replan:
        with pytest.raises(Fenced, match=f"superseded by batch {successor}"):
            case.process(batch_id)
    else:
        assert not case.process(batch_id).wrote
    case.assert_exact()


@pytest.mark.long
def test_workers_stopped_with_their_locks_hold_nobody_up_for_long(make_case):
    """A newer plan takes the batch's place once the server has ended their transactions; then they go on."""
    case = make_case("partition", tuning=Tuning(lock_timeout="3 seconds"))
    batch_id = case.plan()
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(
            case.engine.process, case.pipeline, batch_id, case.settings, "partition.before_commit", "stop"
        )
        wait_for(lambda: len(stopped()) == 2)
        wait_for(
            lambda: not case.rows("select from pg_stat_activity where application_name = 'exactbatch task'")
        )
        successor = case.plan()
        for each in stopped():
            each.send_signal(signal.SIGCONT)
        with pytest.raises(Fenced, match="was superseded by one that was planned later"):
            batch.result(timeout=120)
    assert case.rows("select from exactbatch.coverage") == []
    assert case.process(successor).wrote
    case.assert_exact()


def stopped() -> list[psutil.Process]:
    """The children of this process that were stopped."""
    children = psutil.Process().children(recursive=True)
    return [each for each in children if each.status() == psutil.STATUS_STOPPED]
