"""Read what the strips of a pipeline's partitions show, at a cost that depends on the width of the strips."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

from exactbatch.ledger.row_types import Kind, Origin
from exactbatch.ledger.statements import Store, columns, load_queries, read_rows

_QUERIES: Final = load_queries("strip_rows")
_STRIP: Final = ("topic_id", "partition", "first", "until")


@dataclass(frozen=True, slots=True)
class Strip:
    """Offsets [first, until) of one partition, drawn in steps of `step` offsets; the last one may be shorter."""

    topic: str
    topic_id: UUID
    partition: int
    first: int
    until: int
    step: int


@dataclass(frozen=True, slots=True)
class Walked:
    """Offsets [from_offset, until_offset) for which one row of coverage stands.

    `kind` is None where no row covers them. `passed` is True if the row ends within the step, and further rows of the
    same step were passed over.
    """

    topic_id: UUID
    partition: int
    from_offset: int
    until_offset: int
    kind: Literal["batch", "loss", "pruned"] | None
    batch_id: int | None
    newest_batch_id: int | None
    passed: bool
    batch_kind: Kind | None
    origin: Origin | None


@dataclass(frozen=True, slots=True)
class RejectCell:
    """The number of rejects in a cell of a strip; it is at most the limit up to which they were counted."""

    topic_id: UUID
    partition: int
    from_offset: int
    until_offset: int
    rejects: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that no row of coverage covers."""

    topic_id: UUID
    partition: int
    from_offset: int
    until_offset: int


@dataclass(frozen=True, slots=True)
class SearchedRows:
    """How many rows of coverage were searched for gaps, the offset up to which they account, and what was found."""

    rows: int
    reached: int
    gaps: tuple[Gap, ...]


class StripRows(Store):
    """Statements over strips of one pipeline; none of them locks or writes."""

    def walk(self, pipeline: str, strips: Sequence[Strip]) -> list[Walked]:
        """Return the rows that are met on a walk through each strip, by partition and offset."""
        rows = _QUERIES.walk(self._connection, pipeline=pipeline, **columns(strips, *_STRIP, "step"))
        return read_rows(Walked, rows)

    def exceptions(self, pipeline: str, strips: Sequence[Strip], *, limit: int) -> list[Any]:
        """Return losses and folded rows, the first `limit` of each strip: from_offset, until_offset, kind."""
        return list(
            _QUERIES.exceptions(self._connection, pipeline=pipeline, limit=limit, **columns(strips, *_STRIP))
        )

    def replays(self, pipeline: str, strips: Sequence[Strip], *, limit: int) -> list[Any]:
        """Return what stands of the newest `limit` replays: from_offset, until_offset, batch_id, origin."""
        return list(
            _QUERIES.replays(self._connection, pipeline=pipeline, limit=limit, **columns(strips, *_STRIP))
        )

    def in_flight(self, pipeline: str, strips: Sequence[Strip], *, limit: int) -> list[Any]:
        """Return the ranges of planned batches: from_offset, until_offset, batch_id, kind, origin."""
        return list(
            _QUERIES.in_flight(self._connection, pipeline=pipeline, limit=limit, **columns(strips, *_STRIP))
        )

    def reject_counts(self, pipeline: str, strips: Sequence[Strip], *, most: int) -> list[RejectCell]:
        """Return the cells, one step long each, that have rejects; the rejects of a cell are counted up to `most`."""
        cells = [strip.step for strip in strips]
        rows = _QUERIES.reject_counts(
            self._connection, pipeline=pipeline, cell=cells, most=most, **columns(strips, *_STRIP)
        )
        return read_rows(RejectCell, rows)

    def gaps(
        self, pipeline: str, topic_id: UUID, partition: int, first: int, until: int, *, rows: int, limit: int
    ) -> SearchedRows:
        """Look for gaps in offsets [first, until) of a partition, in the next `rows` rows of coverage; return the first
        `limit` of them."""
        found = list(
            _QUERIES.gaps(
                self._connection,
                pipeline=pipeline,
                topic_id=topic_id,
                partition=partition,
                first=first,
                until=until,
                rows=rows,
                limit=limit,
            )
        )
        return SearchedRows(
            rows=found[0].rows,
            reached=until if found[0].rows < rows else min(found[0].reached, until),
            gaps=tuple(
                Gap(topic_id, partition, row.from_offset, row.until_offset)
                for row in found
                if row.from_offset is not None
            ),
        )
