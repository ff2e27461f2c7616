"""A way in a process of its own, told when to run a round; and the servers that all ways share."""

import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg2
import usage
from rich.console import Console
from shapes import FLIGHTS, Shape
from ways import Place, Way, one_transaction, register

from exactbatch import Append
from exactbatch.local import LocalStack
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks import FormatFacts
from exactbatch.sinks.writers import find_writer

# Seconds that one round may take before it is given up.
ROUND_TIMEOUT = 1800.0
# Vacuum would start in the middle of one round or another. With the 256 MB of `exactbatch local`, each way would wait
# until pages are written to make room; much more than 1 GB would be missing to the processes of all ways together.
# Everything else is as `exactbatch local` sets it.
POSTGRES_SETTINGS = {"autovacuum": "off", "max_wal_size": "16GB", "shared_buffers": "1GB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one round took: seconds, CPU seconds (of the way itself; with broker and Postgres; and what all
    else on the machine took meanwhile) and MB; and the seconds of its stages, where it has any."""

    seconds: float
    cpu: float
    cpu_with_servers: float
    cpu_others: float
    peak_mb: float
    peak_mb_by_kind: dict[str, float]
    stages: dict[str, float]


class Servers:
    """The broker and Postgres of the benchmark."""

    def __init__(self, stack: LocalStack, scratch: Path) -> None:
        self.stack = stack
        self.scratch = scratch

    def place(
        self,
        topic: str,
        rows: int,
        shape: Shape = FLIGHTS,
        jars: tuple[Path, ...] = (),
        connect_jars: tuple[Path, ...] = (),
        registry: str = "",
    ) -> Place:
        """What the ways are given."""
        return Place(
            kafka=dict(self.stack.kafka_properties),
            postgres=self.stack.postgres_dsn,
            topic=topic,
            jars=jars,
            connect_jars=connect_jars,
            scratch=self.scratch,
            shape=shape,
            rows=rows,
            registry=registry,
        )

    def cpu_seconds(self) -> float:
        """CPU time of the broker and of Postgres with its backends, those that ended too."""
        return sum(usage.cpu_seconds_with_ended(server.pid) for server in self.stack.servers if server.pid)

    def prepare(self, place: Place, way: Way) -> None:
        """An empty target, a pipeline that has read nothing, and no work left over from the last round."""
        with self._cursor() as cursor:
            for suffix in ("", *way.derived) if way.target else ():
                cursor.execute(f"drop table if exists {way.target}{suffix}")
            cursor.execute("select to_regclass('exactbatch.pipeline') is not null")
            if cursor.fetchone()[0]:
                cursor.execute("set session_replication_role to replica")
                # Pipelines, too: those of another shape may write to the same table in another way.
                for table in (
                    "coverage",
                    "stored_offset",
                    "batch_range",
                    "rejected_record",
                    "batch",
                    "pipeline",
                ):
                    cursor.execute(f"truncate exactbatch.{table} cascade")
                cursor.execute("reset session_replication_role")
            cursor.execute("checkpoint")
        register(place, way.pipeline(place) if way.pipeline else one_transaction(place))
        if way.target and way.is_prepared and not way.derived:
            with (
                closing(connect(place.postgres, application="benchmark")) as connection,
                transaction(connection) as own,
            ):
                sink = Append(way.target)
                traits = way.pipeline(place).traits if way.pipeline else sink.find_traits(FormatFacts())
                find_writer(traits).prepare(own, place.shape.value.columns)

    def contents(self, target: str, sums: str) -> tuple[Any, ...]:
        """The number of rows, and numbers that differ when a column came out otherwise."""
        with self._cursor() as cursor:
            cursor.execute(f"select count(*), {sums} from {target}")
            found: tuple[Any, ...] = cursor.fetchone()
            return found

    def records(self, target: str) -> int:
        """How many records a derived target stands for."""
        count = {
            "public.flight_upsert": "select count(*) from public.flight_upsert_change",
            "public.flight_aggregate": "select sum(flights) from public.flight_aggregate",
        }
        with self._cursor() as cursor:
            cursor.execute(count[target])
            return int(cursor.fetchone()[0])

    def rows(self, target: str) -> int:
        """The number of rows of a target."""
        with self._cursor() as cursor:
            cursor.execute(f"select count(*) from {target}")
            return int(cursor.fetchone()[0])

    def committed_at(self) -> float:
        """When the last batch was committed, in seconds since 1970, as its last statement before COMMIT notes it."""
        with self._cursor() as cursor:
            cursor.execute("select extract(epoch from max(committed_at)) from exactbatch.batch")
            return float(cursor.fetchone()[0])

    def version(self) -> str:
        """The version of Postgres."""
        with self._cursor() as cursor:
            cursor.execute("show server_version")
            return str(cursor.fetchone()[0])

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        connection = psycopg2.connect(self.stack.postgres_dsn)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()


class Runner:
    """A way's own process: it opens its session, then runs a round each time that it is asked to.

    What it prints is in <scratch>/<way>.log. With `jobs`, it and the processes that it starts import exactbatch from
    there.
    """

    def __init__(self, way: Way, place: Place, jobs: Path | None = None) -> None:
        self.way = way
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(way, place, theirs))
        with _importing_from(jobs):
            self._process.start()
        theirs.close()
        self._answer()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process; its JVM ends with it."""
        started = usage.tree(self._process.pid or 0)
        self._pipe.close()
        self._process.join(20)
        for process in started:
            if process.is_running():
                process.kill()

    def run(self, servers: Servers) -> Measured:
        """One round, measured from outside."""
        pid = self._process.pid
        assert pid is not None
        servers_before, machine_before = servers.cpu_seconds(), usage.machine_cpu_seconds()
        with usage.watch(pid) as used:
            self._pipe.send("run")
            seconds, stages = self._answer()
        with_servers = used.cpu + servers.cpu_seconds() - servers_before
        return Measured(
            seconds=seconds,
            cpu=used.cpu,
            cpu_with_servers=with_servers,
            cpu_others=max(0.0, usage.machine_cpu_seconds() - machine_before - with_servers),
            peak_mb=used.peak_mb,
            peak_mb_by_kind=used.peak_mb_by_kind,
            stages=dict(stages),
        )

    def _answer(self) -> tuple[float, Mapping[str, float]]:
        if not self._pipe.poll(ROUND_TIMEOUT):
            raise SystemExit(f"expected {self.way.title} to answer within {ROUND_TIMEOUT:g} s")
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise SystemExit(f"expected {self.way.title} to answer, found that its process ended") from None
        if isinstance(answer, str):
            raise SystemExit(f"{self.way.title} failed:\n{answer}")
        seconds, stages = answer
        return seconds, stages


@contextmanager
def _importing_from(jobs: Path | None) -> Iterator[None]:
    """Let processes that are started in the block import from a folder first."""
    if jobs is None:
        yield
        return
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(jobs)
    sys.path.insert(0, str(jobs))
    try:
        yield
    finally:
        sys.path.remove(str(jobs))
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def benchmark_servers(
    home: Path, progress: Callable[[str], None], settings: Mapping[str, str] = POSTGRES_SETTINGS
) -> Iterator[Servers]:
    """The stack "bench", up for the time of the block; the log of Kafka stays for the next run."""
    stack = LocalStack(home, name="bench", progress=progress)
    scratch = stack.folder / "scratch"
    with ExitStack() as ending:
        ending.callback(stack.down)
        stack.up(postgres_settings=dict(settings))
        scratch.mkdir(exist_ok=True)
        yield Servers(stack, scratch)


def _serve(way: Way, place: Place, pipe: multiprocessing.connection.Connection) -> None:
    """In the way's process: send 0 when it is open, the seconds of each round, or a traceback."""
    with (place.scratch / f"{way.name}.log").open("w") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)  # what the JVM says, too
    try:
        session = way.start(place)
        pipe.send((0.0, {}))
        while True:
            pipe.recv()
            started = time.perf_counter()
            stages = session.run()
            pipe.send((time.perf_counter() - started, stages or {}))
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc())


@contextmanager
def progress_on(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that says which step is going on: in one line of a terminal, else in a line for each."""
    with console.status("starting") as status:
        yield status.update if console.is_terminal else console.print
