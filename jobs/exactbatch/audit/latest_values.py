"""Fold the log into the latest change of each key, and compare the target that keeps nothing else.

The records are decoded again window by window, so that the fold holds one change of each key. Whether a row whose
record the log no longer holds is the latest change of its key cannot be known, unless the log holds a later one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from psycopg2 import sql

from exactbatch.audit.audit_result import SHOWN, Differences, PartitionAudit
from exactbatch.audit.covering import NOT_COVERED
from exactbatch.audit.latest_comparison import LatestComparison, LatestTables, ReadLog, compare_latest
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.unordered_changes import (
    PLACE,
    find_change_order,
    first_rows,
    tie_notes,
    went_back_notes,
)
from exactbatch.audit.values import BATCH, EXPECTED, EXPECTED_TABLE, NOT_REJECTED, ExpectedValues
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.capabilities import KeepsLatest
from exactbatch.sinks.values.null_safe_groups import column_list
from exactbatch.sinks.writer import SinkWriter

_FOLD: Final = sql.Identifier("pg_temp", "exactbatch_fold")
_CHANGES: Final = sql.Identifier("pg_temp", "exactbatch_changes")  # the changes of one window
# Keys whose changes in two partitions had the same version when the second one was folded, and where these are.
_TIES: Final = sql.Identifier("pg_temp", "exactbatch_ties")
_POSITIONS: Final = sql.Identifier("pg_temp", "exactbatch_positions")  # of all changes in one partition


class LatestValues(ExpectedValues):
    """The latest change of each key, as the records that were added give it, in a temporary table.

    Raises what ExpectedValues raises.
    """

    def __init__(
        self, snapshot: Snapshot, pipeline: Pipeline, writer: SinkWriter, kafka: Mapping[str, Any]
    ) -> None:
        super().__init__(snapshot, pipeline, writer, kafka)
        assert isinstance(writer, KeepsLatest)
        self._markers, self._target = writer.markers.identifier, writer.tables[-1].identifier
        order = self._order = find_change_order(writer.traits)
        # The version may begin with the epoch of the position, which no value has.
        self._names = [*dict.fromkeys([*(column.name for column in pipeline.value.columns), *order.version])]
        self._keys, self._dead = 0, 0  # rows in the fold, and those that it has deleted since it was copied
        self._partitions: list[TopicPartition] = []  # that are folded, in this order
        self._went_back, self._notes = 0, list[str]()
        # With the collations of the target, by which versions are compared.
        for table in (_FOLD, _CHANGES):
            snapshot.execute(
                sql.SQL(
                    "create table {table} as select {names}, null::boolean as deleted, "
                    "null::text as kafka_topic, null::integer as kafka_partition, null::bigint as kafka_offset, "
                    "null::timestamptz as kafka_timestamp, null::bigint as {batch} from {target} with no data"
                ).format(table=table, names=column_list(self._names), batch=BATCH, target=self._target)
            )
        snapshot.execute(sql.SQL("create index on {} ({})").format(_FOLD, column_list(order.key)))
        for table, place in ((_TIES, ["kafka_topic"]), (_POSITIONS, PLACE)):
            snapshot.execute(
                sql.SQL("create table {} as select {} from {} with no data").format(
                    table, column_list([*order.key, *order.version, *place]), _FOLD
                )
            )

    def differing(self) -> Differences:
        """Fold the records that were added, and forget them. Return those that should be rejects and are not."""
        if self._window is None:
            return Differences()
        place = self._window.topic, self._window.partition
        if place not in self._partitions[-1:]:
            self._judge_positions()
            self._partitions.append(place)
        self._snapshot.append_temporary(EXPECTED_TABLE, pa.Table.from_batches(self._decoded, self._schema))
        found = self._not_rejected(*place)
        self._fold()
        self._snapshot.execute(sql.SQL("truncate {}").format(EXPECTED))
        self._forget()
        return found

    def _not_rejected(self, topic: str, partition: int) -> Differences:
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
        return Differences(rows[0][1] if rows else 0, [row[0] for row in rows])

    def _fold(self) -> None:
        """Add the records of the window to the fold, and keep the latest change of each of their keys."""
        values = [self._as_stored(name) for name in self._names]
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
                place=column_list(PLACE),
            ),
            self._pipeline.name,
        )
        if self._order.positions:
            self._snapshot.execute(
                sql.SQL("insert into {} select {} from {}").format(
                    _POSITIONS, column_list([*self._order.key, *self._order.version, *PLACE]), _CHANGES
                )
            )
        [(removed, added)] = self._snapshot.rows(
            sql.SQL(
                "with earlier as (delete from {fold} where ({key}) in (select {key} from {changes}) returning *), "
                "{tied}added as (insert into {fold} select distinct on ({key}) * "
                "from (table {changes} union all table earlier) c order by {key}, {order} returning 1) "
                "select (select count(*) from earlier), (select count(*) from added)"
            ).format(
                fold=_FOLD,
                changes=_CHANGES,
                key=column_list(self._order.key),
                tied=self._tied(),
                order=self._latest_first(),
            )
        )
        self._snapshot.execute(sql.SQL("truncate {}").format(_CHANGES))
        self._dead += removed
        self._keys += added - removed
        # No vacuum reaches rows that this transaction has deleted. A copy costs less than the changes since the last.
        if self._dead > self._keys:
            self._copy_fold()

    def _tied(self) -> sql.Composable:
        """Return a CTE that notes which changes of the window have the version of the latest change so far, which is in
        another partition. The changes of a window are all in one."""
        if len(self._partitions) < 2:
            return sql.SQL("")
        return sql.SQL(
            "tied as (insert into {ties} select {of_change}, max({places}) from {changes} c join earlier e "
            "on {same_key}{same_version} where (c.kafka_topic, c.kafka_partition) "
            "<> (e.kafka_topic, e.kafka_partition){differ} group by {of_change}), "
        ).format(
            differ=sql.SQL(" and row({}, c.deleted)::text <> row({}, e.deleted)::text").format(
                column_list(self._names, of="c"), column_list(self._names, of="e")
            )
            if self._order.version
            else sql.SQL(""),
            ties=_TIES,
            of_change=column_list([*self._order.key, *self._order.version], of="c"),
            places=sql.SQL(" || ' and ' || ").join(
                sql.SQL(
                    "{0}.kafka_topic || '[' || {0}.kafka_partition || '] offset ' || {0}.kafka_offset"
                ).format(sql.Identifier(each))
                for each in ("e", "c")
            ),
            changes=_CHANGES,
            same_key=self._order.same_key("c", "e"),
            same_version=self._order.same_version("c", "e"),
        )

    def _judge_positions(self) -> None:
        """Look for changes of the last partition whose position goes back, and forget its positions."""
        if not self._order.positions or not self._partitions:
            return
        rows = self._snapshot.rows(first_rows(self._order.gone_back(_POSITIONS)))
        self._went_back += rows[0][0] if rows else 0
        self._notes = [*self._notes, *went_back_notes(row[1:] for row in rows)][:SHOWN]
        self._snapshot.execute(sql.SQL("truncate {}").format(_POSITIONS))

    def _copy_fold(self) -> None:
        """Free the space of the rows that later changes have replaced."""
        for source, emptied in ((_FOLD, _CHANGES), (_CHANGES, _FOLD)):
            self._snapshot.execute(sql.SQL("truncate {}").format(emptied))
            self._snapshot.execute(sql.SQL("insert into {} table {}").format(emptied, source))
        self._snapshot.execute(sql.SQL("truncate {}").format(_CHANGES))
        self._dead = 0

    def _latest_first(self) -> sql.Composable:
        return sql.Composed(
            [sql.SQL("{0} is null, {0} desc, ").format(sql.Identifier(name)) for name in self._order.version]
        ) + sql.SQL(", ").join(sql.SQL("{} desc").format(sql.Identifier(name)) for name in PLACE)

    def compare(
        self,
        audits: Sequence[PartitionAudit],
        earliest: Mapping[TopicPartition, int],
        horizons: Mapping[TopicPartition, int],
        compacted: frozenset[str],
    ) -> LatestComparison:
        """Compare target and markers with the fold.

        `earliest` is where the log starts, and `horizons` are the offsets below which markers may have been dropped.
        `compacted` are the topics that Kafka compacts.
        """
        self._judge_positions()
        tables = LatestTables(
            fold=_FOLD,
            ties=_TIES,
            target=self._target,
            markers=self._markers,
            types=self._types,
            marker_types=self._snapshot.list_types(self._markers),
            names=self._names,
            row_batch=self._row_batch,
        )
        log = ReadLog(audits, earliest, horizons, compacted)
        found = compare_latest(
            self._snapshot, tables, log, self._order, self._latest_first(), self._pipeline.name
        )
        ties = self._snapshot.rows(
            sql.SQL(
                "select {}, min(t.kafka_topic) from {} t join {} f on {}{} group by 1 order by 1 limit {}"
            ).format(
                self._order.shown_key("t"),
                _TIES,
                _FOLD,
                self._order.same_key("t", "f"),
                self._order.same_version("t", "f"),
                sql.Literal(SHOWN),
            )
        )
        found.unordered += self._went_back
        found.notes += [*tie_notes(ties), *self._notes]
        return found
