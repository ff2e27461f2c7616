"""The partitions of a target that is partitioned by ranges of batch IDs: their bounds, names and locks.

Ranges rather than lists: a relation cache entry sorts every bound of the parent, and lists would name every batch that
was ever loaded, however few partitions remain after a merge.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.columns import MAX_NAME_BYTES
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.tables.target import TargetTable

_BOUND: Final = re.compile(r"FOR VALUES FROM \((?:'?(-?\d+)'?|MINVALUE)\) TO \((?:'?(-?\d+)'?|MAXVALUE)\)")
_PARTITIONS: Final = """
select n.nspname::text as schema, c.relname::text as name, pg_get_expr(c.relpartbound, c.oid) as bound,
       c.oid::bigint as oid
from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_namespace n on n.oid = c.relnamespace
where i.inhparent = %s::regclass
"""
# ACCESS EXCLUSIVE on the parent: readers that come later queue behind the wait for it.
_READERS_WAIT: Final = "1s"
_PAUSE: Final = 0.5  # seconds
# Partitions that one transaction may drop: it locks each with its indexes and types, and the server's table of locks
# has some 6,400 places by default.
MOST_DROPPED: Final = 100


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its schema and name, and the batch IDs [lower, upper) of its rows; None means no bound."""

    schema: str
    name: str
    lower: int | None
    upper: int | None
    oid: int = 0

    @property
    def identifier(self) -> sql.Composable:
        """The partition as an SQL identifier."""
        return sql.Identifier(self.schema, self.name)

    def covers(self, batch_id: int) -> bool:
        """True if rows of this batch belong into the partition."""
        return (self.lower is None or self.lower <= batch_id) and (
            self.upper is None or batch_id < self.upper
        )

    @property
    def only_batch(self) -> int | None:
        """The batch whose rows alone can be in the partition; None if there may be several."""
        if self.lower is not None and self.upper == self.lower + 1:
            return self.lower
        return None

    @property
    def values(self) -> sql.Composable:
        """The bound, as `attach partition` takes it."""
        lower = sql.SQL("minvalue") if self.lower is None else sql.Literal(self.lower)
        upper = sql.SQL("maxvalue") if self.upper is None else sql.Literal(self.upper)
        return sql.SQL("for values from ({}) to ({})").format(lower, upper)


def read_partitions(cursor: Cursor, table: TargetTable) -> list[Partition]:
    """Return the partitions of a table, by their bounds. A default partition is left out."""
    cursor.execute(_PARTITIONS, (table.identifier.as_string(cursor),))
    found = []
    for row in cursor.fetchall():
        if (bound := _BOUND.fullmatch(row.bound or "")) is not None:
            lower, upper = (None if number is None else int(number) for number in bound.groups())
            found.append(Partition(row.schema, row.name, lower, upper, row.oid))
    return sorted(found, key=lambda partition: (partition.lower is not None, partition.lower or 0))


def covering(partitions: Iterable[Partition], batch_id: int) -> Partition | None:
    """Return the partition into which rows of a batch belong; None if there is none yet."""
    return next((partition for partition in partitions if partition.covers(batch_id)), None)


def range_from(partitions: Sequence[Partition], batch_id: int, batches: int) -> tuple[int, int]:
    """Return the IDs [lower, upper) from a batch that no partition covers: at most `batches`, up to the next one."""
    following = [each.lower for each in partitions if each.lower is not None and each.lower > batch_id]
    return batch_id, min([batch_id + batches, *following])


def build_partition(table: TargetTable, lower: int, upper: int) -> Partition:
    """Return a partition for a range of batch IDs in the schema of its table, named after both.

    A batch ID belongs to one pipeline, so that no other target has a partition of this name, however much of the
    target's name remains in it.
    """
    schema, name = table.name
    suffix = f"_b{lower}" if upper == lower + 1 else f"_b{lower}_{upper}"
    start = name.encode()[: MAX_NAME_BYTES - len(suffix)].decode(errors="ignore")
    return Partition(schema, start + suffix, lower, upper)


def attach(cursor: Cursor, table: TargetTable, partition: Partition) -> None:
    """Attach a table as a partition. Readers and writers of the target do not wait."""
    cursor.execute(
        sql.SQL("alter table {} attach partition {} {}").format(
            table.identifier, partition.identifier, partition.values
        )
    )


def change_alone(
    cursor: Cursor,
    table: TargetTable,
    partitions: Sequence[Partition],
    change: Callable[[], bool],
    *,
    tries: int,
) -> bool:
    """Lock a table and some of its partitions against all others, readers included, and call `change`, which attaches,
    detaches or drops them and returns whether it has.

    Returns False, with nothing changed, if others use them, or tables to which their foreign keys refer. While this
    waits for a reader, those that come later wait behind it: so it waits a second at a time.
    """
    cursor.execute("select current_setting('lock_timeout')")
    own_timeout = cursor.fetchone()[0]
    for number in range(tries):
        if number:
            time.sleep(_PAUSE)
        cursor.execute("savepoint alone")
        try:
            cursor.execute("select set_config('lock_timeout', %s, true)", (_READERS_WAIT,))
            cursor.execute(
                sql.SQL("lock table {} in access exclusive mode").format(
                    sql.SQL(", ").join(
                        [
                            sql.SQL("only {}").format(table.identifier),
                            *(partition.identifier for partition in partitions),
                        ]
                    )
                )
            )
            is_changed = change()
        except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected):
            cursor.execute("rollback to savepoint alone")
            continue
        cursor.execute("select set_config('lock_timeout', %s, true)", (own_timeout,))
        cursor.execute("release savepoint alone")
        return is_changed
    return False


def end_before(cursor: Cursor, table: TargetTable, partition: Partition, batch_id: int) -> None:
    """Let a partition end before a batch. The caller holds both alone, and no later batch has rows in it."""
    assert partition.lower is not None
    cursor.execute(
        sql.SQL("alter table {} detach partition {}").format(table.identifier, partition.identifier)
    )
    shorter = build_partition(table, partition.lower, batch_id)
    cursor.execute(
        sql.SQL("alter table {} rename to {}").format(partition.identifier, sql.Identifier(shorter.name))
    )
    # A partition stays in its schema.
    attach(cursor, table, replace(shorter, schema=partition.schema))


def detach_and_drop(cursor: Cursor, table: TargetTable, partition: Partition) -> None:
    """Remove a partition with its rows. The caller holds the table alone."""
    cursor.execute(
        sql.SQL("alter table {} detach partition {}").format(table.identifier, partition.identifier)
    )
    cursor.execute(sql.SQL("drop table {}").format(partition.identifier))


def name_taken(table: TargetTable, partition: Partition) -> TargetMismatch:
    """Return the error for a name that another table has already."""
    return TargetMismatch(
        f"target {table.spec}: the partition for this batch would be named {partition.schema}.{partition.name}, but "
        f"another object has that name. Nothing was written. Rename that object."
    )
