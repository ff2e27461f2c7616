"""Blocks of code that take too long, and those that do not."""

import os
import threading

import pytest

from exactbatch.postgres.deadlines import Deadlines

LONG = 30.0  # seconds, which no block here takes


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines()


def test_a_block_that_takes_too_long_is_told_within_it(deadlines):
    missed = threading.Event()
    with deadlines.within(0.01, missed.set):
        assert missed.wait(LONG)


def test_a_shorter_deadline_is_kept_beside_longer_ones_that_are_watched_already(deadlines):
    late, soon = threading.Event(), threading.Event()
    with deadlines.within(LONG, late.set):
        for _ in range(2):  # the thread waits for the first, and then for the first again
            soon.clear()
            with deadlines.within(0.01, soon.set):
                assert soon.wait(LONG)
    assert not late.is_set()


def test_a_deadline_comes_after_a_time_in_which_there_was_none(deadlines):
    missed = threading.Event()
    with deadlines.within(0.01, missed.set):
        assert missed.wait(LONG)
    missed.clear()
    with deadlines.within(0.01, missed.set):
        assert missed.wait(LONG)


def test_a_block_that_has_ended_misses_nothing(deadlines):
    """The deadlines of the first blocks pass while the last one waits for its own."""
    running: set[int] = set()
    seen: list[bool] = []
    for number in range(100):
        with deadlines.within(0.05, lambda number=number: seen.append(number in running)):
            running.add(number)
        running.clear()
    missed = threading.Event()
    with deadlines.within(0.2, missed.set):
        assert missed.wait(LONG)
    assert all(seen)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_function_that_fails_ends_no_later_deadline(deadlines):
    failed, missed = threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise RuntimeError("planted")

    with deadlines.within(0.01, fail):
        assert failed.wait(LONG)
        for thread in threading.enumerate():
            if thread.name == "deadlines" and thread is deadlines._thread:
                thread.join(LONG)
    with deadlines.within(0.01, missed.set):
        assert missed.wait(LONG)


def test_the_time_of_a_pause_does_not_count_and_then_all_of_it_begins_again(deadlines):
    missed = threading.Event()
    with deadlines.within(0.2, missed.set) as deadline:
        with deadlines.paused(deadline):
            assert not missed.wait(0.6)
        assert missed.wait(LONG)


def test_all_deadlines_have_one_thread(deadlines):
    before = set(threading.enumerate())
    for _ in range(2):
        with deadlines.within(LONG, lambda: None), deadlines.within(LONG, lambda: None):
            (watcher,) = set(threading.enumerate()) - before
            assert watcher.name == "deadlines"


def test_a_forked_process_has_a_thread_of_its_own(deadlines):
    missed = threading.Event()
    with deadlines.within(LONG, lambda: None):
        child = os.fork()
        if child == 0:
            with deadlines.within(0.01, missed.set):
                os._exit(0 if missed.wait(LONG) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
