"""The driver of a Spark Connect server; spark-submit runs this (`exactbatch connect`).

Spark's own server class sets spark.sql.artifact.isolation.enabled to true, whatever its configuration says. Each
session would then start a Python daemon, which lives as long as the server. The plugin takes the property as it is
configured.
"""

import select
import sys
from typing import Final

from pyspark import SparkConf
from pyspark.sql import SparkSession

from exactbatch.batch.spark.spark_settings import choose_guarded_ports

_CHECK_S: Final = 5.0  # how often it asks whether Spark has stopped


def main() -> None:
    """Serve until Spark stops, or the JVM ends and closes its end of the standard input."""
    builder = SparkSession.builder
    for name, value in choose_guarded_ports(dict(SparkConf().getAll())).items():
        builder = builder.config(name, value)
    context = builder.getOrCreate().sparkContext
    stopped = context._jsc.sc().isStopped
    while not stopped():
        readable, _, _ = select.select([sys.stdin], [], [], _CHECK_S)
        if readable and not sys.stdin.read(1):
            return


if __name__ == "__main__":
    main()
