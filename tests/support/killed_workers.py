"""Workers that are killed once, at the moment that a test chooses.

Each environment has a Python daemon of its own, which takes 2 CPU seconds to start. So all tests of a module share one
environment, which names all of its moments, and a file for each of them says whether somebody was killed there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exactbatch.compiled.availability import VARIABLE


class KilledWorkers:
    """The environment of executors that use compiled code and have some failpoints. `folder` has the files."""

    def __init__(self, spark: Any, folder: Path, moments: Sequence[str]) -> None:
        self._spark = spark
        self._files = {moment: folder / moment for moment in moments}

    @contextmanager
    def at(self, moment: str | None) -> Iterator[None]:
        """Kill the first worker that reaches a moment within the block; without one, none. Fails if none came."""
        for each, file in self._files.items():
            file.unlink(missing_ok=True)
            if each != moment:
                file.touch()  # as if somebody had been killed there
        actions = "; ".join(f"{each}=kill:{file}" for each, file in self._files.items())
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(self._spark.sparkContext.environment, VARIABLE, "0")
            patch.setitem(self._spark.sparkContext.environment, "EXACTBATCH_FAILPOINTS", actions)
            yield
        assert moment is None or self._files[moment].exists(), f"no worker came to {moment}"
