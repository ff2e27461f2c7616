"""Tasks of executors of which some wait until a test lets them go."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class HeldPartition:
    """The work of tasks, of which those of one partition wait for the file `gate`.

    `<gate>.held` exists once such a task waits.
    """

    work: Callable[..., Any]
    partition: int
    gate: Path

    def __call__(self, tasks: Any, attempt: int) -> Any:
        """Work on a group of tasks, after the wait."""
        if any(task.range.partition == self.partition for task in tasks):
            Path(f"{self.gate}.held").touch()
            while not self.gate.exists():
                time.sleep(0.05)
        return self.work(tasks, attempt)
