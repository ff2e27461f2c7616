"""Append: every row of a batch is inserted with its lineage."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from exactbatch.columns import Column
from exactbatch.options import check_types
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.base import SinkIdentity
from exactbatch.sinks.sink_defaults import SinkDefaults
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_copyable
from exactbatch.sinks.tables.target_definition import Evolve
from exactbatch.sinks.values.cast import RejectRule, reject_rules


@dataclass(frozen=True)
class Append(SinkDefaults):
    """Insert rows into `target`, written `schema.table`; a part that is not lower-case goes in double quotes.

    With lineage="record" each row carries its origin: kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, batch_id. With lineage="batch", for rows that come from many records, it carries
    batch_id alone, and a replay processes whole batches again.

    A replay deletes rows and inserts them again. `cascade` names the tables that a foreign key with on delete
    cascade, set null or set default may then change, as in ("public.note",); otherwise such a replay is refused.
    """

    kind: ClassVar[str] = "append"

    target: str
    lineage: Literal["record", "batch"] = "record"
    cascade: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        _ = self._target
        _ = [TargetTable(table) for table in self.cascade]

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        return SinkIdentity(self.target, self.kind, key=(), version="", lineage=self.lineage)

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The target."""
        return LineageTable(self._target, self.lineage)

    @property
    def needs_lineage(self) -> bool:
        """True if each staged row must name the record that it comes from."""
        return self.lineage == "record"

    @property
    def inserts_in_parts(self) -> bool:
        """True: no row depends on another."""
        return True

    @property
    def not_copyable(self) -> str | None:
        """Why executors cannot copy ranges into the target independently; None if rows name their records."""
        return (
            None
            if self.lineage == "record"
            else f"rows that come from many records (lineage={self.lineage!r})"
        )

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if a column of the pipeline has a name that staging or lineage uses."""
        self.lineage_table.check(columns)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create the target if it is missing, and otherwise check its columns.

        Raises TargetMismatch, which names the column and both types.
        """
        self.lineage_table.prepare(cursor, columns, evolve=evolve)

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if a replay would change tables that `cascade` does not name."""
        self.lineage_table.check_replay(cursor, self.cascade)

    def check_copyable(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch unless several transactions can copy ranges into the target at once."""
        check_copyable(cursor, self._target, (*columns, *self.lineage_table.lineage_columns))

    def reject_rules(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        batch_id: int,  # noqa: ARG002
    ) -> list[RejectRule]:
        """Return rules for staged rows that the target's types cannot hold."""
        return reject_rules(self.lineage_table.casts(cursor, columns))

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged rows; return how many rows arrived.

        Raises TargetMismatch if a constraint of the target refuses a row.
        """
        return self.lineage_table.insert_staged(cursor, staged, columns)

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete what batches have written for ranges; return how many rows that was."""
        return self.lineage_table.retract(cursor, parts)

    @property
    def values_follow_from_records(self) -> bool:
        """True if rows name their records. Rows with lineage="batch" do not say which records they are of."""
        return self.lineage == "record"
