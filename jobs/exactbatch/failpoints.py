"""Named moments at which a test can make the program fail. They do nothing unless the environment names one.

EXACTBATCH_FAILPOINTS="publish.after_commit=kill; job.after_stage=hold:/tmp/go" — actions:

kill          SIGKILL this process
kill:PATH     SIGKILL this process if it is the first to create the file PATH
error         raise RuntimeError
sleep:S       continue after S seconds
hold:PATH     append this process's id to PATH.held, and continue when the file PATH exists
stop          SIGSTOP this process
"""

import os
import signal
import threading
import time
from collections import UserDict
from pathlib import Path
from typing import Final, Literal, get_args

DriverFailpoint = Literal[
    "plan.before_commit",
    "plan.after_commit",
    "launch.before_commit",
    "launch.after_commit",
    "job.before_stage",
    "job.after_stage",
    "job.after_close",
    "job.before_ranges",
    "job.after_ranges",
    "transform.after_read",
    "publish.before_lock",
    "publish.after_advance",
    "publish.after_retract",
    "publish.after_insert",
    "forward.after_outbox",
    "publish.before_commit",
    "publish.after_commit",
    "partition.before_batch_commit",
    "partition.after_batch_commit",
    "compact.before_commit",
    "merge.after_copy",
    "merge.before_commit",
    "merge.after_commit",
    "prune.after_fold",
    "prune.before_commit",
    "prune.after_commit",
    "withdraw.before_commit",
    "forward.after_attempt",
    "forward.after_begin",
    "forward.after_produce",
    "forward.before_commit",
    "forward.after_commit",
    "forward.before_confirm",
    "forward.after_confirm",
]
ExecutorFailpoint = Literal[
    "read.after_records",
    "stage.after_rejects",
    "stage.before_copy_commit",
    "stage.after_copy_commit",
    "partition.after_rejects",
    "partition.before_locks",
    "partition.after_locks",
    "partition.before_commit",
    "partition.after_commit",
]
Failpoint = DriverFailpoint | ExecutorFailpoint

ON_EXECUTORS: Final[frozenset[str]] = frozenset(get_args(ExecutorFailpoint))
FAILPOINTS: Final[frozenset[str]] = ON_EXECUTORS | frozenset(get_args(DriverFailpoint))
_VERBS: Final = ("kill", "error", "sleep", "hold", "stop")


class Actions(UserDict[str, str]):
    """An action for each of some failpoints. Raises ValueError for a name or an action that does not exist."""

    def __setitem__(self, name: str, action: str) -> None:
        if name not in FAILPOINTS:
            raise ValueError(f"expected a failpoint, one of {', '.join(sorted(FAILPOINTS))}; found {name!r}")
        if action.split(":", 1)[0] not in _VERBS:
            raise ValueError(f"failpoint {name}: expected an action ({', '.join(_VERBS)}), found {action!r}")
        super().__setitem__(name, action)

    @classmethod
    def parse(cls, text: str) -> "Actions":
        """Return the actions that a value of EXACTBATCH_FAILPOINTS names."""
        pairs = [part.partition("=") for part in text.split(";") if part.strip()]
        return cls({name.strip(): action.strip() for name, _, action in pairs})


actions: Final = Actions.parse(os.environ.get("EXACTBATCH_FAILPOINTS", ""))


def failpoint(name: Failpoint) -> None:
    """Perform the action of this failpoint, if it has one."""
    if name in actions:
        act(name, actions[name])


def act(name: str, action: str) -> None:
    """Perform an action. Raises RuntimeError for `error`."""
    verb, _, argument = action.partition(":")
    match verb:
        case "kill" if not argument or _is_first(Path(argument)):
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # This thread: if the kernel chose another one, this one would continue for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "error":
            raise RuntimeError(f"failpoint {name}")
        case "sleep":
            time.sleep(float(argument))
        case "hold":
            with Path(f"{argument}.held").open("a") as held:
                held.write(f"{os.getpid()}\n")
            while not Path(argument).exists():
                time.sleep(0.05)


def _is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
