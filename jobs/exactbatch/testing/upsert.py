"""The target of an Upsert after one batch: the latest change of each key."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from exactbatch.columns import UNCHANGED_COLUMNS, Column
from exactbatch.errors import KeyOnTwoPartitions, TargetMismatch
from exactbatch.sinks import Upsert
from exactbatch.sinks.upsert.unchanged_values import why_unknown
from exactbatch.testing.compared import equal_as, needs_postgres, ordered_as, sorted_by
from exactbatch.testing.loaded import Row
from exactbatch.testing.staged import Place

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class Change:
    """One change of a key, or a truncate, whose key is null."""

    row: Row
    place: Place
    key: Key
    version: tuple[Any, ...]

    @property
    def is_delete(self) -> bool:
        """True if it deletes its key, or all keys."""
        return bool(self.row["deleted"])

    @property
    def is_truncate(self) -> bool:
        """True if it deletes all keys whose changes are not newer."""
        return all(part is None for part in self.key)

    @property
    def left_out(self) -> list[str]:
        """The columns whose values the source left out."""
        names: Any = self.row.get(UNCHANGED_COLUMNS)
        return list(names or ())


@dataclass(frozen=True)
class UpsertTarget:
    """The rows of an Upsert's target, from changes alone."""

    sink: Upsert
    columns: Sequence[Column]

    def refused(self, rows: Sequence[Row], places: Sequence[Place]) -> list[tuple[Place, str]]:
        """Return the records of changes that lack a version, or a value that no older change of their key has, with the
        reason."""
        if not self.sink.keeps_unchanged:
            return []
        refused: dict[Place, str] = {}
        for row, place in zip(rows, places, strict=True):
            for name in self.sink.version_columns:
                if name in (row[UNCHANGED_COLUMNS] or ()):  # type: ignore[operator]  # a list of names
                    refused[place] = (
                        f"column {name!r}: the source left out the version, which orders the changes"
                    )
                    break
        changes = self._changes(rows, places)
        while True:
            # A change that becomes a reject does not supply its values to others.
            unknown = self._unknown([change for change in changes if change.place not in refused])
            if not unknown:
                return list(refused.items())
            refused |= unknown

    def rows(self, rows: Sequence[Row], places: Sequence[Place]) -> list[Row]:
        """Return the rows of the target, by key. Raises KeyOnTwoPartitions and TargetMismatch where the order of a
        key's changes is unknown."""
        truncates, by_key = self._by_key(self._changes(rows, places))
        self._check_order(by_key)
        truncated_at = max((truncate.version for truncate in truncates), default=None)
        found = []
        for changes in by_key.values():
            latest = changes[-1]
            if latest.is_delete or (truncated_at is not None and latest.version <= truncated_at):
                continue
            row = {column.name: latest.row[column.name] for column in self.columns}
            for name in latest.left_out:
                older = (c for c in reversed(changes[:-1]) if not c.is_delete and name not in c.left_out)
                row[name] = next(older).row[name]
            found.append(row)
        return sorted_by(self.sink.key, found)

    def _changes(self, rows: Sequence[Row], places: Sequence[Place]) -> list[Change]:
        columns = {column.name: column for column in self.columns}
        key = [columns[name] for name in self.sink.key]
        version = [columns[name] for name in self.sink.version_columns]
        return [
            Change(
                row,
                place,
                tuple(equal_as(column, row[column.name]) for column in key),
                tuple(ordered_as(column, row[column.name]) for column in version),
            )
            for row, place in zip(rows, places, strict=True)
        ]

    @staticmethod
    def _by_key(changes: Iterable[Change]) -> tuple[list[Change], dict[Key, list[Change]]]:
        """Return the truncates, and the other changes of each key, the oldest first."""
        truncates, by_key = [], defaultdict(list)
        for change in changes:
            if change.is_truncate:
                truncates.append(change)
            else:
                by_key[change.key].append(change)
        for of_key in by_key.values():
            of_key.sort(key=lambda change: (change.version, change.place))
        return truncates, by_key

    def _unknown(self, changes: Sequence[Change]) -> dict[Place, str]:
        truncates, by_key = self._by_key(changes)
        unknown: dict[Place, str] = {}
        for of_key in by_key.values():
            known: set[str] = set()
            life = -1
            for change in of_key:
                # What came before a delete or a truncate was another row.
                truncates_before = sum(truncate.version < change.version for truncate in truncates)
                if truncates_before != life:
                    known, life = set(), truncates_before
                if change.is_delete:
                    known = set()
                    continue
                lacking = [name for name in sorted(change.left_out) if name not in known]
                if lacking:
                    unknown[change.place] = why_unknown(lacking[0])
                known |= {column.name for column in self.columns} - {*change.left_out}
        return unknown

    def _check_order(self, by_key: dict[Key, list[Change]]) -> None:
        for changes in by_key.values():
            shown = f"target {self.sink.target}, ({', '.join(self.sink.key)}) = {self._shown(changes[0])}"
            partitions = sorted(
                {f"{topic}[{partition}]" for topic, partition, _ in (c.place for c in changes)}
            )
            if not self.sink.version_columns and len(partitions) > 1:
                raise KeyOnTwoPartitions(
                    f"{shown}: its changes are in {' and '.join(partitions)}, so that offsets do not give their order. "
                    f"Name the column that orders them, Upsert(…, version=…), or give them one partition."
                )
            latest = {change.place[:2]: change for change in changes}
            tied = [change for change in latest.values() if change.version == changes[-1].version]
            if len({repr(change.row) for change in tied}) > 1:
                raise KeyOnTwoPartitions(
                    f"{shown}: its latest changes are in "
                    f"{' and '.join(sorted(f'{topic}[{at}]' for topic, at, _ in (c.place for c in tied)))}, and have "
                    f"the same version, ({', '.join(self.sink.version_columns)}), or none. Use a version that differs "
                    f"between all changes of a key."
                )
            for change, following in pairwise(changes):
                if change.version != following.version:
                    continue
                if change.place == following.place:
                    topic, partition, offset = change.place
                    raise TargetMismatch(
                        f"{shown}: {topic}[{partition}] offset {offset} gives several changes of the key, and nothing "
                        f"says which of them is the latest.",
                        topic=topic,
                        partition=partition,
                        from_offset=offset,
                        until_offset=offset + 1,
                    )
                # The collation of the database orders names of topics.
                if change.place[0] != following.place[0] and (change.left_out or following.left_out):
                    raise needs_postgres(f"{shown}: changes of different topics have the same version")

    def _shown(self, change: Change) -> str:
        return f"({', '.join(repr(change.row[name]) for name in self.sink.key)})"
