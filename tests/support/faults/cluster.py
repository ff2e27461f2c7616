"""A standalone Spark cluster on this machine: a master, two workers, and a driver that processes batches."""

import base64
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark

from exactbatch import Pipeline
from exactbatch.batch.publishing.publish import Published
from exactbatch.local.child_process import HOST, accepts, find_port
from exactbatch.settings import Settings
from support.environment import HOME, JOBS, TESTS
from support.jvm import quick_spark
from support.waiting import wait_for

SPARK: Final = Path(pyspark.__file__).parent
REPLY: Final = "reply "
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster:
    """Two workers; each runs one executor of the one driver."""

    def __init__(
        self, folder: Path, *, cores: int = 1, await_executors: int = 2, properties: Mapping[str, str] = {}
    ) -> None:
        """`cores` of each worker; a batch begins when that many executors are there. Spark takes a worker by its
        name: tasks that are done a second time go to the worker that did not have them."""
        self._folder, self._await, self._properties = folder, await_executors, properties
        self._processes: list[subprocess.Popen[bytes]] = []
        port = find_port(None)
        self._master = f"spark://{HOST}:{port}"
        self._daemon("master.Master", "--host", HOST, "--port", str(port), "--webui-port", "0")
        wait_for(lambda: accepts(port))
        options = ("--cores", str(cores), "--memory", "700m", "--webui-port", "0", "-d", str(folder / "work"))
        self._workers = [
            self._daemon("worker.Worker", "--host", host, *options, self._master)
            for host in (HOST, "localhost")
        ]
        self._driver = self._start_driver()

    def process(
        self, pipeline: Pipeline, batch_id: int, settings: Settings, moment: str = "", action: str = ""
    ) -> Published:
        """Process a batch on two executors, and return or raise what it ended with."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        command = (pipeline, batch_id, settings, moment, action)
        self._driver.stdin.write(base64.b64encode(pickle.dumps(command)) + b"\n")
        self._driver.stdin.flush()
        for line in self._driver.stdout:
            if line.startswith(REPLY.encode()):
                reply: Published | Exception = pickle.loads(
                    base64.b64decode(line.removeprefix(REPLY.encode()))
                )
                if isinstance(reply, Exception):
                    raise reply
                return reply
        raise AssertionError(f"the driver has ended: see {self._folder / 'driver.log'}")

    def executors(self) -> list[psutil.Process]:
        """The JVMs of the executors, which are children of the workers."""
        return [
            child
            for worker in self._workers
            for child in psutil.Process(worker.pid).children()
            if child.status() != psutil.STATUS_ZOMBIE and _EXECUTOR in child.cmdline()
        ]

    def close(self) -> None:
        """End all of it."""
        doomed = []
        for each in self._processes:
            with suppress(psutil.NoSuchProcess):
                doomed += [*psutil.Process(each.pid).children(recursive=True), psutil.Process(each.pid)]
        for each in doomed:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        for each in self._processes:
            each.wait()

    def _daemon(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        with (self._folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "SPARK_HOME": str(SPARK),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": quick_spark(HOME),
                    "SPARK_LOCAL_IP": HOST,
                    "PYTHONPATH": str(JOBS),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(daemon)
        return daemon

    def _start_driver(self) -> "subprocess.Popen[bytes]":
        quick = quick_spark(HOME)
        options = (
            f"--master {self._master} --driver-memory 512m --executor-memory 512m "
            f"--conf spark.ui.enabled=false --conf spark.driver.host={HOST} "
            f'--conf "spark.executor.extraJavaOptions={quick}" --driver-java-options "{quick}" '
            + " ".join(f"--conf {name}={value}" for name, value in self._properties.items())
            + " pyspark-shell"
        )
        with (self._folder / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "support.faults.cluster_driver", str(self._await)],
                env={
                    **os.environ,
                    "PYSPARK_SUBMIT_ARGS": options,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": HOST,
                    "PYTHONPATH": os.pathsep.join(map(str, (JOBS, TESTS))),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(driver)
        return driver


def serve(spark: Any, process: Any, await_executors: int) -> None:
    """In the driver: process the batches that come by standard input, each when that many executors are there."""
    for line in sys.stdin:
        pipeline, batch_id, settings, moment, action = pickle.loads(base64.b64decode(line))
        # The master starts another executor for one that was killed; then it is this driver's, too.
        while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= await_executors:
            time.sleep(0.1)
        reply: Any
        try:
            reply = process(pipeline, batch_id, settings, moment, action)
        except Exception as error:
            reply = error
        sys.stdout.write(f"{REPLY}{base64.b64encode(pickle.dumps(reply)).decode()}\n")
        sys.stdout.flush()
