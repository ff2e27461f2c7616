"""A Spark Connect server as the engine of a batch: its URL, and how the outcomes of its tasks arrive."""

import time
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

    def __init__(self, *answers: Any, wait: float = 0) -> None:
        self._variables, self._now = {}, Progress()
        self.answers, self.wait = answers, wait
        self.taken = self.cancelled = 0

    def _accepted(self, *_: Any) -> Iterator[list[bytes]]:
        for answer in self.answers:
            time.sleep(self.wait)
            if isinstance(answer, TasksFailed):
                raise answer
            self.taken += 1
            yield [dump([Committed(answer) if isinstance(answer, int) else answer])]

    def cancel(self) -> None:
        self.cancelled += 1

    def outcomes(self, finished: Any = None) -> list[Any]:
        return self.run([], lambda *_: [], limit=1, verb="stage", finished=finished)


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


def test_outcomes_are_reported_when_they_come_and_nothing_meanwhile():
    """What is inserted early is one transaction, which Postgres ends if it is idle for too long."""
    reports: list[list[Any]] = []
    assert Executors(1, 2, wait=0.5).outcomes(reports.append) == [Committed(1), Committed(2)]
    assert [each for each in reports if each] == [[Committed(1)], [Committed(2)]]
    assert reports.count([]) >= 4


def test_what_a_report_raises_ends_the_tasks():
    def finished(_: list[Any]) -> None:
        raise PostgresUnavailable("gone")

    executors = Executors(1)
    with pytest.raises(PostgresUnavailable, match="gone"):
        executors.outcomes(finished)
    assert executors.cancelled == 1
    executors = Executors(ConfigurationError("refused"), 2)
    with pytest.raises(ConfigurationError, match="refused"):
        executors.outcomes(lambda _: None)
    assert executors.cancelled == 1


def test_a_job_that_has_failed_is_not_ended_once_more():
    """The server may be gone: to ask it takes half a minute."""
    for finished in (None, lambda _: None):
        executors = Executors(1, TasksFailed("does not answer"))
        with pytest.raises(TasksFailed, match="does not answer"):
            executors.outcomes(finished)
        assert executors.cancelled == 0
