"""Plan a pipeline's transform with Spark, and refuse one that cannot be used."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from exactbatch.batch.spark.spark_errors import cause, is_of_a_job
from exactbatch.batch.transform.spark_columns import repeated_names
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.errors import ExactbatchError, TransformRefused
from exactbatch.pipeline import Pipeline
from exactbatch.transforms.refused_expressions import UnrepeatableExpression
from exactbatch.transforms.refused_plan import findings, marked

VIEW: Final = "records"
_LINEAGE_TYPES: Final = dict(
    zip(LINEAGE_NAMES, (T.StringType(), T.IntegerType(), T.LongType(), T.TimestampType()), strict=True)
)


def plan_transform(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    """Return what the transform makes of the decoded records; no row is computed yet.

    Raises TransformRefused if Spark cannot plan the transform or the transform itself raises an error, and the
    error of Spark if the transform has started a Spark job that failed.
    """
    try:
        return _transformed(pipeline, decoded)
    except TransformRefused as refused:
        if (error := refused.__cause__) is not None and is_of_a_job(error):
            raise error from None
        raise
    except (ExactbatchError, PySparkException, Py4JError, ConnectionError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: its transform raised {type(error).__name__}: {error}, in "
            f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}. Nothing was written. Correct it."
        ) from error


def _transformed(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    decoded = marked(decoded)
    try:
        if isinstance(pipeline.transform, str):
            check_query(pipeline, decoded.sparkSession)
            decoded.createOrReplaceTempView(VIEW)
            return decoded.sparkSession.sql(pipeline.transform)
        assert pipeline.transform is not None
        transformed = pipeline.transform(decoded)
    except PySparkException as error:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: Spark cannot plan the transform: {cause(error)}. The columns that it "
            f"can use are {', '.join(decoded.columns)}."
        ) from error
    if not isinstance(transformed, DataFrame):
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: expected the transform to return a DataFrame, found "
            f"{type(transformed).__name__}"
        )
    return transformed


def check_query(pipeline: Pipeline, session: SparkSession) -> None:
    """Raise TransformRefused unless the transform of the pipeline, which is text, is a query.

    Spark's plan of a script shows its rows, not how they were made; a command would run at each try.
    """
    assert isinstance(pipeline.transform, str)
    query = pipeline.transform.rstrip().rstrip(";")  # which Spark allows at the end
    try:
        session._jsparkSession.sessionState().sqlParser().parseQuery(query)
    except PySparkException as error:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: expected the transform to be one query over {VIEW}, found: {cause(error)}. "
            f"Nothing was written. A script or a command cannot be a transform."
        ) from error


def check_transform(pipeline: Pipeline, transformed: DataFrame) -> None:
    """Raise TransformRefused unless the sink can use the rows, and a retry computes the same ones."""
    if repeated := repeated_names(transformed.columns):
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: the transform returns the columns {repeated}, which are the same name "
            f"to Spark. Rename or drop one of them."
        )
    needed: dict[str, T.DataType] = dict(_LINEAGE_TYPES) if pipeline.traits.needs_lineage else {}
    if pipeline.traits.keeps_deletes:
        needed["deleted"] = T.BooleanType()
    types = {field.name: field.dataType for field in transformed.schema}
    wrong = [
        f"{name} {types[name].simpleString()}" if name in types else f"no {name}"
        for name, type_ in needed.items()
        if types.get(name) != type_
    ]
    if wrong:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: expected the transform to keep the columns that say which record a row "
            f"comes from{' and whether it deletes' if pipeline.traits.keeps_deletes else ''}, {', '.join(needed)}, "
            f"found {', '.join(wrong)}. Keep them, or use a sink that works by batch: Append(…, lineage='batch')."
        )
    try:
        refusable = findings(transformed, by_record=pipeline.traits.needs_lineage)
    except Py4JNetworkError:
        raise  # the JVM is gone
    except Py4JError as error:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: the plan of the transform cannot be examined with this version of "
            f"Spark: {str(error).splitlines()[0]}. Whether the transform returns the same rows again is not "
            f"known. Install a version of Spark that exactbatch supports: `exactbatch explain requirements` lists them."
        ) from error
    allowed = {name.lower() for name in pipeline.allow_nondeterministic}
    if refused := [finding for finding in refusable if finding.name.lower() not in allowed]:
        raise TransformRefused(_refusal(pipeline, refused))


def _refusal(pipeline: Pipeline, refused: Sequence[UnrepeatableExpression]) -> str:
    """Return the message for a transform whose rows may differ in a retry or a replay."""
    reasons = "; ".join(f"{finding.name} {finding.reason.why}" for finding in refused)
    instead = " ".join(dict.fromkeys(finding.reason.instead for finding in refused))
    names = ", ".join(repr(finding.name) for finding in refused)
    return (
        f"pipeline {pipeline.name!r}: the transform may return other rows when it is retried: {reasons}. "
        f"{instead} Or, if any result will do, set allow_nondeterministic=({names},)."
    )
