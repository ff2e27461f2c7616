"""Named moments at which a test lets the program fail. Off, and free, unless the environment names one.

EXACTBATCH_FAILPOINTS="publish.after_commit=kill; job.after_stage=hold:/tmp/go" — actions:

kill          SIGKILL this process
kill:PATH     SIGKILL this process, if it is the first that creates the file PATH
error         raise RuntimeError
sleep:S       go on after S seconds
hold:PATH     write this process's id into PATH.held, and go on when the file PATH exists
stop          SIGSTOP this process
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

_ACTIONS: Final[dict[str, str]] = {
    name.strip(): action.strip()
    for name, _, action in (
        part.partition("=") for part in os.environ.get("EXACTBATCH_FAILPOINTS", "").split(";") if part.strip()
    )
}


def failpoint(name: str) -> None:
    """Do what the environment asks for at this moment; nothing when it does not name it."""
    if name in _ACTIONS:
        _act(name, *_ACTIONS[name].split(":", 1))


def _act(name: str, action: str, argument: str = "") -> None:
    match action:
        case "kill" if not argument or _is_first(Path(argument)):
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill":
            pass
        case "stop":
            # To this thread: if the kernel gave it to another one, this one would go on for a moment.
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
        case _:
            raise ValueError(f"expected an action of EXACTBATCH_FAILPOINTS for {name}, found {action!r}")


def _is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
