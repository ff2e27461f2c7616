"""How long each stage of a launch takes."""

import time
from collections.abc import Callable


class StageTimes:
    """A clock for the stages of one launch: each stage lasts until the next one begins.

    Stages that are entered several times are added up. `clock` returns seconds.
    """

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stage, self._since = clock, first, clock()
        self._seconds: dict[str, float] = {}

    def enter(self, stage: str) -> None:
        """End the current stage, and begin another."""
        now = self._clock()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def milliseconds(self) -> dict[str, int]:
        """Return the milliseconds of each stage so far, including the current one, in the order of their beginning."""
        self.enter(self._stage)
        return {stage: round(seconds * 1000) for stage, seconds in self._seconds.items()}
