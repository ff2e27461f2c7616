"""Run checks and return their findings: no check hangs, and a check that cannot run is a finding, too."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import translate

Level = Literal["ok", "warning", "problem"]
DEADLINE: Final = 30.0  # seconds for one check
_SHOWN: Final = 5  # pipelines


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found.

    check   the name of the check
    level   "ok", "warning" (batches run, but not as well or not for long), or "problem" (batches fail)
    found   the fact
    remedy  what to do about it, as a sentence; empty only if the level is "ok"
    """

    check: str
    level: Level
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.level == "ok") != (not self.remedy):
            raise ValueError(f"expected a remedy unless the level is ok, found {self}")


def of_error(check: str, error: ExactbatchError, remedy: str = "") -> Finding:
    """Return the finding for an error, whose message ends with the remedy unless one is given."""
    fact, _, last = str(error).rpartition(". ")
    if remedy or not fact:
        return Finding(
            check, "problem", str(error), remedy or "Correct this, and run exactbatch doctor again."
        )
    return Finding(check, "problem", f"{fact}.", last)


def not_checked(check: str, needs: str, pipelines: Sequence[str] = ()) -> Finding:
    """Return the finding for a check that could not run, or not for these pipelines."""
    more = f" and {len(pipelines) - _SHOWN} more" if len(pipelines) > _SHOWN else ""
    whom = f" for {', '.join(pipelines[:_SHOWN])}{more}" if pipelines else ""
    return Finding(
        check,
        "warning",
        f"not checked{whom}: it needs {needs}",
        f"Solve the problem with {needs}, then run exactbatch doctor again.",
    )


def run_check(
    name: str, check: Callable[[], Iterable[Finding]], *, seconds: float = DEADLINE
) -> list[Finding]:
    """Run a check; an error, and no answer before the deadline, are findings as well."""
    found: list[Finding] = []

    def run() -> None:
        try:
            found.extend(check())
        except Exception as error:
            own = error if isinstance(error, ExactbatchError) else translate(error)
            found.append(
                of_error(name, own)
                if own is not None
                else Finding(
                    name,
                    "problem",
                    f"the check failed: {type(error).__name__}: {error}",
                    "Report it as a defect of exactbatch doctor.",
                )
            )

    # A daemon: a thread that hangs does not keep the process.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return [
            *found,
            Finding(
                name,
                "problem",
                f"no answer within {seconds:g} s",
                "Check whether the server or program that it asks hangs.",
            ),
        ]
    return found
