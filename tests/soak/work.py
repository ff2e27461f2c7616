"""The work of the soak: batches are planned, and two drivers process them, try again, and are replaced."""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from exactbatch import Pipeline, failpoints
from exactbatch.errors import ExactbatchError, ReplayRefused
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from soak.drivers import Driver
from soak.history import Committed, Event, Failed, Fault, Started
from soak.pipelines import PIPELINES

# No batch takes so long, with all its timeouts: a driver that does hangs.
HANGS_S: Final = 400.0
_ABANDONED: Final = 0.1  # of the batches that failed, the share that nobody tries again
_REPLAYS: Final = 0.35

ON_EXECUTORS: Final = ("stage.before_copy_commit", "stage.after_copy_commit")
RANGES_ON_EXECUTORS: Final = (
    "partition.before_locks",
    "partition.after_locks",
    "partition.before_commit",
    "partition.after_commit",
)
_LAUNCH: Final = ("launch.before_commit", "launch.after_commit")
_PUBLISH: Final = ("publish.after_insert", "publish.before_commit", "publish.after_commit")


@dataclass
class Job:
    """A batch that is to be processed. `settled` once it committed, or nobody will try it again."""

    pipeline: Pipeline
    batch_id: int
    kind: str
    # Whether a fault met it, so that its pipeline is audited when it has settled.
    hurt: bool = False
    tries: int = 0
    not_before: float = 0.0
    settled: threading.Event = field(default_factory=threading.Event)
    tried: threading.Event = field(default_factory=threading.Event)

    @property
    def by_range(self) -> bool:
        """True if its ranges are committed one by one."""
        return self.pipeline.commit == "partition" and self.kind == "advance"

    @property
    def moments(self) -> tuple[str, ...]:
        """Return the failpoints of its driver."""
        if self.by_range:
            return (
                *_LAUNCH,
                "job.before_ranges",
                "job.after_ranges",
                "partition.before_batch_commit",
                "partition.after_batch_commit",
            )
        first = "publish.after_advance" if self.kind == "advance" else "publish.after_retract"
        return (*_LAUNCH, "job.before_stage", "job.after_stage", first, *_PUBLISH)

    @property
    def executor_moments(self) -> tuple[str, ...]:
        """Return the failpoints of its Python workers."""
        return RANGES_ON_EXECUTORS if self.by_range else ON_EXECUTORS


class Work:
    """The state that slots share: batches to process, faults that wait for a batch, and counters."""

    def __init__(
        self, settings: Settings, folder: Path, seed: int, failed: Callable[[BaseException], None]
    ) -> None:
        self.settings, self.folder, self.seed = settings, folder, seed
        self.failed = failed
        self.log = KafkaBroker(settings.kafka)
        self.lock = threading.Lock()
        self.pending: deque[Job] = deque()
        self.running: dict[int, Job] = {}
        # Faults that come with the next batch: kill, error, stop, worker.
        self.armed: deque[str] = deque()
        self.errors: Counter[str] = Counter()
        self.crashes: list[str] = []
        self.faults: Counter[str] = Counter()
        self.committed = 0
        # By time.monotonic().
        self.history: list[Event] = []
        self.draining, self.stopping = threading.Event(), threading.Event()
        self.wants_audit: Callable[[str], None] = lambda _name: None
        self.began = datetime.now(UTC)

    def hurt_running(self) -> set[str]:
        """A fault meets all that is running; the names of their pipelines."""
        with self.lock:
            for each in self.running.values():
                each.hurt = True
            return {each.pipeline.name for each in self.running.values()}

    def settle(self, job: Job) -> None:
        """Nobody will try this batch again."""
        job.settled.set()
        if job.hurt:
            self.wants_audit(job.pipeline.name)

    def count_fault(self, kind: str, began: float | None = None) -> None:
        """A fault has come, and gone; at once, unless it began before."""
        now = time.monotonic()
        with self.lock:
            self.faults[kind] += 1
            self.history.append(Fault(now if began is None else began, now, kind))

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        with self.lock:
            return not self.pending and not self.running


class Slot:
    """Takes batch after batch, plans one when there is none, and has a driver process it."""

    def __init__(self, work: Work, number: int) -> None:
        self.work, self.number = work, number
        self.driver: Driver | None = None
        self._chance = random.Random(f"{work.seed} slot {number}")
        self._connection: Any = None
        self._old: list[Driver] = []
        self._exhausted: set[str] = set()
        self.thread = threading.Thread(target=self._guarded, name=f"slot {number}", daemon=True)

    def close(self) -> None:
        """End all processes."""
        for each in (*self._old, *([self.driver] if self.driver else [])):
            each.close()

    def _guarded(self) -> None:
        try:
            while not self.work.stopping.is_set() and not self._is_drained:
                job = self._take()
                if job is None:
                    time.sleep(0.1)
                else:
                    self._process(job)
        except BaseException as error:
            self.work.failed(error)

    @property
    def _is_drained(self) -> bool:
        """Every pipeline stands at the end of the log, and nothing is left to try again."""
        return self.work.draining.is_set() and self.work.is_idle and self._exhausted == set(PIPELINES)

    def _take(self) -> Job | None:
        with self.work.lock:
            now = time.monotonic()
            for each in self.work.pending:
                if each.not_before <= now:
                    self.work.pending.remove(each)
                    self.work.running[self.number] = each
                    return each
        return self._plan()

    def _plan(self) -> Job | None:
        """Plan a batch: of a pipeline that the other slot does not advance, now and then of one that it does."""
        draining = self.work.draining.is_set()
        if draining:
            names = sorted(set(PIPELINES) - self._exhausted)
            kind = "advance"
        else:
            self._exhausted.clear()
            names = sorted(PIPELINES)
            kind = "replay" if self._chance.random() < _REPLAYS else "advance"
        if not names:
            return None
        pipeline = PIPELINES[self._chance.choice(names)]
        with self.work.lock:
            busy = {
                each.pipeline.name
                for each in (*self.work.running.values(), *self.work.pending)
                if each.kind == "advance"
            }
        if kind == "advance" and pipeline.name in busy and (draining or self._chance.random() > 0.1):
            return None
        with self.work.lock:
            if "plan" in self.work.armed:
                self.work.armed.remove("plan")
                failpoints.actions[self._chance.choice(("plan.before_commit", "plan.after_commit"))] = "error"
        try:
            if self._connection is None:
                self._connection = connect(self.work.settings.postgres, application="soak plan", timeout=10)
            if kind == "advance":
                origin: Any = "schedule"
                batch_id = freeze_advance(self._connection, self.work.log, pipeline, origin=origin)
                if batch_id is None and draining:
                    self._exhausted.add(pipeline.name)
            else:
                request, origin = self._request(pipeline)
                batch_id = None
                if request is not None:
                    batch_id = freeze_replay(
                        self._connection, self.work.log, pipeline, request, origin=origin
                    ).batch_id
        except RuntimeError as error:
            if not str(error).startswith("failpoint plan."):
                raise
            # Before the commit of the plan there is no batch, and after it one that nobody knows of.
            failpoints.actions.clear()
            self.work.count_fault("planner failed at a named moment")
            self.work.wants_audit(pipeline.name)
            return None
        except ExactbatchError as error:
            self._count_error(type(error).__name__)
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            passing = type(error).__name__ in _passing(pipeline) or window_is_refused(error)
            if not error.retryable and not passing:
                raise
            time.sleep(0.3)
            return None
        if batch_id is None:
            return None
        job = Job(pipeline, batch_id, kind)
        with self.work.lock:
            self.work.running[self.number] = job
        return job

    def _request(self, pipeline: Pipeline) -> tuple[ReplayRequest | None, str]:
        """Something that was processed: ranges, a window, an interval of a backfill, or a batch."""
        chance = self._chance
        ledger = Ledger(self._connection)
        with transaction(self._connection):
            stored = [each for each in ledger.plans.read_stored_offsets(pipeline) if each.next_offset > 1]
            done = [
                each
                for each in ledger.batches.read_page(pipeline.name, limit=30)
                if each.status == "committed"
            ]
        if not stored or not done:
            return None, ""
        available_only = pipeline.on_loss == "skip"
        form = chance.choice(("ranges", "window", "backfill", "batch"))
        if form == "batch":
            batch = chance.choice(done)
            return ReplayRequest(batch_ids=(batch.batch_id,), available_only=available_only), "clear"
        if form == "ranges":
            ranges = []
            for each in chance.sample(stored, chance.randrange(1, len(stored) + 1)):
                start = chance.randrange(each.next_offset)
                end = min(each.next_offset, start + chance.randrange(1, 1500))
                ranges.append(RequestedRange(each.topic, each.partition, start, end))
            return ReplayRequest(ranges=tuple(ranges), available_only=available_only), "manual"
        passed = (datetime.now(UTC) - self.work.began).total_seconds()
        if form == "backfill":
            # Intervals that touch, as those of a backfill do.
            begin = self.work.began + timedelta(seconds=15 * chance.randrange(int(passed / 15) + 1))
            window = begin, begin + timedelta(seconds=15)
        else:
            begin = self.work.began + timedelta(seconds=chance.uniform(0, passed))
            window = begin, begin + timedelta(seconds=chance.uniform(1, 20))
        return ReplayRequest(window=window, available_only=available_only), form.replace("window", "cli")

    def _process(self, job: Job) -> None:
        actions, fault = self._armed_for(job)
        if self.driver is None:
            self._start_driver()
        assert self.driver is not None
        self.driver.order(job.pipeline.name, job.batch_id, actions)
        outcome = self._wait(job, fault)
        self._count_armed(fault, actions, outcome)
        self._settle(job, outcome)
        with self.work.lock:
            del self.work.running[self.number]
        job.tried.set()

    def _armed_for(self, job: Job) -> tuple[dict[str, str], str | None]:
        """A fault that waits for a batch, as a failpoint of this one."""
        if job.tries > 3 or self.work.draining.is_set():
            return {}, None
        with self.work.lock:
            fault = next((each for each in self.work.armed if each != "plan"), None)
            if fault is None:
                return {}, None
            self.work.armed.remove(fault)
        if fault == "executor":
            moment = self._chance.choice(job.executor_moments)
            once = self.work.folder / f"once-{self.number}-{moment}"
            once.unlink(missing_ok=True)
            return {moment: f"kill:{once}"}, fault
        moments = job.moments
        if fault == "stop":
            # In the transaction that publishes, or beside it.
            moments = tuple(each for each in moments if not each.startswith("job.") and "after_c" not in each)
        return {self._chance.choice(moments): fault}, fault

    def _start_driver(self) -> None:
        number = f"{self.number}-{len(self._old)}"
        self.driver = Driver(self.work.settings, self.work.folder / f"driver-{number}.log")
        began = time.monotonic()
        deadline = began + HANGS_S
        while (said := self.driver.outcome(0.5)) is None:
            assert time.monotonic() < deadline, f"expected driver {number} to start"
        if "died" in said and not self.driver.doomed:
            raise AssertionError(f"expected driver {number} to start, it ended with {said['died']}")
        with self.work.lock:
            self.work.history.append(Started(began, time.monotonic(), self.number))

    def _wait(self, job: Job, fault: str | None) -> dict[str, Any]:
        """Return how the batch ended. A driver that stops itself continues after a second attempt of its batch."""
        assert self.driver is not None
        if fault == "kill":
            self.driver.doomed = True
        deadline = time.monotonic() + HANGS_S
        while (outcome := self.driver.outcome(0.1)) is None:
            if fault == "stop" and self.driver.is_stopped:
                stopped = time.monotonic()
                job.hurt = True
                beside = Job(job.pipeline, job.batch_id, job.kind, hurt=True)
                with self.work.lock:
                    self.work.pending.appendleft(beside)
                beside.tried.wait(30)
                fault = None
                self.driver.resume()
                self.work.count_fault("driver stopped in publish", stopped)
            if time.monotonic() > deadline:
                self.driver.show_stacks()
                raise AssertionError(
                    f"expected batch {job.batch_id} of {job.pipeline.name} to end within {HANGS_S:g} s"
                )
        return outcome

    def _count_armed(self, fault: str | None, actions: dict[str, str], outcome: dict[str, Any]) -> None:
        """Count the armed fault when it came; when its moment did not, let another batch have it."""
        if fault is None or fault == "stop":
            return
        moment, action = next(iter(actions.items()))
        came = {
            "kill": "died" in outcome,
            "error": f"failpoint {moment}" in outcome.get("message", ""),
            "executor": Path(action.partition(":")[2]).exists(),
        }[fault]
        if came:
            self.work.count_fault(
                {
                    "kill": "driver killed at a named moment",
                    "error": "driver failed at a named moment",
                    "executor": "Python worker killed at a named moment",
                }[fault]
            )
        else:
            if self.driver is not None and fault == "kill":
                self.driver.doomed = False
            with self.work.lock:
                self.work.armed.append(fault)

    def _settle(self, job: Job, outcome: dict[str, Any]) -> None:
        """Take the outcome of a try for what it is: done, to be tried again, or an error of the soak."""
        assert self.driver is not None
        job.tries += 1
        if "died" in outcome:
            if not self.driver.doomed:
                raise AssertionError(
                    f"expected the driver of batch {job.batch_id} to live, it ended with {outcome['died']}"
                )
            job.hurt = True
            self._replace_driver()
        elif "wrote" in outcome:
            with self.work.lock:
                self.work.committed += outcome["wrote"]
                self.work.history.append(Committed(time.monotonic(), self.number))
            self.work.settle(job)
            return
        else:
            name, message = outcome["error"], outcome["message"]
            self._count_error(name)
            job.hurt = True
            if outcome.get("without_jvm"):
                self.driver.kill()
                self._replace_driver()
            elif outcome.get("crashed"):
                if not message.startswith("failpoint ") and not self.driver.doomed:
                    self.work.crashes.append(f"{name}: {message[:300]}")
                if not message.startswith("failpoint "):
                    self.driver.kill()
                    self._replace_driver()
            if not outcome["retryable"]:
                if name != "Fenced" and name not in _passing(job.pipeline):
                    raise AssertionError(f"batch {job.batch_id} of {job.pipeline.name}: {name}: {message}")
                self.work.settle(job)
                return
        if self._chance.random() < _ABANDONED and not self.work.draining.is_set():
            self.work.settle(job)
            return
        job.not_before = time.monotonic() + self._chance.uniform(0, 1)
        with self.work.lock:
            self.work.pending.append(job)

    def _replace_driver(self) -> None:
        """Replace the driver; the processes that the old one started may live on for a while, as in production."""
        assert self.driver is not None
        self._old.append(self.driver)
        self.driver = None
        for each in self._old[:-2]:
            with suppress(OSError):
                each.close()
        del self._old[:-2]

    def _count_error(self, name: str) -> None:
        with self.work.lock:
            self.work.errors[name] += 1
            self.work.history.append(Failed(time.monotonic(), self.number, name))


def window_is_refused(error: ExactbatchError) -> bool:
    """Whether nothing of the window has been processed yet, or a backfill's window cuts batches that are only
    processed again as a whole."""
    reasons = ("The pipeline has not processed them yet", "only be replayed as a whole")
    return isinstance(error, ReplayRefused) and any(reason in str(error) for reason in reasons)


def _passing(pipeline: Pipeline) -> tuple[str, ...]:
    """Errors that no retry of the batch mends, and after which the next plan goes on: retention may have removed
    what a batch was going to read."""
    return ("OffsetsLost",) if pipeline.on_loss == "skip" else ()
