"""Reject staged rows that cannot be cast to the target's types, before anything is published.

A value may decode and still not be valid in the target: out of range, too many digits, not a label of an enum,
not a uuid. Postgres finds such values over a whole staging table at once, and notes their records in the
table of rejects, where executors have noted those with values that cannot even be staged. The records are then
read again, because a reject keeps the key, the value and the headers, and a staged row does not.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.batch.rows.copy import PostgresAccess
from exactbatch.batch.rows.rejected import Rejected, note_attempt, reject_batches
from exactbatch.batch.staging.reread import NotedRecord, note_unavailable, read_noted
from exactbatch.batch.staging.stage import stage_rejects
from exactbatch.batch.staging.staging_tables import StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import Column
from exactbatch.errors import RefusedRecord, TargetMismatch
from exactbatch.errors.sqlstates import NOT_OF_A_VALUE
from exactbatch.ledger import target_transaction
from exactbatch.model import Evolve
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.postgres.sql_text import ROW
from exactbatch.settings import Settings
from exactbatch.sinks.capabilities import ChecksStaged
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.values.cast import VALUE_CHARACTERS, RejectRule, reject_null_keys
from exactbatch.sinks.values.checks import check_rules
from exactbatch.sinks.writer import SinkWriter

# The errors that the functions of a type may raise for a value.
_VALUE_ERRORS: Final = (
    psycopg2.DataError,
    psycopg2.IntegrityError,
    psycopg2.InternalError,
    psycopg2.NotSupportedError,
    psycopg2.ProgrammingError,
)
_FUNCTION: Final = sql.Identifier("pg_temp", "exactbatch_uncastable")
_PAGE: Final = 50_000  # notes that the driver holds at a time
DELETED_IS_NULL: Final = "column 'deleted' is null: a change is a delete (true) or not (false)"


def reject_uncastable(
    connection: Connection,
    pipeline: Pipeline,
    writer: SinkWriter,
    *,
    tables: StagingTables,
    columns: Sequence[Column],
    ranges: Sequence[OffsetRange],
    staged: StagedBatch,
    limit: int,
    settings: Settings,
    cluster_id: str | None = None,
) -> StagedBatch:
    """Move staged rows that cannot be cast into the staged rejects; return what is staged then.

    A record that gave several rows is rejected as a whole. `limit` is how many rejects the batch may still
    have: the search ends with one more.

    Raises the errors of read_range() if the log does not hold the records any more, and TargetMismatch if rows
    do not carry the record that they come from, or if a record gives two changes of a key.
    """
    rejected_before = staged.rejected
    with target_transaction(connection, pipeline) as cursor:
        too_many = False
        if rules := list_rules(cursor, pipeline, writer, columns, tables.batch_id):
            too_many = note_uncastable(cursor, rules, tables, staged, limit=limit) > limit
        # The search for unavailable values casts keys and versions of all rows but those that are noted.
        if not too_many:
            note_unavailable(cursor, writer, tables, staged, columns, limit=limit)
        any_noted = is_any_noted(cursor, tables, staged)
    if any_noted:
        staged = _rejected(connection, pipeline, tables, ranges, staged, limit, settings, cluster_id)
    if (
        isinstance(writer, ChecksStaged)
        and staged.rejected - rejected_before <= limit
        and staged.has_several_rows_of_a_record
    ):
        with target_transaction(connection, pipeline) as cursor:
            rows = StagedRows(identifier(tables.rows), tables.batch_id, staged.rows, tables.checked)
            writer.check_staged(cursor, rows, columns)
    return staged


def reject_refused(
    connection: Connection,
    pipeline: Pipeline,
    writer: SinkWriter,
    *,
    tables: StagingTables,
    columns: Sequence[Column],
    ranges: Sequence[OffsetRange],
    staged: StagedBatch,
    refused: Sequence[RefusedRecord],
    limit: int,
    settings: Settings,
    cluster_id: str | None = None,
) -> StagedBatch:
    """Move staged rows whose records the target has refused, and what needs their values, into the staged rejects;
    return what is staged then. `limit` and the errors are the same as for reject_uncastable()."""
    with target_transaction(connection, pipeline) as cursor:
        _note_refused(cursor, tables, staged, refused)
        note_unavailable(cursor, writer, tables, staged, columns, limit=limit)
    return _rejected(connection, pipeline, tables, ranges, staged, limit, settings, cluster_id)


def _rejected(
    connection: Connection,
    pipeline: Pipeline,
    tables: StagingTables,
    ranges: Sequence[OffsetRange],
    staged: StagedBatch,
    limit: int,
    settings: Settings,
    cluster_id: str | None,
) -> StagedBatch:
    """Stage the noted records as rejects, and delete their rows."""
    rejects = Counter(staged.rejects)

    def records() -> Iterator[Rejected]:
        noted = islice(_noted(connection, tables, staged), limit + 1)
        for record in read_noted(noted, ranges, pipeline, settings, cluster_id):
            rejects[record.attempt] += 1
            yield record

    stage_rejects(
        PostgresAccess(settings.postgres, pipeline.tuning.lock_seconds, pipeline.tuning.statement_seconds),
        tables,
        reject_batches(records()),
    )
    with transaction(connection) as cursor:
        deleted = _delete(cursor, tables, staged)
        # The target may refuse others later, which are noted then.
        cursor.execute(
            sql.SQL("delete from {} where task_attempt = any({})").format(
                identifier(tables.rejects), _notes(staged)
            )
        )
    return replace(
        staged,
        rows={attempt: rows - deleted.get(attempt, 0) for attempt, rows in staged.rows.items()},
        rejects=rejects,
    )


def list_rules(
    cursor: Cursor,
    pipeline: Pipeline,
    writer: SinkWriter,
    columns: Sequence[Column],
    batch_id: int,
    *,
    evolve: Evolve | None = None,
) -> list[RejectRule]:
    """Return rules for staged rows that the tables of the pipeline's sink cannot hold; with `evolve`, as
    SinkWriter.reject_rules() has it, for a batch to come."""
    rules = writer.reject_rules(cursor, columns, batch_id=batch_id, evolve=evolve)
    if pipeline.is_transformed and pipeline.traits.keeps_deletes:
        # Without a transform the decoder ensures this.
        rules += reject_null_keys(pipeline.traits.key_columns)
        rules.append(
            RejectRule(
                sql.SQL("deleted is null"),
                sql.Literal(DELETED_IS_NULL),
            )
        )
    keeps_deletes = pipeline.traits.keeps_deletes
    return [*rules, *check_rules(cursor, columns, pipeline.row_checks, keeps_deletes=keeps_deletes)]


def is_value_error(error: psycopg2.Error) -> bool:
    """True for an error that a value of a row may be the cause of, and not the server or the session."""
    return isinstance(error, _VALUE_ERRORS) and not re.search(NOT_OF_A_VALUE, error.pgcode or "")


def note_uncastable(
    cursor: Cursor,
    rules: Sequence[RejectRule],
    tables: StagingTables,
    staged: StagedBatch,
    *,
    limit: int,
) -> int:
    """Note the records with staged rows that cannot be cast, in the table of rejects; return how many were noted.

    That is at most one more than `limit`.
    """
    cursor.execute("savepoint uncastable")
    try:
        cursor.execute(_all_at_once(rules, tables, staged, limit))
        return int(cursor.rowcount)
    except psycopg2.Error as error:
        if not is_value_error(error):
            raise
        # A check of a domain, or a type of an extension, raises an error where Postgres's own types return false.
        cursor.execute("rollback to savepoint uncastable")
        cursor.execute(_function(cursor, rules, tables))
        cursor.execute(_one_by_one(tables, staged, limit))
        noted = int(cursor.rowcount)
        # While the function exists, the staging table cannot be dropped.
        cursor.execute(sql.SQL("drop function {}({})").format(_FUNCTION, identifier(tables.rows)))
        return noted


def _note_refused(
    cursor: Cursor, tables: StagingTables, staged: StagedBatch, refused: Sequence[RefusedRecord]
) -> None:
    """Note records by their places, if they have rows among the staged ones."""
    topics, partitions, offsets, reasons = (list(values) for values in zip(*refused, strict=True))
    cursor.execute(
        sql.SQL(
            'insert into {rejects} (task_attempt, topic, partition, "offset", reason) '
            "select ~ min(s.task_attempt), n.topic, n.partition, n.o, n.reason "
            "from unnest({topics}::text[], {partitions}::integer[], {offsets}::bigint[], {reasons}::text[]) "
            "n (topic, partition, o, reason) join {staging} s on s.kafka_topic = n.topic "
            "and s.kafka_partition = n.partition and s.kafka_offset = n.o "
            "where s.task_attempt = any({attempts}) group by 2, 3, 4, 5"
        ).format(
            rejects=identifier(tables.rejects),
            topics=sql.Literal(topics),
            partitions=sql.Literal(partitions),
            offsets=sql.Literal(offsets),
            reasons=sql.Literal(reasons),
            staging=identifier(tables.rows),
            attempts=sql.Literal(staged.attempts),
        )
    )


def is_any_noted(cursor: Cursor, tables: StagingTables, staged: StagedBatch) -> bool:
    """True if records are noted to be rejected. Raises TargetMismatch if a row does not carry its record."""
    cursor.execute(
        sql.SQL(
            "select topic, reason from {} where task_attempt = any({}) order by topic nulls first limit 1"
        ).format(identifier(tables.rejects), _notes(staged))
    )
    if (first := cursor.fetchone()) is None:
        return False
    if first.topic is None:
        raise TargetMismatch(
            f"the target cannot hold a row: {first.reason}. The rows do not carry the records that they come "
            f"from, so these cannot be rejected. Nothing was written. Correct the transform or the target.",
            batch_id=tables.batch_id,
        )
    return True


def _noted(connection: Connection, tables: StagingTables, staged: StagedBatch) -> Iterator[NotedRecord]:
    """Yield the records that are noted to be rejected, each once, by topic, partition and offset."""
    last = ("", 0, 0)
    while True:
        with transaction(connection) as cursor:
            page = noted_after(cursor, tables, staged, last)
        if not page:
            return
        yield from page
        last = page[-1].topic, page[-1].partition, page[-1].offset


def noted_after(
    cursor: Cursor, tables: StagingTables, staged: StagedBatch, last: tuple[str, int, int] = ("", 0, 0)
) -> list[NotedRecord]:
    """Return the next page of records that are noted to be rejected, after a topic, partition and offset."""
    cursor.execute(
        sql.SQL(
            'select topic, partition, "offset", max(task_attempt) as note, min(reason) as reason from {} '
            'where task_attempt = any({}) and (topic, partition, "offset") > ({}, {}, {}) '
            "group by 1, 2, 3 order by 1, 2, 3 limit {}"
        ).format(identifier(tables.rejects), _notes(staged), *map(sql.Literal, last), sql.Literal(_PAGE))
    )
    return [
        NotedRecord(note_attempt(note), topic, partition, offset, reason)
        for topic, partition, offset, note, reason in cursor.fetchall()
    ]


def _notes(staged: StagedBatch) -> sql.Composable:
    """Return the values of task_attempt that notes carry."""
    return sql.Literal([note_attempt(attempt) for attempt in staged.attempts])


def _all_at_once(
    rules: Sequence[RejectRule], tables: StagingTables, staged: StagedBatch, limit: int
) -> sql.Composable:
    return sql.SQL(
        'insert into {rejects} (task_attempt, topic, partition, "offset", reason) '
        "select ~ min(task_attempt), kafka_topic, kafka_partition, kafka_offset, "
        "min(case {reasons} end) as reason from {staging} "
        "where task_attempt = any({attempts}) and ({conditions}) "
        "group by 2, 3, 4 order by 2, 3, 4 limit {limit}"
    ).format(
        rejects=identifier(tables.rejects),
        reasons=_cases(rules),
        staging=identifier(tables.rows),
        attempts=sql.Literal(staged.attempts),
        conditions=_join_rules(rules),
        limit=sql.Literal(limit + 1),
    )


def _join_rules(rules: Sequence[RejectRule]) -> sql.Composable:
    return sql.SQL(" or ").join(sql.SQL("({})").format(rule.condition) for rule in rules)


def _cases(rules: Sequence[RejectRule]) -> sql.Composable:
    return sql.SQL(" ").join(sql.SQL("when {} then {}").format(rule.condition, rule.reason) for rule in rules)


def _function(cursor: Cursor, rules: Sequence[RejectRule], tables: StagingTables) -> sql.Composable:
    """Return the definition of a function that returns why a staged row cannot be cast, even if Postgres raises an
    error for it.

    It takes a subtransaction per row and checked column.
    """
    blocks = sql.SQL(" ").join(
        sql.SQL(
            "begin "
            "select {reason} into reason from (select (staged).*) staged_row where {condition}; "
            "if reason is not null then return reason; end if; "
            "exception when others then "
            "if sqlstate ~ {server_errors} then raise; end if; "
            "return {where} || sqlerrm || "
            "coalesce(', found ' || left((select {column}::text from (select (staged).*) staged_row), {shown}), "
            "''); end;"
        ).format(
            reason=rule.reason,
            condition=rule.condition,
            server_errors=sql.Literal(NOT_OF_A_VALUE),
            where=sql.Literal(rule.start_of_error),
            column=sql.SQL("null") if rule.column is None else sql.Identifier(rule.column),
            shown=sql.Literal(VALUE_CHARACTERS),
        )
        for rule in rules
    )
    body = sql.SQL(
        "#variable_conflict use_column\ndeclare reason text; staged alias for $1; begin {} return null; end"
    )
    return sql.SQL(
        "create or replace function {function}({staging}) returns text language plpgsql as {body}"
    ).format(
        function=_FUNCTION,
        staging=identifier(tables.rows),
        body=sql.Literal(body.format(blocks).as_string(cursor)),
    )


def _one_by_one(tables: StagingTables, staged: StagedBatch, limit: int) -> sql.Composable:
    return sql.SQL(
        'insert into {rejects} (task_attempt, topic, partition, "offset", reason) '
        "select ~ min(task_attempt), kafka_topic, kafka_partition, kafka_offset, min(reason) as reason "
        "from (select task_attempt, kafka_topic, kafka_partition, kafka_offset, {function}({row}) as reason "
        "from {staging} {row} where task_attempt = any({attempts}) offset 0) judged "
        "where reason is not null group by 2, 3, 4 order by 2, 3, 4 limit {limit}"
    ).format(
        rejects=identifier(tables.rejects),
        function=_FUNCTION,
        row=ROW,
        staging=identifier(tables.rows),
        attempts=sql.Literal(staged.attempts),
        limit=sql.Literal(limit + 1),
    )


def _delete(cursor: Cursor, tables: StagingTables, staged: StagedBatch) -> dict[int, int]:
    """Delete the staged rows of rejected records; return how many, by task attempt."""
    cursor.execute(
        sql.SQL(
            "with gone as (delete from {rows} r using {rejects} j where r.task_attempt = any({attempts}) "
            "and j.task_attempt = any({attempts}) and j.topic = r.kafka_topic "
            'and j.partition = r.kafka_partition and j."offset" = r.kafka_offset returning r.task_attempt) '
            "select task_attempt, count(*) as rows from gone group by 1"
        ).format(
            rows=identifier(tables.rows),
            rejects=identifier(tables.rejects),
            attempts=sql.Literal(staged.attempts),
        )
    )
    return dict(cursor.fetchall())
