"""Fold the log into the latest change of each key, and compare the target that keeps nothing else.

The records are decoded again window by window, so that the fold holds one change of each key. Whether a row whose
record the log no longer holds is the latest change of its key cannot be known, unless the log holds a later one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from psycopg2 import sql

from exactbatch.audit.covering import NOT_COVERED
from exactbatch.audit.report import Finding, PartitionAudit
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.values import BATCH, EXPECTED, EXPECTED_TABLE, NOT_REJECTED, ExpectedValues
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.values.null_safe_groups import column_list

_FOLD: Final = sql.Identifier("pg_temp", "exactbatch_fold")
_CHANGES: Final = sql.Identifier("pg_temp", "exactbatch_changes")  # those of one window
_IS_FOLD: Final = sql.Identifier("exactbatch is fold")
_WRITER: Final = sql.Identifier("exactbatch writer")
_PLACE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")


class LatestValues(ExpectedValues):
    """The latest change of each key, as the records that were added give it, in a temporary table.

    Raises what ExpectedValues raises.
    """

    def __init__(self, snapshot: Snapshot, pipeline: Pipeline, kafka: Mapping[str, Any]) -> None:
        super().__init__(snapshot, pipeline, kafka)
        kept = pipeline.sink.kept_latest
        assert kept is not None
        self._kept = kept
        self._names = [column.name for column in pipeline.value.columns]
        self._keys, self._dead = 0, 0  # rows in the fold, and those that it has deleted since it was copied
        # With the collations of the target, by which versions are compared.
        for table in (_FOLD, _CHANGES):
            snapshot.execute(
                sql.SQL(
                    "create table {table} as select {names}, null::boolean as deleted, "
                    "null::text as kafka_topic, null::integer as kafka_partition, null::bigint as kafka_offset, "
                    "null::timestamptz as kafka_timestamp, null::bigint as {batch} from {target} with no data"
                ).format(table=table, names=column_list(self._names), batch=BATCH, target=pipeline.sink.table)
            )
        snapshot.execute(sql.SQL("create index on {} ({})").format(_FOLD, column_list(kept.key)))

    def differing(self) -> Finding:
        """Fold the records that were added, and forget them. Return those that should be rejects and are not."""
        if self._window is None:
            return Finding()
        self._snapshot.append_temporary(EXPECTED_TABLE, pa.Table.from_batches(self._decoded, self._schema))
        found = self._not_rejected(self._window.topic, self._window.partition)
        self._fold()
        self._snapshot.execute(sql.SQL("truncate {}").format(EXPECTED))
        self._forget()
        return found

    def _not_rejected(self, topic: str, partition: int) -> Finding:
        """Return the records that cannot be rows, and are not rejects either."""
        query = sql.SQL(
            "select q.o, count(*) over () from ("
            # A check that raises for a record makes it a reject: it must not be evaluated for one.
            "select e.kafka_offset from (select e.* from {expected} e where e.{batch} <> {not_covered} "
            "and {not_rejected} offset 0) e where {unstorable} union all "
            "select e.kafka_offset from (select {topic}::text as kafka_topic, {partition} as kafka_partition, o as "
            "kafka_offset from unnest({refused}::bigint[], {batches}::bigint[]) u (o, b) where b <> {not_covered}) e "
            "where {not_rejected}) q (o) order by 1 limit 10"
        ).format(
            expected=EXPECTED,
            batch=BATCH,
            not_covered=sql.Literal(NOT_COVERED),
            unstorable=self._is_unstorable,
            not_rejected=NOT_REJECTED,
            topic=sql.Literal(topic),
            partition=sql.Literal(partition),
            refused=sql.Literal([offset for offset, _ in self._refused]),
            batches=sql.Literal([batch for _, batch in self._refused]),
        )
        rows = self._fetch(query)
        return Finding(rows[0][1] if rows else 0, [row[0] for row in rows])

    def _fold(self) -> None:
        """Add the records of the window to the fold, and keep the latest change of each of their keys."""
        values = [
            sql.SQL("{0}::{1} as {0}").format(sql.Identifier(name), sql.SQL(self._types[name]))
            for name in self._names
        ]
        self._snapshot.rows(
            sql.SQL(
                # Each is materialized: a check may raise for a rejected record, and a cast of an unstorable value fail.
                "with accepted as materialized (select * from {expected} e where e.{batch} <> {not_covered} "
                "and {not_rejected}), e as materialized (select * from accepted e where not ({unstorable})), "
                "added as (insert into {changes} select {values}, deleted, {place}, kafka_timestamp, {batch} from e "
                "returning 1) select count(*) from added"
            ).format(
                expected=EXPECTED,
                batch=BATCH,
                not_covered=sql.Literal(NOT_COVERED),
                unstorable=self._is_unstorable,
                not_rejected=NOT_REJECTED,
                changes=_CHANGES,
                values=sql.SQL(", ").join(values),
                place=column_list(_PLACE),
            ),
            self._pipeline.name,
        )
        [(removed, added)] = self._snapshot.rows(
            sql.SQL(
                "with earlier as (delete from {fold} where ({key}) in (select {key} from {changes}) returning *), "
                "added as (insert into {fold} select distinct on ({key}) * "
                "from (table {changes} union all table earlier) c order by {key}, {order} returning 1) "
                "select (select count(*) from earlier), (select count(*) from added)"
            ).format(
                fold=_FOLD, changes=_CHANGES, key=column_list(self._kept.key), order=self._latest_first()
            )
        )
        self._snapshot.execute(sql.SQL("truncate {}").format(_CHANGES))
        self._dead += removed
        self._keys += added - removed
        # No vacuum reaches rows that this transaction has deleted. A copy costs less than the changes since the last.
        if self._dead > self._keys:
            self._copy_fold()

    def _copy_fold(self) -> None:
        """Free the space of the rows that later changes have replaced."""
        for source, emptied in ((_FOLD, _CHANGES), (_CHANGES, _FOLD)):
            self._snapshot.execute(sql.SQL("truncate {}").format(emptied))
            self._snapshot.execute(sql.SQL("insert into {} table {}").format(emptied, source))
        self._snapshot.execute(sql.SQL("truncate {}").format(_CHANGES))
        self._dead = 0

    def _latest_first(self) -> sql.Composable:
        return sql.Composed(
            [sql.SQL("{0} is null, {0} desc, ").format(sql.Identifier(name)) for name in self._kept.version]
        ) + sql.SQL(", ").join(sql.SQL("{} desc").format(sql.Identifier(name)) for name in _PLACE)

    def compare(
        self,
        audits: Sequence[PartitionAudit],
        earliest: Mapping[TopicPartition, int],
        horizons: Mapping[TopicPartition, int],
        compacted: frozenset[str],
    ) -> tuple[int, int]:
        """Return how many keys have a wrong row or marker or lack one, and of how many the log cannot tell.

        `earliest` is where the log starts, and `horizons` are the offsets below which markers may have been dropped.
        `compacted` are the topics that Kafka compacts.
        """
        read = [
            (
                each.topic,
                each.partition,
                each.until_offset
                if each.topic in compacted
                else min(each.until_offset, max(each.from_offset, earliest[each.topic, each.partition])),
                each.until_offset,
                horizons.get((each.topic, each.partition), 0),
            )
            for each in audits
        ]
        # A delete that the log no longer holds may have left a marker that was dropped.
        may_be_deleted = any(
            horizons.get((each.topic, each.partition), 0) > each.from_offset
            and (each.topic in compacted or earliest[each.topic, each.partition] > each.from_offset)
            for each in audits
        )
        query = sql.SQL(
            "with log (topic, partition, first, until, horizon) as (select * from unnest({topics}::text[], "
            "{partitions}::int[], {firsts}::bigint[], {untils}::bigint[], {horizons}::bigint[])), "
            "found as (select {names}, false as deleted, {lineage} from {target} t union all "
            "select {names_of_markers}, true, {lineage} from {markers} t) "
            "select count(*) filter (where outcome = 'wrong'), count(*) filter (where outcome = 'unknown') from ("
            "select case "
            "when r.deleted is null and f.deleted then case when exists (select from log where topic = f.kafka_topic "
            "and partition = f.kafka_partition and f.kafka_offset < horizon) then 'right' else 'wrong' end "
            "when r.deleted is null then {lacking} "
            "when row({place_of_fold}) = row({place_of_row}) then case when f.deleted is distinct from r.deleted "
            "or f.kafka_timestamp is distinct from r.kafka_timestamp "
            # Another pipeline over the topic has written the same record later.
            "or (f.{batch} is distinct from r.{batch} and coalesce(r.{writer}, $1) = $1) "
            "or case when r.deleted then record_image_ne(row({ordered_of_fold}), row({ordered_of_row})) "
            "else record_image_ne(row({fold_values}), row({row_values})) end then 'wrong' else 'right' end "
            "when r.{writer} = $1 and exists (select from log where topic = r.kafka_topic "
            "and partition = r.kafka_partition and r.kafka_offset >= first and r.kafka_offset < until) then 'wrong' "
            "when f.deleted is null then 'unknown' "
            "when {fold_is_later} then 'wrong' else 'unknown' end as outcome "
            "from {fold} f full join found r on {same_key}) compared"
        ).format(
            topics=sql.Literal([each[0] for each in read]),
            partitions=sql.Literal([each[1] for each in read]),
            firsts=sql.Literal([each[2] for each in read]),
            untils=sql.Literal([each[3] for each in read]),
            horizons=sql.Literal([each[4] for each in read]),
            names=column_list(self._names),
            names_of_markers=sql.SQL(", ").join(
                sql.Identifier(name)
                if name in (*self._kept.key, *self._kept.version)
                else sql.SQL("null::{}").format(sql.SQL(self._types[name]))
                for name in self._names
            ),
            lineage=sql.SQL(
                "kafka_topic::text as kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, {row_batch} as "
                "{batch}, (select b.pipeline from exactbatch.batch b where b.batch_id = t.batch_id) as {writer}"
            ).format(row_batch=self._row_batch, batch=BATCH, writer=_WRITER),
            writer=_WRITER,
            target=self._pipeline.sink.table,
            markers=self._kept.markers,
            lacking=sql.Literal("unknown" if may_be_deleted else "wrong"),
            batch=BATCH,
            place_of_fold=column_list(_PLACE, of="f"),
            place_of_row=column_list(_PLACE, of="r"),
            ordered_of_fold=column_list([*self._kept.key, *self._kept.version], of="f"),
            ordered_of_row=column_list([*self._kept.key, *self._kept.version], of="r"),
            fold_values=column_list(self._names, of="f"),
            row_values=column_list(self._names, of="r"),
            fold=_FOLD,
            same_key=sql.SQL(" and ").join(
                sql.SQL("f.{0} = r.{0}").format(sql.Identifier(n)) for n in self._kept.key
            ),
            fold_is_later=sql.SQL(
                "(select {is_fold} from (select true as {is_fold}, {of_fold} union all select false, {of_row}) two "
                "order by {order} limit 1)"
            ).format(
                is_fold=_IS_FOLD,
                of_fold=column_list([*self._kept.version, *_PLACE], of="f"),
                of_row=column_list([*self._kept.version, *_PLACE], of="r"),
                order=self._latest_first(),
            ),
        )
        wrong, unknown = self._snapshot.rows(query, self._pipeline.name)[0]
        return int(wrong), int(unknown)
