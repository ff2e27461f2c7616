"""Compare a target that keeps the latest change of each key with the fold of the log into these changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from psycopg2 import sql

from exactbatch.audit.audit_result import PartitionAudit
from exactbatch.audit.derived import images_differ
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.unordered_changes import PLACE, UnorderedChanges
from exactbatch.audit.values import BATCH
from exactbatch.offsets import TopicPartition
from exactbatch.sinks.values.null_safe_groups import column_list

_IS_FOLD: Final = sql.Identifier("exactbatch is fold")
_WRITER: Final = sql.Identifier("exactbatch writer")


@dataclass(slots=True)
class LatestComparison:
    """What was found.

    wrong      keys that have a wrong row or marker, or lack one
    unknown    keys that the log says too little about
    unordered  keys whose latest change nothing determines, and changes whose position goes back
    notes      the first of these, in words
    """

    wrong: int
    unknown: int
    unordered: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTables:
    """The tables that are compared: the fold and the keys with ties in it, the target and the markers of deleted keys.

    `names` are the columns of the pipeline; `types` has the types of the columns of the target and the fold, and
    `marker_types` the types of the markers' columns. `row_batch` is an expression for the batch of a row t.
    """

    fold: sql.Composable
    ties: sql.Composable
    target: sql.Composable
    markers: sql.Composable
    types: Mapping[str, str]
    marker_types: Mapping[str, str]
    names: Sequence[str]
    row_batch: sql.Composable


@dataclass(frozen=True, slots=True)
class ReadLog:
    """What was read of the log. `earliest` is where it starts, and `horizons` are the offsets below which markers may
    have been dropped, by topic and partition. `compacted` are the topics that Kafka compacts."""

    audits: Sequence[PartitionAudit]
    earliest: Mapping[TopicPartition, int]
    horizons: Mapping[TopicPartition, int]
    compacted: frozenset[str]

    @property
    def may_lack_deletes(self) -> bool:
        """True if a delete that the log no longer holds may have left a marker that was dropped."""
        return any(
            self.horizons.get((each.topic, each.partition), 0) > each.from_offset
            and (each.topic in self.compacted or self.earliest[each.topic, each.partition] > each.from_offset)
            for each in self.audits
        )

    @property
    def is_complete(self) -> bool:
        """True if it has each record that has ever been in the partitions: a row without lineage is none of them."""
        return all(
            each.from_offset == 0
            and not each.lost
            and each.topic not in self.compacted
            and self.earliest[each.topic, each.partition] == 0
            for each in self.audits
        )

    @property
    def table(self) -> sql.Composable:
        """A query (topic, partition, first, until, horizon) for what was read."""
        rows = [
            (
                each.topic,
                each.partition,
                each.until_offset
                if each.topic in self.compacted
                else min(each.until_offset, max(each.from_offset, self.earliest[each.topic, each.partition])),
                each.until_offset,
                self.horizons.get((each.topic, each.partition), 0),
            )
            for each in self.audits
        ]
        types = ("text", "int", "bigint", "bigint", "bigint")
        return sql.SQL("select * from unnest({})").format(
            sql.SQL(", ").join(
                sql.SQL("{}::{}[]").format(sql.Literal([row[number] for row in rows]), sql.SQL(type_))
                for number, type_ in enumerate(types)
            )
        )


def compare_latest(
    snapshot: Snapshot,
    tables: LatestTables,
    log: ReadLog,
    order: UnorderedChanges,
    latest_first: sql.Composable,
    pipeline: str,
) -> LatestComparison:
    """Compare rows and markers with the fold, key by key. `latest_first` is the order of changes by version and place.

    A key with a change of the same version in another partition is unordered, and may have either, unless they are
    equal.
    """
    ordered = [*order.key, *order.version]
    image, differ = images_differ(tables.names, "f", "r")
    query = sql.SQL(
        "with log (topic, partition, first, until, horizon) as ({log}), "
        "tied as (select {of_tie} from {ties} t join {fold} f on {key_of_tie}{version_of_tie}), "
        "found as (select {names}, false as deleted, {lineage} from {target} t union all "
        "select {names_of_markers}, true, {lineage} from {markers} t), "
        # The first branch gives the types in which both are compared: a marker's may differ from the target's.
        "folded as (select {names}, deleted, {place}, kafka_timestamp, {batch} from found where false union all "
        "select {names}, deleted, {place}, kafka_timestamp, {batch} from {fold}) "
        "select count(*) filter (where outcome in ('wrong', 'foreign')), count(*) filter (where outcome = 'unknown'), "
        "count(*) filter (where outcome = 'foreign'), count(*) filter (where outcome = 'unordered') from ("
        "select case "
        "when ({of_fold}) in (select * from tied) then 'unordered' "
        "when r.deleted is null and f.deleted then case when exists (select from log where topic = f.kafka_topic "
        "and partition = f.kafka_partition and f.kafka_offset < horizon) then 'right' else 'wrong' end "
        "when r.deleted is null then {lacking} "
        "when r.kafka_topic is null and {is_complete} then 'foreign' "
        "when row({place_of_fold}) = row({place_of_row}) then case when f.deleted is distinct from r.deleted "
        "or f.kafka_timestamp is distinct from r.kafka_timestamp "
        # Another pipeline over the topic has written the same record later.
        "or (f.{batch} is distinct from r.{batch} and coalesce(r.{writer}, $1) = $1) "
        "or case when r.deleted then {marker_differs} "
        "else {differ} end then 'wrong' else 'right' end "
        "when (f.kafka_topic, f.kafka_partition) <> (r.kafka_topic, r.kafka_partition){version_of_row} "
        "then case when {has_version} and not f.deleted and not r.deleted and not ({differ}) then 'right' "
        "else 'unordered' end "
        "when r.{writer} = $1 and exists (select from log where topic = r.kafka_topic "
        "and partition = r.kafka_partition and r.kafka_offset >= first and r.kafka_offset < until) then 'wrong' "
        "when f.deleted is null then 'unknown' "
        "when {fold_is_later} then 'wrong' else 'unknown' end as outcome "
        "from (select *{image} from folded) f full join (select *{image} from found) r on {same_key}) compared"
    ).format(
        log=log.table,
        of_tie=column_list(order.key, of="t"),
        ties=tables.ties,
        fold=tables.fold,
        key_of_tie=order.same_key("t", "f"),
        version_of_tie=order.same_version("t", "f"),
        names=column_list(tables.names),
        names_of_markers=sql.SQL(", ").join(
            sql.Identifier(name)
            if name in ordered
            else sql.SQL("null::{}").format(sql.SQL(tables.types[name]))
            for name in tables.names
        ),
        lineage=sql.SQL(
            "kafka_topic::text as kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, {row_batch} as "
            "{batch}, (select b.pipeline from exactbatch.batch b where b.batch_id = t.batch_id) as {writer}"
        ).format(row_batch=tables.row_batch, batch=BATCH, writer=_WRITER),
        place=column_list(PLACE),
        batch=BATCH,
        writer=_WRITER,
        image=image,
        differ=differ,
        target=tables.target,
        markers=tables.markers,
        of_fold=column_list(order.key, of="f"),
        lacking=sql.Literal("unknown" if log.may_lack_deletes else "wrong"),
        is_complete=sql.Literal(log.is_complete),
        place_of_fold=column_list(PLACE, of="f"),
        place_of_row=column_list(PLACE, of="r"),
        marker_differs=_marker_differs(tables, ordered),
        version_of_row=order.same_version("f", "r"),
        has_version=sql.Literal(bool(order.version)),
        same_key=order.same_key("f", "r"),
        fold_is_later=sql.SQL(
            "(select {is_fold} from (select true as {is_fold}, {of_fold} union all select false, {of_row}) two "
            "order by {order} limit 1)"
        ).format(
            is_fold=_IS_FOLD,
            of_fold=column_list([*order.version, *PLACE], of="f"),
            of_row=column_list([*order.version, *PLACE], of="r"),
            order=latest_first,
        ),
    )
    wrong, unknown, foreign, unordered = snapshot.rows(query, pipeline)[0]
    notes = []
    if foreign:
        notes.append(
            f"{foreign} rows have no lineage, and the log holds every change since offset 0: exactbatch did not "
            f"write them"
        )
    return LatestComparison(wrong, unknown, unordered, notes)


def _marker_differs(tables: LatestTables, ordered: Sequence[str]) -> sql.Composable:
    """Return the condition that a marker r has another key or version than the fold f.

    Where the target has another type, equal values are enough: the fold's were cast to it.
    """
    same = [name for name in ordered if tables.types[name] == tables.marker_types.get(name)]
    others = [name for name in ordered if name not in same]
    conditions: list[sql.Composable] = [
        sql.SQL("f.{0} is distinct from r.{0}").format(sql.Identifier(name)) for name in others
    ]
    if same:
        conditions.append(
            sql.SQL("record_image_ne(row({}), row({}))").format(
                column_list(same, of="f"), column_list(same, of="r")
            )
        )
    return sql.SQL("({})").format(sql.SQL(" or ").join(conditions))
