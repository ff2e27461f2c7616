"""Which workers of a Spark Connect server run a client's tasks."""

import io
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from pyspark.cloudpickle import dumps

from exactbatch.batch.engines import connect_task
from exactbatch.batch.engines.connect_task import build_remote_task, run_pickled
from exactbatch.batch.staging import shares
from exactbatch.batch.staging.outcomes import declare_outcome
from exactbatch.batch.staging.shares import loaded
from exactbatch.code_identity import code_identity
from exactbatch.errors import ConfigurationError
from exactbatch.offsets import OffsetRange

VARIABLES = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "0"}


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    monkeypatch.setattr(shares, "attempt_id", lambda: 7)
    monkeypatch.setenv("TZ", "UTC")
    yield
    monkeypatch.undo()
    time.tzset()


@dataclass(frozen=True)
class Task:
    """A task over a range that is large enough to be read alone, or a small one."""

    range: OffsetRange


@declare_outcome
@dataclass(frozen=True)
class Hour:
    """The hour of the epoch, in the time zone of a task attempt over some partitions."""

    partitions: tuple[int, ...]
    attempt: int
    hour: int


def hour_of_epoch(tasks: list[Task], attempt: int) -> list[Hour]:
    return [Hour(tuple(task.range.partition for task in tasks), attempt, time.localtime(0).tm_hour)]


def outcomes(identity: str = "") -> list[Any]:
    sizes = (10, 20, 1_000_000)
    ranges = [OffsetRange("t", partition, 0, size, UUID(int=0)) for partition, size in enumerate(sizes)]
    share = pickle.dumps((hour_of_epoch, list(map(Task, ranges))))
    return loaded(run_pickled(share, identity or code_identity(), VARIABLES))


def test_tasks_run_in_the_time_zone_of_the_pipeline():
    assert outcomes() == [Hour((0, 1), 7, 9), Hour((2,), 7, 9)]


def test_a_worker_with_other_code_runs_nothing():
    with pytest.raises(ConfigurationError, match=r"and this client 9\.9"):
        outcomes("9.9 (other)")


def test_a_worker_that_would_live_on_runs_nothing(monkeypatch):
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    with pytest.raises(ConfigurationError, match=r"spark\.python\.worker\.reuse = true"):
        outcomes()


def test_a_worker_with_another_seed_of_hash_runs_nothing(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    with pytest.raises(ConfigurationError, match="PYTHONHASHSEED = 17, and this batch needs 0"):
        outcomes()


def test_the_function_that_is_sent_names_no_module_but_the_one_that_compares_the_code():
    """Otherwise a server of another version could fail to read it, and would not say why."""
    named: set[str] = set()

    class Names(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            named.add(module)
            return super().find_class(module, name)

    function = Names(io.BytesIO(dumps(build_remote_task([b""], "identity", VARIABLES)))).load()
    assert not [module for module in named if module.startswith("exactbatch")]
    assert function.__globals__ is not vars(connect_task)
    assert "pyarrow" in sys.modules or named
