"""What a client knows of a Spark Connect server before it connects: its URL, `sc://host:port/;token=…`, what of it may
be shown, and what engine="connect" cannot do. Without Spark, because a DAG file checks it, too.
"""

import re
from typing import Final

from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline

_ADDRESS: Final = re.compile(r"(?:[a-z]+://)?[^/;?#]*")


def is_connect(master: str) -> bool:
    """Return True if a master is the URL of a Spark Connect server."""
    return master.startswith("sc://")


def find_address(url: str) -> str:
    """Return the part of a URL before its path and its token."""
    return str(_ADDRESS.findall(url)[0])


def check_pipeline(pipeline: Pipeline) -> None:
    """Raise ConfigurationError for what a pipeline needs a Spark driver for."""
    if pipeline.is_transformed:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} has a transform, which Spark Connect cannot check: whether its plan returns "
            f"the same rows again shows only in a Spark driver. Use engine='spark-submit' for this pipeline."
        )
    if theirs := sorted(name for name in pipeline.spark_conf if not name.startswith("spark.sql.")):
        raise ConfigurationError(
            f"pipeline {pipeline.name!r}: spark_conf has {', '.join(theirs)}, which a Spark Connect server reads "
            f"only when it starts. Set it for the server and remove it from spark_conf, or use engine='spark-submit'."
        )
