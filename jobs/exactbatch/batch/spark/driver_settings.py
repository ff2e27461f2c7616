"""A driver that spark-submit has started, wherever it runs: its settings, and its log.

The log has what exactbatch does, without what other libraries do meanwhile.
"""

import json
import logging
import os
from pathlib import Path

from pyspark import SparkContext

from exactbatch.batch.spark.yarn_credentials import ALIAS
from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.errors.exit_status import exit_status
from exactbatch.errors.explanation import hint
from exactbatch.settings import KAFKA, Settings

logger = logging.getLogger("exactbatch")


def driver_settings() -> Settings:
    """Return the settings that the environment has or, in a container of YARN, the credentials of the application.

    Raises ConfigurationError if neither has them.
    """
    if KAFKA in os.environ or "CONTAINER_ID" not in os.environ:
        return Settings.from_environment()
    SparkContext._ensure_initialized()  # connects to the JVM that has started this process
    assert SparkContext._jvm is not None
    hadoop = SparkContext._jvm.org.apache.hadoop
    credentials = hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
    secret = credentials.getSecretKey(hadoop.io.Text(ALIAS))
    if secret is None:
        raise ConfigurationError(
            "this driver runs in a container of YARN whose credentials have no secrets of exactbatch. Launch batches "
            "in cluster mode from Airflow, and let spark-submit log in with a ticket: with a keytab, it reads no file "
            "of credentials. Nothing was written."
        )
    return Settings.from_environment(json.loads(bytes(secret)))


def set_up_log() -> None:
    """Log to the standard error."""
    # Other libraries log every closed connection at INFO (py4j with a traceback).
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        # py4j logs the traceback of a lost JVM as the root logger; the error says it in one line.
        handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    logger.setLevel(logging.INFO)


def log_failure(error: ExactbatchError) -> int:
    """Log the error with which a driver ends, and the command that explains it; return the exit status."""
    logger.error("%s: %s", type(error).__name__, error)
    logger.info("%s", hint(error))
    return exit_status(error)
