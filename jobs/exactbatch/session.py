"""The Spark session of a batch."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from exactbatch.errors import TasksFailed
from exactbatch.pipeline import Pipeline


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
