"""Wait for a condition."""

import time
from collections.abc import Callable
from typing import Any, Protocol


class _HasOutput(Protocol):
    @property
    def output(self) -> str: ...


def wait_for(
    condition: Callable[[], Any],
    what: str = "a condition",
    *,
    timeout: float = 300,
    driver: _HasOutput | None = None,
) -> None:
    """Wait until a condition holds. Raises AssertionError after `timeout` seconds, with the output of `driver`."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(driver.output if driver else f"{what}: not within {timeout:.0f} s")
        time.sleep(0.05)
