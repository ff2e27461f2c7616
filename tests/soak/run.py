"""One run of the soak: start everything, let it work under faults, drain, and see whether the end is exact."""

import fcntl
import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from exactbatch.audit.audit_result import AuditReport, TargetAudit
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, Streams, migrate
from exactbatch.local import LocalStack
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from soak.check import Accounted, check_log, check_pipeline, check_results
from soak.faults import EVERY_S, Faults
from soak.forwarders import Forwarder
from soak.history import troubles
from soak.pipelines import FORWARDING, PARTITIONS, PIPELINES, RESULTS_TOPIC, SHORT_TOPIC, TOPIC
from soak.producer import Account, Writer
from soak.work import Slot, Work
from support.faults.servers import Kind, Servers, started_servers

SLOTS: Final = 2
FORWARDERS: Final = 2
_START_S: Final = 300.0
_DRAIN_S: Final = 600.0
# A kind of fault that was drawn so often and never came is one that cannot come.
_TIMES: Final = 5


@dataclass
class Report:
    """The result of a run; `failure` is None if everything is exact."""

    seed: int
    seconds: float = 0.0
    account: Account = field(default_factory=Account)
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    batches: dict[tuple[str, str], int] = field(default_factory=dict)
    audits: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    accounted: dict[str, Accounted] = field(default_factory=dict)
    results: int = 0
    failure: str | None = None
    folder: Path | None = None


class Auditor:
    """A thread that audits the pipelines that a fault met, while batches go on."""

    def __init__(self, settings: Settings, failed: Callable[[BaseException], None]) -> None:
        self.done = 0
        self._settings, self._failed = settings, failed
        self._wanted: dict[str, None] = {}
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._guarded, name="auditor", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def want(self, pipeline: str) -> None:
        """Audit a pipeline soon."""
        with self._condition:
            self._wanted[pipeline] = None
            self._condition.notify()

    def stop(self) -> None:
        """Do what is wanted still, and end."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(300)
        assert not self._thread.is_alive(), "expected the auditor to end"

    def audit(self, name: str) -> AuditReport:
        """Audit a pipeline, as often as servers fail meanwhile. Raises AssertionError for a difference."""
        while True:
            try:
                found = audit(PIPELINES[name], self._settings)
                break
            except ExactbatchError as error:
                # A pipeline that has not run yet has no target.
                if type(error).__name__ == "TargetMismatch":
                    return AuditReport([], TargetAudit())
                if not error.retryable:
                    raise
            except Exception as error:
                if not _is_lost_connection(error):
                    raise
            time.sleep(0.5)
        assert found.is_exact, f"the auditor finds differences in {name}: {found}"
        self.done += 1
        return found

    def _guarded(self) -> None:
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._wanted or self._stopping)
                    if not self._wanted:
                        return
                    name = next(iter(self._wanted))
                    del self._wanted[name]
                self.audit(name)
        except BaseException as error:
            self._failed(error)


def _is_lost_connection(error: Exception) -> bool:
    return type(error).__module__.startswith(("psycopg2", "adbc_driver_manager", "kafka", "cimpl"))


class Soak:
    """A run on a separate stack, which is kept if the run fails."""

    def __init__(
        self,
        home: Path,
        name: str,
        *,
        seed: int,
        seconds: float,
        rate: int,
        every: float = EVERY_S,
        kind: Kind = Kind.PASSWORDS,
    ):
        self.stack, self._kind = LocalStack(home, name), kind
        self.report = Report(seed, folder=self.stack.folder)
        self._seconds, self._rate, self._every = seconds, rate, every
        self._failure: str | None = None
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._forwarders: list[Forwarder] = []
        self._handlers: list[logging.Handler] = []
        self.work: Work | None = None
        self.auditor: Auditor | None = None
        self.state = "starting"

    def run(self) -> Report:
        """Run to the end, or to the first difference."""
        try:
            with ExitStack() as stack:
                with _one_at_a_time(self.stack.home):
                    servers = stack.enter_context(started_servers(self.stack, self._kind))
                self._run(servers)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._end()
        return self.report

    def _run(self, servers: Servers) -> None:
        """Batches go through the proxies; producers and auditor, which are to be believed, do not."""
        settings = Settings(kafka=dict(self.stack.kafka_properties), postgres=self.stack.postgres_dsn)
        _prepare(settings)
        folder = self.stack.folder / "soak"
        folder.mkdir()
        through = servers.through(settings.postgres)
        self.work = work = Work(through, folder, self.report.seed, self._fail)
        self.auditor = auditor = Auditor(settings, self._fail)
        work.wants_audit = auditor.want
        self._slots = [Slot(work, number) for number in range(SLOTS)]
        self._forwarders = [Forwarder(work, number) for number in range(FORWARDERS)]
        writer = Writer(settings.kafka, self.report.seed, self._rate, self._fail)
        self.report.account = writer.account
        self._log_to(folder / "soak.log")
        faults = Faults(work, servers, self._slots, self._forwarders, self._every)
        self.report.missed = faults.missed
        writer.start()
        auditor.start()
        for slot in self._slots:
            slot.thread.start()
        for forwarder in self._forwarders:
            forwarder.start()
        self._wait(lambda: work.committed > 0, _START_S, f"expected a first batch within {_START_S:g} s")
        self.state = "running"
        faults.start()
        begun = time.monotonic()
        self._failed.wait(self._seconds)
        faults.stop()
        ended = time.monotonic()
        self.report.seconds = ended - begun
        if not self._failed.is_set():
            self.state = "draining"
            writer.stop()
            work.armed.clear()
            work.draining.set()
            self._wait(
                lambda: not any(each.thread.is_alive() for each in self._slots),
                _DRAIN_S,
                f"expected all that was produced to be processed within {_DRAIN_S:g} s",
            )
            auditor.stop()
            self._wait(
                partial(_is_sent, settings),
                _DRAIN_S,
                f"expected all results to be sent within {_DRAIN_S:g} s",
            )
            self._stop_forwarders()
        if not self._failed.is_set():
            self.state = "checking"
            self._check(settings, faults.removed)
            found = troubles(list(work.history), slots=SLOTS, began=begun, ended=ended)
            assert not found, f"expected drivers that commit between faults: {'; '.join(found)}"
            never = {
                kind for kind, times in faults.missed.items() if times >= _TIMES and not faults.came[kind]
            }
            assert not never, (
                f"expected {sorted(never)} to meet a batch, drawn {_TIMES} times or more: none did"
            )

    def _log_to(self, file: Path) -> None:
        """Log the errors of this process's clients next to the drivers' logs."""
        handler = logging.FileHandler(file)
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s")
        )
        logging.getLogger().addHandler(handler)
        self._handlers.append(handler)

    def _wait(self, condition: Callable[[], bool], timeout: float, message: str) -> None:
        deadline = time.monotonic() + timeout
        while not condition() and not self._failed.is_set():
            assert time.monotonic() < deadline, message
            self._failed.wait(0.1)

    def _check(self, settings: Settings, removed: dict[int, int]) -> None:
        assert self.auditor is not None
        check_log(self.report.account, settings.kafka, removed)
        with closing(connect(settings.postgres, application="soak check")) as connection:
            for name, pipeline in PIPELINES.items():
                audits = self.auditor.audit(name)
                self.report.accounted[name] = check_pipeline(
                    pipeline, self.report.account, connection, audits, removed
                )
            self.report.results = check_results(PIPELINES[FORWARDING], connection, settings)

    def _stop_forwarders(self) -> None:
        for each in self._forwarders:
            each.stop()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                where = "".join(traceback.format_exception(error)[-4:])
                self._failure = f"{threading.current_thread().name}: {where}"
        self._failed.set()

    def _end(self) -> None:
        """Stop everything; where the run was exact, nothing is left of it."""
        report, work = self.report, self.work
        report.failure = self._failure
        if work is not None:
            work.stopping.set()
            report.faults, report.errors, report.crashes = work.faults, work.errors, work.crashes
            report.audits = self.auditor.done if self.auditor else 0
            with_ledger = self.stack.postgres.pid is not None
            report.batches = _batches(self.stack.postgres_dsn) if with_ledger else {}
        self._stop_forwarders()
        for slot in self._slots:
            slot.close()
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
        self.stack.broker.stop()  # also the ZooKeeper of a broker that has ended
        self.stack.down(delete=report.failure is None)


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    """Two that look for free ports at the same moment find the same ones."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "ports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prepare(settings: Settings) -> None:
    """Topics, the ledger, and the pipelines in it."""
    admin = AdminClient(dict(settings.kafka))
    for future in admin.create_topics(
        [NewTopic(each, PARTITIONS, 1) for each in (TOPIC, SHORT_TOPIC, RESULTS_TOPIC)]
    ).values():
        future.result(30)
    with closing(connect(settings.postgres, application="soak")) as connection:
        migrate(connection)
        with transaction(connection):
            for pipeline in PIPELINES.values():
                Ledger(connection).registry.register(pipeline)
        # Each begins here: an empty plan stores where. What retention removes from now on is lost.
        for pipeline in PIPELINES.values():
            assert freeze_advance(connection, KafkaBroker(settings.kafka), pipeline, origin="cli") is None


def _is_sent(settings: Settings) -> bool:
    """True if the ledger knows of every result that the topic has it."""
    with closing(connect(settings.postgres, application="soak")) as connection, transaction(connection):
        stream = Streams(connection).read(FORWARDING)
    assert stream is not None
    return not stream.unsent and stream.attempted_sequence is None


def _batches(dsn: str) -> dict[tuple[str, str], int]:
    """Count the ledger's batches by kind and status."""
    with closing(connect(dsn, application="soak")) as connection, transaction(connection) as cursor:
        cursor.execute("select kind, status, count(*) as n from exactbatch.batch group by 1, 2 order by 1, 2")
        found: list[Any] = cursor.fetchall()
        return {(each.kind, each.status): each.n for each in found}
