"""Functions that are called where a block of code takes too long, by one thread for the whole process.

A threading.Timer for each statement costs a thread, which takes longer to start than most statements take.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Deadline:
    """`missed` is called when a block has not ended within `seconds`."""

    seconds: float
    missed: Callable[[], None]


class Deadlines:
    """Calls functions at their deadlines."""

    _thread: threading.Thread | None
    _waiting: dict[Deadline, float]

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    @contextmanager
    def within(self, seconds: float, missed: Callable[[], None]) -> Iterator[Deadline]:
        """Call `missed`, in another thread, if the block has not ended within `seconds`.

        It is not called, and does not run any more, once the block has ended. It must neither wait nor raise.
        """
        deadline = Deadline(seconds, missed)
        try:
            self._begin(deadline)
            yield deadline
        finally:
            self._end(deadline)

    @contextmanager
    def paused(self, deadline: Deadline) -> Iterator[None]:
        """Do not count the time of this block against the deadline; after it, the whole time begins again."""
        self._end(deadline)
        try:
            yield
        finally:
            self._begin(deadline)

    def _begin(self, deadline: Deadline) -> None:
        at = time.monotonic() + deadline.seconds
        with self._changed:
            self._waiting[deadline] = at
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                thread.start()  # raises where the process may have no more threads
                self._thread = thread
            elif at < self._wakes_at:
                self._changed.notify()

    def _end(self, deadline: Deadline) -> None:
        with self._changed:
            self._waiting.pop(deadline, None)

    def _forget(self) -> None:
        """Start over: a forked process has none of the threads of its parent, and its locks may be held."""
        self._changed = threading.Condition()
        self._waiting = {}
        # When the thread looks again, unless it is notified; it looks at once when it starts.
        self._wakes_at = 0.0
        self._thread = None

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for deadline, at in list(self._waiting.items()):
                    if at <= now:
                        del self._waiting[deadline]
                        deadline.missed()
                self._wakes_at = min(self._waiting.values(), default=float("inf"))
                # Blocks that have ended meanwhile notify nobody: the thread only looks once more than it has to.
                self._changed.wait(None if not self._waiting else max(0.0, self._wakes_at - time.monotonic()))


deadlines = Deadlines()
