"""Store the rows of a batch in several targets, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import ChecksStaged
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import RejectRule
from exactbatch.sinks.writer import SinkWriter


@dataclass(frozen=True)
class SeveralWriter:
    """The writer of several sinks. The part that decides is the last."""

    parts: tuple[SinkWriter, ...]
    traits: SinkTraits

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The tables of all parts; the target of the last part is the last."""
        return tuple(table for part in self.parts for table in part.tables)

    @property
    def lineage_table(self) -> LineageTable:
        """The lineage table of the last part: all have the same rows, unless changes were compacted."""
        return self.parts[-1].lineage_table

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create missing tables, and check those that exist. Raises TargetMismatch."""
        for part in self.parts:
            part.prepare(cursor, columns, evolve=evolve)

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if retracting rows of any target would change other tables by foreign keys."""
        for part in self.parts:
            part.check_replay(cursor)

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        """Return the rules of all parts: a value that one target cannot hold rejects the record for all."""
        return [
            rule
            for part in self.parts
            for rule in part.reject_rules(cursor, columns, batch_id=batch_id, evolve=evolve)
        ]

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a record gave several rows between which a part cannot decide."""
        for part in self.parts:
            if isinstance(part, ChecksStaged):
                part.check_staged(cursor, staged, columns)

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Store staged rows in all targets; return how many arrived in each.

        Raises TargetMismatch if a constraint refuses a row, or one target received fewer rows than another.
        """
        arrived = {part.traits.target: part.insert_staged(cursor, staged, columns) for part in self.parts}
        if len(set(arrived.values())) > 1:
            counts = ", ".join(f"{count} in {target}" for target, count in arrived.items())
            raise TargetMismatch(
                f"the staged rows have to arrive in each target, but there are {counts}. Nothing was written. Does a "
                f"trigger or a rule discard rows? Remove it."
            )
        return next(iter(arrived.values()))

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete from all targets what batches stored for ranges; return how many rows that was in the last one."""
        return [part.retract(cursor, parts) for part in self.parts][-1]
