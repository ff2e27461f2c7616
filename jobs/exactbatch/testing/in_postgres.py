"""Check, insert and read the staged rows of a test in Postgres, in one transaction that is rolled back."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

from psycopg2 import sql
from psycopg2.extensions import PYDATE, PYDATETIME, PYDATETIMETZ, new_type, register_type
from psycopg2.extras import execute_values

from exactbatch.batch.staging.note_unknown import note_unknown
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.batch.staging.uncastable import is_any_noted, note_uncastable, noted_after, rules_of
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.errors import ConfigurationError, ExactbatchError, TargetMismatch
from exactbatch.ledger import Ledger, apply_migrations
from exactbatch.model import Plan, StoredOffset
from exactbatch.postgres.arrow_values import as_text
from exactbatch.postgres.connection import Cursor, clear_errors, connect
from exactbatch.sinks import Append, Sink
from exactbatch.sinks import StagedRows as AcceptedRows
from exactbatch.sinks.tables.lineage_table import LINEAGE
from exactbatch.sinks.values.checks import check_expressions
from exactbatch.testing.compared import sorted_by
from exactbatch.testing.loaded import Loaded, Row
from exactbatch.testing.staged import StagedRows
from exactbatch.testing.targets import check_rejects

_ATTEMPT: Final = 0
_LAUNCH: Final = 0
# What reads date, timestamp and timestamptz, by the OIDs of these types.
_TIMES: Final = {1082: PYDATE, 1114: PYDATETIME, 1184: PYDATETIMETZ}


def loaded_in_postgres(staged: StagedRows, dsn: str) -> Loaded:
    """Return what a batch makes of staged rows in a database.

    Raises what a batch raises before it has staged its rows, such as ConfigurationError for a check and TargetMismatch
    for an existing target. `targets` raises what publish raises.
    """
    pipeline = staged.pipeline
    with _rolled_back(dsn) as cursor:
        tables = _prepare(cursor, staged)
        if tables is not None:
            _insert(cursor, tables, staged)
            staged = _without_refused(cursor, staged, tables)
        error: ExactbatchError | None = None
        found: dict[str, list[Row]] = {}
        try:
            check_rejects(pipeline, staged.rejects, staged.record_count)
            with clear_errors(cursor.connection):
                while tables is not None and (refused := _publish(cursor, staged, tables)):
                    staged = staged.without(refused)
                    check_rejects(pipeline, staged.rejects, staged.record_count)
                found = {part.target: _read(cursor, part, staged) for part in pipeline.sink.parts}
        except ExactbatchError as raised:
            error = raised

    def targets() -> dict[str, list[Row]]:
        if error is not None:
            raise error
        return found

    return staged.loaded({}, targets)


@contextmanager
def _rolled_back(dsn: str) -> Iterator[Cursor]:
    """Yield a cursor in a database without a ledger; roll everything back at the end."""
    with closing(connect(dsn, application="exactbatch testing")) as connection:
        with clear_errors(connection), connection.cursor() as cursor:
            cursor.execute("select current_database(), to_regnamespace('exactbatch') is not null")
            name, has_ledger = cursor.fetchone()
            if has_ledger:
                raise ConfigurationError(
                    f"the database {name!r} has a ledger, and a test would lock the tables of its pipelines. Give "
                    f"load() another database, such as a new one: create database exactbatch_test;"
                )
            for oid, caster in _TIMES.items():
                register_type(new_type((oid,), f"time {oid}", partial(_time_or_text, caster)), cursor)
            yield cursor
        connection.rollback()


def _time_or_text(caster: Any, text: str | None, cursor: Cursor) -> object:
    """Return a date or time; as text if Python cannot hold it."""
    try:
        return caster(text, cursor)
    except (OverflowError, ValueError):
        return text


def _prepare(cursor: Cursor, staged: StagedRows) -> StagingTables | None:
    """Create the ledger, the plan, the target and the staging tables; return these, or None if there is no record."""
    pipeline, sink = staged.pipeline, staged.pipeline.sink
    apply_migrations(cursor)
    ledger = Ledger(cursor.connection)
    ledger.register(pipeline)
    seeds = tuple(
        StoredOffset(
            topic=range_.topic,
            partition=range_.partition,
            next_offset=0,
            leader_epoch=None,
            topic_id=range_.topic_id,
        )
        for range_ in staged.ranges
    )
    plan = Plan(seeds=seeds, losses=(), ranges=staged.ranges)
    batch_id = ledger.write_advance(pipeline, plan, origin="cli", run=None)
    sink.prepare(cursor, staged.columns, evolve=pipeline.evolve)
    check_expressions(cursor, pipeline.name, staged.columns, pipeline.checks)
    if batch_id is None:
        return None
    tables = StagingTables(batch_id, _LAUNCH)
    create_rejects(cursor, tables)
    create_rows(cursor, tables, staged.staged_columns)
    return tables


def _insert(cursor: Cursor, tables: StagingTables, staged: StagedRows) -> None:
    """Insert the staged rows into their table. psycopg2 sends them as text: a binary COPY needs another session."""
    columns = [*staged.staged_columns, *(c for c in LINEAGE if c.name in LINEAGE_NAMES)]
    values = [as_text(staged.rows.column(column.name)) for column in columns]
    template = sql.SQL("({}, {})").format(
        sql.Literal(_ATTEMPT),
        sql.SQL(", ").join(sql.SQL("%s::{}").format(sql.SQL(column.staged_type)) for column in columns),
    )
    statement = sql.SQL("insert into {} (task_attempt, {}) values %s").format(
        identifier(tables.rows),
        sql.SQL(", ").join(sql.Identifier(column.name.replace("%", "%%")) for column in columns),
    )
    execute_values(
        cursor,
        statement.as_string(cursor),
        list(zip(*values, strict=True)),
        template=template.as_string(cursor),
    )


def _without_refused(cursor: Cursor, staged: StagedRows, tables: StagingTables) -> StagedRows:
    """Return what is staged without the records that the target or a check refuses, and delete their rows."""
    pipeline, whole = staged.pipeline, _whole(staged)
    rules = rules_of(cursor, pipeline, staged.columns, tables.batch_id)
    limit = len(staged.rows)
    if rules:
        note_uncastable(cursor, rules, tables, whole, limit=limit)
    note_unknown(cursor, pipeline, tables, whole, staged.columns, limit=limit)
    is_any_noted(cursor, tables, whole)  # raises if a row does not name its record
    refused, last = [], ("", 0, 0)
    while page := noted_after(cursor, tables, whole, last):
        refused += [((note.topic, note.partition, note.offset), note.reason) for note in page]
        last = refused[-1][0]
    if refused:
        _delete(cursor, tables, refused)
    return staged.without(refused)


def _delete(
    cursor: Cursor, tables: StagingTables, refused: Sequence[tuple[tuple[str, int, int], str]]
) -> None:
    """Delete the staged rows of rejected records."""
    execute_values(
        cursor,
        sql.SQL(
            "delete from {} r using (values %s) v (topic, partition, o) "
            "where (r.kafka_topic, r.kafka_partition, r.kafka_offset) = (v.topic, v.partition, v.o)"
        )
        .format(identifier(tables.rows))
        .as_string(cursor),
        [place for place, _ in refused],
    )


def _publish(
    cursor: Cursor, staged: StagedRows, tables: StagingTables
) -> list[tuple[tuple[str, int, int], str]]:
    """Insert the staged rows as publish does; return the records that the target refuses, without whose rows the others
    can be inserted. Raises what publish raises."""
    sink, ledger = staged.pipeline.sink, Ledger(cursor.connection)
    accepted = AcceptedRows(identifier(tables.rows), tables.batch_id, {_ATTEMPT: len(staged.rows)})
    if _whole(staged).has_several_rows_of_a_record:
        sink.check_staged(cursor, accepted, staged.columns)
    cursor.execute("savepoint publish")
    cursor.most_refused = len(staged.rows)
    ledger.advance_stored_offsets(ledger.batch(tables.batch_id))
    try:
        if len(staged.rows):
            sink.insert_staged(cursor, accepted, staged.columns)
    except TargetMismatch as error:
        if not error.refused or not staged.pipeline.max_rejects:
            raise
        cursor.execute("rollback to savepoint publish")
        refused = [((each.topic, each.partition, each.offset), each.reason) for each in error.refused]
        _delete(cursor, tables, refused)
        return refused
    return []


def _whole(staged: StagedRows) -> StagedBatch:
    """Return what a batch with one task attempt would report."""
    records, rejects = staged.record_count, len(staged.rejects)
    piece = Staged(
        staged.ranges[0], _ATTEMPT, records, len(staged.rows), rejects, staged.tombstones, staged.dropped
    )
    return StagedBatch.of([piece])


def _read(cursor: Cursor, part: Sink, staged: StagedRows) -> list[Row]:
    """Return the rows of one target: for an Append by topic, partition and offset, otherwise by key."""
    columns = part.staged_columns(staged.columns) if isinstance(part, Append) else staged.columns
    results = part.result_columns(columns)
    order: sql.Composable = sql.SQL("")
    if isinstance(part, Append) and part.lineage == "record":
        order = sql.SQL(" order by kafka_topic collate {}, kafka_partition, kafka_offset, ctid").format(
            sql.Identifier("C")
        )
    own = {column.name for column in staged.columns}
    values = [_shown(column, is_own=column.name in own) for column in results]
    cursor.execute(sql.SQL("select {} from {}{}").format(sql.SQL(", ").join(values), part.table, order))
    names = [column.name for column in results]
    rows = [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]
    return rows if isinstance(part, Append) else sorted_by(part.key_columns, rows)


def _shown(column: Column, *, is_own: bool) -> sql.Composable:
    """Return a column of a target as rows show it: one that Postgres parses as text, and real with all its digits."""
    name = sql.Identifier(column.name)
    if is_own and column.staged_type != column.type:
        return sql.SQL("{}::{}").format(name, sql.SQL(column.staged_type))
    if column.type in ("real", "real[]"):
        return sql.SQL("{}::double precision{}").format(name, sql.SQL("[]" if column.element else ""))
    return name


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value
