"""Batches without Kafka and Spark: rows are staged by INSERT, and everything after that is the program's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from psycopg2 import sql

from exactbatch import OffsetRange, Pipeline
from exactbatch.audit.derived import difference
from exactbatch.batch.publishing.fences import read_sink_facts
from exactbatch.batch.publishing.publish import Published, publish
from exactbatch.batch.staging.reread import note_unavailable
from exactbatch.batch.staging.staging_tables import (
    INTACT,
    StagingTables,
    create_rejects,
    create_rows,
    identifier,
)
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.ledger import Ledger
from exactbatch.model import Plan, StoredOffset
from exactbatch.postgres.connection import Cursor, transaction
from exactbatch.sinks.capabilities import ChecksShared, ComparesTarget, Comparison
from exactbatch.sinks.staged_rows import Place
from exactbatch.sinks.upsert.change_order import ChangesBehind
from exactbatch.sinks.writers import find_writer

ID = UUID(int=1)
Row = tuple[Any, ...]


@dataclass
class Batches:
    """Batches of a pipeline over one topic; the log has one row for each record, in order of partitions."""

    connection: Any
    pipeline: Pipeline
    columns: Sequence[Any] = ()
    log: dict[int, list[Row]] = field(default_factory=dict)
    launches: int = 0
    # Publish positions that go back as if each repeated an earlier change.
    takes_any_order: bool = False

    @property
    def topic(self) -> str:
        return self.pipeline.known_topics(())[0]

    def __post_init__(self) -> None:
        self.columns = self.columns or self.pipeline.value.columns
        with transaction(self.connection):
            Ledger(self.connection).registry.register(self.pipeline, share_topics=True)

    def run(self, *rows: Row, partition: int = 0, meanwhile: Callable[[], Any] | None = None) -> Published:
        """Append records to a partition and process them; `meanwhile` is called before publish."""
        log = self.log.setdefault(partition, [])
        start = len(log)
        seed = StoredOffset(
            topic=self.topic, partition=partition, next_offset=0, leader_epoch=None, topic_id=ID
        )
        log.extend(rows)
        range_ = OffsetRange(self.topic, partition, start, len(log), ID)
        with transaction(self.connection):
            stored = Ledger(self.connection).plans.read_stored_offsets(self.pipeline)
            new = not any(each.partition == partition for each in stored)
            plan = Plan(seeds=(seed,) if new else (), losses=(), ranges=(range_,))
            batch_id = Ledger(self.connection).plans.write_advance(
                self.pipeline, plan, origin="cli", run=None
            )
        assert batch_id is not None
        try:
            return self.process(batch_id, meanwhile)
        except BaseException:
            del log[start:]
            raise

    def replay(self, *ranges: tuple[int, int, int], meanwhile: Callable[[], Any] | None = None) -> Published:
        """Process ranges (partition, from, until) again; all there is unless some are given."""
        ranges = ranges or tuple((each, 0, len(rows)) for each, rows in self.log.items())
        with transaction(self.connection):
            batch_id = Ledger(self.connection).plans.write_replay(
                self.pipeline, [OffsetRange(self.topic, *each, ID) for each in ranges], origin="cli", run=None
            )
        return self.process(batch_id, meanwhile)

    def process(self, batch_id: int, meanwhile: Callable[[], Any] | None = None) -> Published:
        """Process a batch as process_batch() does, without reading from Kafka."""
        self.launches += 1
        writer, tables = find_writer(self.pipeline.traits), StagingTables(batch_id, self.launches)
        with transaction(self.connection) as cursor:
            batch = Ledger(self.connection).batches.read(batch_id)
            ranges = Ledger(self.connection).batches.read_ranges(batch_id)
            writer.prepare(cursor, self.columns, evolve=self.pipeline.evolve)
            if isinstance(writer, ChecksShared):
                sharing = Ledger(self.connection).registry.find_sharing(self.pipeline)
                writer.check_shared(cursor, self.columns, sharing)
            if batch.kind == "replay":
                writer.check_replay(cursor)
            seen = read_sink_facts(cursor, writer)
            create_rejects(cursor, tables)
            create_rows(cursor, tables, writer.traits.staged_columns(self.columns))
            staged = [self._stage(cursor, tables, range_, at) for at, range_ in enumerate(ranges)]
            if writer.traits.keeps_unavailable:
                staged = self._without_unknown(cursor, tables, staged)
        if meanwhile is not None:
            meanwhile()
        repeats: frozenset[Place] = frozenset()
        while True:
            try:
                return publish(
                    self.connection,
                    self.pipeline,
                    writer,
                    plan_id=batch.plan_id,
                    tables=tables,
                    columns=self.columns,
                    staged=StagedBatch.of(staged),
                    topic_ids={self.topic: ID},
                    seen=seen,
                    repeats=repeats,
                )
            except ChangesBehind as error:
                if not self.takes_any_order and not all(
                    self._is_repeat(place, before) for place, before in error.places.items()
                ):
                    raise
                repeats |= frozenset(error.places)

    def _is_repeat(self, place: Place, before: int) -> bool:
        """Tell whether a record of the partition, before an offset, has the same row; check_repeats() reads the log."""
        log = self.log[place.partition]
        return log[place.offset] in log[:before]

    def _without_unknown(self, cursor: Any, tables: StagingTables, staged: list[Staged]) -> list[Staged]:
        """Reject the staged rows that lack unknown values, as reject_uncastable() does, without their records."""
        rows, rejects = identifier(tables.rows), identifier(tables.rejects)
        note_unavailable(
            cursor,
            find_writer(self.pipeline.traits),
            tables,
            StagedBatch.of(staged),
            self.columns,
            limit=10_000,
        )
        cursor.execute(
            sql.SQL(
                "update {rejects} set task_attempt = ~ task_attempt, headers = '[]' where task_attempt <> {intact}; "
                "delete from {rows} r using {rejects} j "
                'where j.partition = r.kafka_partition and j."offset" = r.kafka_offset'
            ).format(rows=rows, rejects=rejects, intact=sql.Literal(INTACT))
        )
        cursor.execute(sql.SQL("select task_attempt, count(*) from {} group by 1").format(rejects))
        refused = dict(cursor.fetchall())
        return [
            replace(
                each,
                rows=each.rows - refused.get(each.attempt, 0),
                rejects=refused.get(each.attempt, 0),
            )
            for each in staged
        ]

    def _stage(self, cursor: Any, tables: StagingTables, range_: OffsetRange, attempt: int) -> Staged:
        rows = self.log[range_.partition][range_.from_offset : range_.until_offset]
        columns = self.pipeline.traits.staged_columns(self.columns)
        for offset, row in enumerate(rows, range_.from_offset):
            cursor.execute(
                sql.SQL(
                    "insert into {} (task_attempt, kafka_partition, kafka_offset, kafka_timestamp, "
                    "kafka_topic, {}) values ({})"
                ).format(
                    identifier(tables.rows),
                    sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
                    sql.SQL(", ").join([sql.Placeholder()] * (5 + len(columns))),
                ),
                (attempt, range_.partition, offset, "2026-01-01 00:00:00+00", self.topic, *row),
            )
        return Staged(range_, attempt, len(rows), len(rows), 0, 0)


LINEAGE = (
    "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint"
)
MakeBatches = Callable[..., Batches]


class Database:
    """Statements in the database of a test."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: str) -> None:
        with transaction(self.connection) as cursor:
            cursor.execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with transaction(self.connection) as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]


def differences_that_the_audit_finds(made: Batches) -> int:
    """Compare the target with the query of the audit, which shares no code with the sink."""
    with transaction(made.connection) as cursor:
        comparison = _comparison(cursor, made)
        cursor.execute(
            sql.SQL(
                "with e as ({0}), a as ({1}) select (select count(*) from (table e except all table a) x) + "
                "(select count(*) from (table a except all table e) y)"
            ).format(comparison.expected, comparison.actual)
        )
        return int(cursor.fetchone()[0])


def rows_that_the_audit_finds(made: Batches) -> int:
    """Return how many rows of the target the audit's own statement counts as different."""
    with transaction(made.connection) as cursor:
        comparison = _comparison(cursor, made)
        cursor.execute(
            sql.SQL("with expected as ({}), actual as ({}) {}").format(
                comparison.expected, comparison.actual, difference(comparison)
            )
        )
        return int(cursor.fetchone()[0])


def _comparison(cursor: Cursor, made: Batches) -> Comparison:
    writer = find_writer(made.pipeline.traits)
    assert isinstance(writer, ComparesTarget)
    types = [
        {name: column.type for name, column in table.columns(cursor).items()}
        for table in (writer.tables[-1], writer.lineage_table.table)
    ]
    return writer.compare_target(made.columns, *types)


def trigger(table: str, when: str, body: str, name: str = "meddle", each: str = "row") -> str:
    """Statements that create a trigger on a table."""
    return (
        f"create function {name}() returns trigger language plpgsql as $$ begin {body} end $$; "
        f"create trigger {name} {when} on {table} for each {each} execute function {name}()"
    )
