"""Sift: staged rows that do not fit the target become rejects, before anything is published.

A value may decode and still not be one of the target's: out of range, too many digits, no label of an enum, no
uuid. Postgres says which, over the whole staging table at once, and notes their records in the table of rejects,
where executors have noted those with values that cannot even be staged. The records are then read again, because a
reject keeps key, value and headers as they were, and a staged row does not.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Final

import psycopg2
from psycopg2 import sql

from exactbatch.batch.staging import (
    Rejected,
    StagedBatch,
    StagingTables,
    identifier,
    note_of,
    reject_batches,
    stage_rejects,
)
from exactbatch.columns import Column
from exactbatch.errors import LogEndedEarly, TargetMismatch
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.settings import Settings
from exactbatch.sinks import Misfit, Upsert

# Offsets: records that are no farther apart are read in one go.
_NEAR: Final = 1_000
# What a value may raise in the functions of its type.
_RAISED: Final = (
    psycopg2.DataError,
    psycopg2.IntegrityError,
    psycopg2.InternalError,
    psycopg2.NotSupportedError,
    psycopg2.ProgrammingError,
)
# SQLSTATEs that tell of the server, the session, a privilege or a staging table that is gone, and not of a value.
_TROUBLES: Final = "^(08|25|40|53|57|58|XX|42501|42P01)"
_FUNCTION: Final = sql.Identifier("pg_temp", "exactbatch_misfit")
_SHOWN: Final = 200  # characters of a value that a reason repeats
_PAGE: Final = 50_000  # notes that the driver holds at a time


@dataclass(frozen=True, slots=True)
class _Unfit:
    """A record that is noted to be rejected."""

    attempt: int
    topic: str
    partition: int
    offset: int
    reason: str


def sift(
    connection: Connection,
    pipeline: Pipeline,
    *,
    tables: StagingTables,
    columns: Sequence[Column],
    ranges: Sequence[OffsetRange],
    staged: StagedBatch,
    most: int,
    settings: Settings,
    cluster_id: str | None = None,
) -> StagedBatch:
    """Move staged rows that do not fit into the staged rejects; return what is staged then.

    A record that gave several rows is rejected as a whole. `most` is how many rejects the caller has a use for:
    the search ends with one more.

    Raises what reading a range raises, where the log does not hold the records any more, and TargetMismatch
    where rows do not tell which record they come from, or where one gives two changes of a key.
    """
    with transaction(connection) as cursor:
        if misfits := _misfits(cursor, pipeline, columns, tables.batch_id):
            _note(cursor, misfits, tables, staged, most=most)
        any_noted = _any_noted(cursor, tables, staged)
    if any_noted:
        staged = _rejected(connection, pipeline, tables, ranges, staged, most, settings, cluster_id)
    if isinstance(pipeline.sink, Upsert) and staged.rejected <= most and staged.has_several_rows_of_a_record:
        with transaction(connection) as cursor:
            pipeline.sink.check_one_change(
                cursor, columns, staging=identifier(tables.rows), attempts=staged.attempts
            )
    return staged


def _rejected(
    connection: Connection,
    pipeline: Pipeline,
    tables: StagingTables,
    ranges: Sequence[OffsetRange],
    staged: StagedBatch,
    most: int,
    settings: Settings,
    cluster_id: str | None,
) -> StagedBatch:
    """Stage the noted records as rejects, and delete their rows."""
    rejects = Counter(staged.rejects)

    def records() -> Iterator[Rejected]:
        noted = islice(_noted(connection, tables, staged), most + 1)
        for record in _records(noted, ranges, pipeline, settings, cluster_id):
            rejects[record.attempt] += 1
            yield record

    stage_rejects(
        settings.postgres,
        tables,
        reject_batches(records()),
        publish_timeout=pipeline.publish_timeout,
        statement_timeout=pipeline.statement_timeout,
    )
    with transaction(connection) as cursor:
        taken = _delete(cursor, tables, staged)
    return replace(
        staged,
        rows={attempt: rows - taken.get(attempt, 0) for attempt, rows in staged.rows.items()},
        rejects=rejects,
    )


def _misfits(cursor: Cursor, pipeline: Pipeline, columns: Sequence[Column], batch_id: int) -> list[Misfit]:
    misfits = pipeline.sink.misfits(cursor, columns, batch_id=batch_id)
    if pipeline.is_transformed and pipeline.sink.keeps_deletes:
        # Without a transform the decoder has seen to it.
        misfits += [
            Misfit(
                sql.SQL("{} is null").format(sql.Identifier(name)),
                sql.Literal(f"column {name!r}: expected the key of the row, found null"),
            )
            for name in pipeline.sink.key
        ]
        misfits.append(
            Misfit(
                sql.SQL("deleted is null"),
                sql.SQL("'column ''deleted'' is null: a change is a delete (true) or not (false)'"),
            )
        )
    return misfits


def _note(
    cursor: Cursor,
    misfits: Sequence[Misfit],
    tables: StagingTables,
    staged: StagedBatch,
    *,
    most: int,
) -> None:
    """Note the records with staged rows that do not fit, in the table of rejects."""
    cursor.execute("savepoint unfit")
    try:
        cursor.execute(_all_at_once(misfits, tables, staged, most))
    except _RAISED as error:
        if re.search(_TROUBLES, error.pgcode or ""):
            raise
        # A check of a domain, or a type of an extension, raises where Postgres's own types say no.
        cursor.execute("rollback to savepoint unfit")
        cursor.execute(_function(cursor, misfits, tables))
        cursor.execute(_one_by_one(tables, staged, most))
        # While it is there, the staging table cannot be dropped.
        cursor.execute(sql.SQL("drop function {}({})").format(_FUNCTION, identifier(tables.rows)))


def _any_noted(cursor: Cursor, tables: StagingTables, staged: StagedBatch) -> bool:
    """Whether records are to be rejected. Raises TargetMismatch where a row does not tell its record."""
    cursor.execute(
        sql.SQL(
            "select topic, reason from {} where task_attempt = any({}) order by topic nulls first limit 1"
        ).format(identifier(tables.rejects), _notes(staged))
    )
    if (first := cursor.fetchone()) is None:
        return False
    if first.topic is None:
        raise TargetMismatch(
            f"expected rows that the target can hold, found: {first.reason}. They do not tell which records "
            f"they come from, so these cannot be rejected. Nothing was written. Correct the transform or the "
            f"target."
        )
    return True


def _noted(connection: Connection, tables: StagingTables, staged: StagedBatch) -> Iterator[_Unfit]:
    """The records that are noted to be rejected, each once, by topic, partition and offset."""
    last = ("", 0, 0)
    while True:
        with transaction(connection) as cursor:
            page = _noted_after(cursor, tables, staged, last)
        if not page:
            return
        yield from page
        last = page[-1].topic, page[-1].partition, page[-1].offset


def _noted_after(
    cursor: Cursor, tables: StagingTables, staged: StagedBatch, last: tuple[str, int, int] = ("", 0, 0)
) -> list[_Unfit]:
    cursor.execute(
        sql.SQL(
            'select topic, partition, "offset", max(task_attempt) as note, min(reason) as reason from {} '
            'where task_attempt = any({}) and (topic, partition, "offset") > ({}, {}, {}) '
            "group by 1, 2, 3 order by 1, 2, 3 limit {}"
        ).format(identifier(tables.rejects), _notes(staged), *map(sql.Literal, last), sql.Literal(_PAGE))
    )
    return [
        _Unfit(note_of(note), topic, partition, offset, reason)
        for topic, partition, offset, note, reason in cursor.fetchall()
    ]


def _notes(staged: StagedBatch) -> sql.Composable:
    """Under which task attempts records are noted."""
    return sql.Literal([note_of(attempt) for attempt in staged.attempts])


def _all_at_once(
    misfits: Sequence[Misfit], tables: StagingTables, staged: StagedBatch, most: int
) -> sql.Composable:
    return sql.SQL(
        'insert into {rejects} (task_attempt, topic, partition, "offset", reason) '
        "select ~ min(task_attempt), kafka_topic, kafka_partition, kafka_offset, "
        "min(case {reasons} end) as reason from {staging} "
        "where task_attempt = any({attempts}) and ({conditions}) "
        "group by 2, 3, 4 order by 2, 3, 4 limit {most}"
    ).format(
        rejects=identifier(tables.rejects),
        reasons=_cases(misfits),
        staging=identifier(tables.rows),
        attempts=sql.Literal(staged.attempts),
        conditions=sql.SQL(" or ").join(sql.SQL("({})").format(each.condition) for each in misfits),
        most=sql.Literal(most + 1),
    )


def _cases(misfits: Sequence[Misfit]) -> sql.Composable:
    return sql.SQL(" ").join(
        sql.SQL("when {} then {}").format(each.condition, each.reason) for each in misfits
    )


def _function(cursor: Cursor, misfits: Sequence[Misfit], tables: StagingTables) -> sql.Composable:
    """A function that gives the reason why a staged row does not fit, also where Postgres raises it.

    Each row costs it a subtransaction for each column with a check.
    """
    blocks = sql.SQL(" ").join(
        sql.SQL(
            "begin "
            "select {reason} into reason from (select (staged).*) staged_row where {condition}; "
            "if reason is not null then return reason; end if; "
            "exception when others then "
            "if sqlstate ~ {troubles} then raise; end if; "
            "return {where} || sqlerrm || "
            "coalesce(', found ' || left((select {column}::text from (select (staged).*) staged_row), {shown}), "
            "''); end;"
        ).format(
            reason=misfit.reason,
            condition=misfit.condition,
            troubles=sql.Literal(_TROUBLES),
            where=sql.Literal("" if misfit.column is None else f"column {misfit.column!r}: "),
            column=sql.SQL("null") if misfit.column is None else sql.Identifier(misfit.column),
            shown=sql.Literal(_SHOWN),
        )
        for misfit in misfits
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


def _one_by_one(tables: StagingTables, staged: StagedBatch, most: int) -> sql.Composable:
    return sql.SQL(
        'insert into {rejects} (task_attempt, topic, partition, "offset", reason) '
        "select ~ min(task_attempt), kafka_topic, kafka_partition, kafka_offset, min(reason) as reason "
        "from (select task_attempt, kafka_topic, kafka_partition, kafka_offset, {function}(staged) as reason "
        "from {staging} staged where task_attempt = any({attempts}) offset 0) judged "
        "where reason is not null group by 2, 3, 4 order by 2, 3, 4 limit {most}"
    ).format(
        rejects=identifier(tables.rejects),
        function=_FUNCTION,
        staging=identifier(tables.rows),
        attempts=sql.Literal(staged.attempts),
        most=sql.Literal(most + 1),
    )


def _records(
    unfit: Iterable[_Unfit],
    ranges: Sequence[OffsetRange],
    pipeline: Pipeline,
    settings: Settings,
    cluster_id: str | None,
) -> Iterator[Rejected]:
    """The records as they are in the log; `unfit` comes by topic, partition and offset."""
    for (topic, partition), group in groupby(unfit, key=lambda each: (each.topic, each.partition)):
        log = next(each for each in ranges if (each.topic, each.partition) == (topic, partition))
        for near in _near(group):
            wanted = {each.offset: each for each in near}
            range_ = replace(log, from_offset=near[0].offset, until_offset=near[-1].offset + 1)
            for message in _messages(range_, settings.kafka, pipeline.read_timeout, cluster_id):
                if (found := wanted.pop(message.offset(), None)) is not None:
                    yield Rejected(topic, partition, message, found.reason, found.attempt)
            if wanted:
                raise LogEndedEarly(
                    f"{topic}[{partition}] offset {min(wanted)}: expected the record that was read a moment ago, "
                    f"to keep it as a reject, found none. Nothing was written; try again."
                )


def _near(unfit: Iterable[_Unfit]) -> Iterator[list[_Unfit]]:
    """Records of one partition, by offset, in groups of which each is near the one before."""
    group: list[_Unfit] = []
    for each in unfit:
        if group and (each.offset - group[-1].offset > _NEAR or len(group) == _PAGE):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _messages(
    range_: OffsetRange, kafka: Mapping[str, Any], timeout: float, cluster_id: str | None
) -> Iterator[Any]:
    for records in read_range(range_, kafka, leader_epoch=None, timeout=timeout, cluster_id=cluster_id):
        yield from records.messages


def _delete(cursor: Cursor, tables: StagingTables, staged: StagedBatch) -> dict[int, int]:
    """Delete the staged rows of rejected records; return how many that was, by task attempt."""
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
