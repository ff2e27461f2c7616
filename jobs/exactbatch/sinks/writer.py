"""The interface of a writer, which stores the rows of batches, and which writers.py builds from the traits of a
pipeline's sink.

A writer has the members of SinkWriter, and of the protocols in capabilities.py those that it offers.
tests/integration/test_fourth_sink.py has a complete example.
"""

from collections.abc import Sequence
from typing import Protocol

from exactbatch.columns import Column
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.sink import SinkTraits
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import RejectRule


class SinkWriter(Protocol):
    """Stores the rows of batches in one or more tables, within the transactions of its callers."""

    @property
    def traits(self) -> SinkTraits:
        """What the sink asks of those who plan, stage, replay and audit its batches."""
        ...

    @property
    def parts(self) -> "tuple[SinkWriter, ...]":
        """The writers of its targets, which an audit compares one by one; the writer itself if it has one target."""
        ...

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """All tables of the sink in the order in which they are locked; the target is the last."""
        ...

    @property
    def lineage_table(self) -> LineageTable:
        """The table whose rows carry lineage; the target itself if it is not derived."""
        ...

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create missing tables, and check those that exist. Raises TargetMismatch, which names the column."""
        ...

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if retracting rows would change other tables by foreign keys."""
        ...

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        """Return rules for staged rows that the tables cannot hold. Their records become rejects.

        With `evolve`, the rules are for a batch to come, without any that depend on what is loaded before it:
        tables and columns that its prepare() would add count as it adds them."""
        ...

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Store staged rows, and bring a derived target up to date; return how many staged rows arrived.

        Raises TargetMismatch if a constraint of a table refuses a row.
        """
        ...

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete what batches stored for ranges; return how many staged rows that was.

        A derived target is up to date again after the next insert_staged() in the same transaction. With
        lineage="batch" everything that these batches stored is deleted.
        """
        ...
