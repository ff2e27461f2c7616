"""What a transaction has done to a table, as Postgres counts it: what triggers do beside a statement shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# {} is the table as text, in double quotes, once as each of two parameters. The counters are those of
# pg_stat_xact_all_tables (https://www.postgresql.org/docs/current/monitoring-stats.html); they may begin with what
# earlier transactions of the session did, so that only differences count. TRUNCATE sets them back, and gives the
# table another file.
WRITES_OF: Final = """
with family as (
    select to_regclass({0})::oid as relid union select relid::oid from pg_partition_tree(to_regclass({1}))
)
select coalesce(sum(pg_stat_get_xact_tuples_inserted(relid)), 0)::bigint as inserted,
       coalesce(sum(pg_stat_get_xact_tuples_updated(relid)), 0)::bigint as updated,
       coalesce(sum(pg_stat_get_xact_tuples_deleted(relid)), 0)::bigint as deleted,
       coalesce(string_agg(format('%s %s', relid, pg_relation_filenode(relid)), ','), '') as files
from family
"""
PSYCOPG2_WRITES: Final = WRITES_OF.replace("%", "%%").format("%s", "%s")


@dataclass(frozen=True, slots=True)
class Writes:
    """Rows that were inserted, updated and deleted, and the files of the table and its partitions."""

    inserted: int
    updated: int
    deleted: int
    files: str

    def __sub__(self, before: "Writes") -> "Writes":
        """What has come since; `files` are those that others stand in the place of."""
        then, now = before._by_table(), self._by_table()
        replaced = sorted(table for table in then.keys() & now.keys() if then[table] != now[table])
        return Writes(
            self.inserted - before.inserted,
            self.updated - before.updated,
            self.deleted - before.deleted,
            ",".join(replaced),
        )

    def __str__(self) -> str:
        truncated = " after a TRUNCATE" if self.files else ""
        return f"{self.inserted} inserted, {self.updated} updated and {self.deleted} deleted{truncated}"

    def is_insert_of(self, rows: int) -> bool:
        """Whether a statement that inserted or updated so many rows explains them."""
        return (self.inserted + self.updated, self.deleted, self.files) == (rows, 0, "")

    def is_delete_of(self, rows: int) -> bool:
        """Whether a statement that deleted so many rows explains them."""
        return (self.inserted, self.updated, self.deleted, self.files) == (0, 0, rows, "")

    def _by_table(self) -> Mapping[str, str]:
        """The file by the table's oid; nothing for a partitioned table, which has none."""
        pairs = (each.split(" ") for each in self.files.split(",") if each)
        return {table: file for table, file in pairs if file}
