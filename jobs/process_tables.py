"""Process one planned batch of each of many tables; spark-submit runs this.

The connections to Kafka and Postgres come from the environment or, in cluster mode on YARN, from credentials. Exit
status: 0 all committed (now or before), 42 a terminal error, 1 any other error. The batches of tables without an error
are committed in each case.
"""

import argparse
import json
import sys

from exactbatch.batch.driver_log import log_failure, logger, set_up_log
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.process_tables import member_batches, process_tables
from exactbatch.batch.spark.driver_settings import driver_settings
from exactbatch.batch.spark.session import spark_session
from exactbatch.discovery import load_tables
from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import translate_all_errors
from exactbatch.tables import tables_failed


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of this process: `tables`, and `batches` as one list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", required=True, metavar="MODULE:NAME")
    parser.add_argument(
        "--batches",
        required=True,
        action="extend",
        type=json.loads,
        help="a JSON list of [topic, batch ID, plan ID]. Repeatable: Linux limits the length of one argument",
    )
    return parser.parse_args()


def main() -> int:
    """Process the batches; log how each ended; return the exit status."""
    arguments = parse_arguments()
    set_up_log()
    try:
        with translate_all_errors():
            tables = load_tables(arguments.tables)
            batches, failed = member_batches(tables, arguments.batches)
            settings = driver_settings()
            with spark_session(tables) as spark:
                outcomes = process_tables(DriverEngine(spark), batches, settings, at_a_time=tables.at_a_time)
            failed |= {each.batch.pipeline.name: each.error for each in outcomes if each.error is not None}
            if failed:
                raise tables_failed(tables.name, failed, others=len(arguments.batches) - len(failed))
    except ExactbatchError as error:
        return log_failure(error)
    logger.info("%s: all %s tables are committed", tables.name, len(batches))
    return 0


if __name__ == "__main__":
    # Python looks into the folder of this file first, and a checkout has a package `pipelines` there. The one on
    # PYTHONPATH comes first, as in every other process.
    sys.path.append(sys.path.pop(0))
    sys.exit(main())
