"""The victims of the matrix: one pipeline for each sink, on servers behind proxies."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psutil
import psycopg2
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg2.extensions import make_dsn

from exactbatch import Append, Pipeline, ToTopic, Tuning, failpoints
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.publishing.publish import Published
from exactbatch.batch.staging import stage, stage_partition
from exactbatch.batch.transform import decoded_records, transform_stager
from exactbatch.errors import Fenced, RetryableError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger, migrate
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.faults import drivers, forwarders, worker_failpoints
from support.faults.matrix import BROKER, FORWARDED_SINKS, NO_ANSWER, RESTART, SINKS, Combination
from support.faults.servers import Servers
from support.reference import LogRecord, Row, appended, read_log
from support.scenarios import COLUMNS, KINDS, PARTITIONS, VALUE, Play, SinkKind
from support.topics import Topic
from support.waiting import wait_for

TIMEOUT: Final = 3.0  # seconds, of everything that has one
BOUND: Final = 120.0  # seconds in which a try ends, on a machine that is busy
_ACTIONS: Final = {"SIGKILL": "kill", "exception": "error", "delay": "sleep:0.3", "SIGSTOP, SIGCONT": "stop"}
_MOMENT: Final = 0.3  # seconds for which a worker is held or stopped


def _transformed(log: list[LogRecord]) -> dict[Row, Row]:
    rows = appended(log).items()
    return {key: (row[0], row[1] and row[1].lower(), *row[2:]) for key, row in rows if row[0] != 5}


TRANSFORM: Final = SinkKind(
    Append,
    f"kafka_partition, kafka_offset, {COLUMNS}",
    2,
    _transformed,
    {
        "transform": "select id, lower(carrier) as carrier, at, delay, version, kafka_topic, kafka_partition, "
        "kafka_offset, kafka_timestamp from records where id <> 5"
    },
)
# The same, in other tasks than those that read: what they read is kept meanwhile.
SHUFFLE: Final = replace(
    TRANSFORM,
    changes={
        "transform": TRANSFORM.changes["transform"].replace("select", "select /*+ repartition(2) */", 1)
    },
)
TRANSFORMS: Final = {"transform": TRANSFORM, "shuffle": SHUFFLE}
FORWARDED: Final = dict(zip(FORWARDED_SINKS, (KINDS["append"], KINDS["upsert"]), strict=True))
# Faults during which another forwarder takes over.
_REPLACED: Final = ("hold", "SIGSTOP, SIGCONT")
# What a worker does, by the failpoint or the part of the program that it is in, and the sink; and where the driver
# takes it from.
_WORK: Final = {
    ("stage", "append"): (stage, "stage"),
    ("stage", "transform"): (transform_stager, "stage_rows"),
    ("stage", "shuffle"): (transform_stager, "stage_rows"),
    ("stage", "by_batch"): (stage_partition, "stage_splits"),
    ("stage.after_rejects", "shuffle"): (decoded_records, "decode_range"),
    ("partition", "partition"): (batch_job, "commit_ranges"),
}


class TryFailed(Exception):
    """An attempt failed in a separate process."""


class NotExact(AssertionError):
    """Log and target differ, or an attempt did not end, or ended in a way that is not allowed."""


@dataclass(frozen=True)
class Outcome:
    """How the attempt with the fault ended, and after how many seconds; the next attempt was exact."""

    first: str
    seconds: float


class Victims:
    """Pipelines, their servers and proxies, and the faults that can happen to them."""

    def __init__(self, spark: Any, servers: Servers, folder: Path) -> None:
        self.spark, self.stack, self.servers = spark, servers.stack, servers
        self.kafka, self.postgres = servers.kafka, servers.postgres
        self._folder = folder
        self._plays: dict[str, Play] = {}
        self._gates = self._made = 0
        self._alone = False  # whether another launch runs, which no fault shall meet

    def run(self, combination: Combination) -> Outcome:
        """Run one combination. Raises NotExact."""
        play = self._play(combination.sink)
        play.produce(6)
        for step in (play.late, play.out_of_order, play.repeated, play.tombstones, play.bad):
            step()
        if combination.moment.forwarder:
            return self._run_forwarder(combination, play)
        planning = combination.moment.place == "planner" or combination.moment.name.endswith(", plan")
        batch_id = None if planning else self._planned(combination, play)
        before = self._versions(play)

        def attempt() -> None:
            if combination.moment.place == "planner":
                beside = partial(self._beside, combination, play, None)
                self._in_fork(combination, lambda: self._plan(play), beside)
            elif planning:
                self._plan(play)
            else:
                assert batch_id is not None
                self._try(combination, play, batch_id)

        first, seconds = self._attempted(combination, play, batch_id, attempt)
        committed = not planning and play.world.rows(
            "select status = 'committed' from exactbatch.batch where batch_id = %s", batch_id
        ) == [(True,)]
        if first == "done" and not planning and not committed:
            raise NotExact(f"{combination}: the try succeeded, and the batch is not committed")
        if first != "done" and committed:
            first += ", committed"
        between = self._versions(play)
        if not committed:
            self._check_uncommitted(combination, play, batch_id, before, between)
        if planning:
            batch_id = self._plan(play)
        assert batch_id is not None
        published = self._process(play, batch_id)
        if published.batch.status != "committed":
            raise NotExact(f"{combination}: the next try left the batch {published.batch.status}")
        if published.wrote is committed:
            raise NotExact(f"{combination}: committed={committed}, and the next try wrote={published.wrote}")
        after = self._versions(play)
        if (committed and after != between) or (combination.in_ranges and not between <= after):
            raise NotExact(f"{combination}: the next try wrote rows again that were committed")
        self._check(combination, play)
        return Outcome(first, seconds)

    def _run_forwarder(self, combination: Combination, play: Play) -> Outcome:
        """Commit a batch, and let the fault meet a forwarder of its results; then another one sends the rest."""
        play.world.run(play.pipeline)
        attempt = partial(self._forward, combination, play)
        first, seconds = self._attempted(combination, play, None, attempt)
        if first == "Fenced" and combination.fault not in _REPLACED:
            raise NotExact(f"{combination}: a forwarder was fenced, and no other one had taken over")
        self._check(combination, play)
        return Outcome(first, seconds)

    def _attempted(
        self, combination: Combination, play: Play, batch_id: int | None, attempt: Callable[[], None]
    ) -> tuple[str, float]:
        """Make an attempt with the fault, and heal what it broke; return how it ended, after how many seconds."""
        began = time.monotonic()
        try:
            with self._fault(combination, play, batch_id):
                attempt()
            first = "done"
        except (TryFailed, RetryableError, RuntimeError) as error:
            first = type(error).__name__ if isinstance(error, RetryableError) else str(error)
        seconds = time.monotonic() - began
        if seconds > BOUND:
            raise NotExact(
                f"{combination}: expected the try to end within {BOUND} s, it took {seconds:.0f} s"
            )
        self._heal(combination)
        return first, seconds

    def _versions(self, play: Play) -> set[tuple[Any, ...]]:
        """Return the versions of the rows in the target, empty while there is no target."""
        table = find_writer(play.pipeline.traits).tables[-1].identifier.as_string(play.world.connection)
        if play.world.rows("select to_regclass(%s) is null", table) == [(True,)]:
            return set()
        return set(play.world.rows(f"select xmin::text, ctid::text from {table}"))

    def _check_uncommitted(
        self,
        combination: Combination,
        play: Play,
        batch_id: int | None,
        before: set[tuple[Any, ...]],
        between: set[tuple[Any, ...]],
    ) -> None:
        """Check that an uncommitted batch has changed no row, except those of ranges that are committed one by one."""
        if not combination.in_ranges:
            if between != before:
                raise NotExact(f"{combination}: a try that did not commit has changed the target")
            return
        ((committed, ranges),) = play.world.rows(
            "select count(records) as committed, count(*) as ranges from exactbatch.batch_range where batch_id = %s",
            batch_id,
        )
        expected = {
            "job.before_ranges": 0,
            "job.after_ranges": ranges,
            "partition.before_batch_commit": ranges,
        }
        ended = combination.fault in ("SIGKILL", "exception")
        if ended and committed != expected.get(combination.moment.name, committed):
            raise NotExact(f"{combination}: {committed} of {ranges} ranges are committed")
        if not before <= between or (committed == 0 and between != before):
            raise NotExact(f"{combination}: the target has other rows than those of committed ranges")

    def _try(self, combination: Combination, play: Play, batch_id: int) -> None:
        if combination.moment.place == "driver" and combination.fault.startswith("SIG"):
            self._in_driver(combination, play, batch_id)
        else:
            self._process(play, batch_id)

    def _planned(self, combination: Combination, play: Play) -> int:
        if not combination.moment.replay:
            return play.world.plan(play.pipeline)
        play.world.run(play.pipeline)
        return play.plan_replay()

    def _check(self, combination: Combination, play: Play) -> None:
        """Check that the target is what the log makes it, and that the auditor agrees."""
        log = read_log(play.topic.properties, play.topic.name, PARTITIONS)
        table = find_writer(play.pipeline.traits).tables[-1].identifier.as_string(play.world.connection)
        rows = play.world.rows(f"select {play.kind.query} from {table}")
        found = {row[: play.kind.key]: row[play.kind.key :] for row in rows}
        if len(found) != len(rows) or found != play.kind.expected(log):
            raise NotExact(f"{combination}: expected the target to be what the log makes it, it differs")
        rejected = play.world.rows('select partition, "offset" from exactbatch.rejected_record order by 1, 2')
        if rejected != play.kind.rejected(log):
            raise NotExact(f"{combination}: expected a reject for each bad record, found {len(rejected)}")
        audits = audit(play.pipeline, play.world.settings)
        if not audits.is_exact or audits.records != len(log):
            raise NotExact(f"{combination}: the auditor found {audits}")
        if play.pipeline.forward is not None:
            forwarders.send_rest(play.pipeline, play.world.settings)
            try:
                forwarders.check_results(
                    play.world.connection, play.pipeline, play.world.settings, play.kind.expected(log)
                )
            except AssertionError as error:
                raise NotExact(f"{combination}: {error}") from error

    # Faults

    @contextmanager
    def _fault(self, combination: Combination, play: Play, batch_id: int | None) -> Iterator[None]:
        moment, fault = combination.moment, combination.fault

        def beside() -> None:
            self._beside(combination, play, batch_id)

        if moment.place in ("postgres", "kafka"):
            proxy = self.postgres if moment.place == "postgres" else self.kafka
            # What came before a COMMIT identifies it.
            inject = partial(
                proxy.inject, combination.on_the_wire, when=b"" if fault == NO_ANSWER else moment.seen
            )
            if moment.at:
                with forwarders.at_failpoints(_once(moment.at, inject)):
                    yield
            else:
                inject()
                yield
            if not proxy.fired.is_set():
                raise NotExact(f"{combination}: the moment did not come")
        elif moment.place == "driver" and not fault.startswith("SIG"):
            inline = self._inline(combination, beside)
            with patch.object(batch_job, "failpoint", inline):
                yield
        elif moment.place == "forwarder" and not fault.startswith("SIG"):
            with forwarders.at_failpoints(self._inline(combination, beside)):
                yield
        elif moment.place == "worker":
            with self._at_workers(combination, beside):
                yield
        elif moment.place == "publish":
            name = "commit_batch" if moment.name.startswith("partition.") else "publish"
            with patch.object(batch_job, name, self._publishing(combination, play, name, beside)):
                yield
        else:
            yield  # the planner is in a fork of its own, and a driver or a forwarder a program of its own

    def _beside(self, combination: Combination, play: Play, batch_id: int | None) -> None:
        """Restart a server, or launch the same batch or a forwarder again, while the attempt is held."""
        if combination.fault == RESTART:
            self._restart_postgres()
        elif combination.fault == BROKER:
            self.stack.broker.kill()
        elif combination.moment.forwarder:
            self._another_forwarder(play)
        elif batch_id is not None:
            self._another_launch(play, batch_id)

    def _inline(self, combination: Combination, beside: Callable[[], None]) -> Callable[[str], None]:
        def failpoint(name: str) -> None:
            if name != combination.moment.name or self._alone:
                return
            if combination.fault == "exception":
                raise RuntimeError("exception")
            if combination.fault == "delay":
                time.sleep(_MOMENT)
            else:
                beside()

        return failpoint

    def _publishing(
        self, combination: Combination, play: Play, name: str, beside: Callable[[], None]
    ) -> Callable[..., Any]:
        function = getattr(batch_job, name)

        def run(connection: Any, pipeline: Pipeline, *arguments: Any, **named: Any) -> Any:
            if self._alone:
                return function(connection, pipeline, *arguments, **named)

            def work() -> None:
                own = _connect(self._through(play.world.settings), "exactbatch")
                function(own, pipeline, *arguments, **named)

            self._in_fork(combination, work, beside)
            batch_id = named["tables"].batch_id if "tables" in named else arguments[0]
            with transaction(play.world.connection):
                return Published(Ledger(play.world.connection).batches.read(batch_id), wrote=True)

        return run

    def _in_fork(
        self,
        combination: Combination,
        work: Callable[[], Any],
        beside: Callable[[], None],
    ) -> None:
        """Do the work in a separate process, which the fault happens to."""
        self._gates += 1
        gate, said = self._folder / f"gate-{self._gates}", self._folder / f"said-{self._gates}"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                gc.disable()
                os.closerange(3, 4096)  # nobody else's connections are kept open by this process
                action = _ACTIONS.get(combination.fault, f"hold:{gate}")
                failpoints.actions[combination.moment.name] = action
                work()
                status = 0
            except BaseException as error:
                said.write_text("exception" if type(error) is RuntimeError else type(error).__name__)
            finally:
                os._exit(status)
        if combination.fault not in _ACTIONS:
            wait_for(lambda: Path(f"{gate}.held").exists(), str(combination))
            beside()
            gate.touch()
        elif combination.fault == "SIGSTOP, SIGCONT":
            _, status = os.waitpid(child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                raise NotExact(f"{combination}: the moment did not come")
            beside()
            os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            raise TryFailed("killed")
        if status != 0:
            raise TryFailed(said.read_text())
        if combination.fault in ("SIGKILL", "exception"):
            raise NotExact(f"{combination}: the moment did not come")

    @contextmanager
    def _at_workers(self, combination: Combination, beside: Callable[[], None]) -> Iterator[None]:
        self._gates += 1
        gate, ended = self._folder / f"gate-{self._gates}", threading.Event()
        held, came = Path(f"{gate}.held"), Path(f"{gate}.came")

        def release() -> None:
            while not ended.wait(0.05):
                if combination.fault == "SIGSTOP, SIGCONT":
                    for each in _stopped_children():
                        time.sleep(_MOMENT)
                        os.kill(each, signal.SIGCONT)
                elif held.exists() and not gate.exists():
                    if combination.fault == RESTART:
                        beside()
                    else:
                        time.sleep(_MOMENT)
                    gate.touch()

        action = _ACTIONS.get(combination.fault, f"hold:{gate}")
        moment, sink = combination.moment.name, combination.sink
        place = moment if (moment, sink) in _WORK else moment.split(".")[0]
        module, name = _WORK[place, sink]
        work = worker_failpoints.Acting(getattr(module, name), moment, action, came)
        releasing = threading.Thread(target=release)
        releasing.start()
        try:
            with patch.object(module, name, work):
                yield
        finally:
            ended.set()
            releasing.join()
            if not came.exists():
                raise NotExact(f"{combination}: the moment did not come")

    def _in_driver(self, combination: Combination, play: Play, batch_id: int) -> None:
        """Launch a driver with its own JVM."""
        world = drivers.BatchLauncher(self.spark, play.world.connection, play.world.settings, self._folder)
        action = _ACTIONS[combination.fault]
        driver = world.launch(
            play.pipeline, batch_id, f"{combination.moment.name}={action}", self._through(play.world.settings)
        )
        try:
            if action == "stop":
                wait_for(
                    lambda: (
                        psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED
                        or psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE
                    ),
                    str(combination),
                )
                self._another_launch(play, batch_id)
                wait_for(lambda: _continued_to_its_end(driver), str(combination))
            status = driver.wait()
        finally:
            driver.close()
        if status == -signal.SIGKILL:
            raise TryFailed("killed")
        if status != 0:
            raise TryFailed(f"exit status {status}")

    def _forward(self, combination: Combination, play: Play) -> None:
        """Send what waits; in a separate process, if a signal is the fault."""
        settings = self._through(play.world.settings)
        if combination.moment.place != "forwarder" or not combination.fault.startswith("SIG"):
            try:
                forwarders.send(play.pipeline, settings)
            except Fenced as error:
                raise TryFailed("Fenced") from error
            return
        action = f"{combination.moment.name}={_ACTIONS[combination.fault]}"
        beside = partial(self._another_forwarder, play)
        outcome = forwarders.outcome_of_process(play.pipeline, settings, self._folder, action, beside)
        if outcome != "done":
            raise TryFailed(outcome)
        if combination.fault == "SIGKILL":
            raise NotExact(f"{combination}: the moment did not come")

    def _another_forwarder(self, play: Play) -> None:
        """Let another forwarder send what waits; the first one may hold the lock."""
        self._alone = True
        try:
            forwarders.send(play.pipeline, play.world.settings)
        except RetryableError:
            pass  # the lock of the one that is held was not granted in time
        finally:
            self._alone = False

    def _another_launch(self, play: Play, batch_id: int) -> None:
        """Launch the same batch without a fault; the first launch may hold the lock."""
        self._alone = True
        try:
            play.world.process(play.pipeline, batch_id)
        except RetryableError:
            pass  # the lock of the one that is held was not granted in time
        finally:
            self._alone = False

    def _restart_postgres(self) -> None:
        postgres = psutil.Process(self.stack.postgres.pid)
        postgres.send_signal(signal.SIGQUIT)
        wait_for(lambda: self.stack.postgres.pid is None, "an immediate stop of Postgres")
        self.stack.postgres.start()

    def _heal(self, combination: Combination) -> None:
        self.postgres.heal()
        self.kafka.heal()
        if combination.fault == BROKER:
            self.stack.broker.start()
        if combination.fault == RESTART:
            for each in self._plays.values():
                each.world.connection = connect(each.world.settings.postgres, application="tests")

    # The program, through the proxies

    def _plan(self, play: Play) -> int | None:
        settings = self._through(play.world.settings)
        with closing(_connect(settings, "exactbatch plan")) as own:
            return freeze_advance(own, KafkaBroker(settings.kafka), play.pipeline, origin="cli")

    def _process(self, play: Play, batch_id: int) -> Published:
        settings = self._through(play.world.settings)
        return batch_job.process_batch(DriverEngine(self.spark), play.pipeline, batch_id, settings)

    def _through(self, settings: Settings) -> Settings:
        through = self.servers.through(settings.postgres)
        kafka = {**through.kafka, "socket.connection.setup.timeout.ms": 3000}
        return Settings(kafka=kafka, postgres=through.postgres)

    def mend(self, combination: Combination) -> None:
        """After a combination that is not exact, start all servers and replace its pipeline."""
        self.stack.broker.start()
        self.stack.postgres.start()
        self._heal(combination)
        self._plays.pop(combination.sink, None)

    def _play(self, sink: str) -> Play:
        if sink not in self._plays:
            self._made += 1
            self._plays[sink] = self._make(sink, f"{sink}_{self._made}")
        return self._plays[sink]

    def _make(self, sink: str, name: str) -> Play:
        assert sink in SINKS
        kind = TRANSFORMS.get(sink) or FORWARDED.get(sink) or KINDS[sink]
        with closing(psycopg2.connect(self.stack.postgres_dsn)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(f"create database faults_{name}")
        dsn = make_dsn(self.stack.postgres_dsn, dbname=f"faults_{name}")
        connection = connect(dsn, application="tests")
        migrate(connection)
        properties = self.stack.kafka_properties
        admin = AdminClient(dict(properties))
        results = f"{name}_results"
        topics = [name, results] if sink in FORWARDED else [name]
        for future in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in topics]).values():
            future.result(30)
        wait_for(lambda: admin.list_topics(timeout=30).topics.keys() >= set(topics), f"topics {topics}")
        pipeline = Pipeline(
            name=name,
            topics=(name,),
            value=VALUE,
            sink=kind.sink(f"public.{name}_target"),
            max_rejects=10_000,  # a replay meets the bad records of all batches before it
            tuning=Tuning(
                read_timeout=f"{TIMEOUT:.0f} seconds",
                lock_timeout=f"{TIMEOUT:.0f} seconds",
                statement_timeout=f"{TIMEOUT:.0f} seconds",
            ),
            forward=ToTopic(results, keyed_by=("id",)) if sink in FORWARDED else None,
            **kind.changes,
        )
        with transaction(connection):
            Ledger(connection).registry.register(pipeline)
        world = BatchRunner(self.spark, connection, Settings(kafka=properties, postgres=dsn))
        return Play(world, Topic(name, dict(properties)), pipeline, kind)


def _once(moment: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Return a failpoint that does this when the moment comes for the first time."""
    came = threading.Event()

    def failpoint(name: str) -> None:
        if name == moment and not came.is_set():
            came.set()
            act()

    return failpoint


def _continued_to_its_end(driver: drivers.Driver) -> bool:
    """Continue a driver that is stopped, again if the moment comes again; return whether it has ended."""
    status = psutil.Process(driver.pid).status()
    if status == psutil.STATUS_STOPPED:
        driver.signal(signal.SIGCONT)
    return bool(status == psutil.STATUS_ZOMBIE)


def _connect(settings: Settings, application: str) -> Any:
    return connect(settings.postgres, application=application, timeout=TIMEOUT, statement_timeout=TIMEOUT)


def _stopped_children() -> list[int]:
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            if each.status() == psutil.STATUS_STOPPED:
                found.append(each.pid)
        except psutil.NoSuchProcess:
            continue  # it has ended meanwhile
    return found
