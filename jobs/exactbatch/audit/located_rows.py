"""Read the offsets and batches of rows and rejects, and the ledger's coverage, as arrays."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg2 import sql

from exactbatch.audit.audit_result import Offsets
from exactbatch.audit.covering import FOLDED, NOT_COVERED, Covering, has_folded, is_folded
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.units import Slice, Unit
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.tables.lineage_table import LineageTable

_PAST_ALL: Final = int(np.iinfo(np.int64).max)

# Partition, offset and batch of some rows; -1 without a batch.
Located = tuple[npt.NDArray[np.int32], Offsets, Offsets]


class LocatedRows:
    """Reads rows and rejects of one topic in one snapshot.

    Leaves out the rows that another pipeline with this target may have written, `sharing`, and the rows of an earlier
    log of the topic.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pipeline: Pipeline,
        lineage_table: LineageTable,
        unit: Unit,
        sharing: Sequence[str],
        *,
        is_shared: bool,
    ) -> None:
        self._snapshot, self._pipeline, self._unit = snapshot, pipeline, unit
        self._lineage_table = lineage_table
        self._others = self._other_ranges(sharing) if is_shared else {}
        self._other_batches = np.unique([batch for _, batch in self._others])
        # Rows of folded batches of other pipelines, whose ranges are not known: none of them is ours.
        self._folded_sharing = sharing if sharing and has_folded(snapshot, sharing) else ()
        self._folded = self._folded_batches() if has_folded(snapshot, [pipeline.name]) else None

    def rows(self, slices: Sequence[Slice]) -> Iterator[Located]:
        """Yield the rows of some slices; none if rows do not carry offsets."""
        if self._lineage_table.lineage == "batch":
            return
        for located in map(_located, self._snapshot.batches(self._rows_query(slices))):
            is_ours = self._is_ours(located)
            yield located if is_ours.all() else tuple(column[is_ours] for column in located)  # type: ignore[misc]

    def rejects(self, slices: Sequence[Slice]) -> Iterator[Located]:
        """Yield the records that this pipeline rejected in this log of the topic."""
        return map(_located, self._snapshot.batches(self._rejects_query(slices)))

    def is_folded(self, batches: Offsets) -> npt.NDArray[np.bool_]:
        """Return which of the batches belong to the pipeline and are folded."""
        if self._folded is None:
            return np.zeros(len(batches), bool)
        return np.isin(batches, self._folded)

    def first_from(self, partition: int, start: int, end: int) -> int:
        """Return the offset of the first row or reject of a partition in [start, end); `end` if there is none."""
        part = [Slice(partition, start, end, is_first=False, is_last=False)]
        queries = [self._rejects_query(part, "min")]
        if self._lineage_table.lineage == "record":
            queries.append(self._rows_query(part, "min"))
        found: list[int | None] = [self._snapshot.rows(query)[0][0] for query in queries]
        return min([end, *(offset for offset in found if offset is not None)])

    def covering(self, slice_: Slice) -> Covering:
        """Return the coverage of a slice, according to the ledger."""
        query = sql.SQL(
            "select lower(offsets), upper(offsets), "
            "case kind when 'pruned' then {folded} else coalesce(batch_id, {not_covered}) end::bigint, kind = 'loss' "
            "from exactbatch.coverage where pipeline = {pipeline} and topic_id = {topic_id}::uuid "
            "and partition = {partition} and offsets && int8range({start}, {end}) "
            # What the index is of.
            "and exactbatch.log_key(pipeline, topic_id, partition) = "
            "exactbatch.log_key({pipeline}, {topic_id}::uuid, {partition}) order by lower(offsets)"
        ).format(
            folded=sql.Literal(FOLDED),
            not_covered=sql.Literal(NOT_COVERED),
            pipeline=sql.Literal(self._pipeline.name),
            topic_id=sql.Literal(str(self._unit.topic_id)),
            partition=sql.Literal(slice_.partition),
            start=sql.Literal(slice_.start),
            end=sql.Literal(slice_.end),
        )
        starts, ends, batches, is_loss = self._snapshot.table(query).columns
        return Covering(
            starts.to_numpy(), ends.to_numpy(), batches.to_numpy(), is_loss.to_numpy().astype(bool)
        )

    def _rows_query(
        self, slices: Sequence[Slice], select: Literal["located", "min"] = "located"
    ) -> sql.Composable:
        partition, offset = sql.Identifier("t", "kafka_partition"), sql.Identifier("t", "kafka_offset")
        batch = sql.Identifier("t", "batch_id")
        return sql.SQL("select {} from {} t where t.kafka_topic = {} and {}{}").format(
            _selected(select, partition, offset),
            self._lineage_table.in_snapshot,
            sql.Literal(self._unit.topic),
            _is_in(slices, partition, offset),
            sql.SQL(" and not {}").format(is_folded(batch, self._folded_sharing))
            if self._folded_sharing
            else sql.SQL(""),
        )

    def _rejects_query(
        self, slices: Sequence[Slice], select: Literal["located", "min"] = "located"
    ) -> sql.Composable:
        partition, offset = sql.Identifier("t", "partition"), sql.Identifier("t", "offset")
        return sql.SQL(
            "select {} from exactbatch.rejected_record t where t.pipeline = {} and t.topic_id = {}::uuid and {}"
        ).format(
            _selected(select, partition, offset),
            sql.Literal(self._pipeline.name),
            sql.Literal(str(self._unit.topic_id)),
            _is_in(slices, partition, offset),
        )

    def _folded_batches(self) -> Offsets:
        query = sql.SQL(
            "select batch_id from exactbatch.batch where pipeline = {} and pruned is not null order by 1"
        ).format(sql.Literal(self._pipeline.name))
        batches: Offsets = self._snapshot.table(query).column(0).to_numpy()
        return batches

    def _other_ranges(self, sharing: Sequence[str]) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return the ranges of batches whose rows are not compared, by partition and batch."""
        query = sql.SQL(
            "select r.partition, r.batch_id, r.from_offset, r.until_offset "
            "from exactbatch.batch_range r join exactbatch.batch b using (batch_id) "
            "where r.topic = {} and r.partition = any({}) "
            "and (b.pipeline = any({}::text[]) or b.pipeline = {} and r.topic_id <> {}::uuid)"
        ).format(
            sql.Literal(self._unit.topic),
            sql.Literal([slice_.partition for slice_ in self._unit.slices]),
            sql.Literal(list(sharing)),
            sql.Literal(self._pipeline.name),
            sql.Literal(str(self._unit.topic_id)),
        )
        ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for partition, batch, start, end in self._snapshot.rows(query):
            ranges.setdefault((partition, batch), []).append((start, end))
        return ranges

    def _is_ours(self, located: Located) -> npt.NDArray[np.bool_]:
        partitions, offsets, batches = located
        is_ours = np.ones(len(offsets), bool)
        if not len(self._other_batches):
            return is_ours
        suspects = np.flatnonzero(np.isin(batches, self._other_batches))
        for batch in np.unique(batches[suspects]).tolist():
            of_batch = suspects[batches[suspects] == batch]
            for partition in np.unique(partitions[of_batch]).tolist():
                at = of_batch[partitions[of_batch] == partition]
                for start, end in self._others.get((partition, batch), ()):
                    is_ours[at[(offsets[at] >= start) & (offsets[at] < end)]] = False
        return is_ours


def has_other_logs(snapshot: Snapshot, pipeline: Pipeline) -> bool:
    """True if the pipeline has batches of several logs of a topic."""
    query = sql.SQL(
        "select exists (select from exactbatch.batch_range r join exactbatch.batch b using (batch_id) "
        "where b.pipeline = $1 group by r.topic having min(r.topic_id::text) <> max(r.topic_id::text))"
    )
    return bool(snapshot.rows(query, pipeline.name)[0][0])


def _located(batch: pa.RecordBatch) -> Located:
    partitions, offsets, batches = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
    return partitions, offsets, batches


def _selected(
    select: Literal["located", "min"], partition: sql.Composable, offset: sql.Composable
) -> sql.Composable:
    if select == "min":
        return sql.SQL("min({})").format(offset)
    return sql.SQL("{}::integer, {}::bigint, coalesce(t.batch_id, -1)::bigint").format(partition, offset)


def _is_in(slices: Sequence[Slice], partition: sql.Composable, offset: sql.Composable) -> sql.Composable:
    """Return a condition for all rows that some slices look at, and perhaps others of their partitions."""
    start = 0 if any(slice_.is_first for slice_ in slices) else min(slice_.start for slice_ in slices)
    end = _PAST_ALL if any(slice_.is_last for slice_ in slices) else max(slice_.end for slice_ in slices)
    return sql.SQL("{} = any({}) and {} >= {} and {} < {}").format(
        partition,
        sql.Literal([slice_.partition for slice_ in slices]),
        offset,
        sql.Literal(start),
        offset,
        sql.Literal(end),
    )
