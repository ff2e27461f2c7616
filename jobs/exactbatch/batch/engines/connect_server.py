"""Build what starts a Spark Connect server that can run batches: its command line and its environment."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from exactbatch.batch.spark import python_daemon
from exactbatch.batch.spark.class_archive import with_archive

PORT: Final = 15002
TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # the environment variable that server and client read
# Artifacts of a session's own give it Python daemons of its own, which live as long as the server.
ARTIFACT_ISOLATION: Final = "spark.sql.artifact.isolation.enabled"
_DRIVER: Final = Path(__file__).parents[3] / "serve_connect.py"
_PROPERTIES: Final[Mapping[str, str]] = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    # A worker ends with its task, so that none runs an old version of a pipeline's functions; a daemon that has
    # imported exactbatch forks the next one in milliseconds.
    "spark.python.worker.reuse": "false",
    python_daemon.PROPERTY: python_daemon.MODULE,
    f"spark.executorEnv.{python_daemon.LOADS_COMPILED_CODE}": "1",
    "spark.executorEnv.PYTHONHASHSEED": "0",
    ARTIFACT_ISOLATION: "false",
    # What a client runs ends a minute after the client was killed, instead of five.
    "spark.connect.execute.manager.detachedTimeout": "60s",
    "spark.connect.execute.manager.maintenanceInterval": "10s",
    # A session is idle while its batch waits for Postgres: a statement may take an hour, if no pipeline changes that.
    "spark.connect.session.manager.defaultSessionTimeout": "70m",
    "spark.log.level": "WARN",
}


def build_server_command(master: str, host: str, port: int, properties: Mapping[str, str]) -> list[str]:
    """Return the command of a server; `properties` are further Spark properties, which take precedence."""
    conf = {
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(port),
        **_PROPERTIES,
        **properties,
    }
    submit = Path(sys.executable).parent / "spark-submit"
    arguments = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    return [
        str(submit),
        *("--master", master),
        *("--name", "exactbatch"),
        *arguments,
        str(_DRIVER),
    ]


def build_server_environment() -> dict[str, str]:
    """Return the environment of a server: this one, and what Python functions need. The token is inherited."""
    return {
        **os.environ,
        **with_archive(os.environ),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
    }
