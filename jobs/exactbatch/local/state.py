"""Keep the state of a stack between commands: state.json, and the passwords of its servers, each in a file that only
this user can read.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from exactbatch.local.child_process import Recorded
from exactbatch.local.stack_error import LocalStackError


@dataclass(slots=True, kw_only=True)
class ServerState:
    """A server: its ports by purpose, its process if it was started, and settings in addition to the usual ones."""

    ports: dict[str, int] = field(default_factory=dict)
    process: Recorded | None = None
    settings: dict[str, str] = field(default_factory=dict)


class StateFile:
    """The state.json of one stack. Every change is written immediately, so that a failing command loses none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, server: str) -> ServerState:
        """Return the state of a server, which is empty before its first start.

        Raises LocalStackError if this version cannot read the file.
        """
        raw = self._load().get(server)
        if raw is None:
            return ServerState()
        try:
            process = Recorded(**raw["process"]) if raw["process"] else None
            return ServerState(ports=raw["ports"], process=process, settings=raw["settings"])
        except (KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(error) from error

    def write(self, server: str, state: ServerState) -> None:
        """Replace the state of a server atomically."""
        everything = {**self._load(), server: asdict(state)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(everything, indent=2) + "\n")
        draft.replace(self.path)

    @contextmanager
    def change(self, server: str) -> Iterator[ServerState]:
        """Yield the state of a server, and write it back at the end of the block."""
        state = self.read(server)
        yield state
        self.write(server, state)

    def _load(self) -> dict[str, Any]:
        try:
            loaded = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise self._unreadable(error) from error
        if not isinstance(loaded, dict):
            raise self._unreadable(TypeError(type(loaded).__name__))
        return loaded

    def _unreadable(self, error: Exception) -> LocalStackError:
        return LocalStackError(
            f"the state of the stack in {self.path} cannot be read ({error!r}). End its servers by hand, then remove "
            "the file."
        )


def create_secret() -> str:
    """Return a random text of letters, digits, - and _."""
    return secrets.token_urlsafe(24)


def write_secret(file: Path, text: str) -> None:
    """Write a file at once, which only this user can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
        output.write(text)
    draft.replace(file)
