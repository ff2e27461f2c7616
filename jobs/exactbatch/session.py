"""The Spark session of a batch."""

import os
import sys

from pyspark.sql import SparkSession

from exactbatch.pipeline import Pipeline


def spark_session(pipeline: Pipeline, *, master: str | None = None) -> SparkSession:
    """A session with the pipeline's Spark properties; without `master`, the one that spark-submit was given.

    Executors run the Python that PYSPARK_PYTHON names, and otherwise this very one: it has the package.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"exactbatch {pipeline.name}")
    if master is not None:
        builder = builder.master(master)
    for name, value in pipeline.spark_conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
