"""Find the keys of an Upsert whose latest change nothing determines.

Two things give the order of changes: the version, and the offset within one partition. This is written independently of
the code that orders changes for a batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg2 import sql

from exactbatch.audit.audit_result import SHOWN
from exactbatch.audit.snapshot import Snapshot
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.values.null_safe_groups import column_list, same_values
from exactbatch.sinks.writer import SinkWriter

PLACE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")
# What a row of a snapshot has that lacks its position, or a part of it.
_IMAGE: Final = sql.Identifier("exactbatch image")
_NO_POSITION: Final = "00000000:00000000:0000"


@dataclass(frozen=True, slots=True)
class UnorderedChanges:
    """What orders the changes of a key. `positions` are the columns of the version that are a position in the source,
    which begins again with each epoch."""

    key: Sequence[str]
    version: Sequence[str]
    positions: Sequence[str]

    @property
    def _epoch(self) -> Sequence[str]:
        return [name for name in self.version if name not in self.positions]

    @property
    def _own_position(self) -> Sequence[str]:
        """The part of the position that is the same each time a change is sent. The commit before it is not: the
        Postgres connector does not know it at first."""
        return ["lsn"] if "lsn" in self.positions else self.positions

    @property
    def latest_first(self) -> sql.Composable:
        """The order of a key's changes by their version, from ` order by ` on; empty without one."""
        if not self.version:
            return sql.SQL("")
        return sql.SQL(" order by ") + sql.SQL(", ").join(
            sql.SQL("{} desc nulls last").format(sql.Identifier(name)) for name in self.version
        )

    def same_version(self, one: str, other: str) -> sql.Composable:
        """Return the condition that two changes have the same version, from ` and ` on."""
        return sql.Composed(
            [
                sql.SQL(" and {} is not distinct from {}").format(
                    sql.Identifier(one, name), sql.Identifier(other, name)
                )
                for name in self.version
            ]
        )

    def shown_key(self, of: str) -> sql.Composable:
        """Return an expression for the key of a row, as text."""
        return sql.SQL("'(' || concat_ws(', ', {}) || ')'").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(of, name)) for name in self.key)
        )

    def tied(self, changes: sql.Composable, columns: Sequence[str]) -> sql.Composable:
        """Return a query (key as text, places as text) for the keys whose latest changes, by their version, are in
        several partitions and differ in one of the columns."""
        return sql.SQL(
            # Most keys stay in one partition: only the others are sorted.
            "with several as materialized (select {key} from {changes} c where num_nonnulls({key}) > 0 group by {key} "
            "having min(kafka_topic) <> max(kafka_topic) or min(kafka_partition) <> max(kafka_partition)), "
            "ranked as (select {of_change}, c.kafka_topic, c.kafka_partition, c.kafka_offset, "
            "row({columns})::text as {image}, "
            "rank() over (partition by {of_change}{order}) as {rank} from {changes} c join several s on {same_key}) "
            "select {shown}, string_agg(r.kafka_topic || '[' || r.kafka_partition || '] offset ' || r.kafka_offset, "
            "' and ' order by r.kafka_topic, r.kafka_partition, r.kafka_offset) from ("
            "select {key}, kafka_topic, kafka_partition, max(kafka_offset) as kafka_offset, "
            "(array_agg({image} order by kafka_offset desc))[1] as {image} from ranked "
            "where {rank} = 1 group by {key}, kafka_topic, kafka_partition) r "
            "group by {of_ranked} having count(*) > 1{differ}"
        ).format(
            columns=column_list(columns, of="c"),
            image=_IMAGE,
            differ=sql.SQL(" and count(distinct {}) > 1").format(_IMAGE) if self.version else sql.SQL(""),
            key=column_list(self.key),
            changes=changes,
            of_change=column_list(self.key, of="c"),
            order=self.latest_first,
            rank=sql.Identifier("exactbatch rank"),
            same_key=self.same_key("c", "s"),
            shown=self.shown_key("r"),
            of_ranked=column_list(self.key, of="r"),
        )

    def gone_back(self, changes: sql.Composable) -> sql.Composable:
        """Return a query (topic, partition, offset, key) for changes with a smaller version than an earlier change of
        their key in the same partition, unless the partition had the change before: a connector that starts again
        repeats itself."""
        group = column_list([*self.key, "kafka_topic", "kafka_partition", *self._epoch])
        order = sql.SQL(", ").join(map(sql.Identifier, self.positions))
        return sql.SQL(
            "with positions as (select {key}, {version}, {epoch}kafka_topic, kafka_partition, kafka_offset "
            "from {changes} c "
            "where num_nulls({key}, {version}) = 0 and {first}::text <> '0' and {no_position} <> all(array[{texts}])), "
            "steps as (select *, {before} from positions "
            "window w as (partition by {group} order by kafka_offset)), "
            # Hardly any key has a change that is less than the one before it: only such keys are sorted by versions.
            "suspects as materialized (select {group} from steps s where {is_less} group by {group}), "
            "ranked as (select p.*, dense_rank() over (partition by {group} order by {order}) as {rank} "
            "from positions p join suspects using ({group})), "
            "judged as (select *, max({rank}) over (partition by {group} order by kafka_offset rows between unbounded "
            "preceding and 1 preceding) as {most}, row_number() over (partition by {group}, {own} "
            "order by kafka_offset) as {times} from ranked) "
            "select j.kafka_topic::text, j.kafka_partition::integer, j.kafka_offset::bigint, {shown} from judged j "
            "where {rank} < {most} and {times} = 1"
        ).format(
            key=column_list(self.key),
            version=column_list(self.positions),
            # No epoch is null, so that rows can be joined by it.
            epoch=sql.SQL("").join(
                sql.SQL("coalesce({0}, 0) as {0}, ").format(sql.Identifier(name)) for name in self._epoch
            ),
            changes=changes,
            first=sql.Identifier(self._own_position[0]),
            no_position=sql.Literal(_NO_POSITION),
            texts=sql.SQL(", ").join(
                sql.SQL("{}::text").format(sql.Identifier(name)) for name in self.positions
            ),
            before=sql.SQL(", ").join(
                sql.SQL("lag({}) over w as {}").format(sql.Identifier(name), _before(number))
                for number, name in enumerate(self.positions)
            ),
            group=group,
            is_less=sql.SQL("row({}) < row({})").format(
                column_list(self.positions),
                sql.SQL(", ").join(_before(number) for number, _ in enumerate(self.positions)),
            ),
            order=order,
            own=column_list(self._own_position),
            rank=sql.Identifier("exactbatch rank"),
            most=sql.Identifier("exactbatch most"),
            times=sql.Identifier("exactbatch times"),
            shown=self.shown_key("j"),
        )

    def same_key(self, one: str, other: str) -> sql.Composable:
        """Return the condition that two changes have the same key."""
        return same_values(self.key, one, other)


def find_change_order(traits: SinkTraits) -> UnorderedChanges:
    """Return what orders the changes of an Upsert."""
    return UnorderedChanges(traits.key_columns, traits.ordering_columns, traits.position_columns)


def first_rows(query: sql.Composable) -> sql.Composable:
    """Return a query for the first rows of another one, each with the number of all of them before its columns."""
    return sql.SQL("select count(*) over (), q.* from ({}) q order by q limit {}").format(
        query, sql.Literal(SHOWN)
    )


def unordered_changes(
    snapshot: Snapshot, pipeline: Pipeline, writer: SinkWriter, log: sql.Composable
) -> tuple[int, list[str]]:
    """Return how many keys of a table of changes have no latest change and how many changes go back, and the first of
    them in words.

    `log` is a query (topic, partition, horizon) for the partitions whose positions are judged: below the horizon,
    compaction has dropped changes that a later one may repeat.
    """
    order, changes = find_change_order(writer.traits), writer.lineage_table.in_snapshot
    columns = [column.name for column in writer.traits.staged_columns(pipeline.value.columns)]
    tied = snapshot.rows(first_rows(order.tied(changes, columns)))
    count, notes = _count(tied), tie_notes(row[1:] for row in tied)
    if order.positions:
        known = sql.SQL(
            "(select c.* from {} c join ({}) l on l.topic = c.kafka_topic and l.partition = c.kafka_partition "
            "and c.kafka_offset >= l.horizon)"
        ).format(changes, log)
        back = snapshot.rows(first_rows(order.gone_back(known)))
        count += _count(back)
        notes += went_back_notes(row[1:] for row in back)
    return count, notes


def tie_notes(ties: Iterable[tuple[Any, ...]]) -> list[str]:
    """Describe keys, as tied() gives them."""
    return [f"key {key}: nothing says which of the changes at {places} is the latest" for key, places in ties]


def went_back_notes(changes: Iterable[tuple[Any, ...]]) -> list[str]:
    """Describe changes, as gone_back() gives them."""
    return [
        f"{topic}[{partition}] offset {offset}, key {key}: its position is before that of an earlier change of the key "
        f"in the partition, and it repeats none"
        for topic, partition, offset, key in changes
    ]


def _count(rows: Sequence[tuple[Any, ...]]) -> int:
    return int(rows[0][0]) if rows else 0


def _before(number: int) -> sql.Identifier:
    """Return a name for a part of the version of the change before."""
    return sql.Identifier(f"exactbatch before {number}")
