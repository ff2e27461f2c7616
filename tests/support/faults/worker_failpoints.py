"""Work of an executor with a failpoint. The task carries the action: a new environment would need new workers."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from exactbatch import failpoints


@dataclass(frozen=True)
class Acting:
    """The work, with an action at a failpoint; the file `came` exists once the work has reached it."""

    work: Callable[..., Any]
    moment: str
    action: str
    came: Path

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._acting():
            outcome = self.work(*arguments, **named)
        return self._going_on(outcome) if isinstance(outcome, Generator) else outcome

    def _going_on(self, outcomes: Iterator[Any]) -> Iterator[Any]:
        with self._acting():
            yield from outcomes

    @contextmanager
    def _acting(self) -> Iterator[None]:
        act = failpoints.act

        def noted(name: str, action: str) -> None:
            self.came.touch()
            act(name, action)

        with (
            patch.object(failpoints, "act", noted),
            patch.dict(failpoints.actions, {self.moment: self.action}),
        ):
            yield
