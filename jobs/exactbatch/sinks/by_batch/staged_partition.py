"""A partition before it is attached: a logged table into which executors copy the rows of one batch.

It has the columns, defaults and constraints of the target, and a constraint from which Postgres concludes, without a
scan, that all rows are within the bound. Indexes are built once the rows are there, in a step outside of publish;
attaching the table adopts them.
"""

from dataclasses import dataclass
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import StagedRowsDiffer, TargetMismatch
from exactbatch.errors.sqlstates import is_refusal
from exactbatch.errors.translation import psycopg2_message
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.by_batch.parent import attach_obstacle
from exactbatch.sinks.by_batch.partitions import (
    Partition,
    attach,
    build_partition,
    covering,
    name_taken,
    read_partitions,
)
from exactbatch.sinks.tables.target import TargetTable

BOUND: Final = sql.Identifier("exactbatch_bound")
_STORAGE: Final = """
select a.amname::text as access_method, t.spcname::text as tablespace, c.relreplident::text as replica_identity,
       case when c.relowner <> current_user::regrole then pg_get_userbyid(c.relowner)::text end as owner
from pg_class c left join pg_am a on a.oid = c.relam left join pg_tablespace t on t.oid = c.reltablespace
where c.oid = %s::regclass
"""
# The indexes of a table: a constraint as it was declared, or the part of the index's definition after the table's name.
_INDEXES: Final = """
select quote_ident(i.relname) as name, x.indisunique as is_unique, x.indisreplident as is_replica_identity,
       pg_get_constraintdef(k.oid) as "constraint", s.spcname::text as tablespace,
       pg_get_indexdef(i.oid) as definition,
       format('CREATE %%sINDEX %%I ON ONLY %%I.%%I USING ',
              case when x.indisunique then 'UNIQUE ' else '' end, i.relname, n.nspname, c.relname) as prefix
from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class c on c.oid = x.indrelid
join pg_namespace n on n.oid = c.relnamespace
left join pg_constraint k on k.conindid = i.oid and k.conrelid = c.oid and k.contype in ('p', 'u', 'x')
left join pg_tablespace s on s.oid = i.reltablespace
where x.indrelid = %s::regclass
order by i.relname
"""
_NEWEST_INDEX: Final = """
select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
where x.indrelid = %s::regclass order by i.oid desc limit 1
"""


@dataclass(frozen=True)
class StagedPartition:
    """The rows of a batch on their way to become a partition of `target`. `columns` include the lineage."""

    target: TargetTable
    batch_id: int
    columns: tuple[Column, ...]

    @property
    def _partition(self) -> Partition:
        return build_partition(self.target, self.batch_id, self.batch_id + 1)

    def create(self, cursor: Cursor, table: sql.Identifier) -> None:
        """Create the table, without indexes."""
        create_like(cursor, self.target, table, build_bound(self._partition))
        # While autovacuum works on a table, nobody can attach it.
        cursor.execute(sql.SQL("alter table {} set (autovacuum_enabled = false)").format(table))

    def complete(self, cursor: Cursor, table: sql.Identifier) -> None:
        """Build the indexes of the target on the table. Raises TargetMismatch if rows break a unique constraint."""
        build_indexes(cursor, self.target, table)

    def publish(self, cursor: Cursor, table: sql.Identifier) -> None:
        """Make the table a partition of the target, whose definition the caller has locked.

        Raises StagedRowsDiffer, retryable, if the target has changed so that the rows must be inserted instead.
        """
        partition = self._partition
        other = covering(read_partitions(cursor, self.target), self.batch_id)
        obstacle = (
            attach_obstacle(cursor, self.target, self.columns)
            if other is None
            else f"the partition {other.schema}.{other.name} now covers batch {self.batch_id}"
        )
        if obstacle is not None:
            raise StagedRowsDiffer(
                f"target {self.target.spec} was changed while the batch ran: {obstacle}. Nothing was written; the "
                f"retry reads the same ranges again.",
                batch_id=self.batch_id,
            )
        move(cursor, self.target, table, partition)
        attach(cursor, self.target, partition)
        cursor.execute(
            sql.SQL("alter table {} drop constraint {}, reset (autovacuum_enabled)").format(
                partition.identifier, BOUND
            )
        )


def build_bound(partition: Partition) -> sql.Composable:
    """Return the constraint from which Postgres concludes that all rows of a table belong into a partition."""
    return sql.SQL("constraint {} check (batch_id is not null and batch_id >= {} and batch_id < {})").format(
        BOUND, sql.Literal(partition.lower), sql.Literal(partition.upper)
    )


def create_like(
    cursor: Cursor, target: TargetTable, table: sql.Composable, constraint: sql.Composable | None = None
) -> None:
    """Create a table that can become a partition of a target: its columns, defaults, constraints and storage."""
    cursor.execute(_STORAGE, (target.identifier.as_string(cursor),))
    storage = cursor.fetchone()
    definition: list[sql.Composable] = [
        sql.SQL(
            "like {} including defaults including constraints including generated including storage "
            "including compression"
        ).format(target.identifier)
    ]
    if constraint is not None:
        definition.append(constraint)
    statement: list[sql.Composable] = [
        sql.SQL("create table {} ({})").format(table, sql.SQL(", ").join(definition))
    ]
    if storage.access_method is not None:
        statement.append(sql.SQL("using {}").format(sql.Identifier(storage.access_method)))
    if storage.tablespace is not None:
        statement.append(sql.SQL("tablespace {}").format(sql.Identifier(storage.tablespace)))
    cursor.execute(sql.SQL(" ").join(statement))
    if storage.replica_identity in ("f", "n"):
        identity = sql.SQL("full" if storage.replica_identity == "f" else "nothing")
        cursor.execute(sql.SQL("alter table {} replica identity {}").format(table, identity))


def build_indexes(cursor: Cursor, target: TargetTable, table: sql.Composable) -> None:
    """Build the indexes of a target on a table. Raises TargetMismatch if rows break a unique constraint."""
    cursor.execute(_INDEXES, (target.identifier.as_string(cursor),))
    for index in cursor.fetchall():
        cursor.execute("select set_config('default_tablespace', %s, true)", (index.tablespace or "",))
        if index.constraint is not None:
            statement = sql.SQL("alter table {} add {}").format(table, sql.SQL(index.constraint))
        else:
            assert index.definition.startswith(index.prefix), (index.definition, index.prefix)
            statement = sql.SQL("create {} on {} using {}").format(
                sql.SQL("unique index" if index.is_unique else "index"),
                table,
                sql.SQL(index.definition.removeprefix(index.prefix)),
            )
        try:
            cursor.execute(statement)
        except psycopg2.Error as error:
            if not is_refusal(error.pgcode):
                raise
            raise TargetMismatch(
                f"target {target.spec}: {index.name} refuses the rows of the batch: {psycopg2_message(error)} "
                f"(SQLSTATE {error.pgcode}). Nothing was written. Correct the "
                f"target, or what the pipeline writes.",
                constraint=index.name,
                sqlstate=error.pgcode,
            ) from error
        if index.is_replica_identity:
            cursor.execute(_NEWEST_INDEX, (table.as_string(cursor),))
            newest = sql.Identifier(cursor.fetchone()[0])
            cursor.execute(sql.SQL("alter table {} replica identity using index {}").format(table, newest))


def move(cursor: Cursor, target: TargetTable, table: sql.Identifier, partition: Partition) -> None:
    """Give a staged table the name, the schema and the owner of a partition of the target."""
    try:
        cursor.execute(sql.SQL("alter table {} rename to {}").format(table, sql.Identifier(partition.name)))
        staged = sql.Identifier(table.strings[0], partition.name)
        cursor.execute(
            sql.SQL("alter table {} set schema {}").format(staged, sql.Identifier(partition.schema))
        )
    except psycopg2.errors.DuplicateTable:
        raise name_taken(target, partition) from None
    give_to_owner(cursor, target, partition)


def give_to_owner(cursor: Cursor, target: TargetTable, partition: Partition) -> None:
    """Let a complete partition belong to the owner of the target: other members of that role change it, too."""
    cursor.execute(_STORAGE, (target.identifier.as_string(cursor),))
    owner = cursor.fetchone().owner
    if owner is not None:
        cursor.execute(
            sql.SQL("alter table {} owner to {}").format(partition.identifier, sql.Identifier(owner))
        )


def create_partition(cursor: Cursor, target: TargetTable, lower: int, upper: int) -> Partition:
    """Create an empty partition for the batch IDs [lower, upper). The caller has locked the target's definition."""
    partition = build_partition(target, lower, upper)
    try:
        create_like(cursor, target, partition.identifier)
        build_indexes(cursor, target, partition.identifier)
    except psycopg2.errors.DuplicateTable:
        raise name_taken(target, partition) from None
    give_to_owner(cursor, target, partition)
    attach(cursor, target, partition)
    return partition
