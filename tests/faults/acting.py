"""Work of an executor that acts at a failpoint. It is told in the task: another environment needs new workers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exactbatch import failpoints


@dataclass(frozen=True)
class Acting:
    """What the work does, but for what happens at the moment."""

    work: Callable[..., Any]
    moment: str
    action: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        failpoints._ACTIONS[self.moment] = self.action
        try:
            return self.work(*arguments, **named)
        finally:
            del failpoints._ACTIONS[self.moment]
