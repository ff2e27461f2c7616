"""Stage the rows that a transform makes of decoded records: decode → the user's transform, in Spark → stage.

The decoded records are kept on the executors' disks, so that rows, rejects and counts come from one read. Spark
silently recomputes a block that is lost: each block carries the task attempt that read it, and these must be the
same at the end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from exactbatch.batch.spark.executors import tasks_failed
from exactbatch.batch.spark.spark_errors import (
    cause,
    find_refused_setting,
    may_be_record_error,
    read_settings,
)
from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import attempt_id, distribute, freeze_modules, loaded, partition_id
from exactbatch.batch.staging.stage import stage_lineage, stage_rows
from exactbatch.batch.staging.staging_tables import create_lineage, decoded_schema
from exactbatch.batch.staging.task import Staged, StagedBatch, StageTask, by_attempt
from exactbatch.batch.staging.transformed_rows import check_staged_lineage, records_with_rows
from exactbatch.batch.transform.decoded_records import decoded_in_one_pass, decoded_records
from exactbatch.batch.transform.failing_record import SEARCH_TIME, FailingRecordSearch
from exactbatch.batch.transform.one_pass import (
    OFFSET,
    PLACE,
    HandOver,
    OnePass,
    Passed,
    RecordsInOrder,
    UnchangedColumns,
    passed,
    staged_batch,
)
from exactbatch.batch.transform.transform_plan import (
    check_transform,
    convert_nested_to_json,
    find_columns,
    plan_transform,
)
from exactbatch.columns import LINEAGE_NAMES, Column
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
from exactbatch.transforms.lineage import passes_lineage_through
from exactbatch.transforms.narrow_plan import columns_of_records, computed_from, is_narrow


class TransformStager:
    """The Stager of a pipeline with a transform."""

    def __init__(
        self, spark: SparkSession, connection: Connection, pipeline: Pipeline, tasks: Sequence[StageTask]
    ) -> None:
        """Plan and check the transform. The table of rejects must exist: some transforms start Spark jobs while
        they are planned.

        Raises TransformRefused for a transform that cannot be used, ConfigurationError for columns that the
        sink cannot have, and the errors of stage() if a job that the transform has started failed.
        """
        self._spark, self._connection, self._pipeline, self._tasks = spark, connection, pipeline, tasks
        self._bins = distribute(tasks, pipeline.tuning.max_connections)
        self._read = decoded_records(spark, self._bins).persist(StorageLevel.DISK_ONLY)
        self._decoded = self._read.where(F.col(OUTCOME).isNull()).drop(OUTCOME)
        try:
            transformed = self._transformed()
            if not self._read.storageLevel.useDisk:
                raise TransformRefused(
                    f"pipeline {pipeline.name!r}: its transform clears Spark's cache, in which the records of the "
                    f"batch are kept. Nothing was written. Remove spark.catalog.clearCache()."
                )
            self._rows, self.columns, self._is_proven = planned_rows(pipeline, transformed, self._decoded)
        except BaseException:
            self._read.unpersist()
            raise

    def stage(self) -> StagedBatch:
        """See Stager.

        Raises TransformFailed, with the record if there is one, TransformRefused for rows whose lineage is not
        that of a record of the batch, TasksFailed, StagedRowsDiffer, and the terminal error of a task.
        """
        try:
            if self._one_pass is not None:
                return self._staged_in_one_pass(*self._one_pass)
            splits = self._outcomes()
            rejects = by_attempt(splits, "rejects")
            if sum(rejects.values()) > self._tasks[0].max_rejects:
                return StagedBatch(tuple(splits), {}, rejects)  # reading stopped: the batch has failed
            failpoint("transform.after_read")
            rows = self._stage_rows()
            if not self._is_proven:
                self._check_lineage(list(rows), sum(split.rows for split in splits))
            if self._outcomes() != splits:
                raise StagedRowsDiffer(
                    "Spark lost some of the decoded records before all rows were staged, and read them again. "
                    "Nothing was written; try again. If it happens again: is a disk of an executor full, or does "
                    "the cluster remove executors?",
                    batch_id=self._tasks[0].tables.batch_id,
                )
        finally:
            self._read.unpersist()
        staged = StagedBatch(tuple(splits), rows, rejects)
        if not self._pipeline.traits.needs_lineage:
            return staged  # a row may come from many records: which records were dropped cannot be known
        with_rows = records_with_rows(self._connection, self._tasks[0].tables, staged)
        return StagedBatch(
            staged.splits, rows, rejects, dropped=sum(split.decoded for split in splits) - with_rows
        )

    @cached_property
    def _one_pass(self) -> tuple[OnePass, DataFrame] | None:
        """How the same Spark tasks read, transform and stage, and the columns of the rows that go through the JVM; None
        if Spark would stage in other tasks, or encrypts what it writes to disks, which the files of a hand-over are
        not."""
        if not self._is_proven or read_settings(self._spark).get("spark.io.encryption.enabled") == "true":
            return None
        try:
            task = self._tasks[0]
            unchanged, used = self._columns_of_records()
            one_pass = OnePass(f"{task.tables.launch:x}", unchanged, used)
            sent = self._sent_rows(one_pass)
            return (one_pass, sent) if is_narrow(self._staged_rows(one_pass, sent)) else None
        except (PySparkException, Py4JJavaError) as error:
            raise self._failure(error) from error

    def _staged_in_one_pass(self, one_pass: OnePass, sent: DataFrame) -> StagedBatch:
        """Read, transform and stage in the same Spark tasks; `sent` are the rows as they come from the JVM."""
        try:
            outcomes = [bytes(row.outcome) for row in self._staged_rows(one_pass, sent).collect()]
        except (PySparkException, Py4JJavaError) as error:
            raise self._failure(error) from error
        done: list[Passed] = loaded(outcomes)
        staged = staged_batch(done)
        if staged.rejected > self._tasks[0].max_rejects or not self._pipeline.traits.needs_lineage:
            return staged
        counts = [each.records for each in done]
        with_rows = sum(count for count in counts if count is not None)
        if None in counts:
            with_rows = records_with_rows(self._connection, self._tasks[0].tables, staged)
        return replace(staged, dropped=sum(split.decoded for split in staged.splits) - with_rows)

    def _columns_of_records(self) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return the columns of the rows that need not go through the JVM, because they are columns of the records,
        with their names there; and the columns of the records that must go through it."""
        decoded = decoded_schema(self._tasks[0].columns).names
        columns = columns_of_records(self._rows, self._decoded)
        if columns is None:
            return {}, tuple(decoded)
        place = OFFSET if self._has_one_partition_for_each_task() else PLACE
        unchanged = {name: of_record for name, of_record in columns.unchanged.items() if name not in place}
        # Rows must name the records, or decoded rows, to take columns from. The timestamp alone is not worth a file.
        if (
            not self._pipeline.traits.needs_lineage
            or self._pipeline.value.gives_several_rows
            or set(LINEAGE_NAMES).issuperset(unchanged.values())
        ):
            unchanged = {}
        sent = {of_record for name, of_record in columns.unchanged.items() if name not in unchanged}
        used = columns.used.union(sent, place)
        return unchanged, tuple(name for name in decoded if name in used)

    def _has_one_partition_for_each_task(self) -> bool:
        return all(len({task.range.topic_partition for task in bin_}) == 1 for bin_ in self._bins)

    def _sent_rows(self, one_pass: OnePass) -> DataFrame:
        """Return the columns of the rows that go through the JVM, with numbers for names: mapInArrow parses a dot in a
        name as syntax."""
        names = [*decoded_schema(self._tasks[0].columns).names, OUTCOME]
        records = decoded_in_one_pass(self._spark, self._bins, one_pass)
        rows = computed_from(self._rows, self._decoded, records, list(map(names.index, one_pass.used)))
        sent = [str(number) for number, name in enumerate(rows.columns) if name not in one_pass.unchanged]
        return rows.toDF(*map(str, range(len(rows.columns)))).select(*sent)

    def _staged_rows(self, one_pass: OnePass, sent: DataFrame) -> DataFrame:
        """Return the outcomes of tasks that stage the transformed rows, and what the same tasks have read.

        `sent` are the rows as they come from the JVM.
        """
        task = self._tasks[0]
        tables, postgres = task.tables, task.postgres
        columns = self._pipeline.traits.staged_columns(self.columns)
        launch, unchanged = one_pass.launch, one_pass.unchanged
        names = [name for name in self._rows.columns if name not in unchanged]
        ranges = [[task.range for task in bin_] for bin_ in self._bins]
        has_lineage = self._pipeline.traits.needs_lineage

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
            attempt, number = attempt_id(), partition_id()
            counter = RecordsInOrder(ranges[number])
            hand_over = HandOver(launch, attempt)
            place = ranges[number][0].topic_partition if "kafka_topic" in unchanged else None
            of_records = UnchangedColumns(hand_over, unchanged, place)

            def complete() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    named = pa.RecordBatch.from_arrays(batch.columns, names)
                    for completed in of_records.added_to(named) if unchanged else [named]:
                        if has_lineage:
                            counter.add(completed)
                        yield completed

            try:
                rows = stage_rows(
                    complete(),
                    tables,
                    postgres,
                    columns,
                    attempt,
                    rejects=hand_over.rejects,
                    place=place,
                )
                outcome = (
                    rows
                    if isinstance(rows, ExactbatchError)
                    else passed(hand_over.outcomes(), attempt, rows, counter.count)
                )
            finally:
                hand_over.remove()
            freeze_modules()
            yield pa.RecordBatch.from_arrays([pa.array([dump(outcome)], pa.binary())], ["outcome"])

        return sent.mapInArrow(run, "outcome binary")

    def _transformed(self) -> DataFrame:
        try:
            return plan_transform(self._pipeline, self._decoded)
        except (PySparkException, Py4JJavaError) as error:
            raise self._failure(error) from error

    def _outcomes(self) -> list[Staged]:
        try:
            outcomes = self._read.where(F.col(OUTCOME).isNotNull()).select(OUTCOME).collect()
        except (PySparkException, Py4JJavaError) as error:
            raise tasks_failed(self._spark, error, "read") from error
        return sorted(loaded(bytes(row[0]) for row in outcomes), key=lambda split: split.range)

    def _stage_rows(self) -> dict[int, int]:
        """Stage the transformed rows; return how many each accepted attempt has staged."""
        task = self._tasks[0]
        tables, postgres = task.tables, task.postgres
        columns = self._pipeline.traits.staged_columns(self.columns)
        names = self._rows.columns

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
            attempt = attempt_id()
            named = (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
            rows = stage_rows(named, tables, postgres, columns, attempt)
            failed = dump(rows) if isinstance(rows, ExactbatchError) else None
            freeze_modules()
            yield pa.RecordBatch.from_arrays(
                [pa.array([attempt]), pa.array([0 if failed else rows]), pa.array([failed], pa.binary())],
                ["attempt", "rows", "failed"],
            )

        try:
            # mapInArrow parses a dot or a backtick in a column's name as syntax: the columns get numbers instead.
            # After a shuffle there may be any number of tasks; each of these has a connection.
            rows = self._rows.toDF(*map(str, range(len(names)))).coalesce(
                self._pipeline.tuning.max_connections
            )
            outcomes = rows.mapInArrow(run, "attempt long, rows long, failed binary").collect()
        except (PySparkException, Py4JJavaError) as error:
            raise self._failure(error) from error
        loaded(bytes(outcome.failed) for outcome in outcomes if outcome.failed is not None)
        return {outcome.attempt: outcome.rows for outcome in outcomes}

    def _check_lineage(self, attempts: Sequence[int], decoded: int) -> None:
        """Raise TransformRefused unless the rows that the attempts have staged carry the lineage of decoded
        records."""
        tables = self._tasks[0].tables
        with transaction(self._connection) as cursor:
            create_lineage(cursor, tables)
        readers = self._stage_lineage()
        check_staged_lineage(
            self._connection, self._pipeline, tables, attempts=attempts, readers=readers, decoded=decoded
        )

    def _stage_lineage(self) -> list[int]:
        """Stage the lineage of the decoded records; return the task attempts that Spark accepted."""
        task = self._tasks[0]
        tables, postgres = task.tables, task.postgres

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # on an executor
            attempt = attempt_id()
            stage_lineage(batches, tables, postgres, attempt)
            yield pa.RecordBatch.from_arrays([pa.array([attempt])], ["attempt"])

        try:
            records = self._decoded.select(*LINEAGE_NAMES).coalesce(self._pipeline.tuning.max_connections)
            return [row.attempt for row in records.mapInArrow(run, "attempt long").collect()]
        except (PySparkException, Py4JJavaError) as error:
            raise tasks_failed(self._spark, error, "stage the lineage of") from error

    def _failure(self, error: PySparkException | Py4JJavaError) -> ExactbatchError:
        """Return the error for a job that failed; it names the record that the transform fails for, if there is
        one."""
        ranges = sorted(task.range for task in self._tasks)
        return build_failure(error, self._spark, self._pipeline, self._decoded, ranges)


def planned_rows(
    pipeline: Pipeline, transformed: DataFrame, decoded: DataFrame
) -> tuple[DataFrame, tuple[Column, ...], bool]:
    """Return the rows of a transform as they are staged, their columns without their lineage, and whether the plan
    proves that they carry the lineage of decoded records.

    Raises TransformRefused for a transform that cannot be used, and ConfigurationError for columns that the sink
    cannot have.
    """
    check_transform(pipeline, transformed)
    rows, is_proven = convert_nested_to_json(transformed), True
    if pipeline.traits.needs_lineage:
        is_proven = passes_lineage_through(pipeline.name, transformed, decoded)
    else:  # a row may come from many records: it must not seem to come from one of them
        rows = rows.drop(*LINEAGE_NAMES)
    columns = find_columns(pipeline, transformed)
    pipeline.traits.check(columns)
    return rows, columns, is_proven


def build_failure(
    error: PySparkException | Py4JJavaError,
    spark: SparkSession,
    pipeline: Pipeline,
    decoded: DataFrame,
    ranges: list[OffsetRange],
) -> ExactbatchError:
    """Return the error for a Spark job of a transform that failed; it names the record of these ranges that the
    transform fails for, if there is one."""
    if (refused := find_refused_setting(error, read_settings(spark))) is not None:
        return refused
    message = f"the transform returned no rows: {cause(error)}"
    if not may_be_record_error(error):
        return TasksFailed(
            f"{message}. The next try reads the same ranges; the log of the executors has the traceback."
        )
    failing = FailingRecordSearch(spark, pipeline, decoded).run(ranges)
    if failing is None:
        return TasksFailed(
            f"{message}. It did not fail for any single record. The log of the executors has the traceback."
        )
    first, last = failing.ranges[0], failing.ranges[-1]
    record = f"{first.topic}[{first.partition}] offset {first.from_offset}"
    if len(failing.ranges) > 1 or len(first) > 1:
        record = (
            f"one of the records from {record} to {last.topic}[{last.partition}] offset "
            f"{last.until_offset - 1} (the search for the record ended after {SEARCH_TIME:g} s)"
        )
    return TransformFailed(
        f"{record}: the transform failed: {failing.error}. Nothing was written. Correct the transform, or let "
        f"it drop such records.",
        topic=first.topic,
        partition=first.partition,
    )
