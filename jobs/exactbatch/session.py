"""The Spark session of a batch."""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from exactbatch.errors import TasksFailed
from exactbatch.pipeline import Pipeline

_ZONE: Final = "spark.sql.session.timeZone"
_NAME: Final = re.compile(r"[A-Za-z]+(/[A-Za-z_]+)*")  # UTC or Asia/Tokyo


@contextmanager
def spark_session(pipeline: Pipeline, *, master: str | None = None) -> Iterator[SparkSession]:
    """A session with the pipeline's Spark properties; without `master`, the one that spark-submit was given.

    Executors run the Python that PYSPARK_PYTHON names, and otherwise this very one: it has the package. Raises
    TasksFailed when its JVM ends before it does.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"exactbatch {pipeline.name}")
    if master is not None:
        builder = builder.master(master)
    for name, value in pipeline.spark_conf.items():
        builder = builder.config(name, value)
    with end_of_jvm_told(), builder.getOrCreate() as session:
        yield session


def set_time_zone(spark: SparkSession, pipeline: Pipeline) -> None:
    """Let a transform see times in UTC, or in the zone that the pipeline's spark_conf names, wherever it runs.

    That is the zone of SQL, of datetimes without one that become literals on the driver (py4j takes them for local
    time), and of those that Python functions get on executors (Spark makes local times of them). Spark takes zones
    that the C library reads in another way, as +02:00: Python has UTC then. It stays so for this process.
    """
    zone = pipeline.spark_conf.get(_ZONE, "UTC")
    local = pipeline.spark_conf.get("spark.executorEnv.TZ", zone if _NAME.fullmatch(zone) else "UTC")
    spark.conf.set(_ZONE, zone)
    # The environment of the Python workers of tasks that begin from here on, and of this process.
    spark.sparkContext.environment["TZ"] = os.environ["TZ"] = local
    time.tzset()


def session_of_its_own(spark: SparkSession) -> SparkSession:
    """A session with the settings, views and functions that `spark` has now. What is made in one later, the other
    does not see. They share the context: executors, and what is cached.
    """
    # newSession() would have neither the settings nor the functions that were given to the session at run time.
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


@contextmanager
def end_of_jvm_told() -> Iterator[None]:
    """Raise TasksFailed where the driver's JVM, which Python talks to by a socket, is gone."""
    try:
        yield
    except (Py4JNetworkError, ConnectionRefusedError) as error:
        raise TasksFailed(
            "expected the JVM of the driver to run until the batch is done, found that it has ended. A JVM that "
            "is killed leaves no message: did the machine run out of memory? The next try finds in the ledger "
            "whether the batch was committed, and else processes the same ranges."
        ) from error
