"""A standalone Spark cluster whose machines have only Java, Spark and Python: no package of the tests can be found."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Final

import psutil
import pyspark

from exactbatch.local.child_process import HOST, accepts, find_port
from exactbatch.local.java import find_java
from exactbatch.settings import Settings
from support.environment import JOBS
from support.waiting import wait_for

_PYSPARK: Final = Path(pyspark.__file__).parent
# Of a distribution of Spark: its programs, and PySpark itself as an archive.
_OF_SPARK: Final = ("bin", "jars", "python/lib")


def submit(
    master: str,
    folder: Path,
    defaults: str,
    arguments: list[str],
    settings: Settings,
    path: Path,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run process_batch.py with spark-submit and these lines in spark-defaults.conf; the driver alone finds the
    modules in `path`. Output and log are both in `stdout`, and in driver.log of the folder."""
    configuration = folder / "conf"
    configuration.mkdir(exist_ok=True)
    (configuration / "spark-defaults.conf").write_text(defaults)
    command = ["spark-submit", "--master", master, str(JOBS / "process_batch.py"), *arguments]
    all_of_it = {
        **os.environ,
        **settings.as_environment(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(map(str, (JOBS, path))),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_IP": HOST,
        **environment,
    }
    all_of_it.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        command, env=all_of_it, stdout=PIPE, stderr=STDOUT, text=True, timeout=300, check=False
    )
    with (folder / "driver.log").open("a") as log:
        log.write(done.stdout)
    return done


class BareCluster:
    """A master and two workers with one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._daemons = folder, list[subprocess.Popen[bytes]]()
        self._home = folder / "spark"
        for part in _OF_SPARK:
            (self._home / part).parent.mkdir(parents=True, exist_ok=True)
            (self._home / part).symlink_to(_PYSPARK / part)
        port = find_port(None)
        self.master = f"spark://{HOST}:{port}"
        try:
            self._start("master.Master", "--host", HOST, "--port", str(port), "--webui-port", "0")
            wait_for(lambda: accepts(port))
            for name in ("one", "two"):
                options = ("--cores", "1", "--memory", "700m", "--webui-port", "0", "-d", str(folder / name))
                self._start("worker.Worker", "--host", HOST, *options, self.master)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all of it."""
        doomed = []
        for daemon in self._daemons:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(daemon.pid)
                doomed += [*process.children(recursive=True), process]
        for each in doomed:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        for daemon in self._daemons:
            daemon.wait()

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    [str(self._home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
                    env=self._environment,
                    cwd=self.folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    @property
    def _environment(self) -> Mapping[str, str]:
        """All that the machines of the cluster have."""
        return {
            "PATH": "/usr/bin:/bin",
            "JAVA_HOME": str(find_java().resolve().parents[1]),
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": HOST,
        }
