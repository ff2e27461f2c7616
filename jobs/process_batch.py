"""What spark-submit runs: process one planned batch.

Where Kafka and Postgres are comes from the environment. Exit status: 0 committed (now or before), 42 an error
that no retry can mend, 1 any other.
"""

import argparse
import logging
import sys
from pathlib import Path
from uuid import UUID

from exactbatch.batch.job import process_batch
from exactbatch.batch.session import spark_session
from exactbatch.discovery import load_pipeline
from exactbatch.errors import ExactbatchError
from exactbatch.errors.exit_status import exit_status
from exactbatch.errors.translation import all_errors_own
from exactbatch.settings import Settings


def main() -> int:
    """Run one batch; print how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True, metavar="MODULE:NAME")
    parser.add_argument("--batch-id", required=True, type=int)
    parser.add_argument(
        "--plan-id", type=UUID, help="the plan that is meant; without it, whichever has the number"
    )
    arguments = parser.parse_args()
    # Others tell at INFO of each connection that they close, py4j with a trace.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        # It logs the trace of a JVM that is gone under the root's name; the error says so in one line.
        handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    log = logging.getLogger("exactbatch")
    log.setLevel(logging.INFO)
    try:
        with all_errors_own():
            pipeline = load_pipeline(arguments.pipeline)
            settings = Settings.from_environment()
            with spark_session(pipeline) as spark:
                published = process_batch(spark, pipeline, arguments.batch_id, settings, arguments.plan_id)
    except ExactbatchError as error:
        log.error("%s: %s", type(error).__name__, error)
        return exit_status(error)
    log.info("%s", published)
    return 0


if __name__ == "__main__":
    sys.exit(main())
