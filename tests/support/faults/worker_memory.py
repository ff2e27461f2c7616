"""The peak memory of an executor's Python process that works through one range, measured in a separate process.

As a program: work on the task that comes by standard input, and print what was done and the peak.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.environment import JOBS, TESTS


def peak_of(work: Any, task: Any) -> tuple[Any, float]:
    """Run work(task, 1) in a separate process; return its result and the process's largest resident size, in MB."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=pickle.dumps((work, task)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (JOBS, TESTS)))},
        check=True,
    )
    outcome, peak = pickle.loads(done.stdout)
    return outcome, peak


def each_in_turn(work: Any, tasks: Any, attempt: int) -> Any:
    """Process groups of ranges as a Spark task does; return the first error, or the outcome of the last range."""
    for task in tasks:
        for outcome in work(task, attempt):
            if isinstance(outcome, Exception):
                return outcome
    return outcome


def main() -> None:
    """Work."""
    work, task = pickle.load(sys.stdin.buffer)
    outcome = work(task, 1)
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    sys.stdout.buffer.write(pickle.dumps((outcome, int(kilobytes) / 1024)))


if __name__ == "__main__":
    main()
