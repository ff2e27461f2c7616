"""A Spark Connect server as the engine of a batch: its URL, and how the outcomes of its tasks arrive."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from exactbatch.batch.by_partition.partition_commit import Committed
from exactbatch.batch.engines.connect_engine import ConnectEngine, ConnectExecutors
from exactbatch.batch.spark.waiting_jobs import Progress
from exactbatch.batch.staging.outcomes import dump
from exactbatch.errors import ConfigurationError, PostgresUnavailable, TasksFailed
from pipelines.flights import flights


class Executors(ConnectExecutors):
    """Whose server sends given answers; an answer is what a Spark task returns, or an error of the client."""

    def __init__(self, *answers: Any) -> None:
        self._variables, self._now = {}, Progress()
        self.answers = answers
        self.taken = self.cancelled = 0

    def _accepted(self, *_: Any) -> Iterator[list[bytes]]:
        for answer in self.answers:
            if isinstance(answer, Exception) and not isinstance(answer, ConfigurationError):
                raise answer
            self.taken += 1
            yield [dump([Committed(answer) if isinstance(answer, int) else answer])]

    def cancel(self) -> None:
        self.cancelled += 1

    def outcomes(self) -> list[Any]:
        return self.run([], lambda *_: [], limit=1, verb="stage")


@pytest.mark.parametrize(
    "url",
    [
        "sc://host:1/;token=SEC/RET",
        "sc://host:1/;token=SEC=RET",
        "sc://host:1/token=SECRET",
        "sc://host:1;token=SECRET",
        "http://host:1/;token=SECRET://x",
    ],
)
def test_an_error_about_a_url_does_not_repeat_the_token(url):
    engine = ConnectEngine(url)
    with pytest.raises(ConfigurationError) as raised, engine.executors(flights, "batch 1"):
        pass
    assert "SEC" not in f"{raised.value!r} {raised.value.__cause__} {engine!r} {engine.address}"
    assert "host:1' and what follows it" in str(raised.value)
    assert "write / as %2F" in str(raised.value)


def test_a_module_that_the_server_lacks_is_named_with_the_server():
    """Not with PYSPARK_PYTHON of the client, which does not matter there."""
    executors = Executors()
    executors._address = "sc://host:1"
    error = executors._error("failed", PySparkException("ModuleNotFoundError: No module named 'shop'"))
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(
        "the Spark Connect server at sc://host:1: ModuleNotFoundError: No module named 'shop'"
    )
    assert "PYSPARK_PYTHON" not in str(error)


def test_an_error_of_one_range_lets_the_others_end():
    """With commit="partition", they commit."""
    executors = Executors(ConfigurationError("bad range"), 1)
    with pytest.raises(ConfigurationError, match="bad range"):
        executors.outcomes()
    assert executors.taken == 2
    assert Executors(1, 2).outcomes() == [Committed(1), Committed(2)]


def test_what_interrupts_the_driver_ends_the_tasks():
    executors = Executors(1, PostgresUnavailable("gone"))
    with pytest.raises(PostgresUnavailable, match="gone"):
        executors.outcomes()
    assert executors.cancelled == 1


def test_a_job_that_has_failed_is_not_ended_once_more():
    """The server may be gone: to ask it takes half a minute."""
    executors = Executors(1, TasksFailed("does not answer"))
    with pytest.raises(TasksFailed, match="does not answer"):
        executors.outcomes()
    assert executors.cancelled == 0
