"""Functions that are called where a block of code takes too long, by one thread for the whole process.

A threading.Timer for each statement costs a thread, which takes longer to start than most statements take.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Deadlines:
    """Calls functions at their deadlines."""

    _thread: threading.Thread | None
    _waiting: dict[object, tuple[float, Callable[[], None]]]

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    @contextmanager
    def within(self, seconds: float, missed: Callable[[], None]) -> Iterator[None]:
        """Call `missed`, in another thread, if the block has not ended within `seconds`.

        It is not called, and does not run any more, once the block has ended. It must neither wait nor raise.
        """
        key, at = object(), time.monotonic() + seconds
        try:
            with self._changed:
                self._waiting[key] = at, missed
                if self._thread is None or not self._thread.is_alive():
                    thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                    thread.start()  # raises where the process may have no more threads
                    self._thread = thread
                elif at < self._wakes_at:
                    self._changed.notify()
            yield
        finally:
            with self._changed:
                self._waiting.pop(key, None)

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
                for key, (at, missed) in list(self._waiting.items()):
                    if at <= now:
                        del self._waiting[key]
                        missed()
                self._wakes_at = min((at for at, _ in self._waiting.values()), default=float("inf"))
                # Blocks that have ended meanwhile notify nobody: the thread only looks once more than it has to.
                self._changed.wait(None if not self._waiting else max(0.0, self._wakes_at - time.monotonic()))


deadlines = Deadlines()
