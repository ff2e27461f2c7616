"""Run the transform of a pipeline over the decoded records of a test, in Spark's local mode."""

import atexit
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from exactbatch.batch.rows.rejected import PendingRejects
from exactbatch.batch.spark.spark_session import batch_session, spark_session
from exactbatch.batch.staging.staging_tables import row_schema
from exactbatch.batch.staging.transformed_rows import keep_storable_rows
from exactbatch.batch.transform.transform_plan import plan_transform
from exactbatch.batch.transform.transform_stager import build_failure, planned_rows
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.errors import TransformRefused
from exactbatch.pipeline import Pipeline
from exactbatch.testing.decode_records import Place, StagedRecords, in_order

_SMALL: Final[Mapping[str, str]] = {"spark.sql.shuffle.partitions": "2"}
_MASTER: Final = "local[2]"
_started: Final = ExitStack()
atexit.register(_started.close)


def transformed(staged: StagedRecords) -> StagedRecords:
    """Return the rows that a pipeline's transform makes of its decoded records.

    Raises what a batch raises: TransformRefused, TransformFailed with the record, and ConfigurationError for columns
    that the sink cannot have.
    """
    pipeline = staged.pipeline
    with batch_session(_spark(pipeline), pipeline) as session:
        decoded = _decoded(session, staged.rows).persist(StorageLevel.DISK_ONLY)
        try:
            rows, columns, _ = planned_rows(pipeline, plan_transform(pipeline, decoded), decoded)
            table = rows.toArrow()
        except (PySparkException, Py4JJavaError) as error:
            raise build_failure(error, session, pipeline, decoded, list(staged.ranges)) from error
        finally:
            decoded.unpersist()
    named = replace(staged, columns=columns)
    stored, refused = _storable(named, table)
    if pipeline.traits.needs_lineage:
        _check_lineage(staged, stored, refused)
        with_rows = {*zip(*(stored.column(name).to_pylist() for name in LINEAGE_NAMES[:3]), strict=True)}
        decoded_records = staged.record_count - len(staged.rejects) - staged.tombstones
        named = replace(named, dropped=decoded_records - len(with_rows | {*refused}))
        stored = in_order(stored)
    return replace(named, rows=stored).without(refused.items())


def _spark(pipeline: Pipeline) -> SparkSession:
    """Return the active session, or else one in local mode that runs until this process ends: a start takes seconds."""
    if (running := SparkSession.getActiveSession()) is not None:
        return running
    small = copy(pipeline)
    object.__setattr__(small, "spark_conf", {**_SMALL, **pipeline.spark_conf})
    return _started.enter_context(spark_session(small, master=_MASTER, offsets=0))


def _decoded(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Return decoded rows as the executors of a batch give them to a transform."""
    schema, data = rows.schema, rows.combine_chunks()

    def run(_numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # in a Python worker
        yield from data.to_batches()

    spark_schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return session.range(0, 1, 1, 1).mapInArrow(run, spark_schema)


def _storable(staged: StagedRecords, rows: pa.Table) -> tuple[pa.Table, dict[Place, str]]:
    """Return the rows that Postgres can store, and the records of the others with the reason. Raises TransformFailed
    if rows do not name their records."""
    names = [*(column.name for column in staged.staged_columns), *LINEAGE_NAMES]
    schema = row_schema(staged.staged_columns)
    notes, stored = PendingRejects(), []
    for batch in rows.to_batches():
        columns = {
            name: batch.column(name).cast(schema.field(name).type)
            if name in batch.schema.names
            else pa.nulls(len(batch), schema.field(name).type)
            for name in names
        }
        whole = pa.RecordBatch.from_pydict(columns, schema=pa.schema([schema.field(name) for name in names]))
        stored.append(keep_storable_rows(whole, batch.schema.names, notes, 0))
    refused: dict[Place, str] = {}
    for noted in notes.take():
        for note in noted.to_pylist():
            refused.setdefault((note["topic"], note["partition"], note["offset"]), note["reason"])
    return pa.Table.from_batches(stored, pa.schema([schema.field(name) for name in names])), refused


def _check_lineage(decoded: StagedRecords, rows: pa.Table, refused: Iterable[Place]) -> None:
    """Raise TransformRefused unless each row carries the lineage of a decoded record."""
    known = {*zip(*(decoded.rows.column(name).to_pylist() for name in LINEAGE_NAMES), strict=True)}
    found = {*zip(*(rows.column(name).to_pylist() for name in LINEAGE_NAMES), strict=True)}
    forged = [*(found - known), *({*refused} - {place[:3] for place in known})]
    if forged:
        lineage = ", ".join(map(str, min(forged, key=str)))
        raise TransformRefused(
            f"pipeline {decoded.pipeline.name!r}: the transform returned a row with the lineage ({lineage}), which no "
            f"decoded record has. Nothing was written. Let the transform pass {', '.join(LINEAGE_NAMES)} through "
            f"unchanged."
        )
