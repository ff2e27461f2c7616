"""CPU seconds and resident memory of process trees, looked at from outside."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

# Seconds between two looks; a look costs a few ms of one core.
INTERVAL = 0.25
MB = 1024 * 1024


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it started, directly or not; empty when it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds_with_ended(pid: int) -> float:
    """CPU time of a server's tree since it was started.

    A process that has ended counts as its parent's from then on: this needs a parent that waits for its
    children, as Postgres does.
    """
    total = 0.0
    for process in tree(pid):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def machine_cpu_seconds() -> float:
    """CPU time of everything on this machine since it was started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


@dataclass(slots=True)
class Usage:
    """What a tree of processes took while it was watched.

    `peak_mb` is the largest resident size of all of them at one moment, `peak_mb_by_kind` that of each kind.
    A page that several processes share counts for each.
    """

    root: int
    peak_mb: float = 0.0
    peak_mb_by_kind: dict[str, float] = field(default_factory=dict)
    _before: dict[psutil.Process, float] = field(default_factory=dict)
    _now: dict[psutil.Process, float] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes, also of those that were started or have ended meanwhile."""
        return sum(self._now.values()) - sum(self._before.values())

    def start(self) -> None:
        """The CPU time that the processes had before does not count."""
        self.look()
        self._before = dict(self._now)

    def look(self) -> None:
        """Take the numbers of now into account."""
        sizes: dict[str, float] = defaultdict(float)
        for process in tree(self.root):
            try:
                with process.oneshot():
                    self._now[process] = sum(process.cpu_times()[:2])
                    sizes[self._kind(process)] += process.memory_info().rss / MB
            except psutil.Error:
                continue
        self.peak_mb = max(self.peak_mb, sum(sizes.values()))
        for kind, size in sizes.items():
            self.peak_mb_by_kind[kind] = max(self.peak_mb_by_kind.get(kind, 0.0), size)

    def _kind(self, process: psutil.Process) -> str:
        """The driver's Python, its JVM, or a Python worker (the daemon that forks them is one of them)."""
        if process.pid == self.root:
            return "driver_python"
        return "python_workers" if process.name().startswith("python") else "jvm"


@contextmanager
def watch(pid: int) -> Iterator[Usage]:
    """Look at a tree until the block ends."""
    usage = Usage(pid)
    usage.start()
    ended = threading.Event()

    def look_again() -> None:
        while not ended.wait(INTERVAL):
            usage.look()

    watcher = threading.Thread(target=look_again, name="usage", daemon=True)
    watcher.start()
    try:
        yield usage
    finally:
        ended.set()
        watcher.join()
        usage.look()
