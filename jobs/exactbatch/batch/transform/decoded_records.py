"""The decoded records of a batch as rows of Spark, which a transform gets: read by Spark tasks, range by range."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from exactbatch.batch.rows.decode import shared_reads
from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import attempt_id, freeze_modules, grouped
from exactbatch.batch.staging.stage import decode_range
from exactbatch.batch.staging.staging_tables import decoded_schema
from exactbatch.batch.staging.task import Staged, StageTask
from exactbatch.batch.transform.one_pass import HandOver, OnePass
from exactbatch.code_identity import code_identity, other_code
from exactbatch.errors import ExactbatchError
from exactbatch.kafka.reader import SharedReads
from exactbatch.pipeline import OUTCOME

_OUTCOME_FIELD: Final = pa.field(OUTCOME, pa.binary())


def decoded_records(spark: SparkSession, shares: Sequence[Sequence[StageTask]]) -> DataFrame:
    """Return decoded rows with their lineage and, in one more row for each task, its outcome."""
    schema = decoded_schema(shares[0][0].columns).append(_OUTCOME_FIELD)
    identity = code_identity()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
        attempt, refused = attempt_id(), other_code(identity)
        for tasks in _assigned(shares, batches):
            if refused is not None:
                yield _with_outcome(refused, schema)
                continue
            for task, reads in _with_reads(tasks):
                for decoded in decode_range(task, attempt, reads=reads):
                    yield _with_outcome(decoded, schema)
        freeze_modules()

    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(run, _spark_schema(schema))


def decoded_in_one_pass(
    spark: SparkSession, shares: Sequence[Sequence[StageTask]], one_pass: OnePass
) -> DataFrame:
    """Return the columns of decoded rows that go through the JVM, with numbers for names.

    The workers leave everything else to the workers of the same tasks that stage.
    """
    decoded = decoded_schema(shares[0][0].columns)
    identity, used = code_identity(), one_pass.used

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
        attempt = attempt_id()
        hand_over = HandOver(one_pass.launch, attempt)
        refused = other_code(identity)
        for tasks in _assigned(shares, batches):
            if refused is not None:
                hand_over.finish([refused])
                continue
            for rows in decoded_rows(tasks, attempt, hand_over):
                yield pa.RecordBatch.from_arrays(list(map(rows.column, used)), numbered.names)
        freeze_modules()

    def decoded_rows(
        tasks: Sequence[StageTask], attempt: int, hand_over: HandOver
    ) -> Iterator[pa.RecordBatch]:
        outcomes: list[Staged | ExactbatchError] = []
        for task, reads in _with_reads(tasks):
            for decoded in decode_range(task, attempt, hand_over.keep, reads):
                if not isinstance(decoded, pa.RecordBatch):
                    outcomes.append(decoded)
                elif len(decoded):
                    if one_pass.unchanged:
                        hand_over.keep_rows(one_pass.kept(decoded))
                    yield decoded
        hand_over.finish(outcomes)

    numbered = pa.schema([(str(place), decoded.field(name).type) for place, name in enumerate(used)])
    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(run, _spark_schema(numbered))


def _spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _assigned(
    shares: Sequence[Sequence[StageTask]], batches: Iterable[pa.RecordBatch]
) -> Iterator[Sequence[StageTask]]:
    """Yield the tasks of each share whose number this task of Spark has got."""
    return (shares[index] for batch in batches for index in batch.column(0).to_pylist())


def _with_reads(tasks: Sequence[StageTask]) -> Iterator[tuple[StageTask, SharedReads | None]]:
    """Yield the tasks with the reads that they share with others, if they do."""
    for group in grouped(tasks):
        reads = shared_reads(group)
        for task in group:
            yield task, reads


def _with_outcome(decoded: pa.RecordBatch | Staged | ExactbatchError, schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(decoded, pa.RecordBatch):
        return decoded.append_column(OUTCOME, pa.nulls(len(decoded), pa.binary()))
    *nulls, _ = (pa.nulls(1, field.type) for field in schema)
    return pa.RecordBatch.from_arrays([*nulls, pa.array([dump(decoded)], pa.binary())], schema=schema)
