"""Append: every row that a batch makes is inserted, with where it came from."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.offsets import OffsetRange

# A range, and the batches whose results stand for some of its offsets.
Part = tuple[OffsetRange, Sequence[int]]
LINEAGE: Final = (
    Column("kafka_topic", "text"),
    Column("kafka_partition", "integer"),
    Column("kafka_offset", "bigint"),
    Column("kafka_timestamp", "timestamp with time zone"),
    Column("batch_id", "bigint"),
)
# What may be stored in a wider column of the target without changing a value.
_WIDER: Final = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric", "double precision"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "text": {"character varying"},
}
_IDENTIFIER: Final = re.compile(r'"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*)')


@dataclass(frozen=True)
class Append:
    """Insert rows into `target`, written `schema.table`; a part that is not lower-case goes in double quotes.

    With lineage="record" each row carries where it came from: kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, batch_id. With lineage="batch", for rows that come from many records, it carries
    batch_id alone, and a replay processes whole batches again.
    """

    target: str
    lineage: Literal["record", "batch"] = "record"

    def __post_init__(self) -> None:
        _ = self.table_name
        if self.lineage not in ("record", "batch"):
            raise ConfigurationError(
                f"expected the lineage of {self.target} to be 'record' or 'batch', found {self.lineage!r}"
            )

    @property
    def lineage_columns(self) -> tuple[Column, ...]:
        """The columns that say where a row came from."""
        return LINEAGE if self.lineage == "record" else LINEAGE[-1:]

    @property
    def table_name(self) -> tuple[str, str]:
        """Schema and table as Postgres stores them; the schema is public when none is written."""
        parts = [
            match[1].replace('""', '"') if match[1] else match[2]
            for match in _IDENTIFIER.finditer(self.target)
        ]
        if not _is_table_name(self.target):
            raise ConfigurationError(
                f"expected a target as 'schema.table', lower-case or in double quotes, found {self.target!r}"
            )
        return (parts[0], parts[1]) if len(parts) > 1 else ("public", parts[0])

    @property
    def table(self) -> sql.Composable:
        """The target as an SQL identifier."""
        return sql.Identifier(*self.table_name)

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError when a column of the pipeline has a name that staging or the target needs."""
        lineage = {column.name for column in LINEAGE}  # all of it: the staging table has it always
        taken = {"task_attempt", *lineage} & {column.name for column in columns}
        if taken:
            raise ConfigurationError(
                f"expected columns beside the lineage columns of {self.target}, found {sorted(taken)} in the "
                f"pipeline's own: rename them"
            )

    def prepare(self, cursor: Any, columns: Sequence[Column]) -> None:
        """Create the target when it is missing, and otherwise check its columns.

        Raises TargetMismatch, which names the column and both types.
        """
        # Two launches that create the same target at once: the second waits here and then finds it.
        cursor.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (".".join(self.table_name),))
        found = self._columns_found(cursor)
        if not found:
            self._create(cursor, columns)
            return
        for column in (*columns, *self.lineage_columns):
            actual = found.pop(column.name, None)
            if actual is None:
                raise TargetMismatch(
                    f"target {self.target}: expected a column {column.name} of type {column.type}, found none. "
                    f'Add it: alter table {self.target} add column "{column.name}" {column.type};'
                )
            if not _fits(column.type, actual.type):
                raise TargetMismatch(
                    f"target {self.target}, column {column.name}: expected type {column.type}, as the pipeline "
                    f"writes it, found {actual.type}. Change the pipeline's schema or the column's type."
                )
        for name, actual in found.items():
            if actual.required:
                raise TargetMismatch(
                    f"target {self.target}, column {name}: expected a column that the pipeline writes, one "
                    f"with a default or one that may be null, found {actual.type} not null without a default. "
                    f"Add it to the pipeline's schema, or give it a default."
                )

    def insert_staged(
        self,
        cursor: Any,
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
        names = sql.SQL(", ").join(sql.Identifier(name) for name in [*(c.name for c in columns), *lineage])
        # Literals rather than parameters: psycopg2 would look for parameters in a name with a % as well.
        statement = sql.SQL(
            "insert into {target} ({names}, batch_id) "
            "select {names}, {batch_id} from {staging} where task_attempt = any({attempts})"
        ).format(
            target=self.table,
            names=names,
            batch_id=sql.Literal(batch_id),
            staging=staging,
            attempts=sql.Literal(list(attempts)),
        )
        try:
            cursor.execute(statement)
        except psycopg2.IntegrityError as error:
            raise TargetMismatch(
                f"target {self.target}: expected its constraints to take every row of the batch, found: "
                f"{error.diag.message_primary} ({error.diag.message_detail}). Nothing was written. Correct the "
                f"constraint, or what the pipeline writes."
            ) from error
        return int(cursor.rowcount)

    def take_back(self, cursor: Any, parts: Sequence[Part]) -> int:
        """Delete what batches have written in ranges; return how many rows that was.

        Each part is a range and the batches that cover some of it. With lineage="batch" all rows of these
        batches are deleted.
        """
        deleted = 0
        for condition in self._conditions(parts):
            cursor.execute(sql.SQL("delete from {} where {}").format(self.table, condition))
            deleted += cursor.rowcount
        return deleted

    def count(self, cursor: Any, parts: Sequence[Part]) -> int:
        """How many rows take_back() would delete; none while there is no target."""
        counted = 0
        for condition in self._conditions(parts) if self._columns_found(cursor) else ():
            cursor.execute(sql.SQL("select count(*) from {} where {}").format(self.table, condition))
            counted += cursor.fetchone()[0]
        return counted

    def _conditions(self, parts: Sequence[Part]) -> Iterator[sql.Composable]:
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

    def _columns_found(self, cursor: Any) -> "dict[str, _TargetColumn]":
        cursor.execute(
            """
            select c.relkind, a.attname, format_type(a.atttypid, a.atttypmod),
                   a.attnotnull and not a.atthasdef and a.attidentity = ''
            from pg_class c
            join pg_namespace n on n.oid = c.relnamespace
            join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            where n.nspname = %s and c.relname = %s
            """,
            self.table_name,
        )
        rows = cursor.fetchall()
        if rows and rows[0][0] not in ("r", "p"):
            raise TargetMismatch(
                f"target {self.target}: expected a table, found something else of that name (a view, a sequence "
                f"or an index). Give the pipeline another target."
            )
        return {name: _TargetColumn(type_, required) for _, name, type_, required in rows}

    def _create(self, cursor: Any, columns: Sequence[Column]) -> None:
        # A block-range index costs next to nothing to keep, and rows lie in the order of their batches; a
        # primary key on lineage would more than halve the speed of publish.
        definitions = [
            sql.SQL("{} {}{}").format(
                sql.Identifier(column.name),
                sql.SQL(column.type),
                sql.SQL(" not null" if column in LINEAGE and column.name != "kafka_timestamp" else ""),
            )
            for column in (*columns, *self.lineage_columns)
        ]
        cursor.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(self.table_name[0])))
        cursor.execute(sql.SQL("create table {} ({})").format(self.table, sql.SQL(", ").join(definitions)))
        indexed = [each.name for each in self.lineage_columns if each.name != "kafka_timestamp"]
        cursor.execute(
            sql.SQL("create index on {} using brin ({}) with (pages_per_range = 32)").format(
                self.table, sql.SQL(", ").join(map(sql.Identifier, indexed))
            )
        )


@dataclass(frozen=True, slots=True)
class _TargetColumn:
    type: str
    required: bool


def _is_table_name(text: str) -> bool:
    part = _IDENTIFIER.pattern
    return re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text) is not None


def _fits(written: str, found: str) -> bool:
    return found == written or found in _WIDER.get(written, set())
