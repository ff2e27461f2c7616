"""Write the latest change of each key: what both kinds of an Upsert have in common.

The two differ in what is known of a key before a batch, and where its changes are recorded: in a table of changes, or
in the target alone. That is the store of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.sink import EPOCH, UNAVAILABLE, SinkTraits
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.counted_writes import forbid_changes
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_operators
from exactbatch.sinks.upsert.change_order import (
    ChangeOrder,
    Latest,
    check_one_per_record,
    find_latest_staged,
)
from exactbatch.sinks.upsert.latest_rows import LatestRows
from exactbatch.sinks.upsert.spec import Upsert
from exactbatch.sinks.values.cast import Cast


class UpsertStore(Protocol):
    """What is known of the keys that one batch changes, and where its changes are recorded."""

    @property
    def casts(self) -> Sequence[Cast]:
        """How staged changes become changes of the lineage table."""
        ...

    def keep_latest(self, cursor: Cursor) -> Latest:
        """Return the latest change of each affected key, of the latest staged ones and of what is known.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, and ChangesBehind if positions may have
        gone back.
        """
        ...

    def record(self, cursor: Cursor, latest: Latest) -> int:
        """Record the staged changes; return how many arrived. Raises TargetMismatch if a table refuses one."""
        ...

    def find_rows(self, cursor: Cursor, latest: Latest) -> LatestRows:
        """Return the rows that the target must have, once the staged changes are recorded."""
        ...

    def check(self, cursor: Cursor, rows: LatestRows, written: int) -> None:
        """Raise TargetMismatch if these rows are not in the target, as which `written` were inserted or updated."""
        ...


@dataclass(frozen=True)
class UpsertWriter(ABC):
    """What the writers of an Upsert have in common."""

    sink: Upsert
    traits: SinkTraits

    @property
    def parts(self) -> tuple[Self, ...]:
        """The writer itself."""
        return (self,)

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target)

    @cached_property
    def _companion(self) -> LineageTable:
        """The table next to the target."""
        (suffix,) = self.sink.kind.companions
        return LineageTable(self._target.sibling(suffix))

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table next to the target and the target, in the order in which they are locked."""
        return (self._companion.table, self._target)

    @property
    @abstractmethod
    def lineage_table(self) -> LineageTable:
        """The table whose rows name their changes."""

    @property
    def _order(self) -> ChangeOrder:
        traits = self.traits
        return ChangeOrder(traits.key_columns, traits.ordering_columns, bool(traits.position_columns))

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create both tables if they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, the missing unique constraint, or a version whose
        values the tables do not order.
        """
        # The target first, as in publish: two pipelines may share it.
        self._target.lock(cursor)
        self._prepare_tables(cursor, columns, evolve)
        check_operators(cursor, self._target, self.traits.key_columns)

    @abstractmethod
    def _prepare_tables(self, cursor: Cursor, columns: Sequence[Column], evolve: Evolve) -> None: ...

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Raise TargetMismatch if the changes have columns that only other pipelines with this target write, or if a
        truncate would delete rows of other pipelines.

        A replay would write the changes of its records without these columns.
        """
        if pipelines and self.traits.applies_truncates:
            raise TargetMismatch(
                f"target {self.sink.target}: a truncate deletes all of its rows, and the pipeline shares it with "
                f"{', '.join(pipelines)}. Nothing was written. Give the pipelines different targets, or leave out "
                f"truncate='apply'."
            )
        own_columns = {
            column.name
            for column in (
                *self.traits.staged_columns(columns),
                *self.lineage_table.lineage_columns,
                UNAVAILABLE,
                EPOCH,
            )
        }
        if pipelines and (extra := sorted(self.lineage_table.table.columns(cursor).keys() - own_columns)):
            raise TargetMismatch(
                f"table {self.lineage_table.table.spec}: this pipeline does not write the columns "
                f"{', '.join(extra)}. It shares the target {self.traits.target} with {', '.join(pipelines)}: rows "
                f"would lose the values of these columns. Nothing was written. Let all of these pipelines write the "
                f"same columns, or give them different targets."
            )

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them."""
        casts = self.lineage_table.casts(cursor, (*columns, *self.traits.epoch))
        check_one_per_record(cursor, staged, self._order, self.sink.target, self.lineage_table, casts)

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Record staged changes, and bring the target up to date; return how many changes arrived.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, ChangesBehind if positions may have gone
        back, and TargetMismatch if a table refuses, alters or drops a row.
        """
        # Looking up rows takes less time than Postgres expects, and compiling such a statement takes more.
        cursor.execute("set local jit to off")
        store = self._open_store(cursor, staged, columns)
        find_latest_staged(cursor, staged, self._order, store.casts, self.lineage_table)
        latest = store.keep_latest(cursor)
        arrived = store.record(cursor, latest)
        with forbid_changes(cursor, self._companion.table, while_writing=self._target):
            rows = store.find_rows(cursor, latest)
            written = rows.write(cursor)
            store.check(cursor, rows, written)
        return arrived

    @abstractmethod
    def _open_store(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> UpsertStore:
        """Return what is known of the keys that a batch changes, before its staged changes are recorded."""
