"""Append: every row that a batch makes is inserted, with where it came from."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Literal

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.offsets import OffsetRange
from exactbatch.options import check_types
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.cast import Cast, Misfit, misfits
from exactbatch.sinks.refusal import candidates
from exactbatch.sinks.stored import check_stored
from exactbatch.sinks.target import Evolve, TargetTable

# A range, and the batches whose results stand for some of its offsets.
Part = tuple[OffsetRange, Sequence[int]]
LINEAGE: Final = (
    Column("kafka_topic", "text"),
    Column("kafka_partition", "integer"),
    Column("kafka_offset", "bigint"),
    Column("kafka_timestamp", "timestamp with time zone"),
    Column("batch_id", "bigint"),
)


@dataclass(frozen=True)
class Append:
    """Insert rows into `target`, written `schema.table`; a part that is not lower-case goes in double quotes.

    With lineage="record" each row carries where it came from: kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, batch_id. With lineage="batch", for rows that come from many records, it carries
    batch_id alone, and a replay processes whole batches again.

    A replay deletes rows and inserts them again. `cascade` names the tables that a foreign key with on delete
    cascade, set null or set default may change then, as ("public.note",); without it such a replay is refused.
    """

    kind: ClassVar[str] = "append"
    key: ClassVar[tuple[str, ...]] = ()
    keeps_deletes: ClassVar[bool] = False
    needs_last_records_only: ClassVar[bool] = False

    target: str
    lineage: Literal["record", "batch"] = "record"
    cascade: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        _ = self._target
        _ = [TargetTable(table) for table in self.cascade]

    @property
    def needs_lineage(self) -> bool:
        """Whether a staged row has to say which record it comes from."""
        return self.lineage == "record"

    @property
    def lineage_columns(self) -> tuple[Column, ...]:
        """The columns that say where a row came from."""
        return LINEAGE if self.lineage == "record" else LINEAGE[-1:]

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target)

    @property
    def table(self) -> sql.Composable:
        """The target as an SQL identifier."""
        return self._target.identifier

    @property
    def table_name(self) -> tuple[str, str]:
        """Schema and table of the target, as Postgres stores them."""
        return self._target.name

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The target, in the order in which tables are locked."""
        return (self._target,)

    @property
    def contributions(self) -> "Append":
        """The sink of rows with lineage: this one."""
        return self

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """What a staged row has beside its lineage."""
        return tuple(columns)

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError when a column of the pipeline has a name that staging or the target needs."""
        lineage = {column.name for column in LINEAGE}  # all of it: the staging table has it always
        taken = {"task_attempt", *lineage} & {column.name for column in columns}
        if taken:
            raise ConfigurationError(
                f"expected columns beside the lineage columns of {self.target}, found {sorted(taken)} in the "
                f"pipeline's own: rename them"
            )

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> bool:
        """Create the target when it is missing, and otherwise check its columns; return whether it was missing.

        Raises TargetMismatch, which names the column and both types.
        """
        lineage = [column.name for column in self.lineage_columns if column.name != "kafka_timestamp"]
        created = self._target.prepare(
            cursor, columns, lineage=self.lineage_columns, required=lineage, evolve=evolve
        )
        if created:
            # A block-range index costs next to nothing to keep, and rows lie in the order of their batches; a
            # primary key on lineage would more than halve the speed of publish.
            cursor.execute(
                sql.SQL("create index on {} using brin ({}) with (pages_per_range = 32)").format(
                    self.table, sql.SQL(", ").join(map(sql.Identifier, lineage))
                )
            )
        return created

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch when a replay would change other tables by foreign keys that are not allowed."""
        self._target.check_cascades(cursor, self.cascade)

    def check_copied_into(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch unless ranges can be copied into the target by transactions of their own."""
        self._target.check_copied_into(cursor, (*columns, *self.lineage_columns))

    def insert_staged(
        self,
        cursor: Cursor,
        *,
        staging: sql.Composable,
        columns: Sequence[Column],
        batch_id: int,
        attempts: Sequence[int],
    ) -> int:
        """Insert the staged rows of these task attempts; return how many rows arrived.

        Raises TargetMismatch when a constraint of the target refuses a row.
        """
        lineage = [column.name for column in self.lineage_columns[:-1]]
        lineage_names = list(map(sql.Identifier, lineage))
        names = [*(sql.Identifier(column.name) for column in columns), *lineage_names]
        casts = self._target.casts(cursor, columns)
        values = [*(cast.expression for cast in casts), *lineage_names]
        # Literals rather than parameters: psycopg2 would look for parameters in a name with a % as well.
        rows = sql.SQL(
            "select {values}, {batch_id} from {staging} where task_attempt = any({attempts})"
        ).format(
            values=sql.SQL(", ").join(values),
            batch_id=sql.Literal(batch_id),
            staging=staging,
            attempts=sql.Literal(list(attempts)),
        )
        statement = sql.SQL("insert into {} ({}, batch_id) {}").format(
            self.table, sql.SQL(", ").join(names), rows
        )
        written = self._target.execute(cursor, statement, candidates=candidates(casts, staging, attempts))
        if guards := self._target.guards(cursor):
            check_stored(
                cursor,
                self._target,
                casts,
                lineage,
                staging=staging,
                batch_id=batch_id,
                attempts=attempts,
                guards=guards,
            )
        return written

    def casts(self, cursor: Cursor, columns: Sequence[Column]) -> tuple[Cast, ...]:
        """How staged columns become columns of the target."""
        return self._target.casts(cursor, columns)

    def misfits(self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int) -> list[Misfit]:  # noqa: ARG002
        """What is true of staged rows that the target's types cannot hold; of whatever batch."""
        return misfits(self.casts(cursor, columns))

    def take_back(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete what batches have written in ranges; return how many rows that was.

        Each part is a range and the batches that cover some of it. With lineage="batch" all rows of these
        batches are deleted.
        """
        if (found := self.found(parts)) is None:
            return 0
        source, condition = found
        # One statement for all ranges: without an index each would read the whole table.
        return self._target.delete(
            cursor,
            sql.SQL("delete from {} t using {} where {}").format(self.table, source, condition),
            left=sql.SQL("select count(*) from {} t, {} where {}").format(self.table, source, condition),
        )

    def count(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """How many rows take_back() would delete; none while there is no target."""
        if (found := self.found(parts)) is None or not self._target.exists(cursor):
            return 0
        source, condition = found
        cursor.execute(
            sql.SQL("select count(*) from {} t, {} where {}").format(self.table, source, condition)
        )
        return int(cursor.fetchone()[0])

    def counts(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:
        """How many rows take_back() would delete of each part; None where rows do not tell their record."""
        if self.lineage == "batch":
            return [None] * len(parts)
        counted: list[int | None] = [0] * len(parts)
        if (found := self.found(parts)) is None or not self._target.exists(cursor):
            return counted
        source, condition = found
        # The ranges of each partition, in order, and where they stand among the parts.
        places: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for at, (range_, ids) in sorted(enumerate(parts), key=lambda each: each[1][0].from_offset):
            if ids:
                places[range_.topic, range_.partition].append((range_.from_offset, at))
        starts = [
            sql.SQL("({}, {}, {}::bigint[])").format(
                sql.Literal(topic), sql.Literal(partition), sql.Literal([start for start, _ in each])
            )
            for (topic, partition), each in places.items()
        ]
        cursor.execute(
            sql.SQL(
                "select s.topic, s.partition, width_bucket(t.kafka_offset, s.starts), count(*) from {} t, {}, "
                "(values {}) s (topic, partition, starts) where {} and s.topic = p.topic "
                "and s.partition = p.partition group by 1, 2, 3"
            ).format(self.table, source, sql.SQL(", ").join(starts), condition)
        )
        for topic, partition, range_number, rows in cursor.fetchall():
            _, at = places[topic, partition][range_number - 1]
            counted[at] = rows
        return counted

    def found(self, parts: Sequence[Part]) -> tuple[sql.Composable, sql.Composable] | None:
        """How to find the rows `t` that batches have written in ranges: what to join, and the condition.

        None where there is no batch. It is the condition of conditions(), for all ranges at once.
        """
        batch_ids = sorted({batch_id for _, ids in parts for batch_id in ids})
        if not batch_ids:
            return None
        by_batch = sql.SQL("t.batch_id = any({}::bigint[])").format(sql.Literal(batch_ids))
        if self.lineage == "batch":
            return sql.SQL("(values (true)) p (all_ranges)"), by_batch
        by_log: dict[tuple[str, int], list[OffsetRange]] = defaultdict(list)
        for range_, ids in parts:
            if ids:
                by_log[range_.topic, range_.partition].append(range_)
        values = [
            sql.SQL("({}, {}, {}::bigint, {}::bigint, {}::int8multirange)").format(
                sql.Literal(topic),
                sql.Literal(partition),
                sql.Literal(min(each.from_offset for each in ranges)),
                sql.Literal(max(each.until_offset for each in ranges)),
                sql.Literal("{{{}}}".format(",".join(f"[{r.from_offset},{r.until_offset})" for r in ranges))),
            )
            for (topic, partition), ranges in by_log.items()
        ]
        return (
            sql.SQL("(values {}) p (topic, partition, first, until, offsets)").format(
                sql.SQL(", ").join(values)
            ),
            sql.SQL(
                "t.kafka_topic = p.topic and t.kafka_partition = p.partition and t.kafka_offset >= p.first "
                "and t.kafka_offset < p.until and t.kafka_offset <@ p.offsets and {}"
            ).format(by_batch),
        )

    def conditions(self, parts: Sequence[Part]) -> Iterator[sql.Composable]:
        """What is true of the rows that batches have written in ranges.

        No such row lies in the range unless its batch covers it, and batch_id tells these rows from those of
        another pipeline, and from those of an earlier topic of the same name.
        """
        if self.lineage == "batch":
            batch_ids = sorted({batch_id for _, ids in parts for batch_id in ids})
            yield sql.SQL("batch_id = any({}::bigint[])").format(sql.Literal(batch_ids))
            return
        for range_, ids in parts:
            if ids:
                yield sql.SQL(
                    "kafka_topic = {} and kafka_partition = {} and kafka_offset >= {} and kafka_offset < {} "
                    "and batch_id = any({}::bigint[])"
                ).format(
                    sql.Literal(range_.topic),
                    sql.Literal(range_.partition),
                    sql.Literal(range_.from_offset),
                    sql.Literal(range_.until_offset),
                    sql.Literal(list(ids)),
                )
