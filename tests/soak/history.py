"""Check from a soak's history, without servers, that its drivers did their work.

A soak whose end is exact may still have tested little: a driver that does nothing but fail meets no fault.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

QUIET_S: Final = 30.0
# What a fault leaves behind passes in that time: a lock that is held on, a timeout, another try of Spark.
RECOVERY_S: Final = 5.0
# How often a fault may make batches and plans fail: at once, and for each second that it lasts.
_AT_ONCE: Final = 4
_PER_S: Final = 4
_UNEXPLAINED: Final = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of some kind, from its beginning to its end, in seconds of one clock."""

    at: float
    until: float
    kind: str


@dataclass(frozen=True, slots=True)
class Started:
    """A slot's driver was ready at `until`; the slot had none since `at`."""

    at: float
    until: float
    slot: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A slot's driver has ended a batch as it should."""

    at: float
    slot: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch or a plan of a slot has failed."""

    at: float
    slot: int
    error: str


Event = Fault | Started | Committed | Failed


def troubles(events: Sequence[Event], *, slots: int, began: float, ended: float) -> list[str]:
    """Return one line for each problem of a soak that ran from one time to another."""
    return [*_quiet(events, slots, began, ended), *_repeated(events, began)]


def _quiet(events: Sequence[Event], slots: int, began: float, ended: float) -> Iterator[str]:
    """Drivers that committed nothing for QUIET_S, the time of faults and of a driver's start not counted."""
    for slot in range(slots):
        excused = [
            (each.at, each.until + (RECOVERY_S if isinstance(each, Fault) else 0))
            for each in events
            if isinstance(each, Fault) or (isinstance(each, Started) and each.slot == slot)
        ]
        commits = [each.at for each in events if isinstance(each, Committed) and each.slot == slot]
        times = [began, *sorted(at for at in commits if began <= at <= ended), ended]
        for since, until in pairwise(times):
            quiet = until - since - _covered(excused, since, until)
            if quiet >= QUIET_S:
                yield (
                    f"the driver of slot {slot} committed nothing from {since - began:.0f} s to "
                    f"{until - began:.0f} s, {quiet:.0f} s of it outside of any fault"
                )


def _repeated(events: Sequence[Event], began: float) -> Iterator[str]:
    """Errors that came more often than the faults explain."""
    faults = [each for each in events if isinstance(each, Fault)]
    most = _UNEXPLAINED + sum(_AT_ONCE + _PER_S * (each.until - each.at) for each in faults)
    errors = Counter(each.error for each in events if isinstance(each, Failed) and each.at >= began)
    for error, count in errors.items():
        if count > most:
            yield f"{error} came {count} times: {len(faults)} faults explain {most:.0f} at most"


def _covered(spans: Sequence[tuple[float, float]], since: float, until: float) -> float:
    """Return how many seconds between the two times are in any of the spans."""
    covered, reached = 0.0, since
    for start, end in sorted(spans):
        start, end = max(start, reached), min(end, until)
        if end > start:
            covered, reached = covered + end - start, end
    return covered
