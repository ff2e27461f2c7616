"""A driver of the soak: a process with one Spark session that processes batch after batch on request.

Orders come as JSON lines on standard input, {"pipeline", "batch_id", "failpoints"}; how each ended goes to the
file descriptor that is the only argument, and what is logged to standard error.
"""

import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from exactbatch import failpoints
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.spark.spark_session import spark_session
from exactbatch.errors import ExactbatchError
from exactbatch.settings import Settings
from soak.pipelines import PIPELINES


def main() -> None:
    """Say that the session is there, then do what is ordered until there are no more orders."""
    # SIGUSR1 shows where a driver hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings.from_environment()
    with (
        os.fdopen(int(sys.argv[1]), "w", buffering=1) as outcomes,
        spark_session(PIPELINES["append"]) as spark,
    ):
        spark.sparkContext.setLogLevel("ERROR")
        spark.sparkContext.parallelize([0], 1).count()
        print(json.dumps({"ready": True}), file=outcomes)
        for line in sys.stdin:
            logging.info("%s", line.strip())
            print(json.dumps(_process(spark, settings, json.loads(line))), file=outcomes)


def _process(spark: SparkSession, settings: Settings, order: dict[str, Any]) -> dict[str, Any]:
    """Process a batch with these failpoints, here and in the Python workers."""
    actions = order["failpoints"]
    failpoints.actions.clear()
    failpoints.actions.update(actions)
    environment = spark.sparkContext.environment
    environment["EXACTBATCH_FAILPOINTS"] = "; ".join(f"{name}={action}" for name, action in actions.items())
    if not actions:
        del environment["EXACTBATCH_FAILPOINTS"]
    try:
        published = process_batch(
            DriverEngine(spark), PIPELINES[order["pipeline"]], order["batch_id"], settings
        )
    except ExactbatchError as error:
        logging.error("%s: %s", type(error).__name__, error)
        said = {"error": type(error).__name__, "message": str(error), "retryable": error.retryable}
        return said if _has_jvm(spark) else {**said, "without_jvm": True}
    except Exception as error:
        # A batch that ends so in production ends its process, too: the next try is another one's.
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error), "retryable": True, "crashed": True}
    return {"wrote": published.wrote, "records": published.batch.records}


def _has_jvm(spark: SparkSession) -> bool:
    """True if the JVM answers. A driver in production ends with its batch; this one ends without its JVM."""
    try:
        spark.sparkContext._jsc.version()
    except (Py4JError, OSError):
        return False
    return True


if __name__ == "__main__":
    main()
