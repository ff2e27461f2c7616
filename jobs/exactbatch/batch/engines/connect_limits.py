"""What engine="connect" cannot do; without Spark, because a DAG file checks it, too."""

from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline


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
