"""The steps of the machine, and strategies for requests, limits, times and crashes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from exactbatch import Limits, failpoints
from exactbatch.errors import (
    ExactbatchError,
)
from support.ledger_model.log import (
    MINUTES,
    NOT_YET,
    T0,
)

# How often each of these happens. They are one rule of Hypothesis, because of several it would switch off
# some in each example, and most of what can go wrong here needs all of them.
WEIGHTS = {
    "records": 2,
    "new records are processed": 4,
    "late records": 2,
    "transaction": 1,
    "partition": 1,
    "retention": 1,
    "loss during a batch": 1,
    "advance": 4,
    "replay of ranges": 3,
    "replay of window": 4,
    "replay of batches": 2,
    "two replays at once": 2,
    "run": 3,
    "retry": 1,
    "clear": 4,
    "create again": 2,
    "stage": 4,
    "publish": 5,
    "process": 4,
}
STEPS = st.sampled_from([what for what, weight in WEIGHTS.items() for _ in range(weight)])
NO_LIMITS = Limits(max_offsets=None)
LIMITS = st.just(NO_LIMITS) | st.builds(
    Limits,
    max_offsets=st.none() | st.integers(1, 8),
    max_offsets_per_partition=st.none() | st.integers(1, 4),
)
TIMES = st.sampled_from([T0 + timedelta(minutes=each) for each in range(-1, MINUTES + 1)] + [NOT_YET])
WINDOWS = st.lists(TIMES, min_size=2, max_size=2, unique=True).map(lambda times: (min(times), max(times)))
PLAN_CRASHES = st.sampled_from((*(None,) * 10, "plan.before_commit", "plan.after_commit"))
PUBLISH_CRASHES = st.sampled_from(
    (
        *(None,) * 20,
        "publish.after_advance",
        "publish.after_retract",
        "publish.after_insert",
        "publish.before_commit",
        "publish.after_commit",
    )
)


class Crash(Exception):
    """The exception of a failpoint."""


@contextmanager
def failing(point: str | None) -> Iterator[None]:
    """Let a failpoint raise an error, as if the program ended there."""
    if point is not None:
        failpoints.actions[point] = "error"
    try:
        yield
    except RuntimeError as error:
        if point is None:
            raise
        raise Crash(point) from error
    finally:
        failpoints.actions.pop(point or "", None)


def outcome_of(call: Callable[[], Any], crash: str | None = None) -> Any:
    """Return what a call returns, or the ExactbatchError that it raises."""
    try:
        with failing(crash):
            return call()
    except (ExactbatchError, Crash) as error:
        return error
