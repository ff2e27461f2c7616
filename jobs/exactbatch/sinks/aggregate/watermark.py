"""The watermark: the event time that a target has reached, kept by batch so that a replay can retract it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named
from exactbatch.sinks.aggregate.window import TIMESTAMPTZ
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.counted_writes import write_rows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_companion
from exactbatch.sinks.tables.target_definition import prepare_table

_COLUMNS: Final = (
    Column("topic", "text"),
    Column("partition", "integer"),
    Column("batch_id", "bigint"),
    Column("event_time", TIMESTAMPTZ),
)
_BEFORE: Final = sql.Identifier("exactbatch_watermark_before")


@dataclass(frozen=True)
class Watermark:
    """The greatest event time, in `column` of a staged row, of each batch in each partition, in `table`.

    A partition's watermark is the greatest of its event times. The watermark of a target is the least over the
    partitions that have given an event, and null before there is one.
    """

    table: TargetTable
    column: str

    @property
    def identifier(self) -> sql.Composable:
        """The table as an SQL identifier."""
        return self.table.identifier

    @property
    def reached(self) -> sql.Composable:
        """The watermark as it is now, as a scalar subquery."""
        # One index lookup for each partition that has given an event, no matter how many batches there were.
        return sql.SQL(
            "(with recursive latest as ("
            "(select w.topic, w.partition, w.event_time from {table} w "
            "order by w.topic desc, w.partition desc, w.event_time desc limit 1) "
            "union all select next.* from latest cross join lateral "
            "(select w.topic, w.partition, w.event_time from {table} w "
            "where (w.topic, w.partition) < (latest.topic, latest.partition) "
            "order by w.topic desc, w.partition desc, w.event_time desc limit 1) next"
            ") select min(event_time) from latest)"
        ).format(table=self.identifier)

    @property
    def before(self) -> sql.Composable:
        """The watermark that remember() saw, as a scalar subquery."""
        return sql.SQL("(select reached from {})").format(_BEFORE)

    def prepare(self, cursor: Cursor) -> None:
        """Create the table if it is missing, and otherwise check its columns."""
        names = [column.name for column in _COLUMNS]
        if prepare_table(cursor, self.table, _COLUMNS, required=names, key=names[:3]):
            for columns in ("topic, partition, event_time", "batch_id"):
                create_named(
                    cursor, sql.SQL("create index on {} ({})").format(self.identifier, sql.SQL(columns))
                )
        check_companion(cursor, self.table)

    def remember(self, cursor: Cursor) -> None:
        """Note the watermark before this transaction changes it; later calls change nothing."""
        cursor.execute(
            sql.SQL("create temporary table if not exists {} on commit drop as select {} as reached").format(
                _BEFORE, self.reached
            )
        )

    def known_topics(self, cursor: Cursor, topics: Sequence[str]) -> list[str]:
        """Return the topics that have event times."""
        cursor.execute(
            sql.SQL(
                "select t.topic from unnest({topics}::text[]) t (topic) "
                "where exists (select from {table} w where w.topic = t.topic)"
            ).format(table=self.identifier, topics=sql.Literal(list(topics)))
        )
        return [row[0] for row in cursor.fetchall()]

    def forget(self, cursor: Cursor, topics: Sequence[str]) -> None:
        """Delete the event times of topics."""
        cursor.execute(
            sql.SQL("delete from {} where topic = any({})").format(self.identifier, sql.Literal(list(topics)))
        )

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> None:
        """Delete the event times of the batches whose results stand for ranges."""
        LineageTable(self.table, lineage="batch").retract(cursor, parts)

    def insert_staged(self, cursor: Cursor, staged: StagedRows) -> None:
        """Keep the greatest event time of each partition among staged rows."""
        write_rows(
            cursor,
            self.table,
            sql.SQL(
                "insert into {table} (topic, partition, batch_id, event_time) "
                "select kafka_topic, kafka_partition, {batch_id}, max({time}) from {staging} where {accepted} "
                "group by kafka_topic, kafka_partition"
            ).format(
                table=self.identifier,
                batch_id=sql.Literal(staged.batch_id),
                time=sql.Identifier(self.column),
                staging=staged.table,
                accepted=staged.accepted,
            ),
        )

    def moved_back(self, cursor: Cursor) -> bool:
        """True if the watermark is lower than remember() saw it."""
        cursor.execute(
            sql.SQL("select {0} is not null and ({1} is null or {1} < {0})").format(self.before, self.reached)
        )
        return bool(cursor.fetchone()[0])
