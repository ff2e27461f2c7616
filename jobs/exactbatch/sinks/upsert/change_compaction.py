"""Compact the changes of an Upsert: drop those that later changes have superseded."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg2 import sql

from exactbatch.columns import POSITION_EPOCH
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.sink import UNAVAILABLE
from exactbatch.sinks.staged_rows import Part
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.upsert.change_order import latest_first
from exactbatch.sinks.upsert.truncates import is_truncate, newest_first
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

_ITS_TABLE: Final = sql.Identifier("exactbatch its table")
_ITS_ROW: Final = sql.Identifier("exactbatch its row")


@dataclass(frozen=True)
class ChangeCompactor:
    """Drops changes below a horizon, the end of each part, that nothing above it can make a row again."""

    changes: LineageTable
    key: Sequence[str]
    version: Sequence[str]

    def first_since(self, cursor: Cursor, parts: Sequence[Part], at: datetime) -> dict[tuple[str, int], int]:
        """Return the offset of the first change in each (topic, partition) that is not from before a time.

        The time of a change is its Kafka timestamp; a change without one may be from any time. Partitions without
        such a change are left out.
        """
        if (in_parts := self._match_any(parts)) is None:
            return {}
        cursor.execute(
            sql.SQL(
                "select kafka_topic, kafka_partition, min(kafka_offset) from {change} "
                "where ({in_parts}) and (kafka_timestamp < {at}) is not true group by 1, 2"
            ).format(change=self.changes.identifier, in_parts=in_parts, at=sql.Literal(at))
        )
        return {(topic, partition): offset for topic, partition, offset in cursor.fetchall()}

    def preview(self, cursor: Cursor, parts: Sequence[Part]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return what compact() would return. Writes nothing."""
        return self._count(
            cursor,
            parts,
            sql.SQL("select kafka_topic, kafka_partition from judged where is_superseded"),
        )

    def compact(self, cursor: Cursor, parts: Sequence[Part]) -> dict[tuple[str, int], tuple[int, int]]:
        """Drop the changes in these parts that no later change, and no replay outside of the parts, can make a
        row again. Return how many were dropped and kept, by (topic, partition). The target stays as it is.
        """
        return self._count(
            cursor,
            parts,
            sql.SQL(
                "delete from {change} c using judged j where j.is_superseded and c.tableoid = j.tableoid "
                "and c.ctid = j.ctid returning c.kafka_topic, c.kafka_partition"
            ).format(change=self.changes.identifier),
        )

    def _count(
        self, cursor: Cursor, parts: Sequence[Part], dropped: sql.Composable
    ) -> dict[tuple[str, int], tuple[int, int]]:
        if (below := self._match_any(parts)) is None:
            return {}
        cursor.execute(
            sql.SQL(
                "with judged as materialized ({judged}), dropped_rows as ({dropped}) "
                "select kafka_topic, kafka_partition, sum(dropped)::int8 as dropped, sum(kept)::int8 as kept "
                "from ("
                "select kafka_topic, kafka_partition, 1 as dropped, 0 as kept from dropped_rows union all "
                "select kafka_topic, kafka_partition, 0, 1 from judged where not is_superseded) counted "
                "group by 1, 2"
            ).format(judged=self._judged(cursor, below), dropped=dropped)
        )
        return {(topic, partition): (dropped, kept) for topic, partition, dropped, kept in cursor.fetchall()}

    def _match_any(self, parts: Sequence[Part]) -> sql.Composable | None:
        """Return the condition of all changes that batches have written for ranges; None if there is no batch."""
        conditions = [sql.SQL("({})").format(condition) for condition in self.changes.conditions(parts)]
        return sql.SQL(" or ").join(conditions) if conditions else None

    def _judged(self, cursor: Cursor, below: sql.Composable) -> sql.Composable:
        """Return a query for each change below the horizon, and whether it is superseded.

        The latest change of a key stays, with all that tie with it: changes above the horizon may be retracted,
        and then it is the row again. A latest change that is a delete can go if nothing older can come: without a
        version no change can be late, and the key must have no change elsewhere. What the newest truncate below the
        horizon has deleted can go; of the truncates this one stays. A change also stays if it has the value that the
        source left out of one that stays.
        """
        needless_delete = (
            sql.SQL(
                # Below the horizon older changes of the key go as well.
                "deleted and not exists (select from {change} o where {same_key} and ("
                "(o.kafka_topic, o.kafka_partition) <> (b.kafka_topic, b.kafka_partition) "
                "or o.kafka_offset = b.kafka_offset and not o.deleted "
                "or o.kafka_offset <= b.kafka_offset and ({below}) is not true))"
            ).format(
                change=self.changes.identifier,
                same_key=same_values(self.key, "o", "b"),
                below=below,
            )
            if not self.version
            else sql.SQL("false")
        )
        judged = sql.SQL(
            "select tableoid, ctid, kafka_topic, kafka_partition, "
            "rank() over (partition by {key} order by {order}) > 1 or {needless_delete} or {is_truncated} "
            "as is_superseded from {change} b where {below}"
        ).format(
            key=column_list(self.key),
            order=latest_first(self.version),
            needless_delete=needless_delete,
            is_truncated=self._is_truncated(below),
            change=self.changes.identifier,
            below=below,
        )
        if UNAVAILABLE.name not in self.changes.table.columns(cursor):
            return judged
        # By grouping: Postgres cannot estimate how many suppliers there are, and might join each with each.
        return sql.SQL(
            "with {suppliers} select j.tableoid, j.ctid, max(kafka_topic) as kafka_topic, "
            "max(kafka_partition) as kafka_partition, bool_and(is_superseded) as is_superseded "
            "from ({judged} union all select {its_table}, {its_row}, null, null, false from suppliers) j "
            "group by j.tableoid, j.ctid"
        ).format(suppliers=self._suppliers(below), judged=judged, its_table=_ITS_TABLE, its_row=_ITS_ROW)

    def _is_truncated(self, below: sql.Composable) -> sql.Composable:
        """Return the condition that a truncate below the horizon has deleted the change `b`."""
        if not self.version:
            return sql.SQL("false")
        truncates = sql.SQL("from {} where {} and ({})").format(
            self.changes.identifier, is_truncate(self.key), below
        )
        # Each of these subqueries runs once, and not for each change.
        return sql.SQL(
            "not {is_truncate} and exists (select {truncates}) "
            "and (({of_change}) > (select {version} {truncates} {newest_first})) is not true"
        ).format(
            is_truncate=is_truncate(self.key, of="b"),
            truncates=truncates,
            of_change=self._comparable("b"),
            version=self._comparable(None),
            newest_first=newest_first(self.version),
        )

    def _comparable(self, of: str | None) -> sql.Composable:
        """The columns of the version; the epoch of a position is null at first, which no comparison of rows orders."""
        return sql.SQL(", ").join(
            sql.SQL("coalesce({}, 0)" if name == POSITION_EPOCH else "{}").format(column_list([name], of=of))
            for name in self.version
        )

    def _suppliers(self, below: sql.Composable) -> sql.Composable:
        """Return parts of a WITH clause; the last one has the changes whose value a change that stays lacks.

        Of the changes below the horizon, the newest one that has the value stays for each change that lacks it and is
        above the horizon or the latest below it: what is above may be retracted.
        """
        return sql.SQL(
            "ordered as materialized (select c.tableoid as {its_table}, c.ctid as {its_row}, {key}, deleted, "
            "{unavailable}, coalesce({below}, false) as {is_below}, "
            "row_number() over (partition by {key} order by {order}) as {place} "
            "from {change} c where ({key}) in (select {key} from {change} where {unavailable} is not null)), "
            "named as (select distinct unnest({unavailable}) as {name} from ordered), "
            # The nearest older change that has the value, found in one pass over the changes of each key.
            "found as (select o.*, n.{name}, "
            "min({place}) filter (where {is_below}) over (partition by {key}, n.{name}) as {latest_below}, "
            "min({place}) filter (where {is_below} and not deleted "
            "and not coalesce(n.{name} = any({unavailable}), false)) over (partition by {key}, n.{name} "
            "order by {place} desc rows between unbounded preceding and 1 preceding) as {supplier} "
            "from ordered o cross join named n), "
            "suppliers as (select max({its_table}) as {its_table}, max({its_row}) as {its_row} from ("
            "select {key}, {place}, {its_table}, {its_row}, false as {is_needed} from ordered union all "
            "select {key}, {supplier}, null, null, true from found "
            "where {name} = any({unavailable}) and not deleted and (not {is_below} or {place} = {latest_below}) "
            "and {supplier} is not null) p group by {key}, {place} having bool_or({is_needed}))"
        ).format(
            its_table=_ITS_TABLE,
            its_row=_ITS_ROW,
            is_below=sql.Identifier("exactbatch is below"),
            is_needed=sql.Identifier("exactbatch is needed"),
            place=sql.Identifier("exactbatch place"),
            latest_below=sql.Identifier("exactbatch latest below"),
            supplier=sql.Identifier("exactbatch supplier"),
            name=sql.Identifier("exactbatch name"),
            key=column_list(self.key),
            unavailable=sql.Identifier(UNAVAILABLE.name),
            below=below,
            order=latest_first(self.version),
            change=self.changes.identifier,
        )
