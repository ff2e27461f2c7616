"""Options that start JVMs quickly: the tests start more than a hundred, and most live for seconds.

C1 alone compiles them, and their classes come from an archive in `home`. Whoever asks first makes it: 15 s and
110 MB for Spark, 10 s and 51 MB for Kafka. A driver's JVM then takes 5 CPU seconds instead of 8 until its batch is
done, and a broker 1.4 instead of 4.3 until it answers.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final
from unittest import mock

import pyspark

from exactbatch.local import LocalStack
from exactbatch.local.java import find_java

_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Loads the classes that a batch needs, and waits until the JVM has written them down.
_BATCH: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.parallelize([0, 1], 2).mapPartitions(iter).collect()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


@cache
def quick_spark(home: Path) -> str:
    """Java options of a JVM of Spark that starts fast."""
    return _with_archive(home, f"spark-{pyspark.__version__}", pyspark.__file__, _run_spark)


@cache
def quick_kafka(home: Path) -> str:
    """Java options of a broker that starts fast."""
    return _with_archive(home, "kafka", str(home / "jars"), lambda options: _run_kafka(home, options))


def _with_archive(home: Path, name: str, classes: str, run: Callable[[str], None]) -> str:
    """Java options with the archive of a program; `run` runs it with other ones, to make it."""
    java = find_java().resolve()
    # An archive is of one Java, and of the place of its classes.
    of = hashlib.sha256(f"{classes} {java} {java.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    archive = home / f"{name}-{of}.jsa"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            new = archive.with_suffix(".new")
            new.unlink(missing_ok=True)
            run(f"{_QUICK} -XX:ArchiveClassesAtExit={new}")
            if not new.exists():  # a Java that has no archive of its own classes makes none
                return _QUICK
            new.rename(archive)
    return f"{_QUICK} -XX:SharedArchiveFile={archive}"


def _run_spark(options: str) -> None:
    submit = (
        f'--master local[2] --conf spark.ui.enabled=false --driver-java-options "{options}" pyspark-shell'
    )
    subprocess.run(
        [sys.executable, "-c", _BATCH],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": submit, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        check=False,
    )


def _run_kafka(home: Path, options: str) -> None:
    stack = LocalStack(home, name=f"archive-{os.getpid()}")
    with mock.patch.dict(os.environ, {"KAFKA_OPTS": options}):
        stack.broker.configure({}, None, anywhere=True)
        try:
            stack.broker.start()
        finally:
            stack.down(delete=True)
