"""The transformed way of a batch: decode → the user's transform, in Spark → stage.

The decoded records are kept on the executors' disks, so that rows, rejects and counts come from one read. Spark
computes a block that is lost again without a word: each block carries the task attempt that read it, and these
must be the same at the end.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from psycopg2 import sql
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from exactbatch.allowed_plan import Finding, findings, marked
from exactbatch.columns import Column
from exactbatch.direct import attempt_id, cause, dealt, loaded
from exactbatch.errors import (
    ExactbatchError,
    StagedRowsDiffer,
    TasksFailed,
    TransformFailed,
    TransformRefused,
)
from exactbatch.failpoints import failpoint
from exactbatch.ledger import transaction
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import OUTCOME, Pipeline
from exactbatch.staging import (
    LINEAGE_NAMES,
    Staged,
    StagedBatch,
    StageTask,
    by_attempt,
    decode,
    decoded_schema,
    dump,
    identifier,
    stage_rows,
)

VIEW: Final = "records"
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
# Without these Spark writes milliseconds, in the session's time zone, and leaves out fields that are null.
_JSON_OPTIONS: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
# What a key of a map is in Spark's JSON; of other types it writes what its memory holds, days since 1970 or an
# address.
_JSON_KEYS: Final = (T.StringType, T.IntegralType, T.FractionalType, T.BooleanType)
_LINEAGE_TYPES: Final = dict(
    zip(LINEAGE_NAMES, (T.StringType(), T.IntegerType(), T.LongType(), T.TimestampType()), strict=True)
)


class Transformed:
    """Stages what the pipeline's transform makes of the decoded records."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, tasks: Sequence[StageTask]) -> None:
        """Raises TransformRefused for a transform that cannot be used, ConfigurationError for columns that the
        sink cannot have."""
        self._pipeline, self._tasks = pipeline, tasks
        self._read = _read(spark, dealt(tasks, pipeline.max_connections)).persist(StorageLevel.DISK_ONLY)
        self._decoded = self._read.where(F.col(OUTCOME).isNull()).drop(OUTCOME)
        transformed = _transformed(pipeline, self._decoded)
        _check(pipeline, transformed)
        self._rows = _with_json(transformed)
        self.columns = _columns_of(pipeline, transformed)
        pipeline.sink.check(self.columns)

    def stage(self, connection: Any) -> StagedBatch:
        """Read, transform and stage; return what the attempts did that Spark accepted.

        Raises TransformFailed, with the record where there is one, TransformRefused for rows that are of no
        record of the batch, TasksFailed, StagedRowsDiffer, and what reading found that no retry can mend.
        """
        try:
            read = self._outcomes()
            rejects = by_attempt(read, "rejects")
            if sum(rejects.values()) > self._tasks[0].max_rejects:
                return StagedBatch(tuple(read), {}, rejects)  # reading stopped: the batch has failed
            failpoint("transform.after_read")
            rows = self._stage_rows()
            if self._outcomes() != read:
                raise StagedRowsDiffer(
                    "expected the records that were read first to be there until all rows were staged, found "
                    "that Spark lost some and read them again. Nothing was written; try again."
                )
        finally:
            self._read.unpersist()
        staged = StagedBatch(tuple(read), rows, rejects)
        if not self._pipeline.sink.needs_lineage:
            return staged  # rows may be of many records each: nobody can tell which were dropped
        decoded = sum(each.rows for each in read)
        with_rows = self._records_with_rows(connection, staged)
        return StagedBatch(staged.pieces, rows, rejects, dropped=decoded - with_rows)

    def _outcomes(self) -> list[Staged]:
        try:
            outcomes = self._read.where(F.col(OUTCOME).isNotNull()).select(OUTCOME).collect()
        except (PySparkException, Py4JJavaError) as error:
            raise TasksFailed(
                f"expected every task to read its range, found: {cause(error)}. The next try reads the same "
                f"ranges; the log of the executors has the trace."
            ) from error
        return sorted(loaded(bytes(row[0]) for row in outcomes), key=lambda each: each.range)

    def _stage_rows(self) -> dict[int, int]:
        """Stage the transformed rows; return how many each accepted attempt has staged."""
        task = self._tasks[0]
        tables, postgres = task.tables, task.postgres
        publish_timeout, statement_timeout = task.publish_timeout, task.statement_timeout
        columns = self._pipeline.sink.staged_columns(self.columns)
        names = self._rows.columns

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
            attempt = attempt_id()
            named = (pa.RecordBatch.from_arrays(each.columns, names) for each in batches)
            rows = stage_rows(
                named,
                tables,
                postgres,
                columns,
                attempt,
                publish_timeout=publish_timeout,
                statement_timeout=statement_timeout,
            )
            failed = dump(rows) if isinstance(rows, ExactbatchError) else None
            yield pa.RecordBatch.from_arrays(
                [pa.array([attempt]), pa.array([0 if failed else rows]), pa.array([failed], pa.binary())],
                ["attempt", "rows", "failed"],
            )

        try:
            # mapInArrow takes a dot or a backtick in a column's name for syntax: they have numbers there. After a
            # shuffle there may be any number of tasks; each of these has a connection.
            rows = self._rows.toDF(*map(str, range(len(names)))).coalesce(self._pipeline.max_connections)
            outcomes = rows.mapInArrow(run, "attempt long, rows long, failed binary").collect()
        except (PySparkException, Py4JJavaError) as error:
            raise self._failure(error) from error
        loaded(bytes(each.failed) for each in outcomes if each.failed is not None)
        return {each.attempt: each.rows for each in outcomes}

    def _records_with_rows(self, connection: Any, staged: StagedBatch) -> int:
        """How many records the staged rows come from. Raises TransformRefused for one that was not read."""
        tables = self._tasks[0].tables
        with transaction(connection) as cursor:
            cursor.execute(
                sql.SQL(
                    "select count(*) as records, min(case when r.batch_id is null then "
                    "concat_ws(' ', coalesce(kafka_topic, 'null'), 'partition', "
                    "coalesce(kafka_partition::text, 'null'), 'offset', "
                    "coalesce(kafka_offset::text, 'null')) end) as foreign_one "
                    "from (select distinct kafka_topic, kafka_partition, kafka_offset from {} "
                    "where task_attempt = any({})) record left join exactbatch.batch_range r on r.batch_id = {} "
                    "and r.topic = kafka_topic and r.partition = kafka_partition "
                    "and r.from_offset <= kafka_offset and kafka_offset < r.until_offset"
                ).format(identifier(tables.rows), sql.Literal(staged.attempts), sql.Literal(tables.batch_id))
            )
            records, foreign = cursor.fetchone()
        decoded = sum(each.rows for each in staged.pieces)
        if foreign is not None or records > decoded:
            raise TransformRefused(
                f"expected the transform to leave {', '.join(LINEAGE_NAMES[:3])} as they are, found rows of "
                f"{records} records where {decoded} were decoded"
                + (f", and one of {foreign}, which is none of them" if foreign is not None else "")
                + ". Nothing was written. Correct the transform."
            )
        return int(records)

    def _failure(self, error: PySparkException | Py4JJavaError) -> ExactbatchError:
        """What to say of a job that failed: the record that the transform fails for, if there is one."""
        found = _first_failing(self._pipeline, self._decoded, [each.range for each in self._tasks])
        if found is None:
            return TasksFailed(
                f"expected the transform to give rows, found: {cause(error)}. It did not fail for any one record "
                f"alone. The log of the executors has the trace."
            )
        record, said = found
        return TransformFailed(
            f"{record.topic}[{record.partition}] offset {record.from_offset}: expected the transform to take this "
            f"record, found: {said}. Nothing was written. Correct the transform, or let it drop such records."
        )


def _read(spark: SparkSession, hands: Sequence[Sequence[StageTask]]) -> DataFrame:
    """Decoded rows with their lineage and, in a row of its own for each task, what the task did."""
    schema = decoded_schema(hands[0][0].columns).append(pa.field(OUTCOME, pa.binary()))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for task in hands[index]:
                    for each in decode(task, attempt_id()):
                        yield _read_batch(each, schema)

    spark_schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return spark.range(0, len(hands), 1, len(hands)).mapInArrow(run, spark_schema)


def _read_batch(each: pa.RecordBatch | Staged | ExactbatchError, schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(each, pa.RecordBatch):
        return each.append_column(OUTCOME, pa.nulls(len(each), pa.binary()))
    *nulls, _ = (pa.nulls(1, field.type) for field in schema)
    return pa.RecordBatch.from_arrays([*nulls, pa.array([dump(each)], pa.binary())], schema=schema)


def _transformed(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    decoded = marked(decoded)
    try:
        if pipeline.sql is not None:
            decoded.createOrReplaceTempView(VIEW)
            return decoded.sparkSession.sql(pipeline.sql)
        assert pipeline.transform is not None
        transformed = pipeline.transform(decoded)
    except PySparkException as error:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: expected a transform that Spark can plan, found: {cause(error)}. The "
            f"columns that it can use are {', '.join(decoded.columns)}."
        ) from error
    if not isinstance(transformed, DataFrame):
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: expected the transform to return a DataFrame, found "
            f"{type(transformed).__name__}"
        )
    return transformed


def _check(pipeline: Pipeline, transformed: DataFrame) -> None:
    """Raise TransformRefused unless the sink can use the rows, and a retry gives the same ones."""
    # To Spark, names that differ by case only are one name.
    names: dict[str, list[str]] = {}
    for name in transformed.columns:
        names.setdefault(name.lower(), []).append(name)
    if repeated := [each for each in names.values() if len(each) > 1]:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: the transform gives the columns "
            f"{', '.join(' and '.join(each) for each in repeated)}, which are one name to Spark. Rename or drop "
            f"one of them."
        )
    needed: dict[str, T.DataType] = dict(_LINEAGE_TYPES) if pipeline.sink.needs_lineage else {}
    if pipeline.sink.keeps_deletes:
        needed["deleted"] = T.BooleanType()
    types = {field.name: field.dataType for field in transformed.schema}
    wrong = [
        f"{name} {types[name].simpleString()}" if name in types else f"no {name}"
        for name, type_ in needed.items()
        if types.get(name) != type_
    ]
    if wrong:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: expected the transform to keep the columns that say where a row comes "
            f"from{' and whether it deletes' if pipeline.sink.keeps_deletes else ''}, {', '.join(needed)}, found "
            f"{', '.join(wrong)}. Keep them, or use a sink that works by batch: Append(…, lineage='batch')."
        )
    try:
        found = findings(transformed, by_record=pipeline.sink.needs_lineage)
    except Py4JNetworkError:
        raise  # the JVM is gone
    except Py4JError as error:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: the plan of the transform cannot be examined with this Spark: "
            f"{str(error).splitlines()[0]}. Whether the transform gives the same rows again is not known. Use the "
            f"version of Spark that requirements.txt names."
        ) from error
    allowed = {name.lower() for name in pipeline.allow_nondeterministic}
    if refused := [each for each in found if each.name.lower() not in allowed]:
        raise TransformRefused(_refusal(pipeline, refused))


def _refusal(pipeline: Pipeline, refused: Sequence[Finding]) -> str:
    """What to say of a transform whose rows may be others in a retry or a replay."""
    found = "; ".join(f"{each.name} {each.reason.why}" for each in refused)
    instead = " ".join(dict.fromkeys(each.reason.instead for each in refused))
    names = ", ".join(repr(each.name) for each in refused)
    return (
        f"pipeline {pipeline.name!r}: the transform may give other rows when it is tried again: {found}. "
        f"{instead} Or, if any result will do, set allow_nondeterministic=({names},)."
    )


def _with_json(transformed: DataFrame) -> DataFrame:
    """Structs and maps as JSON text."""
    return transformed.select(
        *(
            F.to_json(_column(field.name), _JSON_OPTIONS).alias(field.name)
            if _is_nested(field.dataType)
            else _column(field.name)
            for field in transformed.schema
        )
    )


def _columns_of(pipeline: Pipeline, transformed: DataFrame) -> tuple[Column, ...]:
    """The columns of a row, beside its lineage, with types of Postgres."""
    beside = {*LINEAGE_NAMES, "deleted"} if pipeline.sink.keeps_deletes else set(LINEAGE_NAMES)
    # Spark knows a uuid, say, as text only: a column that keeps its name keeps its type.
    as_text = {column.name: column for column in pipeline.value.columns if column.arrow_type == pa.string()}
    columns = []
    for field in transformed.schema:
        if field.name in beside:
            continue
        if isinstance(field.dataType, T.StringType) and field.name in as_text:
            columns.append(as_text[field.name])
        else:
            columns.append(Column(field.name, _postgres_type(pipeline, field.name, field.dataType)))
    return tuple(columns)


def _postgres_type(pipeline: Pipeline, name: str, type_: T.DataType) -> str:
    if _is_nested(type_):
        _check_keys(pipeline, name, type_)
        return "jsonb"
    if isinstance(type_, T.ArrayType):
        return _postgres_type(pipeline, name, type_.elementType) + "[]"
    if isinstance(type_, T.DecimalType):
        return f"numeric({type_.precision},{type_.scale})"
    if (found := _TYPES.get(type(type_))) is None:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}, column {name}: expected a type that Postgres can store, found "
            f"{type_.simpleString()}: cast it in the transform"
        )
    return found


def _check_keys(pipeline: Pipeline, name: str, type_: T.DataType) -> None:
    """Raise TransformRefused for a map whose keys JSON cannot name."""
    match type_:
        case T.ArrayType():
            _check_keys(pipeline, name, type_.elementType)
        case T.StructType():
            for field in type_.fields:
                _check_keys(pipeline, name, field.dataType)
        case T.MapType():
            if not isinstance(type_.keyType, _JSON_KEYS):
                raise TransformRefused(
                    f"pipeline {pipeline.name!r}, column {name}: Spark does not write the keys of "
                    f"{type_.simpleString()} into JSON as their values. Make them strings in the transform."
                )
            _check_keys(pipeline, name, type_.valueType)


def _is_nested(type_: T.DataType) -> bool:
    """Whether values go into jsonb: structs, maps, and arrays of these or of arrays."""
    if isinstance(type_, T.ArrayType):
        return isinstance(type_.elementType, T.ArrayType) or _is_nested(type_.elementType)
    return isinstance(type_, _NESTED)


def _column(name: str) -> Any:
    return F.col(f"`{name.replace('`', '``')}`")


def _first_failing(
    pipeline: Pipeline, decoded: DataFrame, ranges: Sequence[OffsetRange]
) -> tuple[OffsetRange, str] | None:
    """A record for which alone the transform fails, and what it says of it; None where there is none.

    About log2 of the offsets of a range as many Spark jobs as it takes to halve it down.
    """

    def failure(range_: OffsetRange) -> str | None:
        records = decoded.where(
            (F.col("kafka_topic") == range_.topic)
            & (F.col("kafka_partition") == range_.partition)
            & F.col("kafka_offset").between(range_.from_offset, range_.until_offset - 1)
        )
        try:
            _with_json(_transformed(pipeline, records)).write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            return cause(error)
        return None

    for range_ in ranges:
        if failure(range_) is None:
            continue
        while len(range_) > 1:
            lower, upper = range_.cut(range_.from_offset + len(range_) // 2)
            assert lower is not None
            assert upper is not None
            range_ = lower if failure(lower) is not None else upper
        said = failure(range_)
        return None if said is None else (range_, said)
    return None
