"""Process one planned batch; spark-submit runs this.

The connections to Kafka and Postgres come from the environment. Exit status: 0 committed (now or before), 42 a
permanent error, 1 any other error.
"""

import argparse
import logging
import sys
from pathlib import Path
from uuid import UUID

from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.spark.session import spark_session
from exactbatch.discovery import load_pipeline
from exactbatch.errors import ExactbatchError
from exactbatch.errors.exit_status import exit_status
from exactbatch.errors.explanation import hint
from exactbatch.errors.translation import translate_all_errors
from exactbatch.settings import Settings


def main() -> int:
    """Run one batch; log how it ended; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True, metavar="MODULE:NAME")
    parser.add_argument("--batch-id", required=True, type=int)
    parser.add_argument(
        "--plan-id", type=UUID, help="the expected plan; without it, the batch that has the number"
    )
    arguments = parser.parse_args()
    # Other libraries log every closed connection at INFO (py4j with a traceback).
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        # py4j logs the traceback of a lost JVM as the root logger; the error says it in one line.
        handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    logger = logging.getLogger("exactbatch")
    logger.setLevel(logging.INFO)
    try:
        with translate_all_errors():
            pipeline = load_pipeline(arguments.pipeline)
            settings = Settings.from_environment()
            with spark_session(pipeline) as spark:
                published = process_batch(
                    DriverEngine(spark), pipeline, arguments.batch_id, settings, arguments.plan_id
                )
    except ExactbatchError as error:
        logger.error("%s: %s", type(error).__name__, error)
        logger.info("%s", hint(error))
        return exit_status(error)
    logger.info("%s", published)
    return 0


if __name__ == "__main__":
    # Python looks into the folder of this file first, and a checkout has a package `pipelines` there. The one on
    # PYTHONPATH comes first, as in every other process.
    sys.path.append(sys.path.pop(0))
    sys.exit(main())
