"""Spark's Python daemon for a Spark Connect server: it imports exactbatch once, and forks a worker for each task.

With spark.python.worker.reuse=false, a worker ends with its task: it imports a pipeline's own modules as they are then.
"""

import gc

import kafka  # noqa: F401 - imported for the workers
from pyspark.daemon import manager

import exactbatch.batch.by_partition.partition_commit
import exactbatch.batch.engines.connect_task
import exactbatch.batch.staging.stage
import exactbatch.batch.staging.stage_partition
import exactbatch.postgres.arrow  # noqa: F401 - imported for the workers
from exactbatch.code_identity import code_identity

if __name__ == "__main__":
    code_identity()  # of the code that was just imported
    # A worker collects no garbage among what it inherits: that would take 0.1 s of each, and copy its memory.
    gc.collect()
    gc.freeze()
    manager()
