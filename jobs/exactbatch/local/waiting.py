"""Waiting for a condition."""

from collections.abc import Callable

import tenacity


def wait_until(condition: Callable[[], bool], timeout_s: float, *, every_s: float = 0.05) -> bool:
    """Return True as soon as the condition is true, and False if it is still false after the timeout."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda is_true: not is_true),
        wait=tenacity.wait_fixed(every_s),
        stop=tenacity.stop_after_delay(timeout_s),
        retry_error_callback=lambda _: False,
    )
    return bool(retrying(condition))
