"""Tell changes that a connector has sent once more from positions that went back.

After it starts again, a connector may send a run of changes a second time, each as it was. The log has both. A change
whose position is smaller than that of an earlier change, and which no earlier record of its partition equals, shows
that the positions of the source went back.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from exactbatch.batch.rows.decode import RangeReader
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.staging_tables import StagingTables, decoded_schema
from exactbatch.columns import LINEAGE_NAMES, POSITION_EPOCH
from exactbatch.errors import PositionsWentBack
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.staged_rows import Place

logger = logging.getLogger(__name__)

# Offsets that are read at first before the first change in doubt, and then twice as many each time.
_READ_BACK: Final = 50_000
_PLACE: Final = frozenset({*LINEAGE_NAMES, POSITION_EPOCH})


def check_repeats(
    places: Mapping[Place, int],
    pipeline: Pipeline,
    traits: SinkTraits,
    batch: Batch,
    ranges: Sequence[OffsetRange],
    settings: Settings,
    cluster_id: str | None,
) -> None:
    """Raise PositionsWentBack unless each change at these places repeats a record of its partition, before an offset.

    Reads the log backwards from the first of these changes until all are found. Raises the errors of read_range().
    """
    by_partition: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for place in sorted(places):
        by_partition[place.topic, place.partition][place.offset] = places[place]
    earliest = {
        partition.topic_partition: partition.earliest
        for partition in KafkaBroker(settings.kafka).known_partitions(
            sorted({place.topic for place in places})
        )
    }
    for topic_partition, befores in by_partition.items():
        offsets = list(befores)
        logger.info(
            "%s[%s] offset %s: the positions of %s changes are smaller than those of earlier ones; reading the log "
            "to see whether they repeat earlier records",
            *topic_partition,
            offsets[0],
            f"{len(offsets):,}",
        )
        any_range = next(range_ for range_ in ranges if range_.topic_partition == topic_partition)
        search = _Search(pipeline, traits, any_range, settings, cluster_id)
        until, size = offsets[0], _READ_BACK
        search.look_for(befores)
        while search.missing and until > earliest[topic_partition]:
            begin = max(earliest[topic_partition], until - size)
            search.read_before(begin, until)
            until, size = begin, 2 * size
        if search.missing:
            _raise(
                min(search.missing.values()), search, pipeline, batch, any_range, earliest[topic_partition]
            )


@dataclass
class _Search:
    """Looks for records of one partition that have the rows of others.

    `missing` has the digests of rows that no earlier record is known to have, with the offsets of their records, and
    `befores` the offsets before which such a record must be.
    """

    pipeline: Pipeline
    traits: SinkTraits
    any_range: OffsetRange
    settings: Settings
    cluster_id: str | None
    missing: dict[bytes, int] = field(default_factory=dict)
    befores: dict[bytes, int] = field(default_factory=dict)
    positions: dict[int, tuple[object, ...]] = field(default_factory=dict)

    def look_for(self, befores: Mapping[int, int]) -> None:
        """Begin to look for the rows of the records at these offsets, which ascend, between the first and the last.

        What a record repeats must be before the offset that is given with it.
        """
        earliest: dict[bytes, int] = {}
        for offset, digest, position in self._rows(min(befores), max(befores) + 1):
            if offset in befores:
                self.missing.setdefault(digest, offset)
                self.befores[digest] = min(befores[offset], self.befores.get(digest, befores[offset]))
                self.positions[offset] = position
            earliest.setdefault(digest, offset)
        for digest, offset in earliest.items():
            self._forget_repeated(digest, offset)

    def read_before(self, begin: int, until: int) -> None:
        """Look for them among the records from one offset to another."""
        for offset, digest, _ in self._rows(begin, until):
            self._forget_repeated(digest, offset)

    def _forget_repeated(self, digest: bytes, offset: int) -> None:
        if offset < self.befores.get(digest, 0):
            self.missing.pop(digest, None)

    def first_behind(self, offset: int) -> int:
        """Return the first offset of the range at which positions have gone back, for a missing record at an offset:
        the first one after the newer change that has a smaller position."""
        newer = min(before for digest, before in self.befores.items() if self.missing.get(digest) == offset)
        of_newer = list(self._rows(newer, newer + 1))
        if not of_newer:  # retention has removed it
            return offset
        most = self._position(of_newer[0][2])
        begin = max(self.any_range.from_offset, newer + 1)
        behind = (at for at, _, shown in self._rows(begin, offset) if self._position(shown) < most)
        return next(behind, offset)

    def _position(self, shown: tuple[object, ...]) -> tuple[Any, ...]:
        """A position that orders as Postgres orders it: null is less than any value."""
        parts = shown[len(self.traits.key_columns) :]
        return tuple((part is not None, part if part is not None else 0) for part in parts)

    def _rows(self, begin: int, until: int) -> Iterator[tuple[int, bytes, tuple[object, ...]]]:
        """Yield the offset, the digest and the key and position of the rows of each record."""
        if begin >= until:
            return
        range_ = replace(self.any_range, from_offset=begin, until_offset=until)
        tasks = stage_tasks(
            self.pipeline, self.traits, [range_], {}, StagingTables(0, 0), self.settings, 1, self.cluster_id
        )
        schema = decoded_schema(self.traits.staged_columns(self.pipeline.value.columns))
        names = [name for name in schema.names if name not in _PLACE]
        shown = [names.index(name) for name in self.shown]
        compared = [at for at, name in enumerate(names) if name not in self._changeable]
        for task in tasks:
            reader = RangeReader(replace(task, max_rejects=len(task.range)), 0, schema, {})
            for rows in reader.batches():
                columns = [rows.column(name).to_pylist() for name in names]
                offsets = rows.column("kafka_offset").to_pylist()
                for offset, row in zip(offsets, zip(*columns, strict=True), strict=True):
                    digest = blake2b(repr([row[at] for at in compared]).encode(), digest_size=16).digest()
                    yield offset, digest, tuple(row[at] for at in shown)

    @property
    def _changeable(self) -> frozenset[str]:
        """The columns in which a change that is sent again can differ.

        The connector for Postgres has no commit before the first transaction that it streams. If it starts again
        before the second one, it writes the position of the last change that it had processed instead
        (PostgresOffsetContext.Loader). lsn, the position of the change itself, stays.
        """
        return frozenset({"commit_lsn"} if "lsn" in self.traits.position_columns else ())

    @property
    def shown(self) -> list[str]:
        """The columns of the key and the position."""
        versions = self.traits.position_columns
        return [*self.traits.key_columns, *versions]


def _raise(
    offset: int, search: _Search, pipeline: Pipeline, batch: Batch, range_: OffsetRange, earliest: int
) -> None:
    where = f"{range_.topic}[{range_.partition}]"
    change = ", ".join(
        f"{name} = {value}" for name, value in zip(search.shown, search.positions[offset], strict=True)
    )
    first = search.first_behind(offset)
    repeated = f", as far as the log goes back, to offset {earliest:,}" if earliest else ""
    raise PositionsWentBack(
        f"{where} offset {offset}: the position of the change ({change}) is smaller than that of an earlier change of "
        f"its key, and no earlier record is equal to it{repeated}. The positions of the source went back: after a "
        f"restore, a failover to another server, or a second snapshot. Nothing was written. If the changes from "
        f"offset {first} on are the newer ones, run `exactbatch new-epoch {pipeline.name} --from "
        f"{range_.topic}:{range_.partition}:{first}`.",
        batch_id=batch.batch_id,
        topic=range_.topic,
        partition=range_.partition,
        from_offset=offset,
        until_offset=offset + 1,
    )
