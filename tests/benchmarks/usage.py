"""CPU seconds and resident memory of process trees."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

# Seconds between two looks at memory; a look costs a few ms of one core.
INTERVAL = 0.2
MB = 1024 * 1024


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it started, directly or not; empty when it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time of a tree since it was started, with that of its processes that have ended."""
    total = 0.0
    for process in tree(pid):
        try:
            # A process that has ended counts as its parent's child from then on, once it was waited for.
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


@dataclass(slots=True)
class Memory:
    """The largest resident sizes seen, in MB: of all processes of a tree at one moment, and by kind."""

    total: float = 0.0
    by_kind: dict[str, float] = field(default_factory=dict)

    def look(self, pid: int) -> None:
        """Take the sizes of now into account."""
        now: dict[str, float] = {}
        for process in tree(pid):
            try:
                kind = _kind(process, pid)
                now[kind] = now.get(kind, 0.0) + process.memory_info().rss / MB
            except psutil.Error:
                continue
        self.total = max(self.total, sum(now.values()))
        for kind, size in now.items():
            self.by_kind[kind] = max(self.by_kind.get(kind, 0.0), size)


def _kind(process: psutil.Process, root: int) -> str:
    """The driver's Python, its JVM, or a Python worker (the daemon that forks them is one of them)."""
    if process.pid == root:
        return "driver_python"
    return "jvm" if process.name() == "java" else "python_workers"


@contextmanager
def watch_memory(pid: int) -> Iterator[Memory]:
    """Look at the tree's memory until the block ends."""
    memory = Memory()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            memory.look(pid)

    memory.look(pid)
    watcher = threading.Thread(target=watch, name="memory", daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        ended.set()
        watcher.join()
        memory.look(pid)
