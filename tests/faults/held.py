"""A batch in this very process, and its executors, that waits at a named moment while a test breaks something."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from drivers import wait_for

from exactbatch import Pipeline, failpoints
from exactbatch.batch_job import process_batch
from exactbatch.publish import Published
from exactbatch.settings import Settings

# Moments at which Python workers of Spark wait.
ON_EXECUTORS: Final = (
    "read.after_records",
    "stage.before_copy_commit",
    "stage.after_copy_commit",
    "partition.before_locks",
    "partition.after_locks",
    "partition.before_commit",
    "partition.after_commit",
)


class Held:
    """A batch that waits at a moment, until it is let go."""

    def __init__(self, gate: Path, batch: "Future[Published]") -> None:
        self._gate, self._batch = gate, batch

    def let_go(self) -> None:
        """Go on."""
        self._gate.touch()

    def result(self) -> Published:
        """Go on, and give or raise what the batch ends with."""
        self.let_go()
        return self._batch.result(timeout=120)

    def wait(self) -> None:
        """Wait until the batch has come to the moment."""
        wait_for(lambda: Path(f"{self._gate}.held").exists() or self._batch.done())
        if self._batch.done():
            self._batch.result()
            raise AssertionError(
                f"expected the batch to come to {self._gate.name}, found that it ended before"
            )


@contextmanager
def held(
    spark: Any, pipeline: Pipeline, batch_id: int, settings: Settings, moment: str, folder: Path
) -> Iterator[Held]:
    """Process a batch that waits at a moment, on the driver or on its executors."""
    gate = folder / f"{moment}-{batch_id}"
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        if moment in ON_EXECUTORS:
            environment = spark.sparkContext.environment
            patch.setitem(environment, "EXACTBATCH_FAILPOINTS", f"{moment}=hold:{gate}")
        else:
            patch.setitem(failpoints._ACTIONS, moment, f"hold:{gate}")
        batch = Held(gate, pool.submit(process_batch, spark, pipeline, batch_id, settings))
        try:
            batch.wait()
            yield batch
        finally:
            batch.let_go()
