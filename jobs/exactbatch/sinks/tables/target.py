"""A table that a sink writes to: its name, its columns, and what the catalog says about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.model import Evolve
from exactbatch.postgres.catalog import Fact, name_row_changers, name_triggers, read_facts
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.types import SQL_NAME, SQL_NAME_FROM, pg_types, refusal_of_null
from exactbatch.sinks.table_name import TableName
from exactbatch.sinks.values.cast import Cast, own_casts

_TABLE_KINDS: Final = ("r", "p")  # pg_class.relkind: tables and partitioned tables
# The columns of a table, with placeholders for its schema and name.
_COLUMNS: Final = f"""
select c.relkind, a.attname, {SQL_NAME.format(modifier="a.atttypmod")} as type,
       a.attnotnull and not a.atthasdef and a.attidentity = '' as required,
       a.attgenerated <> '' or a.attidentity = 'a' as generated,
       t.oid::bigint as type_oid, a.atttypmod as modifier,
       (select quote_ident(cn.nspname) || '.' || quote_ident(co.collname) from pg_collation co
        join pg_namespace cn on cn.oid = co.collnamespace where co.oid = a.attcollation) as collation,
       case when position('toast_tuple_target' in coalesce(c.reloptions::text, '')) = 0 then 'storage ' ||
       case a.attstorage when 'e' then 'external' when 'm' then 'main' when 'x' then 'extended' end ||
       case a.attcompression when 'l' then ' compression lz4' when 'p' then ' compression pglz' else '' end
       end as storage
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type t on t.oid = a.atttypid
{SQL_NAME_FROM}
where n.nspname = %s and c.relname = %s
"""  # noqa: S608  # constants, and placeholders


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a table: `type` as a statement writes it; `required` if it has neither null nor a default.

    `storage` is what `create table` writes for how large values are stored; None if they are stored as they are, or if
    the table has a toast_tuple_target of its own.
    """

    type: str
    required: bool
    generated: bool
    type_oid: int
    modifier: int
    collation: str | None
    storage: str | None


@dataclass(frozen=True)
class TargetTable(TableName):
    """A table of that name, and what the catalog says about it.

    With `changes_partitions`, the program adds and drops its partitions: a lock of its definition leaves them out.
    """

    changes_partitions: bool = False

    @property
    def identifier(self) -> sql.Composable:
        """The table as an SQL identifier."""
        return sql.Identifier(*self.name)

    def lock(self, cursor: Cursor) -> None:
        """Lock this table's name in the ledger until the transaction ends; wait for others that hold it.

        Raises psycopg2's LockNotAvailable, which names their logins, after lock_timeout.
        """
        cursor.execute("select exactbatch.take_lock(%s)", (".".join(self.name),))

    def lock_definition(self, cursor: Cursor) -> None:
        """Prevent changes to the table's definition until the transaction ends. Others may write rows.

        With `changes_partitions`, others do not add or drop partitions either. The lock must be the first on the
        table: a session that holds a weaker one and waits for this one is in the way of the session that has it.
        """
        statement = sql.SQL("lock table {} in row exclusive mode")
        if self.changes_partitions:
            statement = sql.SQL("lock table only {} in share update exclusive mode")
        cursor.execute(statement.format(self.identifier))

    def exists(self, cursor: Cursor) -> bool:
        """True if the table exists. Raises TargetMismatch if something else has its name."""
        return bool(self.columns(cursor))

    def columns(self, cursor: Cursor) -> dict[str, StoredColumn]:
        """Return the table's columns by name; none if it does not exist.

        Raises TargetMismatch if something that is not a table has its name.
        """
        cursor.execute(_COLUMNS, self.name)
        rows = cursor.fetchall()
        if rows and rows[0][0] not in _TABLE_KINDS:
            raise TargetMismatch(
                f"target {self.spec}: expected a table, found something else of that name (a view, a sequence "
                f"or an index). Give the pipeline another target."
            )
        return {name: StoredColumn(*row) for _, name, *row in rows}

    def casts(
        self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve | None = None
    ) -> tuple[Cast, ...]:
        """Return how each staged column becomes a column of the table.

        With `evolve`, columns that prepare_table() would create or add count as it creates them; of these, only those
        that need a cast are returned. Casts that are made of the same columns later are equal to these unless a type
        has changed. Raises TargetMismatch if a column is missing.
        """
        stored = self.columns(cursor)
        if evolve is None or (stored and evolve == "refuse"):
            return self.casts_into(cursor, columns, stored)
        existing = self.casts_into(cursor, [each for each in columns if each.name in stored], stored)
        created = own_casts(cursor, [each for each in columns if each.name not in stored])
        casts = {cast.column.name: cast for cast in (*existing, *created)}
        return tuple(casts[each.name] for each in columns if each.name in casts)

    def casts_into(
        self, cursor: Cursor, columns: Sequence[Column], stored: Mapping[str, StoredColumn]
    ) -> tuple[Cast, ...]:
        """Return the casts as casts() does, for `stored`, which columns() returned."""
        if missing := [column.name for column in columns if column.name not in stored]:
            raise TargetMismatch(
                f"table {self.spec}: the column {', '.join(missing)} no longer exists. Nothing was written. Add "
                f"it again, or let the pipeline add it: evolve='add'."
            )
        targets = [stored[column.name] for column in columns]
        types = pg_types(cursor, {(target.type_oid, target.modifier) for target in targets})
        casts = []
        for column, target in zip(columns, targets, strict=True):
            type_ = types[target.type_oid, target.modifier]
            casts.append(Cast(column, type_, refusal_of_null(cursor, type_), target.collation))
        return tuple(casts)

    def facts(self, cursor: Cursor) -> tuple[Fact, ...]:
        """Return what the catalog says about the table and its partitions; nothing if it does not exist.

        With `changes_partitions` there may be many partitions, and ordinary ones are left out.
        """
        return read_facts(
            cursor, [self.identifier.as_string(cursor)], all_partitions=not self.changes_partitions
        )

    def unusual_facts(self, cursor: Cursor) -> tuple[Fact, ...]:
        """Return facts() without the columns, constraints and indexes of ordinary partitions."""
        return read_facts(cursor, [self.identifier.as_string(cursor)], all_partitions=False)

    def triggers(self, cursor: Cursor) -> str:
        """Name the triggers and rules that may alter what is written; empty if there are none."""
        return name_triggers(self.unusual_facts(cursor))

    def row_changers(self, cursor: Cursor) -> str:
        """Name the triggers, rules and foreign keys that may change other rows than those that a statement writes."""
        return name_row_changers(self.unusual_facts(cursor))

    def missing_index(self, cursor: Cursor) -> str | None:
        """Return the statement that creates an index for replays; None if the table has one or does not exist.

        A table that is partitioned by batch needs none: its partitions are found by their bounds.
        """
        if self.changes_partitions:
            return None
        cursor.execute(
            """
            select exists (
                select from pg_index i
                join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
                where i.indrelid = c.oid and i.indisvalid and i.indpred is null
                and a.attname in ('batch_id', 'kafka_topic', 'kafka_partition', 'kafka_offset')
            ) from (select to_regclass(%s)::oid as oid) c where c.oid is not null
            """,
            (self.identifier.as_string(cursor),),
        )
        row = cursor.fetchone()
        return None if row is None or row[0] else f"create index concurrently on {self.spec} (batch_id);"
