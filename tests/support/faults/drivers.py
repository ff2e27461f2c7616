"""Drivers as separate processes, which a test can kill, stop and hold."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg2.extensions

from exactbatch import Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.publishing.publish import Published
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch, Ledger, list_staging_tables
from exactbatch.model import PlannedBatch
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import transaction
from exactbatch.settings import Settings
from exactbatch.sinks.writers import find_writer
from support.environment import HOME, JOBS, TESTS
from support.jvm import quick_spark
from support.topics import Topic

SECRET: Final = "s3cret-that-nobody-may-see"


class Driver:
    """`python process_batch.py` in a separate process session, with its output in `log`."""

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str],
        log: Path,
        program: Path = JOBS / "process_batch.py",
    ) -> None:
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(program), *arguments],
                env={**os.environ, **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process ID of the driver."""
        return self._process.pid

    @property
    def output(self) -> str:
        """Return everything printed so far."""
        return self._log.read_text(errors="replace")

    def wait(self, timeout: float = 120) -> int:
        """Wait for the exit status, negative for a signal. Check that no secret was printed."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"expected the driver to end within {timeout} s:\n{self.output}") from None
        assert SECRET not in self.output
        return status

    @property
    def arguments(self) -> list[str]:
        """Return the command lines of the driver and its JVM, which anyone on the machine can read."""
        lines = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and os.getsid(int(folder.name)) == self.pid:
                    lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (ProcessLookupError, FileNotFoundError):
                continue
        return lines

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver, not to its JVM."""
        self._process.send_signal(number)

    def error_line(self, name: str) -> str:
        """Return the one line of the log that names an error."""
        lines = [line for line in self.output.splitlines() if re.search(rf" ERROR \S+: {name}: ", line)]
        assert len(lines) == 1, self.output
        assert "Traceback" not in self.output, self.output
        return lines[0]

    def close(self) -> None:
        """Kill the driver and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def spark_options(more: str = "") -> str:
    """Return PYSPARK_SUBMIT_ARGS for a driver that starts fast, in its own JVM, with warm Python workers."""
    return (
        "--master local[2,2] --driver-memory 512m --conf spark.ui.enabled=false "
        f"--conf spark.python.daemon.module=support.warm_daemon {more} "
        f'--driver-java-options "{quick_spark(HOME)}" pyspark-shell'
    )


class BatchLauncher:
    """Plan, launch and inspect the batches of one test."""

    def __init__(self, spark: Any, connection: Any, settings: Settings, folder: Path) -> None:
        self.spark, self.connection, self.folder = spark, connection, folder
        # No server asks for these, but every process has them.
        self.settings = Settings(
            kafka={**settings.kafka, "ssl.key.password": SECRET},
            postgres=psycopg2.extensions.make_dsn(settings.postgres, sslpassword=SECRET),
        )
        self.log = KafkaBroker(settings.kafka)
        self.drivers: list[Driver] = []

    def plan(self, pipeline: Pipeline) -> int:
        """Plan an advance that must not be empty."""
        batch_id = freeze_advance(self.connection, self.log, pipeline, origin="cli")
        assert batch_id is not None
        return batch_id

    def launch(
        self, pipeline: Pipeline, batch_id: int, failpoints: str = "", settings: Settings | None = None
    ) -> Driver:
        """Start a driver for a batch."""
        self._write_module(pipeline)
        batch = PlannedBatch(pipeline.name, batch_id, self.batch(batch_id).plan_id)
        return self.start(
            ["--pipeline", f"{_module(pipeline)}:pipeline", "--batches", str(batch)],
            {"EXACTBATCH_FAILPOINTS": failpoints, **(settings or self.settings).as_environment()},
        )

    def start(self, arguments: list[str], environment: dict[str, str]) -> Driver:
        """Start a driver with these arguments."""
        path = os.pathsep.join(map(str, (self.folder, JOBS, TESTS)))
        environment = {"PYTHONPATH": path, "PYSPARK_SUBMIT_ARGS": spark_options(), **environment}
        driver = Driver(arguments, environment, self.folder / f"driver-{len(self.drivers)}.log")
        self.drivers.append(driver)
        return driver

    def retry(self, pipeline: Pipeline, batch_id: int) -> Published:
        """Process a batch in this process."""
        return process_batch(DriverEngine(self.spark), pipeline, batch_id, self.settings)

    def batch(self, batch_id: int) -> Batch:
        """Return a batch as the ledger has it."""
        with transaction(self.connection):
            return Ledger(self.connection).batches.read(batch_id)

    def rows(self, pipeline: Pipeline, columns: str = "id") -> list[tuple[Any, ...]]:
        """Return the rows of the target; none if it does not exist yet."""
        table = find_writer(pipeline.traits).tables[-1].identifier.as_string(self.connection)
        with transaction(self.connection) as cursor:
            cursor.execute("select to_regclass(%s) is null", (table,))
            if cursor.fetchone()[0]:
                return []
            cursor.execute(f"select {columns} from {table} order by kafka_partition, kafka_offset")
            return [tuple(row) for row in cursor.fetchall()]

    def staged(self) -> int:
        """Return the number of rows in all staging tables."""
        with transaction(self.connection) as cursor:
            tables = [each for each in list_staging_tables(self.connection) if "_rows" in each]
            total = 0
            for each in tables:
                cursor.execute(f"select count(*) from exactbatch_staging.{each}")
                total += cursor.fetchone()[0]
            return total

    def assert_nothing_written(self, pipeline: Pipeline, batch_id: int) -> None:
        """Check that there is no row and no coverage, and that no offset has moved."""
        assert self.rows(pipeline) == []
        assert self.batch(batch_id).status in ("planned", "superseded")
        with transaction(self.connection) as cursor:
            ledger = Ledger(self.connection)
            assert ledger.coverage.read_all(pipeline) == []
            assert {each.next_offset for each in ledger.plans.read_stored_offsets(pipeline)} == {0}
            cursor.execute(
                "select count(*) from exactbatch.rejected_record where pipeline = %s", (pipeline.name,)
            )
            assert cursor.fetchone()[0] == 0

    def assert_exact(self, pipeline: Pipeline, *, rows: int, rejected: int = 0) -> None:
        """Check that the auditor finds nothing, and the counts."""
        found = audit(pipeline, self.settings)
        assert found.partitions
        assert found.is_exact, found
        assert (found.rows, found.rejected) == (rows, rejected)
        assert len(self.rows(pipeline)) == rows

    def _write_module(self, pipeline: Pipeline) -> None:
        (self.folder / f"{_module(pipeline)}.py").write_text(
            # A pipeline's repr is the Python that makes it.
            f"from exactbatch import *\npipeline = {pipeline!r}\n"
        )


def _module(pipeline: Pipeline) -> str:
    return f"pipeline_{pipeline.name}"


def load(topic: Topic) -> None:
    """Append 30 valid records and 2 invalid ones."""
    topic.produce(*[json.dumps({"id": n}).encode() for n in range(20)], b"bad")
    topic.produce(*[json.dumps({"id": n}).encode() for n in range(20, 30)], b"worse", partition=1)


MakeLoaded = Callable[..., Pipeline]
