"""When a job of a batch has waited for too long."""

import time
from dataclasses import dataclass
from typing import Any

import pytest

from exactbatch.batch.spark.waiting_jobs import JobGroup, Watch


@dataclass
class Job:
    """What Spark's status tracker says of a job."""

    stageIds: tuple[int, ...] = (7,)


@dataclass
class Stage:
    """What it says of a stage."""

    numActiveTasks: int = 0
    numCompletedTasks: int = 0
    numFailedTasks: int = 0
    stageId: int = 7


class Context:
    """Spark, which shows one stage after the other, and the last one for good; None is no job."""

    def __init__(self, *stages: Stage | None) -> None:
        self._stages = list(stages)
        self.cancelled: list[str] = []

    def statusTracker(self) -> "Context":
        return self

    def getActiveJobsIds(self) -> list[int]:
        self._now = self._stages.pop(0) if len(self._stages) > 1 else self._stages[0]
        return [] if self._now is None else [1, 2]

    def getJobIdsForGroup(self, _group: str) -> list[int]:
        return [1]

    def getJobInfo(self, job: int) -> Job:
        assert job == 1  # and not a job of others
        return Job()

    def getStageInfo(self, _stage: int) -> Stage | None:
        return self._now

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)


def looks(monkeypatch: pytest.MonkeyPatch, context: Context, number: int) -> Any:
    """The watch after this number of looks, each a second after the one before; 10 seconds are too long."""
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) / 2)
    jobs = JobGroup(context, "g")
    watch = Watch(jobs.progress, jobs.cancel, 10)
    left = iter([False] * number)
    monkeypatch.setattr(watch.ended, "wait", lambda _seconds: next(left, True))
    watch.run()
    return watch


@pytest.mark.parametrize(
    "stages",
    [
        [None],
        [Stage(numActiveTasks=1)],
        [Stage(numCompletedTasks=each // 5) for each in range(100)],
        [Stage(numFailedTasks=each // 5) for each in range(100)],
        [Stage()] * 5 + [None] + [Stage()] * 5 + [None],
    ],
    ids=["no job", "tasks run", "tasks end", "tasks fail", "short waits"],
)
def test_what_goes_on_is_let_alone(monkeypatch, stages):
    context = Context(*stages)
    assert not looks(monkeypatch, context, 100).gave_up.is_set()
    assert context.cancelled == []


@pytest.mark.parametrize(
    "before", [[], [Stage(numActiveTasks=2, numCompletedTasks=1)]], ids=["ever", "again"]
)
def test_a_job_without_a_task_is_cancelled(monkeypatch, before):
    context = Context(*before, Stage(numCompletedTasks=len(before)))
    assert looks(monkeypatch, context, 100).gave_up.is_set()
    assert context.cancelled == ["g"]
