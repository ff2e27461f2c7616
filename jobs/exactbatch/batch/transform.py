"""The transformed way of a batch: decode → the user's transform, in Spark → stage.

The decoded records are kept on the executors' disks, so that rows, rejects and counts come from one read. Spark
computes a block that is lost again without a word: each block carries the task attempt that read it, and these
must be the same at the end.
"""

import operator
import threading
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
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

from exactbatch.batch.direct import attempt_id, dealt, loaded, tasks_failed
from exactbatch.batch.lineage import is_handed_on
from exactbatch.batch.spark_errors import cause, is_of_a_job, may_be_of_a_record, setting_refused, settings_of
from exactbatch.batch.staging import (
    LINEAGE_NAMES,
    Staged,
    StagedBatch,
    StageTask,
    by_attempt,
    create_lineage,
    decode,
    decoded_schema,
    dump,
    identifier,
    note_of,
    stage_lineage,
    stage_rows,
)
from exactbatch.columns import Column
from exactbatch.errors import (
    ExactbatchError,
    StagedRowsDiffer,
    TasksFailed,
    TransformFailed,
    TransformRefused,
)
from exactbatch.failpoints import failpoint
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import OUTCOME, Pipeline
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.transforms.allowed_plan import Finding, findings, marked

VIEW: Final = "records"
_SEARCH_TIME: Final = 120.0  # seconds in which the record is looked for that a transform fails for
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
        """The table of rejects has to be there: some transforms start jobs while they are planned.

        Raises TransformRefused for a transform that cannot be used, ConfigurationError for columns that the
        sink cannot have, and what stage() raises, where a job has failed that the transform has started.
        """
        self._spark, self._pipeline, self._tasks = spark, pipeline, tasks
        self._read = _read(spark, dealt(tasks, pipeline.max_connections)).persist(StorageLevel.DISK_ONLY)
        self._decoded = self._read.where(F.col(OUTCOME).isNull()).drop(OUTCOME)
        try:
            transformed = self._transformed()
            if not self._read.storageLevel.useDisk:
                raise TransformRefused(
                    f"pipeline {pipeline.name!r}: its transform clears Spark's cache, in which the records of the "
                    f"batch are kept. Nothing was written. Leave out spark.catalog.clearCache()."
                )
            _check(pipeline, transformed)
            self._rows = _with_json(transformed)
            self._is_handed_on = True
            if pipeline.sink.needs_lineage:
                self._is_handed_on = is_handed_on(pipeline.name, transformed, self._decoded)
            else:  # rows may be of many records each: none of these is to be taken for theirs
                self._rows = self._rows.drop(*LINEAGE_NAMES)
            self.columns = _columns_of(pipeline, transformed)
            pipeline.sink.check(self.columns)
        except BaseException:
            self._read.unpersist()
            raise

    def stage(self, connection: Connection) -> StagedBatch:
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
            decoded = sum(each.rows for each in read)
            if not self._is_handed_on:
                self._check_lineage(connection, list(rows), decoded)
            if self._outcomes() != read:
                raise StagedRowsDiffer(
                    "expected the records that were read first to be there until all rows were staged, found "
                    "that Spark lost some and read them again. Nothing was written; try again. If it comes again: "
                    "is a disk of an executor full, or does the cluster take executors away?"
                )
        finally:
            self._read.unpersist()
        staged = StagedBatch(tuple(read), rows, rejects)
        if not self._pipeline.sink.needs_lineage:
            return staged  # rows may be of many records each: nobody can tell which were dropped
        with_rows = self._records_with_rows(connection, staged)
        return StagedBatch(staged.pieces, rows, rejects, dropped=decoded - with_rows)

    def _transformed(self) -> DataFrame:
        try:
            return _planned(self._pipeline, self._decoded)
        except (PySparkException, Py4JJavaError) as error:
            raise self._failure(error) from error

    def _outcomes(self) -> list[Staged]:
        try:
            outcomes = self._read.where(F.col(OUTCOME).isNotNull()).select(OUTCOME).collect()
        except (PySparkException, Py4JJavaError) as error:
            raise tasks_failed(self._spark, error, "read") from error
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

    def _check_lineage(self, connection: Connection, attempts: Sequence[int], decoded: int) -> None:
        """Raise TransformRefused unless the staged rows have the lineage of records that were decoded."""
        tables = self._tasks[0].tables
        with transaction(connection) as cursor:
            create_lineage(cursor, tables)
        readers = self._stage_decoded()
        with transaction(connection) as cursor:
            cursor.execute(
                sql.SQL("select count(*) from {} where task_attempt = any({})").format(
                    identifier(tables.lineage), sql.Literal(readers)
                )
            )
            if cursor.fetchone()[0] != decoded:
                raise StagedRowsDiffer(
                    f"staging table {tables.lineage} does not hold the {decoded} records that were decoded: Spark "
                    f"lost some and read them again, or Postgres was restarted. Nothing was written; try again."
                )
            cursor.execute(
                sql.SQL(
                    "select concat_ws(' ', coalesce(kafka_topic, 'null'), 'partition', "
                    "coalesce(kafka_partition::text, 'null'), 'offset', coalesce(kafka_offset::text, 'null'), "
                    "'of', coalesce(kafka_timestamp::text, 'no time')) "
                    "from (select kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, true as has_time "
                    "from {rows} where task_attempt = any({attempts}) union all "
                    'select topic, partition, "offset", null, false from {rejects} '
                    "where task_attempt = any({notes})) r "
                    "where not exists (select from {lineage} l "
                    "where l.task_attempt = any({readers}) and l.kafka_topic = r.kafka_topic "
                    "and l.kafka_partition = r.kafka_partition and l.kafka_offset = r.kafka_offset "
                    "and (l.kafka_timestamp is not distinct from r.kafka_timestamp or not has_time)) limit 1"
                ).format(
                    rows=identifier(tables.rows),
                    rejects=identifier(tables.rejects),
                    lineage=identifier(tables.lineage),
                    attempts=sql.Literal(list(attempts)),
                    notes=sql.Literal(list(map(note_of, attempts))),
                    readers=sql.Literal(readers),
                )
            )
            if (forged := cursor.fetchone()) is not None:
                raise TransformRefused(
                    f"pipeline {self._pipeline.name!r}: the transform gives a row with the lineage {forged[0]}, "
                    f"and no record that was decoded has it. Nothing was written. Let the transform hand "
                    f"{', '.join(LINEAGE_NAMES)} on as they are."
                )

    def _stage_decoded(self) -> list[int]:
        """Stage the lineage of the decoded records; return the task attempts that Spark accepted."""
        task = self._tasks[0]
        tables, postgres = task.tables, task.postgres
        publish_timeout, statement_timeout = task.publish_timeout, task.statement_timeout

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
            attempt = attempt_id()
            stage_lineage(
                batches,
                tables,
                postgres,
                attempt,
                publish_timeout=publish_timeout,
                statement_timeout=statement_timeout,
            )
            yield pa.RecordBatch.from_arrays([pa.array([attempt])], ["attempt"])

        try:
            records = self._decoded.select(*LINEAGE_NAMES).coalesce(self._pipeline.max_connections)
            return [each.attempt for each in records.mapInArrow(run, "attempt long").collect()]
        except (PySparkException, Py4JJavaError) as error:
            raise tasks_failed(self._spark, error, "stage the lineage of") from error

    def _records_with_rows(self, connection: Connection, staged: StagedBatch) -> int:
        """How many records the staged rows, and those that could not be staged, come from. Raises
        TransformRefused for one that was not read."""
        tables = self._tasks[0].tables
        with transaction(connection) as cursor:
            cursor.execute(
                sql.SQL(
                    "select count(*) as records, min(case when r.batch_id is null then "
                    "concat_ws(' ', coalesce(kafka_topic, 'null'), 'partition', "
                    "coalesce(kafka_partition::text, 'null'), 'offset', "
                    "coalesce(kafka_offset::text, 'null')) end) as foreign_one "
                    "from (select kafka_topic, kafka_partition, kafka_offset from {rows} "
                    "where task_attempt = any({attempts}) union "
                    'select topic, partition, "offset" from {rejects} where task_attempt = any({notes})) record '
                    "left join exactbatch.batch_range r on r.batch_id = {batch_id} "
                    "and r.topic = kafka_topic and r.partition = kafka_partition "
                    "and r.from_offset <= kafka_offset and kafka_offset < r.until_offset"
                ).format(
                    rows=identifier(tables.rows),
                    rejects=identifier(tables.rejects),
                    attempts=sql.Literal(staged.attempts),
                    notes=sql.Literal(list(map(note_of, staged.attempts))),
                    batch_id=sql.Literal(tables.batch_id),
                )
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
        if (refused := setting_refused(error, settings_of(self._spark))) is not None:
            return refused
        said = f"expected the transform to give rows, found: {cause(error)}"
        if not may_be_of_a_record(error):
            return TasksFailed(
                f"{said}. The next try reads the same ranges; the log of the executors has the trace."
            )
        ranges = sorted(each.range for each in self._tasks)
        found = _Search(self._spark, self._pipeline, self._decoded).run(ranges)
        if found is None:
            return TasksFailed(
                f"{said}. It did not fail for any one record alone. The log of the executors has the trace."
            )
        first, last = found.part[0], found.part[-1]
        place = f"{first.topic}[{first.partition}] offset {first.from_offset}"
        if len(found.part) > 1 or len(first) > 1:
            place = (
                f"one of the records from {place} to {last.topic}[{last.partition}] offset "
                f"{last.until_offset - 1}, which one was not found within {_SEARCH_TIME:g} s"
            )
        return TransformFailed(
            f"{place}: expected the transform to take this record, found: {found.said}. Nothing was written. "
            f"Correct the transform, or let it drop such records."
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
            _check_query(pipeline, decoded.sparkSession)
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


def _check_query(pipeline: Pipeline, session: SparkSession) -> None:
    """Raise TransformRefused unless `sql` is a query. Spark's plan of a script shows its rows, not how they were
    made; a command would be carried out at each try."""
    assert pipeline.sql is not None
    query = pipeline.sql.rstrip().rstrip(";")  # which Spark allows at the end
    try:
        session._jsparkSession.sessionState().sqlParser().parseQuery(query)
    except PySparkException as error:
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: expected sql to be one query over {VIEW}, found: {cause(error)}. "
            f"Nothing was written. A script or a command cannot be a transform."
        ) from error


def _check(pipeline: Pipeline, transformed: DataFrame) -> None:
    """Raise TransformRefused unless the sink can use the rows, and a retry gives the same ones."""
    if repeated := _repeated(transformed.columns):
        raise TransformRefused(
            f"pipeline {pipeline.name!r}: the transform gives the columns {repeated}, which are one name to "
            f"Spark. Rename or drop one of them."
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


def _repeated(names: Sequence[str]) -> str:
    """Those that are one name to Spark, for which capitals do not count; empty where there are none."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.lower(), []).append(name)
    return ", ".join(" and ".join(each) for each in alike.values() if len(each) > 1)


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
            _json(_column(field.name), field.dataType).alias(field.name)
            if _is_nested(field.dataType)
            else _column(field.name)
            for field in transformed.schema
        )
    )


def _json(column: Any, type_: T.DataType) -> Any:
    """A value as JSON. Of text that is not UTF-8 Spark would make U+FFFD: it becomes text that staging refuses."""
    text = F.to_json(column, _JSON_OPTIONS)
    is_utf8 = _is_utf8(column, type_)
    return text if is_utf8 is None else F.when(is_utf8, text).otherwise(F.lit(b"\xff").cast("string"))


def _is_utf8(column: Any, type_: T.DataType) -> Any:
    """Whether all text within a value is UTF-8, in Spark; None where there can be no other."""
    match type_:
        case T.StringType():
            return F.coalesce(F.is_valid_utf8(column), F.lit(True))
        case T.StructType():
            parts = [_is_utf8(column.getField(each.name), each.dataType) for each in type_.fields]
        case T.ArrayType():
            parts = [_all_utf8(column, type_.elementType)]
        case T.MapType():
            parts = [
                _all_utf8(F.map_keys(column), type_.keyType),
                _all_utf8(F.map_values(column), type_.valueType),
            ]
        case _:
            return None
    there = [each for each in parts if each is not None]
    return reduce(operator.and_, there) if there else None


def _all_utf8(array: Any, type_: T.DataType) -> Any:
    """The same of all elements of an array of such."""
    if _is_utf8(F.lit(None), type_) is None:
        return None
    return F.coalesce(F.forall(array, lambda element: _is_utf8(element, type_)), F.lit(True))


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
        _check_fields(pipeline, name, type_)
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


def _check_fields(pipeline: Pipeline, name: str, type_: T.DataType) -> None:
    """Raise TransformRefused for what JSON cannot name: fields of one name, and keys of a map that are no text."""
    match type_:
        case T.ArrayType():
            _check_fields(pipeline, name, type_.elementType)
        case T.StructType():
            if repeated := _repeated(type_.names):
                raise TransformRefused(
                    f"pipeline {pipeline.name!r}, column {name}: a struct has the fields {repeated}, which are "
                    f"one name to Spark. Rename or drop one of them."
                )
            for field in type_.fields:
                _check_fields(pipeline, name, field.dataType)
        case T.MapType():
            if not isinstance(type_.keyType, _JSON_KEYS):
                raise TransformRefused(
                    f"pipeline {pipeline.name!r}, column {name}: Spark does not write the keys of "
                    f"{type_.simpleString()} into JSON as their values. Make them strings in the transform."
                )
            _check_fields(pipeline, name, type_.valueType)


def _is_nested(type_: T.DataType) -> bool:
    """Whether values go into jsonb: structs, maps, and arrays of these or of arrays."""
    if isinstance(type_, T.ArrayType):
        return isinstance(type_.elementType, T.ArrayType) or _is_nested(type_.elementType)
    return isinstance(type_, _NESTED)


def _column(name: str) -> Any:
    return F.col(f"`{name.replace('`', '``')}`")


def _planned(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    """What the transform gives. Raises TransformRefused where Spark cannot plan it or it raises an error of its
    own, and what Spark raises where it has started a job that has failed."""
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


@dataclass(frozen=True)
class _Found:
    """Records for which a transform fails again, as ranges in their order, and what it says of them."""

    part: list[OffsetRange]
    said: str


class _Search:
    """Looks for the record that a transform fails for: one job over all records; if that fails again, as many as
    it takes to halve them down to one, as far as time allows."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, decoded: DataFrame) -> None:
        self._context, self._pipeline, self._decoded = spark.sparkContext, pipeline, decoded
        self._deadline = time.monotonic() + _SEARCH_TIME

    def run(self, ranges: list[OffsetRange]) -> _Found | None:
        """A record for which alone the transform fails, or where it is when the time is over; None where there
        is none."""
        found = self._failing(ranges)
        while found is not None and (len(found.part) > 1 or len(found.part[0]) > 1):
            lower, upper = _halves(found.part)
            smaller = self._failing(lower) or self._failing(upper)
            if smaller is None and self._is_over:
                return found
            found = smaller
        return found

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _failing(self, part: list[OffsetRange]) -> _Found | None:
        if self._is_over:
            return None
        tag = f"exactbatch-search-{uuid.uuid4().hex}"
        timer = threading.Timer(
            max(0.0, self._deadline - time.monotonic()), lambda: self._context.cancelJobsWithTag(tag)
        )
        timer.start()
        self._context.addJobTag(tag)
        try:
            rows = _with_json(_planned(self._pipeline, self._decoded.where(_are_in(part))))
            rows.write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            return None if self._is_over else _Found(part, cause(error))
        finally:
            self._context.removeJobTag(tag)
            timer.cancel()
        return None


def _halves(part: list[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    if len(part) > 1:
        return part[: len(part) // 2], part[len(part) // 2 :]
    lower, upper = part[0].cut(part[0].from_offset + len(part[0]) // 2)
    assert lower is not None
    assert upper is not None
    return [lower], [upper]


def _are_in(part: Sequence[OffsetRange]) -> Any:
    """True of the records in ranges that are neighbours in the order of a batch's."""
    first, last = part[0], part[-1]
    if len(part) == 1:
        # Spark leaves out blocks of the cache by conditions of this form.
        return (
            (F.col("kafka_topic") == first.topic)
            & (F.col("kafka_partition") == first.partition)
            & F.col("kafka_offset").between(first.from_offset, first.until_offset - 1)
        )
    place = F.struct("kafka_topic", "kafka_partition", "kafka_offset")
    return (place >= _place(first.topic, first.partition, first.from_offset)) & (
        place < _place(last.topic, last.partition, last.until_offset)
    )


def _place(topic: str, partition: int, offset: int) -> Any:
    return F.struct(
        F.lit(topic).alias("kafka_topic"),
        F.lit(partition).cast("int").alias("kafka_partition"),
        F.lit(offset).cast("long").alias("kafka_offset"),
    )
