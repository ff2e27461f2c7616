"""Plan a pipeline's transform with Spark, and refuse one that cannot be used, or whose columns Postgres cannot have.

The columns of its rows have Postgres types; structs and maps are JSON.
"""

import operator
import traceback
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from exactbatch.batch.spark.spark_errors import cause, is_job_error
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.errors import ExactbatchError, TransformRefused
from exactbatch.options import list_values
from exactbatch.pipeline import Pipeline
from exactbatch.transforms.refused_expressions import UnrepeatableExpression
from exactbatch.transforms.refused_plan import findings, marked

_TYPES: Final[dict[type[T.DataType], str]] = {
    T.ByteType: "smallint",
    T.ShortType: "smallint",
    T.IntegerType: "integer",
    T.LongType: "bigint",
    T.FloatType: "real",
    T.DoubleType: "double precision",
    T.BooleanType: "boolean",
    T.StringType: "text",
    T.BinaryType: "bytea",
    T.DateType: "date",
    T.TimestampType: "timestamp with time zone",
    T.TimestampNTZType: "timestamp without time zone",
}
_NESTED: Final = (T.StructType, T.MapType, T.VariantType)
# Without these Spark writes milliseconds, in the session's time zone, and omits fields that are null.
_JSON_OPTIONS: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
# Map keys that Spark's JSON shows as their values; for other types it writes the internal form, such as days since
# 1970 or an address.
_JSON_KEYS: Final = (T.StringType, T.IntegralType, T.FractionalType, T.BooleanType)
VIEW: Final = "records"
_LINEAGE_TYPES: Final = dict(
    zip(LINEAGE_NAMES, (T.StringType(), T.IntegerType(), T.LongType(), T.TimestampType()), strict=True)
)


def find_columns(pipeline: Pipeline, transformed: DataFrame) -> tuple[Column, ...]:
    """Return the columns of a row without its lineage, with Postgres types.

    Raises TransformRefused for a type that Postgres cannot store, or that JSON cannot represent.
    """
    others = {*LINEAGE_NAMES, "deleted"} if pipeline.traits.keeps_deletes else set(LINEAGE_NAMES)
    # To Spark a uuid, for example, is text: a column that keeps its name keeps its type.
    as_text = {column.name: column for column in pipeline.value.columns if column.arrow_type == pa.string()}
    columns = []
    for field in transformed.schema:
        if field.name in others:
            continue
        if isinstance(field.dataType, T.StringType) and field.name in as_text:
            columns.append(as_text[field.name])
        else:
            columns.append(Column(field.name, _postgres_type(pipeline, field.name, field.dataType)))
    return tuple(columns)


def _postgres_type(pipeline: Pipeline, name: str, type_: T.DataType) -> str:
    if _is_nested(type_):
        _check_fields(pipeline, name, type_)
        return "jsonb"
    if isinstance(type_, T.ArrayType):
        return _postgres_type(pipeline, name, type_.elementType) + "[]"
    if isinstance(type_, T.DecimalType):
        return f"numeric({type_.precision},{type_.scale})"
    if (postgres_type := _TYPES.get(type(type_))) is None:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}, column {name}: expected a type that Postgres can store, found "
            f"{type_.simpleString()}. Cast it in the transform.",
            column=name,
        )
    return postgres_type


def _check_fields(pipeline: Pipeline, name: str, type_: T.DataType) -> None:
    """Raise TransformRefused for what JSON cannot represent: repeated field names, and map keys other than text,
    numbers and booleans."""
    match type_:
        case T.ArrayType():
            _check_fields(pipeline, name, type_.elementType)
        case T.StructType():
            if repeated := find_repeated_names(type_.names):
                raise TransformRefused(
                    f"pipeline {pipeline.name!r}, column {name}: a struct has the fields {repeated}, which are "
                    f"the same name to Spark. Rename or drop one of them.",
                    column=name,
                )
            for field in type_.fields:
                _check_fields(pipeline, name, field.dataType)
        case T.MapType():
            if not isinstance(type_.keyType, _JSON_KEYS):
                raise TransformRefused(
                    f"pipeline {pipeline.name!r}, column {name}: Spark does not write the keys of "
                    f"{type_.simpleString()} into JSON as their values. Make them strings in the transform.",
                    column=name,
                )
            _check_fields(pipeline, name, type_.valueType)


def find_repeated_names(names: Sequence[str]) -> str:
    """Return the names that are the same to Spark, which ignores case; empty if all differ."""
    by_lower: dict[str, list[str]] = {}
    for name in names:
        by_lower.setdefault(name.lower(), []).append(name)
    return ", ".join(" and ".join(same) for same in by_lower.values() if len(same) > 1)


def convert_nested_to_json(transformed: DataFrame) -> DataFrame:
    """Return the rows with structs and maps as JSON text."""
    if not any(_is_nested(field.dataType) for field in transformed.schema):
        return transformed
    return transformed.select(
        *(
            _json(_column(field.name), field.dataType).alias(field.name)
            if _is_nested(field.dataType)
            else _column(field.name)
            for field in transformed.schema
        )
    )


def _is_nested(type_: T.DataType) -> bool:
    """True if values go into jsonb: structs, maps, and arrays of these or of arrays."""
    if isinstance(type_, T.ArrayType):
        return isinstance(type_.elementType, T.ArrayType) or _is_nested(type_.elementType)
    return isinstance(type_, _NESTED)


def _json(column: Any, type_: T.DataType) -> Any:
    """Return a value as JSON. Spark would replace bytes that are not UTF-8 by U+FFFD: such a value becomes text
    that staging refuses."""
    text = F.to_json(column, _JSON_OPTIONS)
    is_utf8 = _is_utf8(column, type_)
    return text if is_utf8 is None else F.when(is_utf8, text).otherwise(F.lit(b"\xff").cast("string"))


def _is_utf8(column: Any, type_: T.DataType) -> Any:
    """Return a Spark condition that all text within a value is UTF-8; None if it contains no text."""
    match type_:
        case T.StringType():
            return F.coalesce(F.is_valid_utf8(column), F.lit(True))
        case T.StructType():
            conditions = [_is_utf8(column.getField(field.name), field.dataType) for field in type_.fields]
        case T.ArrayType():
            conditions = [_all_utf8(column, type_.elementType)]
        case T.MapType():
            conditions = [
                _all_utf8(F.map_keys(column), type_.keyType),
                _all_utf8(F.map_values(column), type_.valueType),
            ]
        case _:
            return None
    conditions = [condition for condition in conditions if condition is not None]
    return reduce(operator.and_, conditions) if conditions else None


def _all_utf8(array: Any, type_: T.DataType) -> Any:
    """Return the same condition for all elements of an array of that type."""
    if _is_utf8(F.lit(None), type_) is None:
        return None
    return F.coalesce(F.forall(array, lambda element: _is_utf8(element, type_)), F.lit(True))


def _column(name: str) -> Any:
    return F.col(f"`{name.replace('`', '``')}`")


def plan_transform(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    """Return what the transform makes of the decoded records; no row is computed yet.

    Raises TransformRefused if Spark cannot plan the transform or the transform itself raises an error, and the
    error of Spark if the transform has started a Spark job that failed.
    """
    try:
        return _transformed(pipeline, decoded)
    except TransformRefused as refused:
        if (error := refused.__cause__) is not None and is_job_error(error):
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
    if repeated := find_repeated_names(transformed.columns):
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
    allowed = {name.lower() for name in list_values(pipeline.allow_nondeterministic)}
    if refused := [finding for finding in refusable if finding.name.lower() not in allowed]:
        raise TransformRefused(_refusal(pipeline, refused))


def _refusal(pipeline: Pipeline, refused: Sequence[UnrepeatableExpression]) -> str:
    """Return the message for a transform whose rows may differ in a retry or a replay."""
    reasons = "; ".join(f"{finding.name} {finding.reason.why}" for finding in refused)
    instead = " ".join(dict.fromkeys(finding.reason.instead for finding in refused))
    names = tuple(finding.name for finding in refused)
    allowed = names[0] if len(names) == 1 else names
    return (
        f"pipeline {pipeline.name!r}: the transform may return other rows when it is retried: {reasons}. "
        f"{instead} Or, if any result will do, set allow_nondeterministic={allowed!r}."
    )
