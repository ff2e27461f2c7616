"""Spark's Python daemon with the program imported before it forks: a worker in place of a killed one is there at
once. Where a test has compiled code for all ranges, the daemon has loaded it, which takes a worker 2 CPU seconds.
"""

import os

import kafka  # noqa: F401 - imported for the workers
from pyspark.daemon import manager

import exactbatch.batch.by_partition.partition_commit
import exactbatch.batch.staging.stage
import exactbatch.batch.transform.transform
import exactbatch.postgres.arrow  # noqa: F401 - imported for the workers
from exactbatch.compiled import availability

if __name__ == "__main__":
    if os.environ.get(availability.VARIABLE) in ("0", "1"):
        availability.prepare()
        availability._loaded = False  # each worker tries it for itself, as one does that has to load it
    manager()
