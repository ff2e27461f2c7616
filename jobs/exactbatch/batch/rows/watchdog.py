"""Give up waiting for a Postgres that does not respond.

libpq has no timeout, and TCP does not notice a server, or a proxy in front of it, that accepts data and never
answers. So the work runs in a thread, and is abandoned when it has waited for Postgres alone for too long.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from exactbatch.errors import PostgresUnavailable
from exactbatch.errors.translation import translate_errors

Result = TypeVar("Result")
Batch = TypeVar("Batch")

_CHECK_INTERVAL: Final = 0.5  # seconds


class StallTimeout:
    """Measures how long work has waited for Postgres. `timeout` is in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._waiting_since: float | None = time.monotonic()
        self._expired = False

    def watch(self, batches: Iterable[Batch]) -> Generator[Batch]:
        """Yield the batches; the time to produce one does not count, and after each the wait begins again."""
        source = iter(batches)
        while True:
            if self._expired:
                raise self.error()  # Postgres responds after all, too late: read nothing more for it
            try:
                with self.paused():
                    batch = next(source)
            except StopIteration:
                return
            yield batch

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for work that does not wait for Postgres; then the wait begins again."""
        self._waiting_since = None
        try:
            yield
        finally:
            self._waiting_since = time.monotonic()

    def expire(self) -> bool:
        """Return True if the wait has exceeded the timeout; watch() then yields no more batches."""
        since = self._waiting_since
        self._expired = since is not None and time.monotonic() - since > self._timeout
        return self._expired

    def error(self) -> PostgresUnavailable:
        """Return the error that ends the wait."""
        return PostgresUnavailable(
            f"Postgres did not respond within {self._timeout:g} s: it neither accepted rows nor answered, and the "
            f"task gave up. Check the server, the network, any proxy between them, and what blocks the statement "
            f"(pg_stat_activity); statement_timeout sets how long to wait. Then try again."
        )


def run_with_stall_timeout(
    timeout: float, work: Callable[[StallTimeout], Result], *, where: str = ""
) -> Result:
    """Run work with Postgres in a thread; return or raise its outcome.

    An error of ADBC is raised as the matching error of exactbatch, with `where` at the start of its message. Raises
    PostgresUnavailable when the work has waited for Postgres alone for more than `timeout` seconds. The thread is
    then left behind: it ends with the Python worker, which ends after an error.
    """
    stall_timeout = StallTimeout(timeout)
    future: Future[Result] = Future()

    def run() -> None:
        try:
            with translate_errors(where):
                result = work(stall_timeout)
            future.set_result(result)
        except BaseException as error:
            future.set_exception(error)  # raised where the result is awaited

    threading.Thread(target=run, name="postgres", daemon=True).start()
    while True:
        try:
            return future.result(_CHECK_INTERVAL)
        except TimeoutError:
            if future.done():
                return future.result()  # it has arrived meanwhile, or is the work's own TimeoutError
            if stall_timeout.expire():
                raise stall_timeout.error() from None
