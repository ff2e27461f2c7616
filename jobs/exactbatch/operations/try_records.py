"""Decode the newest records of a pipeline's topics as a batch would, and write nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from exactbatch.batch.rows.decode import RangeReader
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, row_schema
from exactbatch.batch.staging.uncastable import is_value_error, list_rules
from exactbatch.columns import LINEAGE, LINEAGE_NAMES, Column
from exactbatch.errors import ConfigurationError, ExactbatchError, TargetMismatch
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.records import Records
from exactbatch.kafka.sample import Bounds, Sample, sample
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow_values import as_text
from exactbatch.postgres.connection import Cursor, connect, transaction
from exactbatch.postgres.types import can_check_input
from exactbatch.settings import Settings
from exactbatch.sinks.table_name import quoted
from exactbatch.sinks.tables.code_of_others import refuse_code_of_others
from exactbatch.sinks.values.cast import VALUE_CHARACTERS, RejectRule
from exactbatch.sinks.writer import SinkWriter
from exactbatch.sinks.writers import find_writer

_TIMEOUT: Final = 10  # seconds to connect to Postgres
_TOGETHER: Final = 500  # rows of a query
_NO_TABLES: Final = StagingTables(0, 0)  # nothing is staged
_INDEX: Final = "exactbatch index"


@dataclass(frozen=True, slots=True)
class TriedReject:
    """A record that a batch would reject. `by_target` if it decodes, and the target cannot hold it."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes | None
    by_target: bool = False


@dataclass(slots=True)
class Trial:
    """What a batch would make of a sample.

    `rows` have the columns of the pipeline, of a transform's input if it has one, and then LINEAGE_NAMES.
    `unchecked` says why values were not compared with the target, and `refused` is the error with which the batch would
    end before it reads a record.
    """

    sample: Sample
    rows: pa.RecordBatch
    rejects: list[TriedReject] = field(default_factory=list)
    records: int = 0
    tombstones: int = 0
    dropped: int = 0
    target_exists: bool = False
    unchecked: str | None = None
    refused: str | None = None

    @property
    def with_rows(self) -> int:
        """How many records give rows."""
        return self.records - len(self.rejects) - self.tombstones - self.dropped


def try_records(
    pipeline: Pipeline, settings: Settings, bounds: Bounds, progress: Callable[[int, int], None] | None = None
) -> Trial:
    """Decode the newest records of a pipeline, and compare the rows with the target.

    Reads Kafka and Postgres only. Raises TopicMissing, and the errors of reading and of the format.
    """
    broker = KafkaBroker(settings.kafka)
    topics = broker.loaded_topics(pipeline.topic_names, ())
    found = sample(settings.kafka, broker.partitions(topics), bounds, newest_only=True, progress=progress)
    trial = _decoded(pipeline, found, settings)
    if pipeline.is_transformed:
        trial.unchecked = "a transform makes the rows of this pipeline, and only a batch runs it"
        return trial
    try:
        _check_target(pipeline, trial, settings)
    except ExactbatchError as error:
        if error.retryable:
            trial.unchecked = f"{type(error).__name__}: {error}"
        else:
            trial.refused = f"{type(error).__name__}: {error}"
    return trial


class _SampledReads:
    """Gives the records of one part of a sample to the reader of its range."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def read(self, _range: OffsetRange) -> Iterator[Records]:
        yield self._records


def _decoded(pipeline: Pipeline, found: Sample, settings: Settings) -> Trial:
    names = [column.name for column in pipeline.traits.staged_columns(pipeline.value.columns)]
    batches: list[pa.RecordBatch] = []
    trial = Trial(found, pa.RecordBatch.from_pylist([], pa.schema([])))
    schema = None
    for range_, records in found.parts:
        # One task that reads this range alone, whatever its size.
        (task,) = stage_tasks(
            pipeline, pipeline.traits, [_smallest(range_)], {}, _NO_TABLES, settings, parallelism=1
        )
        task = replace(task, range=range_, max_rejects=len(records))
        schema = row_schema(task.columns)
        reader = RangeReader(task, 0, schema, {"task_attempt": 0}, reads=_SampledReads(records))
        batches += [batch.select([*names, *LINEAGE_NAMES]) for batch in reader.batches()]
        for batch in reader.pending.take():
            for row in batch.select(["topic", "partition", "offset", "reason", "value"]).to_pylist():
                trial.rejects.append(TriedReject(**row))
        trial.records += reader.records
        trial.tombstones += reader.tombstones
        trial.dropped += reader.dropped
    if batches:
        trial.rows = pa.concat_batches(batches)
    return trial


def _smallest(range_: OffsetRange) -> OffsetRange:
    return replace(range_, until_offset=range_.from_offset + 1)


def _check_target(pipeline: Pipeline, trial: Trial, settings: Settings) -> None:
    """Move rows that the target, or a type of the pipeline, cannot hold from the rows to the rejects."""
    connection = connect(settings.postgres, application="exactbatch try", timeout=_TIMEOUT)
    try:
        with transaction(connection) as cursor:
            cursor.execute("set transaction read only")
            if not can_check_input(cursor):
                trial.unchecked = (
                    f"Postgres {connection.server_version // 10000} checks values by a function of the ledger, and "
                    f"the database {connection.info.dbname!r} has no ledger of this version: run `exactbatch migrate`"
                )
                return
            try:
                refuse_code_of_others(cursor, find_writer(pipeline.traits).tables)
            except ConfigurationError as error:
                trial.unchecked = str(error)
                return
            rules = _rules(cursor, pipeline, trial)
            _reject(cursor, pipeline, trial, rules)
    finally:
        connection.close()


def _rules(cursor: Cursor, pipeline: Pipeline, trial: Trial) -> list[RejectRule]:
    writer = find_writer(pipeline.traits)
    trial.target_exists = writer.tables[-1].exists(cursor)
    for part in writer.parts:
        _check_columns(cursor, pipeline, part)
    return list_rules(cursor, pipeline, writer, pipeline.value.columns, 0, evolve=pipeline.evolve)


def _check_columns(cursor: Cursor, pipeline: Pipeline, part: SinkWriter) -> None:
    """Raise TargetMismatch if a target exists, and the next batch would be refused for want of columns in it."""
    target = part.tables[-1]
    stored = target.columns(cursor)
    lacking = [
        column for column in part.traits.result_columns(pipeline.value.columns) if column.name not in stored
    ]
    if stored and lacking and pipeline.evolve == "refuse":
        added = ", ".join(f"add column {quoted(column.name)} {column.type}" for column in lacking)
        raise TargetMismatch(
            f"target {target.spec} has no column {', '.join(column.name for column in lacking)}. Add it: alter table "
            f"{target.spec} {added}; or let the pipeline add it: evolve='add'.",
            column=lacking[0].name,
        )


def _reject(cursor: Cursor, pipeline: Pipeline, trial: Trial, rules: Sequence[RejectRule]) -> None:
    if not rules or not len(trial.rows):
        return
    columns = [
        *pipeline.traits.staged_columns(pipeline.value.columns),
        *(column for column in LINEAGE if column.name in LINEAGE_NAMES),
    ]
    _check_rules(cursor, trial.rows.slice(0, 1), columns, rules)
    values = _values_by_place(trial.sample)
    refused: dict[tuple[str, int, int], str] = {}
    for start in range(0, len(trial.rows), _TOGETHER):
        part = trial.rows.slice(start, _TOGETHER)
        places = list(zip(*(part.column(name).to_pylist() for name in _PLACE), strict=True))
        for index, reason in _reasons(cursor, part, columns, rules):
            refused.setdefault(places[index], reason)
    if not refused:
        return
    places = list(zip(*(trial.rows.column(name).to_pylist() for name in _PLACE), strict=True))
    trial.rows = trial.rows.filter(pa.array([place not in refused for place in places]))
    trial.rejects += [
        TriedReject(*place, reason, values[place], by_target=True) for place, reason in refused.items()
    ]


_PLACE: Final = LINEAGE_NAMES[:3]


def _values_by_place(found: Sample) -> dict[tuple[str, int, int], bytes | None]:
    return {
        (range_.topic, range_.partition, offset): value
        for range_, records in found.parts
        for offset, value in zip(records.offset_array.tolist(), records.values().to_pylist(), strict=True)
    }


def _check_rules(
    cursor: Cursor, row: pa.RecordBatch, columns: Sequence[Column], rules: Sequence[RejectRule]
) -> None:
    """Raise the error of a rule that is wrong whatever the row, such as a check of a column that does not exist."""
    cursor.execute(sql.SQL("prepare exactbatch_try as {}").format(_query(row, columns, rules)))
    cursor.execute("deallocate exactbatch_try")


def _reasons(
    cursor: Cursor, rows: pa.RecordBatch, columns: Sequence[Column], rules: Sequence[RejectRule]
) -> list[tuple[int, str]]:
    """Return the index of each row that breaks a rule, and the reason."""
    cursor.execute("savepoint rows")
    try:
        cursor.execute(_query(rows, columns, rules))
        found = [(row[0], row[1]) for row in cursor.fetchall()]
    except psycopg2.Error as error:
        if not is_value_error(error):
            raise
        cursor.execute("rollback to savepoint rows")
        if len(rows) == 1 and len(rules) == 1:
            return [(0, _find_error(cursor, rows, columns, rules[0], str(error.diag.message_primary)))]
        # A rule that raises an error, such as a division by zero in a check: row by row, and rule by rule.
        parts = [[rule] for rule in rules] if len(rows) == 1 else [rules]
        return [
            (index, reason)
            for index in range(len(rows))
            for part in parts
            for _, reason in _reasons(cursor, rows.slice(index, 1), columns, part)
        ]
    cursor.execute("release savepoint rows")
    return found


def _find_error(
    cursor: Cursor, row: pa.RecordBatch, columns: Sequence[Column], rule: RejectRule, message: str
) -> str:
    """Return the reason for a row with which a rule raises an error, as a batch gives it."""
    found = None
    if rule.column is not None:
        cursor.execute(
            sql.SQL("select left({}::text, {}) from {}").format(
                sql.Identifier(rule.column), sql.Literal(VALUE_CHARACTERS), _relation(row, columns)
            )
        )
        (found,) = cursor.fetchone()
    return rule.start_of_error + message + ("" if found is None else f", found {found}")


def _query(rows: pa.RecordBatch, columns: Sequence[Column], rules: Sequence[RejectRule]) -> sql.Composable:
    """Return a query for the indexes and reasons of rows that break a rule."""
    return sql.SQL("select {index}, case {cases} end from {staged} where {any}").format(
        index=sql.Identifier(_INDEX),
        cases=sql.SQL(" ").join(
            sql.SQL("when {} then {}").format(rule.condition, rule.reason) for rule in rules
        ),
        staged=_relation(rows, columns),
        any=sql.SQL(" or ").join(sql.SQL("({})").format(rule.condition) for rule in rules),
    )


def _relation(rows: pa.RecordBatch, columns: Sequence[Column]) -> sql.Composable:
    """Return rows as a relation, each with its index."""
    arrays = [as_text(rows.column(column.name)) for column in columns]
    tuples = [
        sql.SQL("({})").format(
            sql.SQL(", ").join(
                [
                    sql.Literal(index),
                    *(
                        sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(column.staged_type))
                        for value, column in zip(values, columns, strict=True)
                    ),
                ]
            )
        )
        for index, values in enumerate(zip(*arrays, strict=True))
    ]
    return sql.SQL("(values {}) staged ({})").format(
        sql.SQL(", ").join(tuples),
        sql.SQL(", ").join(map(sql.Identifier, [_INDEX, *(column.name for column in columns)])),
    )
