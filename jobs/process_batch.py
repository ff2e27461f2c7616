"""Process one planned batch; spark-submit runs this.

The connections to Kafka and Postgres come from the environment or, in cluster mode on YARN, from credentials. Exit
status: 0 committed (now or before), 42 a terminal error, 1 any other error.
"""

import argparse
import sys
from uuid import UUID

from exactbatch.batch.driver_log import log_failure, logger, set_up_log
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.spark.driver_settings import driver_settings
from exactbatch.batch.spark.session import spark_session
from exactbatch.discovery import load_pipeline
from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import translate_all_errors


def main() -> int:
    """Run one batch; log how it ended; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True, metavar="MODULE:NAME")
    parser.add_argument("--batch-id", required=True, type=int)
    parser.add_argument(
        "--plan-id", type=UUID, help="the expected plan; without it, the batch that has the number"
    )
    arguments = parser.parse_args()
    set_up_log()
    try:
        with translate_all_errors():
            pipeline = load_pipeline(arguments.pipeline)
            settings = driver_settings()
            with spark_session(pipeline) as spark:
                published = process_batch(
                    DriverEngine(spark), pipeline, arguments.batch_id, settings, arguments.plan_id
                )
    except ExactbatchError as error:
        return log_failure(error)
    logger.info("%s", published)
    return 0


if __name__ == "__main__":
    # Python looks into the folder of this file first, and a checkout has a package `pipelines` there. The one on
    # PYTHONPATH comes first, as in every other process.
    sys.path.append(sys.path.pop(0))
    sys.exit(main())
