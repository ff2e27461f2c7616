"""How far event time has come: a pipeline's watermark, kept so that a batch can be taken back."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.append import Append, Part
from exactbatch.sinks.target import TargetTable
from exactbatch.sinks.window import TIMESTAMPTZ

_COLUMNS: Final = (
    Column("topic", "text"),
    Column("partition", "integer"),
    Column("batch_id", "bigint"),
    Column("event_time", TIMESTAMPTZ),
)
_BEFORE: Final = sql.Identifier("exactbatch_watermark_before")


@dataclass(frozen=True)
class Watermark:
    """The greatest event time, in `column`, of each batch in each partition, in the table `written`.

    A partition's watermark is the greatest of its event times; the pipeline's is the least over the
    partitions that have given an event, and null before there is one.
    """

    written: str
    column: str

    @cached_property
    def _table(self) -> TargetTable:
        return TargetTable(self.written)

    @property
    def table(self) -> sql.Composable:
        """The table as an SQL identifier."""
        return self._table.identifier

    @property
    def reached(self) -> sql.Composable:
        """The watermark as it is now, as a scalar subquery."""
        # One look into the index for each partition, however many batches there were.
        return sql.SQL(
            "(select min(latest.event_time) from "
            "(select distinct topic, partition from exactbatch.stored_offset) known cross join lateral "
            "(select w.event_time from {} w where w.topic = known.topic and w.partition = known.partition "
            "order by w.event_time desc limit 1) latest)"
        ).format(self.table)

    @property
    def before(self) -> sql.Composable:
        """The watermark that remember() saw, as a scalar subquery."""
        return sql.SQL("(select reached from {})").format(_BEFORE)

    def prepare(self, cursor: Cursor) -> None:
        """Create the table when it is missing, and otherwise check its columns."""
        names = [column.name for column in _COLUMNS]
        if self._table.prepare(cursor, _COLUMNS, required=names, key=names[:3]):
            cursor.execute(sql.SQL("create index on {} (topic, partition, event_time)").format(self.table))
            cursor.execute(sql.SQL("create index on {} (batch_id)").format(self.table))
        self._table.check_plain(cursor)

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table, in the order in which tables are locked."""
        return (self._table,)

    def remember(self, cursor: Cursor) -> None:
        """Note the watermark as the transaction finds it, unless that is done."""
        cursor.execute(
            sql.SQL("create temporary table if not exists {} on commit drop as select {} as reached").format(
                _BEFORE, self.reached
            )
        )

    def left_topics(self, cursor: Cursor, pipeline: str, topics: Sequence[str]) -> list[str]:
        """The topics whose event times are kept although they were taken out of the pipeline.

        A topic that another pipeline with the same target has processed is none of them.
        """
        cursor.execute(
            "select name, target from exactbatch.pipeline where sink = 'aggregate' and name <> %s",
            (pipeline,),
        )
        # One target can be written in several ways.
        others = [
            name
            for name, target in cursor.fetchall()
            if TargetTable(target).beside("_watermark") == self.written
        ]
        cursor.execute(
            sql.SQL(
                "select distinct o.topic from exactbatch.stored_offset o "
                "where o.pipeline = {pipeline} and o.topic <> all({topics}) "
                "and exists (select from {table} w where w.topic = o.topic) "
                "and not exists (select from exactbatch.stored_offset x "
                "where x.pipeline = any({others}::text[]) and x.topic = o.topic)"
            ).format(
                table=self.table,
                pipeline=sql.Literal(pipeline),
                topics=sql.Literal(list(topics)),
                others=sql.Literal(others),
            )
        )
        return [row[0] for row in cursor.fetchall()]

    def forget(self, cursor: Cursor, topics: Sequence[str]) -> None:
        """Forget the event times of topics."""
        cursor.execute(
            sql.SQL("delete from {} where topic = any({})").format(self.table, sql.Literal(list(topics)))
        )

    def take_back(self, cursor: Cursor, parts: Sequence[Part]) -> None:
        """Forget the event times of the batches that stand for these ranges."""
        Append(self.written, lineage="batch").take_back(cursor, parts)

    def insert_staged(
        self,
        cursor: Cursor,
        *,
        staging: sql.Composable,
        batch_id: int,
        rows: sql.Composable,
    ) -> None:
        """Keep the greatest event time of each partition among the staged rows for which `rows` is true."""
        self._table.execute(
            cursor,
            sql.SQL(
                "insert into {table} (topic, partition, batch_id, event_time) "
                "select kafka_topic, kafka_partition, {batch_id}, max({time}) from {staging} where {rows} "
                "group by kafka_topic, kafka_partition"
            ).format(
                table=self.table,
                batch_id=sql.Literal(batch_id),
                time=sql.Identifier(self.column),
                staging=staging,
                rows=rows,
            ),
        )

    def went_back(self, cursor: Cursor) -> bool:
        """Whether the watermark is lower than remember() saw it."""
        cursor.execute(
            sql.SQL("select {0} is not null and ({1} is null or {1} < {0})").format(self.before, self.reached)
        )
        return bool(cursor.fetchone()[0])
