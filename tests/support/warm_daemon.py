"""Spark's Python daemon with the program imported before it forks: a worker in place of a killed one is there at
once."""

import kafka  # noqa: F401 - imported for the workers
from pyspark.daemon import manager

import exactbatch.batch.by_partition.partition_commit
import exactbatch.batch.staging.stage
import exactbatch.batch.transform.transform
import exactbatch.postgres.arrow  # noqa: F401 - imported for the workers

if __name__ == "__main__":
    manager()
