"""Merge small partitions of a target that is partitioned by batch.

The rows of neighbouring partitions are copied into a new table, which then takes their place. All of that is one
transaction for each new partition. While it copies, others may read, and batches may commit; only a replay that
retracts rows of these partitions waits. The exchange itself takes milliseconds, and nobody may use the target then.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.errors import PostgresUnavailable, TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.by_batch.parent import publications
from exactbatch.sinks.by_batch.partitions import (
    MOST_DROPPED,
    Partition,
    attach,
    build_partition,
    change_alone,
    detach_and_drop,
    read_partitions,
)
from exactbatch.sinks.by_batch.staged_partition import (
    BOUND,
    build_bound,
    build_indexes,
    create_like,
    give_to_owner,
)
from exactbatch.sinks.capabilities import MergeGroup
from exactbatch.sinks.tables.target import TargetTable

_TRIES: Final = 4
_SIZES: Final = "select oid::bigint as oid, pg_table_size(oid) as bytes from unnest(%s::oid[]) oid"
_COLUMNS: Final = """
select attname::text from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = '' order by attnum
"""
_FOREIGN_KEYS: Final = """
select conname::text as name, pg_get_constraintdef(oid) as definition
from pg_constraint where conrelid = %s::regclass and contype = 'f' and conparentid = 0 order by conname
"""


@dataclass(frozen=True)
class PartitionMerger:
    """Merges partitions of a target."""

    target: TargetTable

    def count(self, cursor: Cursor) -> int:
        """Return how many partitions the target has; 0 if it does not exist."""
        cursor.execute(
            "select count(*) from pg_inherits where inhparent = to_regclass(%s)",
            (self.target.identifier.as_string(cursor),),
        )
        return int(cursor.fetchone()[0])

    def groups(
        self, cursor: Cursor, *, planned: Collection[int], below: int, max_bytes: int
    ) -> list[MergeGroup]:
        """Return which neighbouring partitions to merge; none has rows of batches from `below` on.

        A merged partition has at most `max_bytes` bytes, and none of the `planned` batches will belong into it. It
        takes the place of 100 partitions at most; the next merge combines it with others. Raises TargetMismatch if
        merging would have an effect beyond the target.
        """
        self._check(cursor)
        partitions = read_partitions(cursor, self.target)
        cursor.execute(_SIZES, ([partition.oid for partition in partitions],))
        bytes_of = {row.oid: int(row.bytes) for row in cursor.fetchall()}
        sizes = [(partition, bytes_of[partition.oid]) for partition in partitions]
        return group_neighbours(sizes, planned=planned, below=below, max_bytes=max_bytes)

    def copy(self, cursor: Cursor, group: MergeGroup) -> int | None:
        """Copy the rows of a group into a new table; return how many, or None if the partitions have changed."""
        members = self._members(cursor, group)
        if members is None:
            return None
        cursor.execute(
            sql.SQL("lock table {} in share row exclusive mode").format(
                sql.SQL(", ").join(member.identifier for member in members)
            )
        )
        if self._members(cursor, group) != members:  # another merge, or a replay, had the lock before
            return None
        merged = build_partition(self.target, group.lower, group.upper)
        create_like(cursor, self.target, merged.identifier, build_bound(merged))
        target = (self.target.identifier.as_string(cursor),)
        cursor.execute(_COLUMNS, target)
        names = sql.SQL(", ").join(sql.Identifier(row.attname) for row in cursor.fetchall())
        rows = 0
        for member in members:
            cursor.execute(
                sql.SQL("insert into {} ({names}) select {names} from only {}").format(
                    merged.identifier, member.identifier, names=names
                )
            )
            rows += cursor.rowcount
        build_indexes(cursor, self.target, merged.identifier)
        give_to_owner(cursor, self.target, merged)
        cursor.execute(sql.SQL("analyze {}").format(merged.identifier))
        # From here on, writers of the tables that these refer to wait.
        cursor.execute(_FOREIGN_KEYS, target)
        for key in cursor.fetchall():
            cursor.execute(
                sql.SQL("alter table {} add constraint {} {}").format(
                    merged.identifier, sql.Identifier(key.name), sql.SQL(key.definition)
                )
            )
        return rows

    def exchange(self, cursor: Cursor, group: MergeGroup) -> None:
        """Let the new table take the place of the partitions. Raises PostgresUnavailable if others use the target."""
        members = self._members(cursor, group)
        assert members is not None  # copy() has locked them
        merged = build_partition(self.target, group.lower, group.upper)

        def exchange() -> bool:
            for member in members:
                detach_and_drop(cursor, self.target, member)
            attach(cursor, self.target, merged)
            cursor.execute(sql.SQL("alter table {} drop constraint {}").format(merged.identifier, BOUND))
            return True

        if not change_alone(cursor, self.target, members, exchange, tries=_TRIES):
            raise PostgresUnavailable(
                f"target {self.target.spec} is in use, or a table to which its foreign keys refer, so its partitions "
                f"could not be exchanged in {_TRIES} tries of a second; waiting longer would hold up its readers. "
                f"These partitions remain as they are. Try again when its sessions in pg_stat_activity have ended."
            )

    def _members(self, cursor: Cursor, group: MergeGroup) -> list[Partition] | None:
        """Return the partitions of a group; None if they are not the same as when it was formed."""
        members = [
            each
            for each in read_partitions(cursor, self.target)
            if each.lower is not None
            and each.upper is not None
            and each.lower < group.upper
            and group.lower < each.upper
        ]
        return members if tuple(each.name for each in members) == group.partitions else None

    def _check(self, cursor: Cursor) -> None:
        for name, _, is_listed in publications(cursor, self.target):
            if not is_listed:
                raise TargetMismatch(
                    f"target {self.target.spec}: the publication {name} is for all tables, or for all of a schema, and "
                    f"would send the copied rows again. Nothing was merged. Let it name its tables."
                )
        facts = self.target.facts(cursor)
        for fact in facts:
            if fact.what == "foreign key from elsewhere":
                raise TargetMismatch(
                    f"target {self.target.spec}: the foreign key {fact.name} refers to it, so Postgres cannot "
                    f"detach its partitions. Nothing was merged. Drop the foreign key."
                )


def group_neighbours(
    sizes: Sequence[tuple[Partition, int]], *, planned: Collection[int], below: int, max_bytes: int
) -> list[MergeGroup]:
    """Return which of neighbouring partitions, with their sizes in bytes, to merge. Pure; see PartitionMerger."""
    found: list[MergeGroup] = []
    group: MergeGroup | None = None
    for partition, size in sizes:
        lower, upper = partition.lower, partition.upper
        if (
            lower is None
            or upper is None
            or upper > below
            or size > max_bytes
            or any(partition.covers(batch_id) for batch_id in planned)
        ):
            group = None
            continue
        if (
            group is None
            or group.bytes + size > max_bytes
            or len(group.partitions) == MOST_DROPPED
            or any(group.lower <= batch_id < upper for batch_id in planned)
        ):
            group = MergeGroup(lower, upper, (partition.name,), size)
        else:
            found = [each for each in found if each is not group]
            group = MergeGroup(group.lower, upper, (*group.partitions, partition.name), group.bytes + size)
            found.append(group)
    return found
