"""A table whose rows carry lineage: rows are inserted with it, and found, counted and retracted by it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from psycopg2 import sql

from exactbatch.columns import LINEAGE, Column
from exactbatch.model import Evolve
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named
from exactbatch.postgres.sql_text import bigint_array
from exactbatch.sinks.staged_rows import CheckedJson, Part, StagedRows
from exactbatch.sinks.tables.candidates import appended
from exactbatch.sinks.tables.check_stored_rows import check_stored_rows
from exactbatch.sinks.tables.counted_writes import delete_rows, write_rows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_cascades, check_lineage
from exactbatch.sinks.tables.target_definition import prepare_table
from exactbatch.sinks.values.cast import Cast

_MOST_COLUMNS: Final = 1_600  # of a table of Postgres
# A block-range index does not cover new pages until autovacuum has processed them: by default when a fifth of the table
# is new. Until then each replay and each slice of an audit reads them all: 200 million rows of a billion.
_INDEXED_SOON: Final = sql.SQL(
    "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000"
)


@dataclass(frozen=True)
class LineageTable:
    """A table with the columns of LINEAGE, if lineage="record"; with `batch_id` alone, if lineage="batch".

    With `is_attached`, rows arrive by attaching partitions. `counted_by` is the column with the number of staged rows
    that a row stands for; None if each stands for one.
    """

    table: TargetTable
    lineage: Literal["record", "batch"] = "record"
    is_attached: bool = False
    counted_by: str | None = None

    @property
    def identifier(self) -> sql.Composable:
        """The table as an SQL identifier."""
        return self.table.identifier

    @property
    def in_snapshot(self) -> sql.Composable:
        """A relation with the rows that the table has in the snapshot of a repeatable read transaction.

        Partitions that were attached later are left out: their rows may have been committed before the snapshot, so
        that Postgres shows them.
        """
        if not self.is_attached:
            return self.identifier
        return sql.SQL(
            "(select p.* from {0} p where p.tableoid in "
            "(select i.inhrelid from pg_inherits i where i.inhparent = {1}::regclass))"
        ).format(
            self.identifier, sql.Literal('"{}"."{}"'.format(*(n.replace('"', '""') for n in self.table.name)))
        )

    @property
    def row_count(self) -> sql.Composable:
        """An aggregate over rows of the table: how many staged rows they stand for."""
        if self.counted_by is None:
            return sql.SQL("count(*)")
        return sql.SQL("coalesce(sum({}), 0)").format(sql.Identifier(self.counted_by))

    @property
    def lineage_columns(self) -> tuple[Column, ...]:
        """The columns that say where a row came from."""
        return LINEAGE if self.lineage == "record" else LINEAGE[-1:]

    def prepare(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        evolve: Evolve = "refuse",
        exact: bool = False,
        partition_by: str = "",
    ) -> bool:
        """Create the table if it is missing, and otherwise check its columns; return whether it was missing.

        With `exact`, no column may need a cast. `partition_by` is the clause with which a new table is created. Raises
        TargetMismatch, which names the column and both types.
        """
        required = [column.name for column in self.lineage_columns if column.name != "kafka_timestamp"]
        created = prepare_table(
            cursor,
            self.table,
            columns,
            lineage=self.lineage_columns,
            required=required,
            evolve=evolve,
            exact=exact,
            partition_by=partition_by,
        )
        if created:
            # A block-range index costs next to nothing to keep, and rows lie in the order of their batches; a
            # primary key on lineage would more than halve the speed of publish.
            create_named(
                cursor,
                sql.SQL("create index on {} using brin ({}) with (pages_per_range = 32)").format(
                    self.identifier, sql.SQL(", ").join(map(sql.Identifier, required))
                ),
            )
            if not partition_by:  # Postgres refuses storage parameters for a partitioned table
                cursor.execute(sql.SQL("alter table {} set ({})").format(self.identifier, _INDEXED_SOON))
        else:
            check_lineage(cursor, self.table, self.casts(cursor, self.lineage_columns))
        return created

    def check_replay(self, cursor: Cursor, cascade: Sequence[str] = ()) -> None:
        """Raise TargetMismatch if deleting rows would change tables outside of `cascade` by foreign keys."""
        check_cascades(cursor, self.table, cascade)

    def casts(
        self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve | None = None
    ) -> tuple[Cast, ...]:
        """Return how staged columns become columns of the table, as TargetTable.casts() does."""
        return self.table.casts(cursor, columns, evolve=evolve)

    def checked_json(self, cursor: Cursor, columns: Sequence[Column]) -> tuple[CheckedJson, ...]:
        """Return the second staged columns for columns that are jsonb in the pipeline and in the table."""
        # A staging table has as many columns as the target: task_attempt takes the place of batch_id.
        free = max(0, _MOST_COLUMNS - len(LINEAGE) - len(columns))
        if not (documents := [column for column in columns if column.type == "jsonb"][:free]):
            return ()
        stored, names = self.table.columns(cursor), {column.name for column in columns}
        return tuple(
            CheckedJson(column.name, name, f"jsonb {target.storage}")
            for number, column in enumerate(documents, 1)
            if (target := stored.get(column.name)) is not None
            and target.type == "jsonb"
            and target.storage is not None
            and (name := f"checked {number}") not in names
        )

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged rows with their lineage; return how many rows arrived.

        Raises TargetMismatch if a constraint of the table refuses a row.
        """
        lineage = [column.name for column in self.lineage_columns[:-1]]
        lineage_names = list(map(sql.Identifier, lineage))
        names = [*(sql.Identifier(column.name) for column in columns), *lineage_names]
        casts = self.casts(cursor, columns)
        values = [*(staged.value(cast) for cast in casts), *lineage_names]
        # Literals rather than parameters: psycopg2 would look for parameters in a name with a % as well.
        rows = sql.SQL("select {values}, {batch_id} from {staging} where {accepted}").format(
            values=sql.SQL(", ").join(values),
            batch_id=sql.Literal(staged.batch_id),
            staging=staged.table,
            accepted=staged.accepted,
        )
        statement = sql.SQL("insert into {} ({}, batch_id) {}").format(
            self.identifier, sql.SQL(", ").join(names), rows
        )
        candidates = appended(casts, lineage, staged) if self.lineage == "record" else None
        written = write_rows(cursor, self.table, statement, candidates=candidates)
        if triggers := self.table.triggers(cursor):
            check_stored_rows(cursor, self.table, casts, lineage, staged=staged, triggers=triggers)
        return written

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete what batches have written for ranges; return how many rows that was.

        With lineage="batch" all rows of these batches are deleted.
        """
        if (rows := self.select_rows(parts)) is None:
            return 0
        source, condition = rows
        # One statement for all ranges: without an index each would read the whole table.
        return delete_rows(cursor, self.table, condition, using=source)

    def count(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Return how many staged rows the rows stand for that batches have written for ranges.

        Returns 0 if there is no such row, and if the table does not exist yet.
        """
        if (rows := self.select_rows(parts)) is None or not self.table.exists(cursor):
            return 0
        source, condition = rows
        cursor.execute(
            sql.SQL("select {} from {} t, {} where {}").format(
                self.row_count, self.identifier, source, condition
            )
        )
        return int(cursor.fetchone()[0])

    def count_by_part(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:
        """Return how many rows batches have written for each part; None if rows do not name their records."""
        if self.lineage == "batch":
            return [None] * len(parts)
        counts: list[int | None] = [0] * len(parts)
        if (rows := self.select_rows(parts)) is None or not self.table.exists(cursor):
            return counts
        source, condition = rows
        starts = _Starts([(position, range_) for position, (range_, ids) in enumerate(parts) if ids])
        cursor.execute(
            sql.SQL(
                "select s.topic, s.partition, {number}, count(*) from {table} t, {source}, {starts} "
                "where {condition} and s.topic = p.topic and s.partition = p.partition group by 1, 2, 3"
            ).format(
                number=_NUMBER,
                table=self.identifier,
                source=source,
                starts=starts.values,
                condition=condition,
            )
        )
        for topic, partition, number, count in cursor.fetchall():
            counts[starts.position(topic, partition, number)] = count
        return counts

    def batches_in(self, cursor: Cursor, ranges: Sequence[OffsetRange]) -> list[set[int]]:
        """Return the IDs of the batches that have rows in each range; rows must name their records.

        The sets are empty if the table does not exist yet.
        """
        found: list[set[int]] = [set() for _ in ranges]
        if not ranges or not self.table.exists(cursor):
            return found
        source, condition = _within(ranges)
        starts = _Starts(list(enumerate(ranges)))
        cursor.execute(
            sql.SQL(
                "select distinct s.topic, s.partition, {number}, t.batch_id from {table} t, {source}, {starts} "
                "where {condition} and s.topic = p.topic and s.partition = p.partition and t.batch_id is not null"
            ).format(
                number=_NUMBER,
                table=self.identifier,
                source=source,
                starts=starts.values,
                condition=condition,
            )
        )
        for topic, partition, number, batch_id in cursor.fetchall():
            found[starts.position(topic, partition, number)].add(batch_id)
        return found

    def select_rows(self, parts: Sequence[Part]) -> tuple[sql.Composable, sql.Composable] | None:
        """Return a relation to join and a condition that find the rows `t` that batches have written for ranges.

        Returns None if no part has a batch. The condition is that of conditions(), for all ranges at once.
        """
        batch_ids = sorted({batch_id for _, ids in parts for batch_id in ids})
        if not batch_ids:
            return None
        by_batch = sql.SQL("t.batch_id = any({}::bigint[])").format(sql.Literal(batch_ids))
        if self.lineage == "batch":
            return sql.SQL("(values (true)) p (all_ranges)"), by_batch
        source, condition = _within([range_ for range_, ids in parts if ids])
        return source, sql.SQL("{} and {}").format(condition, by_batch)

    def conditions(self, parts: Sequence[Part]) -> Iterator[sql.Composable]:
        """Yield one condition for each part with batches: true of the rows that these have written for its range.

        Rows must name their records. A row lies in a range only if its batch covers it. `batch_id` tells these
        rows from the rows of another pipeline, and of an earlier topic of the same name.
        """
        for range_, ids in parts:
            if ids:
                yield sql.SQL(
                    "kafka_topic = {} and kafka_partition = {} and kafka_offset >= {} and kafka_offset < {} "
                    "and batch_id = any({})"
                ).format(
                    sql.Literal(range_.topic),
                    sql.Literal(range_.partition),
                    sql.Literal(range_.from_offset),
                    sql.Literal(range_.until_offset),
                    bigint_array(ids),
                )


# The number, from 1, of the range of a row `t` among the ranges of its partition, which the relation `s` names.
_NUMBER: Final = sql.SQL("width_bucket(t.kafka_offset, s.starts)")


class _Starts:
    """Where ranges start, as a relation `s` (topic, partition, starts); each range has a position in some list."""

    def __init__(self, ranges: Sequence[tuple[int, OffsetRange]]) -> None:
        self._by_partition: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for position, range_ in sorted(ranges, key=lambda positioned: positioned[1].from_offset):
            self._by_partition[range_.topic_partition].append((range_.from_offset, position))

    @property
    def values(self) -> sql.Composable:
        """The relation."""
        rows = [
            sql.SQL("({}, {}, {})").format(
                sql.Literal(topic), sql.Literal(partition), bigint_array(start for start, _ in starts)
            )
            for (topic, partition), starts in self._by_partition.items()
        ]
        return sql.SQL("(values {}) s (topic, partition, starts)").format(sql.SQL(", ").join(rows))

    def position(self, topic: str, partition: int, number: int) -> int:
        """Return the position of a range from its number, counted from 1, in its partition."""
        return self._by_partition[topic, partition][number - 1][1]


def _within(ranges: Sequence[OffsetRange]) -> tuple[sql.Composable, sql.Composable]:
    """Return a relation `p` and a condition that find the rows `t` of ranges, at least one of them."""
    by_partition: dict[tuple[str, int], list[OffsetRange]] = defaultdict(list)
    for range_ in ranges:
        by_partition[range_.topic_partition].append(range_)
    values = [
        sql.SQL("({}, {}, {}::bigint, {}::bigint, {}::int8multirange)").format(
            sql.Literal(topic),
            sql.Literal(partition),
            sql.Literal(min(range_.from_offset for range_ in of_partition)),
            sql.Literal(max(range_.until_offset for range_ in of_partition)),
            sql.Literal(
                "{{{}}}".format(",".join(f"[{r.from_offset},{r.until_offset})" for r in of_partition))
            ),
        )
        for (topic, partition), of_partition in by_partition.items()
    ]
    return (
        sql.SQL("(values {}) p (topic, partition, first, until, offsets)").format(sql.SQL(", ").join(values)),
        sql.SQL(
            "t.kafka_topic = p.topic and t.kafka_partition = p.partition and t.kafka_offset >= p.first "
            "and t.kafka_offset < p.until and t.kafka_offset <@ p.offsets"
        ),
    )
