"""Batches that wait at a failpoint, on the driver or on its executors, while a test breaks something."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from exactbatch import Pipeline, failpoints
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.settings import Settings
from support.waiting import wait_for


class Engine(Protocol):
    """Something that processes batches."""

    def process(
        self, pipeline: Pipeline, batch_id: int, settings: Settings, moment: str = "", action: str = ""
    ) -> Published:
        """Process a batch that does an action at a failpoint, if one is given."""


class InProcess:
    """Process batches with a Spark session of this process."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def process(
        self, pipeline: Pipeline, batch_id: int, settings: Settings, moment: str = "", action: str = ""
    ) -> Published:
        """Process a batch."""
        with acting(self._spark, moment, action):
            return process_batch(DriverEngine(self._spark), pipeline, batch_id, settings)


@contextmanager
def acting(spark: Any, moment: str, action: str) -> Iterator[None]:
    """Make this process, or the Python workers that it starts, do an action at a failpoint."""
    with pytest.MonkeyPatch.context() as patch:
        if moment in failpoints.ON_EXECUTORS:
            patch.setitem(spark.sparkContext.environment, "EXACTBATCH_FAILPOINTS", f"{moment}={action}")
        elif moment:
            patch.setitem(failpoints.actions, moment, action)
        yield


class Held:
    """A batch that waits at a failpoint until let_go()."""

    def __init__(self, gate: Path, batch: "Future[Published]") -> None:
        self._gate, self._batch = gate, batch

    def let_go(self) -> None:
        """Go on."""
        self._gate.touch()

    def result(self) -> Published:
        """Go on, and return or raise what the batch ends with."""
        self.let_go()
        return self._batch.result(timeout=280)

    def waiting(self) -> list[int]:
        """Return the IDs of the processes that wait."""
        return [int(pid) for pid in Path(f"{self._gate}.held").read_text().split()]

    def wait(self) -> None:
        """Wait until the batch has reached the failpoint."""
        wait_for(lambda: Path(f"{self._gate}.held").exists() or self._batch.done())
        if self._batch.done():
            self._batch.result()
            raise AssertionError(
                f"expected the batch to come to {self._gate.name}, found that it ended before"
            )


@contextmanager
def held(process: Callable[[str], Published], gate: Path) -> Iterator[Held]:
    """Process a batch that waits at a failpoint."""
    with ThreadPoolExecutor(1) as pool:
        batch = Held(gate, pool.submit(process, f"hold:{gate}"))
        try:
            batch.wait()
            yield batch
        finally:
            batch.let_go()
