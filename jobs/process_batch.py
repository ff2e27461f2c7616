"""Process planned batches: the one of a pipeline, or one of each of many tables; spark-submit runs this.

The connections to Kafka and Postgres come from the environment or, in cluster mode on YARN, from credentials. Exit
status: 0 all committed (now or before), 42 a terminal error, 1 any other error. The batches of tables without an error
are committed in each case.
"""

import argparse
import sys

from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.process_batches import process_batches
from exactbatch.batch.spark.driver_settings import driver_settings, log_failure, set_up_log
from exactbatch.batch.spark.spark_session import spark_session
from exactbatch.discovery import load_object
from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import translate_all_errors
from exactbatch.model import PlannedBatch
from exactbatch.tables import build_failure


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of this process: `pipeline`, and `batches` as a list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True, metavar="MODULE:NAME", help="a Pipeline, or Tables")
    parser.add_argument(
        "--batches",
        required=True,
        nargs="+",
        type=PlannedBatch.parse,
        metavar="PIPELINE:ID:PLAN",
        help="without a PLAN, the batch that has the number",
    )
    return parser.parse_args()


def main() -> int:
    """Process the batches; log how each ended; return the exit status."""
    arguments = parse_arguments()
    set_up_log()
    try:
        with translate_all_errors():
            found = load_object(arguments.pipeline)
            settings = driver_settings()
            with spark_session(found) as spark:
                outcomes = process_batches(DriverEngine(spark), found, arguments.batches, settings)
            failed = {each.batch.pipeline: each.error for each in outcomes if each.error is not None}
            if failed:
                raise build_failure(found, failed, others=len(outcomes) - len(failed))
    except ExactbatchError as error:
        return log_failure(error)
    return 0


if __name__ == "__main__":
    # Python looks into the folder of this file first, and a checkout has a package `pipelines` there. The one on
    # PYTHONPATH comes first, as in every other process.
    sys.path.append(sys.path.pop(0))
    sys.exit(main())
