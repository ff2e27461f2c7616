"""Executors that do not wait for ever for a Postgres that says nothing.

ADBC has no timeout, and TCP does not notice a server, or a proxy before it, that takes what it is sent and never
answers. So the work is done in a thread, and given up when Postgres alone was waited for too long.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from exactbatch.errors import PostgresUnavailable
from exactbatch.errors.translation import own_errors

Result = TypeVar("Result")
Batch = TypeVar("Batch")

_LOOK: Final = 0.5  # seconds between two looks at how long it has been


class Patience:
    """How long Postgres has been waited for."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = time.monotonic()
        self._given_up = False

    def between(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches; the time that making one takes is not Postgres's, and each begins the wait anew."""
        making = iter(batches)
        while True:
            if self._given_up:
                raise self.error()  # it answers after all, too late: nothing more is read for it
            try:
                with self.elsewhere():
                    batch = next(making)
            except StopIteration:
                return
            yield batch

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Do in here what does not wait for Postgres; then the wait begins anew."""
        self._since = None
        try:
            yield
        finally:
            self._since = time.monotonic()

    def give_up(self) -> bool:
        """Whether Postgres has been waited for too long; if so, no more batches are given."""
        since = self._since
        self._given_up = since is not None and time.monotonic() - since > self._timeout
        return self._given_up

    def error(self) -> PostgresUnavailable:
        """What is raised instead of waiting on."""
        return PostgresUnavailable(
            f"expected Postgres to take rows, or to answer, within {self._timeout:g} s, found that it did "
            f"neither: the task was given up. Check the server, the network and proxies before it, and what holds "
            f"a statement up there (pg_stat_activity); statement_timeout sets how long to wait. Then try again."
        )


def within(timeout: float, work: Callable[[Patience], Result], *, where: str = "") -> Result:
    """Do work with Postgres in a thread; return or raise what it does.

    An error of ADBC is raised as what it means; `where` comes first in its message. Raises PostgresUnavailable
    when Postgres alone was waited for more than `timeout` seconds. The thread is left behind then: it ends with
    the Python worker, which ends after an error.
    """
    patience = Patience(timeout)
    future: Future[Result] = Future()

    def run() -> None:
        try:
            with own_errors(where):
                done = work(patience)
            future.set_result(done)
        except BaseException as error:
            future.set_exception(error)  # to be raised where the result is waited for

    threading.Thread(target=run, name="postgres", daemon=True).start()
    while True:
        try:
            return future.result(_LOOK)
        except TimeoutError:
            if future.done():
                return future.result()  # it has come meanwhile, or is the work's own TimeoutError
            if patience.give_up():
                raise patience.error() from None
