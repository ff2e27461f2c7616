"""The driver of the tests' Spark cluster: batches come by its standard input, and what they end with goes back."""

import sys

from pyspark.sql import SparkSession

from support.faults.cluster import serve
from support.faults.held import InProcess

if __name__ == "__main__":
    session = SparkSession.builder.appName("faults").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    serve(session, InProcess(session).process, int(sys.argv[1]))
