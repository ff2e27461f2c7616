"""Postgres's own counts of what a transaction has done to a table; they also include what triggers did."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# The parameters are both the table as text in double quotes. The counters are those of
# pg_stat_xact_all_tables (https://www.postgresql.org/docs/current/monitoring-stats.html). They may start with what
# earlier transactions of the session did, so that only differences count. TRUNCATE resets them, and gives the
# table another file.
WRITES_OF: Final = """
with family as (
    select to_regclass(%s)::oid as relid union select relid::oid from pg_partition_tree(to_regclass(%s))
)
select coalesce(sum(pg_stat_get_xact_tuples_inserted(relid)), 0)::bigint as inserted,
       coalesce(sum(pg_stat_get_xact_tuples_updated(relid)), 0)::bigint as updated,
       coalesce(sum(pg_stat_get_xact_tuples_deleted(relid)), 0)::bigint as deleted,
       coalesce(string_agg(format('%%s %%s', relid, pg_relation_filenode(relid)), ','), '') as files
from family
"""


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """Numbers of inserted, updated and deleted rows, and the files of the table and its partitions."""

    inserted: int
    updated: int
    deleted: int
    files: str

    def __sub__(self, before: "WriteCounts") -> "WriteCounts":
        """Return what was done since `before`; `files` holds the tables whose file is another one now."""
        old_files, new_files = before._by_table(), self._by_table()
        replaced = sorted(
            table for table in old_files.keys() & new_files.keys() if old_files[table] != new_files[table]
        )
        return WriteCounts(
            self.inserted - before.inserted,
            self.updated - before.updated,
            self.deleted - before.deleted,
            ",".join(replaced),
        )

    def __str__(self) -> str:
        truncated = " after a TRUNCATE" if self.files else ""
        return f"{self.inserted} inserted, {self.updated} updated and {self.deleted} deleted{truncated}"

    def is_insert_of(self, rows: int) -> bool:
        """True if one statement that inserted or updated this many rows explains the counts."""
        return (self.inserted + self.updated, self.deleted, self.files) == (rows, 0, "")

    def is_delete_of(self, rows: int) -> bool:
        """True if one statement that deleted this many rows explains the counts."""
        return (self.inserted, self.updated, self.deleted, self.files) == (0, 0, rows, "")

    def _by_table(self) -> Mapping[str, str]:
        """Return the file by the table's oid; a partitioned table has none and is left out."""
        pairs = (pair.split(" ") for pair in self.files.split(",") if pair)
        return {table: file for table, file in pairs if file}
