"""Work with Postgres that is given up when Postgres alone is waited for too long."""

import threading
import time
from collections.abc import Iterator

import pytest

from exactbatch.batch.rows.watchdog import StallTimeout, run_with_stall_timeout
from exactbatch.errors import PostgresUnavailable


def test_it_returns_and_raises_what_the_work_does():
    def fails(_: StallTimeout) -> None:
        raise TimeoutError("its own")

    assert run_with_stall_timeout(1, lambda _: 7) == 7
    with pytest.raises(TimeoutError, match="its own"):
        run_with_stall_timeout(1, fails)


def test_work_that_waits_for_ever_is_given_up():
    ends = threading.Event()
    began = time.monotonic()
    with pytest.raises(PostgresUnavailable, match=r"within 0\.1 s.*statement_timeout"):
        run_with_stall_timeout(0.1, lambda _: ends.wait(30))
    ends.set()
    assert time.monotonic() - began < 10


def test_time_that_batches_take_to_be_made_is_not_that_of_postgres():
    def slow() -> Iterator[int]:
        for each in range(3):
            time.sleep(0.7)
            yield each

    assert run_with_stall_timeout(0.5, lambda timeout: list(timeout.watch(slow()))) == [0, 1, 2]


def test_neither_is_the_time_that_is_spent_elsewhere():
    def asks_kafka(timeout: StallTimeout) -> str:
        with timeout.paused():
            time.sleep(1.5)
        return "done"

    assert run_with_stall_timeout(0.5, asks_kafka) == "done"


def test_a_postgres_that_answers_too_late_gets_no_more():
    taken: list[int] = []
    ended, go = threading.Event(), threading.Event()

    def takes_its_time(timeout: StallTimeout) -> None:
        try:
            for each in timeout.watch(iter(range(5))):
                taken.append(each)
                go.wait(30)
        finally:
            ended.set()

    with pytest.raises(PostgresUnavailable):
        run_with_stall_timeout(0.1, takes_its_time)
    go.set()
    assert ended.wait(30)
    assert taken == [0]
