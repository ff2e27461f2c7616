"""Upsert: the latest state of each key, derived from all of its changes.

The class has the whole protocol of sinks; most of its methods call the modules beside this one.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

from psycopg2 import sql

from exactbatch.columns import POSITION_EPOCH, Column, renamed
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.offsets import TopicPartition
from exactbatch.options import check_types
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.base import Compactor, Comparison, SinkIdentity
from exactbatch.sinks.sink_defaults import SinkDefaults
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.affected_keys import create_affected_keys, retract_affecting
from exactbatch.sinks.tables.counted_writes import forbid_changes
from exactbatch.sinks.tables.lineage_table import LineageTable, Part
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_operators, check_same_keys, check_unique
from exactbatch.sinks.tables.target_definition import Evolve, add_columns, prepare_table
from exactbatch.sinks.upsert.audit import compare_with_changes
from exactbatch.sinks.upsert.change_compaction import ChangeCompactor
from exactbatch.sinks.upsert.change_index import ChangeIndex
from exactbatch.sinks.upsert.change_order import ChangeOrder
from exactbatch.sinks.upsert.latest_changes import LatestChanges
from exactbatch.sinks.upsert.latest_rows import LatestRows
from exactbatch.sinks.upsert.truncates import Truncates
from exactbatch.sinks.upsert.unchanged_values import UNCHANGED, UnchangedValues
from exactbatch.sinks.values.cast import RejectRule, check_two_steps, reject_rules

DELETED: Final = Column("deleted", "boolean")
# How many times the positions of the source had begun again when a change was made; null before the first time.
EPOCH: Final = Column(POSITION_EPOCH, "integer")
_CHANGE: Final = "_change"


@dataclass(frozen=True)
class Upsert(SinkDefaults):
    """Keep in `target` one row for each key, as its latest change has it; no row if that change is a delete.

    All changes are kept, with their lineage, in `<target>_change`. In the transaction of each batch, the rows of
    the keys that it changes are computed from them. So a replay, which retracts changes, is exact, also for a
    delete or for a row under a wrong key. `exactbatch compact` drops old changes.

    The latest change is the one with the greatest `version`: a column, such as a log sequence number or a time, or
    several, such as ("file", "pos", "row"): a later one decides where the earlier ones are equal. Null is
    less than any value. Among equal versions, or without a version, the change at the greatest offset is the
    latest. Without a version, all changes of a key must be in one partition: otherwise their order is unknown.

    With history=False only the target is kept, whose rows then carry the lineage of their latest change. A replay
    applies its records again, and cannot retract anything (UpsertWithoutHistory).
    """

    kind: ClassVar[str] = "upsert"
    lineage: ClassVar[Literal["record"]] = "record"
    companion_suffixes: ClassVar[tuple[str, ...]] = (_CHANGE,)
    is_derived: ClassVar[bool] = True
    keeps_deletes: ClassVar[bool] = True
    needs_lineage: ClassVar[bool] = True
    not_copyable: ClassVar[str] = "a sink whose target is derived from all ranges (upsert)"
    values_follow_from_records: ClassVar[bool] = True

    target: str
    key: tuple[str, ...]
    version: str | tuple[str, ...] | None = None
    history: bool = field(default=True, kw_only=True)
    keeps_unchanged: bool = field(default=False, init=False, repr=False)
    applies_truncates: bool = field(default=False, init=False, repr=False)
    position_columns: tuple[str, ...] = field(default=(), init=False, repr=False)
    epochs: Sequence[Mapping[TopicPartition, int]] = field(default=(), init=False, repr=False, hash=False)

    def __new__(cls, *_: Any, **options: Any) -> "Upsert":
        """Return an UpsertWithoutHistory for history=False."""
        if options.get("history", True) is False:
            # It is an Upsert itself.
            from exactbatch.sinks.upsert.without_history import UpsertWithoutHistory

            cls = UpsertWithoutHistory
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_types(self)
        self._target.check_length()
        if not self.key or len(set(self.key)) < len(self.key):
            raise ConfigurationError(
                f'expected the key of {self.target} as a tuple of columns, key=("id",), found {self.key!r}'
            )
        versions = self._named_version
        if self.version is not None and (not versions or len(set(versions)) < len(versions)):
            raise ConfigurationError(
                f"expected the version of {self.target} as a column or as several different ones, "
                f'version=("file", "pos", "row"), found {self.version!r}'
            )
        if quoted := [name for name in versions if '"' in name]:
            raise ConfigurationError(
                f"target {self.target}: the version {quoted[0]!r} has a double quote in its name. Rename the column."
            )

    @property
    def identity(self) -> SinkIdentity:
        """The part of the sink that the ledger registers."""
        versions = self._named_version
        # No name of a version contains a double quote, so that several names cannot be taken for one.
        version = versions[0] if len(versions) == 1 else ", ".join(f'"{name}"' for name in versions)
        return SinkIdentity(self.target, self.kind, tuple(self.key), version, self.lineage)

    @property
    def version_columns(self) -> tuple[str, ...]:
        """The columns that order the changes of a key; () if their offsets do."""
        return (*(column.name for column in self._epoch), *self._named_version)

    @property
    def _epoch(self) -> tuple[Column, ...]:
        """The column of the epoch, once positions have begun again."""
        return (EPOCH,) if self.epochs else ()

    @property
    def _named_version(self) -> tuple[str, ...]:
        if self.version is None:
            return ()
        return (self.version,) if isinstance(self.version, str) else tuple(self.version)

    @property
    def change_order(self) -> ChangeOrder:
        """What orders the changes of a key."""
        return ChangeOrder(self.key, self.version_columns, bool(self.position_columns))

    @property
    def needs_last_records_only(self) -> bool:
        """True without a version: the last record of a key decides; otherwise an older one may be greater."""
        return not self.version_columns

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The key."""
        return self.key

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The table of changes."""
        return LineageTable(self._target.sibling(_CHANGE))

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table of changes and the target, in the order in which they are locked."""
        return (self.lineage_table.table, self._target)

    @property
    def _latest_changes(self) -> LatestChanges:
        return LatestChanges(self._target, self.lineage_table, self.change_order)

    @property
    def compactor(self) -> Compactor:
        """Drops changes that later ones have superseded."""
        return ChangeCompactor(self.lineage_table, self.key, self.version_columns)

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError if key or version is not a column, or a column's name is reserved."""
        names = [column.name for column in columns]
        roles = [*(("key", name) for name in self.key), *(("version", name) for name in self._named_version)]
        for role, name in roles:
            if name not in names:
                raise ConfigurationError(
                    f"expected the {role} of {self.target} among the pipeline's columns, {', '.join(names)}, "
                    f"found {name!r}"
                )
        if both := [name for name in self._named_version if name in self.key]:
            raise ConfigurationError(
                f"target {self.target}: {both[0]!r} is a version and part of the key. Choose a version "
                f"that is not part of the key."
            )
        ordered = [*self.key, *self._named_version]
        if plain := [c.name for c in columns if c.name in ordered and (c.element or c.type) == "json"]:
            raise ConfigurationError(
                f"{self.target}: the values of key and version must be comparable, and {', '.join(plain)} "
                f"is json: write jsonb"
            )
        if DELETED.name in names:
            raise ConfigurationError(
                f"target {self.target}: the pipeline has a column {DELETED.name!r}, the name by which an Upsert marks "
                f"deletes. {renamed(DELETED.name)}"
            )
        if self.position_columns and EPOCH.name in names:
            raise ConfigurationError(
                f"target {self.target}: the pipeline has a column {EPOCH.name!r}, in which an Upsert counts how often "
                f"the positions of the source have begun again. {renamed(EPOCH.name)}"
            )
        if self.keeps_unchanged and UNCHANGED.name in names:
            raise ConfigurationError(
                f"target {self.target}: the pipeline has a column {UNCHANGED.name!r}, under which an Upsert lists the "
                f"columns that the source left out. {renamed(UNCHANGED.name)}"
            )
        self.lineage_table.check(columns)

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the pipeline's columns and `deleted`: a staged row is a change. It may list unchanged columns, and
        have the epoch of its position."""
        unchanged = (UNCHANGED,) if self.keeps_unchanged else ()
        return (*columns, DELETED, *unchanged, *self._epoch)

    def keeping_unchanged(self) -> Self:
        """Return the sink for a format that leaves out values that have not changed."""
        sink = copy(self)
        object.__setattr__(sink, "keeps_unchanged", True)
        return sink

    def with_positions(self, columns: Sequence[str]) -> Self:
        """Return the sink for a format that gives the position of each change's commit, in these columns.

        If they are the version, positions that go back are an error. Raises ConfigurationError for a version that has
        only a part of them, or has them in another order.
        """
        named = self._named_version
        if {*named} & {*columns} and named[: len(columns)] != tuple(columns):
            raise ConfigurationError(
                f"target {self.target}: the version ({', '.join(named)}) is not the position of a change, which is "
                f"({', '.join(columns)}): a part of it does not order the changes of a key. Give the Upsert "
                f"version={tuple(columns)!r}."
            )
        sink = copy(self)
        object.__setattr__(
            sink, "position_columns", tuple(columns) if self._named_version == tuple(columns) else ()
        )
        return sink

    def with_epochs(self, epochs: Sequence[Mapping[TopicPartition, int]]) -> Self:
        """Return the sink for positions that begin again at these offsets, once for each mapping."""
        if not self.position_columns:
            return self
        sink = copy(self)
        object.__setattr__(sink, "epochs", epochs)
        return sink

    def applying_truncates(self, order: Sequence[str]) -> Self:
        """Return the sink for a format with truncates, which the columns of `order` order among changes.

        Raises ConfigurationError unless the version is made of these columns.
        """
        if not self._named_version or (others := sorted({*self._named_version} - {*order})):
            found = f"its version has {others[0]!r}" if self._named_version else "it has no version"
            raise ConfigurationError(
                f"target {self.target}: truncate='apply' needs the position of a truncate among the changes, which has "
                f"no message key and may be in any partition, and {found}. Give the format and the Upsert the version "
                f"of the connector, such as Debezium(…, version='postgres') and "
                f"Upsert(…, version=('commit_lsn', 'lsn'))."
            )
        sink = copy(self)
        object.__setattr__(sink, "applies_truncates", True)
        return sink

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create target and table of changes if they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, or the missing unique constraint.
        """
        # The target first, as in publish: two pipelines may share it.
        self._target.lock(cursor)
        if not prepare_table(cursor, self._target, columns, key=self.key, evolve=evolve):
            check_unique(cursor, self._target, self.key)
        # A table of changes from before has whole changes, in the first epoch.
        added = [*([UNCHANGED] if self.keeps_unchanged else []), *self._epoch]
        add_columns(cursor, self.lineage_table.table, added)
        self.lineage_table.prepare(cursor, self.staged_columns(columns), evolve=evolve)
        check_same_keys(cursor, self._target, self.lineage_table.table, self.key)
        check_operators(cursor, self._target, self.key)
        if self.applies_truncates:
            self._truncates.check(cursor)
        check_two_steps(
            self.target,
            self.lineage_table.casts(cursor, self.staged_columns(columns)),
            self._target.casts(cursor, columns),
        )

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Raise TargetMismatch if the changes have columns that only other pipelines with this target write, or if a
        truncate would delete rows of other pipelines.

        A replay would write the changes of its records without these columns.
        """
        if pipelines and self.applies_truncates:
            raise TargetMismatch(
                f"target {self.target}: a truncate deletes all of its rows, and the pipeline shares it with "
                f"{', '.join(pipelines)}. Nothing was written. Give the pipelines different targets, or leave out "
                f"truncate='apply'."
            )
        own_columns = {
            column.name
            for column in (
                *self.staged_columns(columns),
                *self.lineage_table.lineage_columns,
                UNCHANGED,
                EPOCH,
            )
        }
        if pipelines and (extra := sorted(self.lineage_table.table.columns(cursor).keys() - own_columns)):
            raise TargetMismatch(
                f"table {self.lineage_table.table.spec}: this pipeline does not write the columns "
                f"{', '.join(extra)}. It shares the target {self.target} with {', '.join(pipelines)}: rows would "
                f"lose the values of these columns. Nothing was written. Let all of these pipelines write the "
                f"same columns, or give them different targets."
            )

    def reject_rules(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        batch_id: int,  # noqa: ARG002
        evolve: Evolve | None = None,
    ) -> list[RejectRule]:
        """Return rules for staged changes that the types of the changes or of the target cannot hold."""
        return [
            *reject_rules(self.lineage_table.casts(cursor, self.staged_columns(columns), evolve=evolve)),
            *reject_rules(self._target.casts(cursor, columns, evolve=evolve)),
            *self._unordered_rules,
        ]

    @property
    def _unordered_rules(self) -> list[RejectRule]:
        """A rule for staged changes whose version the source left out: nothing orders them."""
        if not self.keeps_unchanged:
            return []
        return [
            RejectRule(
                sql.SQL("coalesce({} = any({}), false)").format(
                    sql.Literal(name), sql.Identifier(UNCHANGED.name)
                ),
                sql.Literal(f"column {name!r}: the source left out the version, which orders the changes"),
            )
            for name in self._named_version
        ]

    def find_unknown(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column], *, without: sql.Composable
    ) -> sql.Composable | None:
        """Return a query for staged changes that lack a value which no older change of their key has."""
        if not self.keeps_unchanged:
            return None
        return self._unchanged_values.find_unknown(
            cursor, staged, (*columns, *self._epoch), without=without, truncates=self._truncates
        )

    @property
    def _unchanged_values(self) -> UnchangedValues:
        return UnchangedValues(self.lineage_table, self.key, self.version_columns)

    @property
    def _truncates(self) -> Truncates:
        return Truncates(
            self._target, self.lineage_table, self.key, self.version_columns, self.applies_truncates
        )

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them."""
        self._latest_changes.check_one_per_record(cursor, staged, (*columns, *self._epoch))

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged changes, and bring the target up to date; return how many changes arrived.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, and TargetMismatch if a constraint of
        the target refuses a row.
        """
        self._begin(cursor)
        are_truncated = self._truncates.find(cursor, staged, (*columns, *self._epoch))
        all_new = self._latest_changes.find(cursor, staged, self.staged_columns(columns))
        with forbid_changes(cursor, self._target, while_writing=self.lineage_table.table):
            inserted = ChangeIndex(self.lineage_table, self.key).insert(
                cursor, lambda: self.lineage_table.insert_staged(cursor, staged, self.staged_columns(columns))
            )
        if are_truncated:
            self._truncates.delete_older(cursor)
        self._unchanged_values.resolve(cursor, staged, columns, are_truncated=are_truncated)
        LatestRows(self._target, self.lineage_table, self.key).write(cursor, staged, columns, all_new=all_new)
        return inserted

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the changes that batches have written for ranges; return how many that was."""
        self._begin(cursor)
        any_truncate = self._truncates.note(cursor, parts)
        with forbid_changes(cursor, self._target, while_writing=self.lineage_table.table):
            retracted = retract_affecting(
                cursor, self.lineage_table, parts, self.key, count=self.staged_row_count
            )
        if any_truncate:
            self._truncates.affect(cursor)
        return retracted

    def compare_target(
        self,
        columns: Sequence[Column] | None,
        target_types: Mapping[str, str],
        lineage_types: Mapping[str, str],
    ) -> Comparison | None:
        """Compare each row of the target with the latest change of its key."""
        return compare_with_changes(
            self.table,
            self.lineage_table.identifier,
            self.key,
            self.version_columns,
            columns=columns,
            target_types=target_types,
            change_types=lineage_types,
        )

    def _begin(self, cursor: Cursor) -> None:
        create_affected_keys(cursor, self.lineage_table, self.key)
