"""The settings of a driver that spark-submit has started, wherever it runs."""

import json
import os

from pyspark import SparkContext

from exactbatch.batch.spark.yarn_credentials import ALIAS
from exactbatch.errors import ConfigurationError
from exactbatch.settings import KAFKA, Settings


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
