"""Together: the rows of a batch in several targets, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.offsets import TopicPartition
from exactbatch.options import check_types
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.append import Append
from exactbatch.sinks.base import Compactor, Sink, SinkIdentity
from exactbatch.sinks.sink_defaults import SinkDefaults
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.lineage_table import LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_definition import Evolve
from exactbatch.sinks.upsert.sink import DELETED, Upsert
from exactbatch.sinks.values.cast import RejectRule


@dataclass(frozen=True)
class AppendChanges(Append):
    """An Append next to an Upsert: it has a row for each change, deletes included, with the column `deleted`.

    `key` is the key of the Upsert.
    """

    keeps_deletes: ClassVar[bool] = True

    key: tuple[str, ...] = ()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The key of the Upsert, which a delete has."""
        return self.key

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the pipeline's columns and `deleted`."""
        return (*columns, DELETED)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create the target if it is missing, and otherwise check its columns. Raises TargetMismatch."""
        super().prepare(cursor, self.staged_columns(columns), evolve=evolve)

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        """Return rules for staged changes that the target's types cannot hold."""
        return super().reject_rules(cursor, self.staged_columns(columns), batch_id=batch_id, evolve=evolve)

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged changes; return how many arrived. Raises TargetMismatch."""
        return super().insert_staged(cursor, staged, self.staged_columns(columns))


@dataclass(frozen=True)
class Together(SinkDefaults):
    """Store the rows of each batch in several targets, in one transaction: Appends, and at most one Upsert.

    Rows are staged once. A batch writes them into all targets or into none, a replay retracts them from all, and a
    record with a value that one of the targets cannot hold is a reject for all. Next to an Upsert, an Append has a row
    for each change, deletes included, with the column `deleted`.

    No other pipeline may write to any of the targets.

    Raises ConfigurationError for sinks that cannot work together.
    """

    kind: ClassVar[str] = "together"
    lineage: ClassVar[Literal["record"]] = "record"
    needs_lineage: ClassVar[bool] = True
    not_copyable: ClassVar[str] = "several targets, which one transaction writes"
    values_follow_from_records: ClassVar[bool] = True

    sinks: tuple[Append | Upsert, ...]

    def __post_init__(self) -> None:
        check_types(self)
        names = [table.name for sink in self.sinks for table in sink.tables]
        if len(self.sinks) < 2:
            raise self._error("expected two or more sinks")
        if len(set(names)) < len(names):
            raise self._error("two of the sinks write to one table. Give them different targets")
        if sum(isinstance(sink, Upsert) for sink in self.sinks) > 1:
            raise self._error("more than one of the sinks is an Upsert. Load the topic with two pipelines")
        for sink in self.sinks:
            if not sink.keeps_every_row:
                raise self._error(
                    f"{sink.target} has history=False, so that a replay cannot retract its rows"
                )
            if isinstance(sink, Append) and (sink.lineage != "record" or sink.layout != "plain"):
                raise self._error(f"{sink.target} needs lineage='record' and layout='plain'")

    def _error(self, fact: str) -> ConfigurationError:
        return ConfigurationError(f"Together({', '.join(sink.target for sink in self.sinks)}): {fact}.")

    @cached_property
    def parts(self) -> "tuple[Sink, ...]":
        """The sinks as they are used: next to an Upsert, an Append keeps changes. The one that decides is the last."""
        upserts = [sink for sink in self.sinks if isinstance(sink, Upsert)]
        if not upserts:
            return tuple(self.sinks)
        appends = [
            AppendChanges(sink.target, cascade=sink.cascade, key=tuple(upserts[0].key))
            for sink in self.sinks
            if isinstance(sink, Append)
        ]
        return (*appends, *upserts)

    def with_positions(self, columns: Sequence[str]) -> Self:
        """Return the sink for a format that gives the position of each change's commit, in these columns."""
        return replace(self, sinks=tuple(sink.with_positions(columns) for sink in self.sinks))

    @property
    def position_columns(self) -> tuple[str, ...]:  # type: ignore[override]  # it depends on the sinks
        """Those of the Upsert."""
        return self._main.position_columns

    @property
    def epochs(self) -> Sequence[Mapping[TopicPartition, int]]:  # type: ignore[override]  # it depends on the sinks
        """Those of the Upsert."""
        return self._main.epochs

    def with_epochs(self, epochs: Sequence[Mapping[TopicPartition, int]]) -> Self:
        """Return the sink for positions that begin again at these offsets, once for each mapping."""
        return replace(self, sinks=tuple(sink.with_epochs(epochs) for sink in self.sinks))

    @property
    def _main(self) -> Sink:
        return self.parts[-1]

    @property
    def target(self) -> str:
        """The targets, for messages."""
        return " and ".join(part.target for part in self.parts)

    @property
    def identity(self) -> SinkIdentity:
        """The identity of the last part, with those of the others."""
        *others, main = (part.identity for part in self.parts)
        return replace(main, others=tuple(others))

    @cached_property
    def _target(self) -> TargetTable:
        return self._main.tables[-1]

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The lineage table of the last part: all have the same rows, unless changes were compacted."""
        return self._main.lineage_table

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The tables of all parts; the target of the last part is the last."""
        return tuple(table for part in self.parts for table in part.tables)

    @property
    def is_derived(self) -> bool:  # type: ignore[override]  # it depends on the sinks
        """True if one of the sinks is an Upsert."""
        return self._main.is_derived

    @property
    def keeps_deletes(self) -> bool:  # type: ignore[override]  # it depends on the sinks
        """True if one of the sinks is an Upsert."""
        return self._main.keeps_deletes

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The key of the Upsert, if there is one."""
        return self._main.key_columns

    @property
    def compactor(self) -> Compactor | None:
        """The compactor of the Upsert, which drops old changes; all rows of an Append stay."""
        return self._main.compactor

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if one of the sinks cannot store rows with these columns."""
        for part in self.parts:
            part.check(columns)

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns that all parts stage."""
        return self._main.staged_columns(columns)

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
            part.check_staged(cursor, staged, columns)

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Store staged rows in all targets; return how many arrived in each.

        Raises TargetMismatch if a constraint refuses a row, or one target has got fewer rows than another.
        """
        arrived = {part.target: part.insert_staged(cursor, staged, columns) for part in self.parts}
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

    @property
    def staged_row_count(self) -> sql.Composable:
        """The row count of the last part."""
        return self._main.staged_row_count
