"""Every sink under every scenario: the target is what a plain program makes of the log.

A scenario is a list of steps, as data. The fault matrix does such steps while processes are killed.
"""

from collections.abc import Callable
from typing import Final

import pytest

from exactbatch import (
    failpoints,
)
from exactbatch.batch import job as batch_job
from exactbatch.errors import TasksFailed
from exactbatch.postgres.connection import connect
from support.batch_runner import BatchRunner
from support.environment import LONG
from support.scenarios import COMMITTED, KINDS, Play

PUBLISHING: Final = ("publish.after_insert", "publish.before_commit", "publish.after_commit")
STAGING: Final = ("stage.before_copy_commit", "stage.after_copy_commit", "job.after_stage")
ADVANCE: Final = (*STAGING, "publish.after_advance", *PUBLISHING)
REPLAY: Final = (*STAGING, "publish.after_take_back", *PUBLISHING)
RANGES: Final = (
    "job.before_ranges",
    "partition.before_locks",
    "partition.after_locks",
    "partition.before_commit",
    "partition.after_commit",
    "job.after_ranges",
    "partition.before_batch_commit",
    "partition.after_batch_commit",
)


class Killed(Exception):
    """The process that published was killed."""


@contextmanager
def dying_at(moment: str, world: BatchRunner) -> Iterator[None]:
    """SIGKILL, at this moment, the Python worker that comes to it, or the process that publishes.

    Publishing is done in a fork for that, with a connection of its own. An error stands for the death of the
    driver while it does neither.
    """
    executors = world.spark.sparkContext.environment
    with pytest.MonkeyPatch.context() as patch:
        if moment.startswith("job."):
            patch.setitem(failpoints.actions, moment, "error")
        elif moment in failpoints.ON_EXECUTORS:
            patch.setitem(executors, "EXACTBATCH_FAILPOINTS", f"{moment}=kill")
        else:
            for name in ("publish", "commit_batch"):
                patch.setattr(batch_job, name, _forked(getattr(batch_job, name), moment, world))
        yield


def _forked(function: Callable[..., Any], moment: str, world: BatchRunner) -> Callable[..., Any]:
    def run(_connection: Any, *arguments: Any, **named: Any) -> Any:
        child = os.fork()
        if child == 0:
            try:
                failpoints.actions[moment] = "kill"
                function(connect(world.settings.postgres, application="killed"), *arguments, **named)
            finally:
                os._exit(1)  # it has outlived the moment, or never came to it
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{moment} did not come"
        assert os.WTERMSIG(status) == signal.SIGKILL
        raise Killed(moment)

    return run

from support.scenarios import KINDS, Play

# What the log has beside events, and then how it is processed.
SCENARIOS: Final = {
    "plain": ("produce", "advance", "produce", "advance"),
    "retry": ("produce", "retry", "produce", "retry"),
    "replay": ("produce", "advance", "produce", "advance", "replay", "replay"),
    "backfill": ("produce", "advance", "mark", "produce", "advance", "backfill"),
    "late events": ("produce", "advance", "late", "advance", "replay"),
    "out of order": ("produce", "advance", "out_of_order", "advance", "replay"),
    "repeated by a producer": ("repeated", "advance", "repeated", "produce", "advance", "replay"),
    "tombstones": ("produce", "advance", "tombstones", "advance", "replay"),
    "bad records": ("produce", "bad", "advance", "bad", "advance", "replay"),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_what_the_log_makes_it(play: Callable[[str], Play], kind: str, scenario: str) -> None:
    played = play(kind)
    for step in SCENARIOS[scenario]:
        getattr(played, step)()
    played.check()
