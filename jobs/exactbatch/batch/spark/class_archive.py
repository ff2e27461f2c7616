"""An archive of the classes that Spark's JVM loads for a batch: with it, a driver starts faster.

Java maps the archive (application class-data sharing, JEP 350) instead of reading, parsing and verifying some 12,000
classes from jars. An archive belongs to one build of Java and to one folder of jars, whose times and sizes Java checks:
it starts without the archive if they differ. A batch of 1,000 records in a new process takes 26% less time with the
archive, and 18% less with the options for Java's compilers (docs/evidence/ablation.md).
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from exactbatch.batch.spark.spark_settings import choose_guarded_ports
from exactbatch.errors import ConfigurationError

FOLDER: Final = "EXACTBATCH_ARCHIVES"  # the environment variable that names another folder
SUBMIT_OPTIONS: Final = (
    "SPARK_SUBMIT_OPTS"  # options of the JVM that spark-submit starts: in client mode, the driver's
)
_SMALL: Final = 100_000  # offsets: a transform of fewer ends before Java's optimizing compiler saves time
_QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"
# Ten times Java's defaults: the loops over records still reach them, and what plans a query does not. That saves half
# of the CPU time of compilers.
_LATE_OPTIMIZING: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
_BUILD_TIMEOUT: Final = 300  # seconds
# Loads the classes that a batch needs, with and without a transform, and waits until the JVM has written them.
_BATCH: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
context = spark.sparkContext
context.parallelize([0, 1], 2).mapPartitions(iter).collect()
session = spark.newSession()
session.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").selectExpr("id % 2 as id").collect()
gateway = context._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def archive_folder() -> Path:
    """Return the folder of the archives: of this Python environment, unless EXACTBATCH_ARCHIVES names another."""
    return Path(os.environ.get(FOLDER) or Path(sys.prefix) / "share" / "exactbatch")


def archive_file(folder: Path) -> Path | None:
    """Return the file that has the archive of this Java and this Spark, whether it exists or not.

    Returns None if one of them is missing: spark-submit will say so.
    """
    java, spark = find_java(), _spark_home()
    if java is None or spark is None:
        return None
    of = hashlib.sha256(f"{spark} {java} {java.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    return folder / f"spark-{version('pyspark')}-{of}.jsa"


def with_archive(
    environment: Mapping[str, str],
    folder: Path | None = None,
    *,
    is_transformed: bool = True,
    offsets: int | None = None,
) -> dict[str, str]:
    """Return the variables that make spark-submit use the archive; none if there is no archive for this Java.

    A driver whose JVM runs little code often, because no record passes through it or because there are few
    `offsets`, uses Java's quick compiler alone, too. Any other uses the optimizing compiler later than by default.
    Options that the environment has already are kept and take precedence; if they are about archives, nothing is
    added.
    """
    given = environment.get(SUBMIT_OPTIONS, "")
    archive = archive_file(folder or archive_folder())
    if (
        "-Xshare" in given
        or "SharedArchiveFile" in given
        or archive is None
        or not os.access(archive, os.R_OK)
    ):
        return {}
    is_quick = not is_transformed or (offsets is not None and offsets < _SMALL)
    compilers = _QUICK_COMPILER if is_quick else _LATE_OPTIMIZING
    return {SUBMIT_OPTIONS: f"{archive_options(archive)} {compilers} {given}".strip()}


def archive_options(archive: Path) -> str:
    """Return the Java options that use an archive; an archive that does not fit is skipped without a message."""
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def build_archive(folder: Path) -> tuple[Path, bool]:
    """Build the archive of this Java and this Spark, unless it exists; return it, and whether it was built.

    It takes about half a minute and 150 MB. Raises ConfigurationError if Java is missing, if the folder is not
    writable, or if Java writes no archive.
    """
    archive = archive_file(folder)
    if archive is None:
        raise ConfigurationError(
            "expected Java 17 or newer, found none in JAVA_HOME or on PATH. Install a Java runtime, for example with "
            "`apt-get install openjdk-17-jre-headless`."
        )
    if archive.exists():
        return archive, False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "archive.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if archive.exists():  # another process has built it in the meantime
                return archive, False
            _build(archive)
    except OSError as error:
        raise ConfigurationError(
            f"the archive cannot be written to {folder}: {error.strerror}. Set {FOLDER} to a folder that this user can "
            f"write and that Airflow's tasks can read; set it for them, too."
        ) from error
    return archive, True


def _build(archive: Path) -> None:
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    settings = {"spark.master": "local[2]"}
    settings |= choose_guarded_ports(settings)
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    arguments = [*conf, "pyspark-shell"]
    environment = {
        **os.environ,
        SUBMIT_OPTIONS: f"-XX:ArchiveClassesAtExit={new}",
        "PYSPARK_SUBMIT_ARGS": " ".join(arguments),
        "PYSPARK_PYTHON": sys.executable,
    }
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _BATCH],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as spark:
            try:
                said, _ = spark.communicate(timeout=_BUILD_TIMEOUT)
            except BaseException:
                os.killpg(spark.pid, signal.SIGKILL)  # with its JVM, which would otherwise go on
                raise
        output = (
            " / ".join([line.strip() for line in said.splitlines() if line.strip()][-3:]) or "it said nothing"
        )
        if not new.exists():
            raise ConfigurationError(
                f"Java wrote no archive: {output}. Java refuses an archive if a "
                f"folder with files is in the class path, such as that of SPARK_CONF_DIR: pass Spark properties in "
                f"spark_conf or in the Spark connection instead. Batches run without the archive, too."
            )
        if spark.returncode:  # an archive of what was loaded until then would not be built again
            raise ConfigurationError(
                f"Spark ended with exit status {spark.returncode} while its classes were recorded: "
                f"{output}. Batches run without the archive, too."
            )
        new.chmod(0o444)
        new.rename(archive)
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(
            f"Spark did not end within {_BUILD_TIMEOUT} s while its classes were recorded. Does a batch run on this "
            f"machine (`exactbatch run`)? Batches run without the archive, too."
        ) from error
    finally:
        new.unlink(missing_ok=True)


def find_java() -> Path | None:
    """Return the Java that spark-submit starts."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    java = Path(found).resolve() if found else None
    return java if java is not None and java.is_file() else None


def _spark_home() -> Path | None:
    """Return the folder of the Spark that spark-submit starts, without importing it."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else None
