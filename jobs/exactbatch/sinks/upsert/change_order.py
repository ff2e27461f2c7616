"""The order of a key's changes: by version, and by offset within a partition. What that leaves open is an error.

The latest change of a key is found partition by partition first, among staged changes by a sort of narrow rows, which
name the place of the change in the staging table. Several partitions with an equally great version, or without a
version, do not say which change is the latest. Nor do several changes of a key in one record.

Positions of a source ascend within a partition, as its commits do. A connector that starts again may send a run of
changes once more. Every other change at a later offset with a smaller position shows that positions went back: another
server, a restored one, or a second snapshot after a lost slot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.errors import KeyOnTwoPartitions, TargetMismatch
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import Place, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.values.cast import Cast
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

PLACE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")
# The greatest offset of a staged change of the key in the partition.
LAST_OFFSET: Final = sql.Identifier("exactbatch last offset")
_RANK: Final = sql.Identifier("exactbatch rank")
_FALSE: Final = sql.SQL("false")
_IN_SEVERAL: Final = sql.SQL(
    "min(kafka_topic) <> max(kafka_topic) or min(kafka_partition) <> max(kafka_partition)"
)
_KEYS_SHOWN: Final = 5
# The latest staged change of each key and partition, and then of each key whose latest change is staged.
STAGED: Final = sql.Identifier("exactbatch_staged")
# Where a change is stored: its row in the staging table or in another one, which is TABLE; null for a staged change.
ROW: Final = sql.Identifier("exactbatch stored row")
TABLE: Final = sql.Identifier("exactbatch stored table")


class ChangesBehind(Exception):
    """Staged changes that are older by their position than changes at smaller offsets of their partitions.

    `places` are those that have not been found to repeat an earlier change, each with the offset of the change that is
    newer: what a change repeats is before it. Whoever publishes looks for them in the log, and publishes again or
    raises PositionsWentBack.
    """

    def __init__(self, places: Mapping[Place, int]) -> None:
        super().__init__(f"{len(places)} changes")
        self.places = places


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest changes of the affected keys, in temporary tables of the transaction.

    staged   those that are staged: their keys, versions and places, `deleted`, and ROW, their rows in the staging table
    kept     the others, which earlier batches left, as whole rows of the table of changes; None if no table keeps them
    all_new  True if no affected key had a change before: one that an earlier batch left, or that this transaction has
             retracted
    """

    staged: sql.Identifier
    kept: sql.Identifier | None
    all_new: bool

    @property
    def tables(self) -> list[sql.Identifier]:
        """Both tables."""
        return [self.staged, *([] if self.kept is None else [self.kept])]


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Changes that earlier batches left, next to which staged changes of the same keys must have an order.

    places  a query for the keys, the versions and the places of those that may be the latest, with their TABLE and ROW
    table   the table that has their rows
    values  the columns of such a row in the order of a staged change's; null for what it does not keep
    """

    places: sql.Composable
    table: sql.Composable
    values: sql.Composable


@dataclass(frozen=True, slots=True)
class ChangeOrder:
    """What orders the changes of a key. `are_positions` is true for a version that is the position of a commit."""

    key: Sequence[str]
    version: Sequence[str]
    are_positions: bool = False

    @property
    def ordered(self) -> list[str]:
        """The columns that order the changes of all keys, before their places."""
        return [*self.key, *self.version]

    @property
    def by_partition(self) -> sql.Composable:
        """The columns whose groups have one latest change: key, topic and partition."""
        return column_list([*self.key, *PLACE[:2]])

    @property
    def latest_first_by_partition(self) -> sql.Composable:
        """The order in which the latest change of each key and partition comes first in its group."""
        by_version = [_descending(self.version)] if self.version else []
        return sql.SQL(", ").join([self.by_partition, *by_version, sql.SQL("kafka_offset desc")])

    @property
    def last_offset(self) -> sql.Composable:
        """What to select as LAST_OFFSET next to the latest staged changes."""
        if not self.are_positions:
            return sql.SQL("kafka_offset as {}").format(LAST_OFFSET)
        # Sorted as the changes are, so that they are sorted once.
        return sql.SQL(
            "max(kafka_offset) over (partition by {} order by {} "
            "rows between unbounded preceding and unbounded following) as {}"
        ).format(self.by_partition, self.latest_first_by_partition, LAST_OFFSET)

    def check(self, cursor: Cursor, spec: str, changes: sql.Composable, image: sql.Composable) -> bool:
        """Return whether a key has changes in several partitions.

        `changes` is a query that gives the columns of the key, the version and the place of changes, among them the
        latest of each key and partition, and whatever `image`, the text of a change's row, refers to. Raises
        KeyOnTwoPartitions if the order of the latest changes of a key is unknown. Changes with equal rows need none.
        """
        several = sql.SQL("select {key} from ({changes}) change group by {key} having {in_several}").format(
            key=column_list(self.key), changes=changes, in_several=_IN_SEVERAL
        )
        cursor.execute(sql.SQL("select exists ({})").format(several))
        if not cursor.fetchone()[0]:
            return False
        # psycopg2's named tuples cannot have every column name that a key can have.
        aliased = sql.SQL(", ").join(
            sql.SQL("{} as {}").format(sql.Identifier(name), sql.Identifier(f"key_{index}"))
            for index, name in enumerate(self.key)
        )
        cursor.execute(
            sql.SQL(
                "select {aliased}, array_agg(distinct kafka_topic || '[' || kafka_partition || ']') as partitions "
                "from (select *, rank() over (partition by {key}{by_version}) as {rank} from ("
                "select distinct on ({group}) * from ({changes}) change join ({several}) several using ({key}) "
                "order by {latest_first}) latest) ranked "
                "where {rank} = 1 group by {key} having ({in_several}){differ} order by {key} limit {limit}"
            ).format(
                aliased=aliased,
                key=column_list(self.key),
                by_version=sql.SQL(" order by {}").format(_descending(self.version))
                if self.version
                else sql.SQL(""),
                rank=_RANK,
                group=self.by_partition,
                latest_first=self.latest_first_by_partition,
                changes=changes,
                several=several,
                in_several=_IN_SEVERAL,
                # Without a version, nothing is known about the order of changes to come, either.
                differ=sql.SQL(" and count(distinct {}) > 1").format(image) if self.version else sql.SQL(""),
                limit=sql.Literal(_KEYS_SHOWN),
            )
        )
        if rows := cursor.fetchall():
            shown = "; ".join(
                f"({', '.join(map(repr, row[:-1]))}) in {' and '.join(row[-1])}" for row in rows
            )
            raise KeyOnTwoPartitions(
                f"target {spec}: changes of one key are in several partitions, {self._undecided}: "
                f"({', '.join(self.key)}) = {shown}. Nothing was written. {self._remedy}"
            )
        return True

    def forget_older(self, cursor: Cursor, staged: sql.Identifier) -> None:
        """Keep the latest change of each key in a table that has the latest of each key and partition."""
        cursor.execute(
            sql.SQL(
                "delete from {staged} t using (select {key}, {place}, "
                "row_number() over (partition by {key} order by {latest_first}) as {rank} from {staged}) l "
                "where {same_key} and {same_place} and l.{rank} > 1"
            ).format(
                staged=staged,
                key=column_list(self.key),
                place=column_list(PLACE),
                latest_first=latest_first(self.version),
                rank=_RANK,
                same_key=same_values(self.key, "l", "t"),
                same_place=same_values(PLACE, "l", "t"),
            )
        )

    @property
    def _undecided(self) -> str:
        if not self.version:
            return "so that offsets do not give their order"
        return f"and the latest have the same version, ({', '.join(self.version)}), or none"

    @property
    def _remedy(self) -> str:
        if not self.version:
            return (
                "Name the column that orders them, Upsert(…, version=…), or let producers send a key to one "
                "partition."
            )
        return (
            "Use a version that differs between all changes of a key. A later change of these keys, with a greater "
            "version, lets the next run go on."
        )


def is_greater(
    version: Sequence[str], change: str, other: str, *, if_equal: sql.Composable = _FALSE
) -> sql.Composable:
    """Return the condition that a change has a greater version than another, or an equal one if `if_equal` is true;
    null is less than any value."""
    greater = if_equal
    for name in reversed(version):
        ours, theirs = sql.Identifier(change, name), sql.Identifier(other, name)
        greater = sql.SQL(
            "(coalesce({ours} > {theirs}, {ours} is not null and {theirs} is null) "
            "or {ours} is not distinct from {theirs} and {greater})"
        ).format(ours=ours, theirs=theirs, greater=greater)
    return greater


def latest_first(version: Sequence[str]) -> sql.Composable:
    """Return the order of a key's changes, the latest first, where ChangeOrder.check() has found it to be known."""
    by_version = [_descending(version)] if version else []
    return sql.SQL(", ").join([*by_version, *(sql.SQL("{} desc").format(sql.Identifier(n)) for n in PLACE)])


def _descending(version: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("{} desc nulls last").format(sql.Identifier(name)) for name in version)


def find_latest_staged(
    cursor: Cursor,
    staged: StagedRows,
    order: ChangeOrder,
    casts: Sequence[Cast],
    table: LineageTable,
) -> None:
    """Put the latest staged change of each key and partition into the temporary table STAGED.

    It has the columns of the key, the version and the place, `deleted`, ROW and LAST_OFFSET. `table` gives the types
    and collations by which the changes are compared; `casts` are those into it.
    """
    expressions = {cast.column.name: cast.expression for cast in casts}
    # The first branch gives the types and collations.
    cursor.execute(
        sql.SQL(
            "create temporary table {staged} on commit drop as "
            "select distinct on ({group}) {ordered}, {place}, deleted, {row}, {last_offset} from ("
            "select {ordered}, {place}, null::boolean as deleted, null::tid as {row} from {table} where false "
            "union all select {values}, {place}, deleted, ctid from {staging} where {accepted}) change "
            "order by {order}"
        ).format(
            staged=STAGED,
            group=order.by_partition,
            ordered=column_list(order.ordered),
            place=column_list(PLACE),
            row=ROW,
            last_offset=order.last_offset,
            table=table.identifier,
            values=sql.SQL(", ").join(expressions[name] for name in order.ordered),
            staging=staged.table,
            accepted=staged.accepted,
            order=order.latest_first_by_partition,
        )
    )


def check_positions(cursor: Cursor, staged: StagedRows, order: ChangeOrder, *stored: sql.Composable) -> None:
    """Raise ChangesBehind if the last staged change of a key in a partition is older by its position than another one
    there, staged or in the relations `stored`, and is not known to repeat a change."""
    if not order.are_positions:
        return
    names = {"last": LAST_OFFSET, "staged": STAGED, "group": order.by_partition}
    behind = sql.SQL(
        "select kafka_topic, kafka_partition, {last}, kafka_offset from {staged} where kafka_offset < {last}"
    ).format(**names)
    for relation in stored:
        behind += sql.SQL(
            " union select s.kafka_topic, s.kafka_partition, s.{last}, c.kafka_offset from {staged} s "
            "join {relation} c using ({group}) where c.kafka_offset < s.{last} and {is_greater}"
        ).format(**names, relation=relation, is_greater=is_greater(order.version, "c", "s"))
    cursor.execute(behind)
    places: dict[Place, int] = {}
    for *row, newer in cursor.fetchall():
        place = Place(*row)
        if place not in staged.repeats:
            places[place] = min(newer, places.get(place, newer))
    if places:
        raise ChangesBehind(places)


def check_ties(
    cursor: Cursor,
    staged: StagedRows,
    order: ChangeOrder,
    spec: str,
    values: sql.Composable,
    stored: StoredChanges | None = None,
) -> bool:
    """Return whether a key has changes in several partitions, among the latest staged ones and `stored`.

    `values` are the values of a staged change, as it is compared with others, and `spec` names the target. Raises
    KeyOnTwoPartitions if the order of the latest changes of a key is unknown.
    """
    changes = sql.SQL("select {ordered}, {place}, null::oid as {table}, {row} from {staged}").format(
        ordered=column_list(order.ordered), place=column_list(PLACE), table=TABLE, row=ROW, staged=STAGED
    )
    image = sql.SQL("(select row({values})::text from {staging} where ctid = {row})").format(
        values=values, staging=staged.table, row=ROW
    )
    if stored is not None:
        changes = sql.SQL("{} union all {}").format(changes, stored.places)
        image = sql.SQL(
            "case when {table} is null then {image} else (select row({values})::text from {stored} c "
            "where c.tableoid = {table} and c.ctid = {row}) end"
        ).format(table=TABLE, image=image, values=stored.values, stored=stored.table, row=ROW)
    return order.check(cursor, spec, changes, image)


def check_one_per_record(
    cursor: Cursor,
    staged: StagedRows,
    order: ChangeOrder,
    target: str,
    table: LineageTable,
    casts: Sequence[Cast],
) -> None:
    """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them.

    `table` gives the types and collations by which the changes are compared; `casts` are those into it.
    """
    ordered = order.ordered
    expressions = {cast.column.name: cast.expression for cast in casts}
    # The first branch gives the types and collations by which the changes are compared.
    cursor.execute(
        sql.SQL(
            "select {texts} as change, kafka_topic as topic, kafka_partition as partition, "
            'kafka_offset as "offset" from ('
            "select {names}, kafka_topic, kafka_partition, kafka_offset from {change} where false union all "
            "select {values}, kafka_topic, kafka_partition, kafka_offset from {staging} "
            "where {accepted}) staged "
            "group by {names}, 2, 3, 4 having count(*) > 1 order by 2, 3, 4 limit {limit}"
        ).format(
            texts=sql.SQL(" || ', ' || ").join(
                sql.SQL("coalesce({}::text, 'null')").format(sql.Identifier(name)) for name in ordered
            ),
            names=column_list(ordered),
            change=table.identifier,
            values=sql.SQL(", ").join(expressions[name] for name in ordered),
            staging=staged.table,
            accepted=staged.accepted,
            limit=sql.Literal(_KEYS_SHOWN),
        )
    )
    if rows := cursor.fetchall():
        shown = "; ".join(f"{row.topic}[{row.partition}] offset {row.offset}: ({row.change})" for row in rows)
        raise TargetMismatch(
            f"target {target}: a record gives several changes of one key, and nothing says which of "
            f"them is the latest. The first, as ({', '.join(ordered)}): {shown}. Nothing was written. Let the "
            f"transform give one change for each key and record, or changes whose version differs.",
            topic=rows[0].topic,
            partition=rows[0].partition,
            from_offset=rows[0].offset,
            until_offset=rows[0].offset + 1,
        )
