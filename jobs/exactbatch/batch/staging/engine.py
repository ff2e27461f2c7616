"""What runs the tasks of a batch: the Spark driver of this process, or a Spark Connect server."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from exactbatch.batch.staging.shares import Outcome, Task
from exactbatch.batch.staging.stager import Stager
from exactbatch.batch.staging.task import StageTask
from exactbatch.errors import ExactbatchError
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection


class Executors(Protocol):
    """Spark's executors, as one batch uses them."""

    @property
    def application_id(self) -> str | None:
        """The ID of the Spark application; None if it is not known."""
        ...

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        ...

    def run(
        self,
        tasks: Sequence[Task],
        work: Callable[[Sequence[Task], int], Sequence[Outcome | ExactbatchError]],
        *,
        limit: int,
        verb: str,
    ) -> list[Outcome]:
        """Run `work` over groups of tasks and their Spark task attempt, at most `limit` at a time; return the outcomes.

        An error among the outcomes ends no other task: with commit="partition", these commit.

        `verb` says in an error what a task does with its range. Raises the first error that a task has returned,
        TasksFailed, and ConfigurationError if a setting of Spark is at fault.
        """
        ...

    def transform(self, connection: Connection, pipeline: Pipeline, tasks: Sequence[StageTask]) -> Stager:
        """Return the Stager of a pipeline with a transform. Raises TransformRefused and ConfigurationError."""
        ...


class Engine(Protocol):
    """Spark, for any number of batches."""

    def executors(self, pipeline: Pipeline, where: str) -> AbstractContextManager[Executors]:
        """Prepare Spark for one batch; `where` names the batch in messages and on Spark's pages.

        Jobs that Spark does not run within the pipeline's launch_timeout are cancelled. Raises TasksFailed then,
        ConfigurationError if the pipeline or a setting does not fit the engine, and TasksFailed if Spark is gone.
        """
        ...
