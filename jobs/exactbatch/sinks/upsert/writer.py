"""Keep all changes of an Upsert, and derive the latest state of each key from them.

The class has the whole protocol of writers; most of its methods call the modules beside this one. An index of the table
of changes finds the changes of a key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import psycopg2.errors
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.model import Evolve
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.creation import create_named
from exactbatch.sinks.capabilities import Comparison
from exactbatch.sinks.sink import UNAVAILABLE, SinkTraits
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.affected_keys import create_affected_keys, retract_affecting
from exactbatch.sinks.tables.counted_writes import forbid_changes
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_operators, check_same_keys, check_unique
from exactbatch.sinks.tables.target_definition import add_columns, prepare_table
from exactbatch.sinks.upsert.audit import compare_with_changes
from exactbatch.sinks.upsert.change_compaction import ChangeCompactor
from exactbatch.sinks.upsert.change_order import check_one_per_record, find_order
from exactbatch.sinks.upsert.latest_changes import LatestChanges
from exactbatch.sinks.upsert.latest_rows import LatestRows
from exactbatch.sinks.upsert.spec import Upsert
from exactbatch.sinks.upsert.truncates import Truncates
from exactbatch.sinks.upsert.unavailable_values import UnavailableValues
from exactbatch.sinks.upsert.without_history import LatestWriter, check_shared_columns
from exactbatch.sinks.values.cast import RejectRule, check_two_steps, reject_rules
from exactbatch.sinks.values.null_safe_groups import column_list


@dataclass(frozen=True)
class ChangeIndex:
    """The index of a table of changes on the key.

    It is created when the first changes have been inserted: one sort of all keys takes a third of the time of as many
    insertions into the index.
    """

    changes: LineageTable
    key: Sequence[str]

    def insert(self, cursor: Cursor, insert: Callable[[], int]) -> int:
        """Call `insert`, which inserts changes and returns how many; create the index after the first ones.

        Raises what `insert` raises.
        """
        if not self._is_due(cursor):
            return insert()
        cursor.execute("savepoint first_changes")
        inserted = insert()
        try:
            self._create(cursor)
        except psycopg2.errors.ProgramLimitExceeded:
            # A key is too long for the index: a refused insertion names its record.
            cursor.execute("rollback to savepoint first_changes")
            self._create(cursor)
            inserted = insert()
        cursor.execute("release savepoint first_changes")
        return inserted

    def _is_due(self, cursor: Cursor) -> bool:
        """True if there is neither a change nor an index on the key, and this login may create an index."""
        cursor.execute(
            "select c.relkind = 'r' and pg_has_role(c.relowner, 'usage') "
            "and has_schema_privilege(c.relnamespace, 'create') and not exists ("
            "select from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0] "
            "where i.indrelid = c.oid and i.indisvalid and i.indpred is null and a.attname = any(%s)) "
            "from pg_class c where c.oid = %s::regclass",
            (list(self.key), self.changes.identifier.as_string(cursor)),
        )
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(sql.SQL("select not exists (select from {})").format(self.changes.identifier))
        if not cursor.fetchone()[0]:
            return False
        # Two pipelines with one target may write their first changes at the same time. An index locks out the changes
        # of others, so that each would wait for the other one to end.
        cursor.execute(
            "select exactbatch.try_lock('index of ' || %s)", (self.changes.identifier.as_string(cursor),)
        )
        return bool(cursor.fetchone()[0])

    def _create(self, cursor: Cursor) -> None:
        create_named(
            cursor, sql.SQL("create index on {} ({})").format(self.changes.identifier, column_list(self.key))
        )


def build_upsert_writer(sink: Upsert, traits: SinkTraits) -> "UpsertWriter | LatestWriter":
    """Return the writer of an Upsert."""
    return UpsertWriter(sink, traits) if sink.history else LatestWriter(sink, traits)


@dataclass(frozen=True)
class UpsertWriter:
    """The writer of an Upsert that keeps all changes."""

    sink: Upsert
    traits: SinkTraits

    @property
    def parts(self) -> "tuple[UpsertWriter, ...]":
        """The writer itself."""
        return (self,)

    @property
    def _key(self) -> tuple[str, ...]:
        return self.sink.key_columns

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        """The table of changes."""
        (suffix,) = self.sink.kind.companions
        return LineageTable(self._target.sibling(suffix))

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table of changes and the target, in the order in which they are locked."""
        return (self.lineage_table.table, self._target)

    @property
    def _latest_changes(self) -> LatestChanges:
        return LatestChanges(self._target, self.lineage_table, find_order(self.traits))

    @property
    def compactor(self) -> ChangeCompactor:
        """Drops changes that later ones have superseded."""
        return ChangeCompactor(self.lineage_table, self._key, self.traits.ordering_columns)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create target and table of changes if they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, or the missing unique constraint.
        """
        # The target first, as in publish: two pipelines may share it.
        self._target.lock(cursor)
        if not prepare_table(cursor, self._target, columns, key=self._key, evolve=evolve):
            check_unique(cursor, self._target, self._key)
        # A table of changes from before has whole changes, in the first epoch.
        added = [*([UNAVAILABLE] if self.traits.keeps_unavailable else []), *self.traits.epoch]
        add_columns(cursor, self.lineage_table.table, added)
        self.lineage_table.prepare(cursor, self.traits.staged_columns(columns), evolve=evolve)
        check_same_keys(cursor, self._target, self.lineage_table.table, self._key)
        check_operators(cursor, self._target, self._key)
        if self.traits.applies_truncates:
            self._truncates.check(cursor)
        check_two_steps(
            self.sink.target,
            self.lineage_table.casts(cursor, self.traits.staged_columns(columns)),
            self._target.casts(cursor, columns),
        )

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch if a replay would change tables that refer to the table of changes."""
        self.lineage_table.check_replay(cursor)

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], pipelines: Sequence[str]) -> None:
        """Raise TargetMismatch if the changes have columns that only other pipelines with this target write, or if a
        truncate would delete rows of other pipelines.
        """
        if pipelines and self.traits.applies_truncates:
            raise TargetMismatch(
                f"target {self.sink.target}: a truncate deletes all of its rows, and the pipeline shares it with "
                f"{', '.join(pipelines)}. Nothing was written. Give the pipelines different targets, or leave out "
                f"truncate='apply'."
            )
        check_shared_columns(cursor, self.traits, self.lineage_table, columns, pipelines)

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
            *reject_rules(
                self.lineage_table.casts(cursor, self.traits.staged_columns(columns), evolve=evolve)
            ),
            *reject_rules(self._target.casts(cursor, columns, evolve=evolve)),
            *self._unordered_rules,
        ]

    @property
    def _unordered_rules(self) -> list[RejectRule]:
        """A rule for staged changes whose version the source left out: nothing orders them."""
        if not self.traits.keeps_unavailable:
            return []
        return [
            RejectRule(
                sql.SQL("coalesce({} = any({}), false)").format(
                    sql.Literal(name), sql.Identifier(UNAVAILABLE.name)
                ),
                sql.Literal(f"column {name!r}: the source left out the version, which orders the changes"),
            )
            for name in self.traits.version_columns
        ]

    def find_unavailable(
        self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column], *, without: sql.Composable
    ) -> sql.Composable | None:
        """Return a query for staged changes that lack a value which no older change of their key has."""
        return self._unavailable_values.find_unavailable(
            cursor, staged, (*columns, *self.traits.epoch), without=without, truncates=self._truncates
        )

    @property
    def _unavailable_values(self) -> UnavailableValues:
        return UnavailableValues(self.lineage_table, self._key, self.traits.ordering_columns)

    @property
    def _truncates(self) -> Truncates:
        return Truncates(
            self._target,
            self.lineage_table,
            self._key,
            self.traits.ordering_columns,
            self.traits.applies_truncates,
        )

    def check_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> None:
        """Raise TargetMismatch if a staged record gives several changes of a key, and nothing orders them."""
        casts = self.lineage_table.casts(cursor, (*columns, *self.traits.epoch))
        check_one_per_record(
            cursor, staged, find_order(self.traits), self.sink.target, self.lineage_table, casts
        )

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        """Insert staged changes, and bring the target up to date; return how many changes arrived.

        Raises KeyOnTwoPartitions if the order of a key's changes is unknown, and TargetMismatch if a constraint of
        the target refuses a row.
        """
        affected = self._affected(cursor)
        truncate = self._truncates.find(cursor, staged, (*columns, *self.traits.epoch), affected)
        latest = self._latest_changes.find(cursor, staged, self.traits.staged_columns(columns), affected)
        with forbid_changes(cursor, self._target, while_writing=self.lineage_table.table):
            inserted = ChangeIndex(self.lineage_table, self._key).insert(
                cursor,
                lambda: self.lineage_table.insert_staged(cursor, staged, self.traits.staged_columns(columns)),
            )
        if truncate is not None:
            self._truncates.delete_older(cursor, latest, truncate)
        self._unavailable_values.resolve(
            cursor, staged, columns, latest, affected=affected, newest_truncate=truncate
        )
        LatestRows(self._target, self.lineage_table, self._key, latest, affected).write(
            cursor, staged, columns
        )
        return inserted

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the changes that batches have written for ranges; return how many that was."""
        affected = self._affected(cursor)
        truncates = self._truncates.note(cursor, parts)
        with forbid_changes(cursor, self._target, while_writing=self.lineage_table.table):
            retracted = retract_affecting(cursor, self.lineage_table, parts, self._key, affected)
        if truncates is not None:
            self._truncates.affect(cursor, truncates, affected)
        return retracted

    def compare_target(
        self,
        columns: Sequence[Column] | None,
        target_types: Mapping[str, str],
        lineage_types: Mapping[str, str],
    ) -> Comparison:
        """Compare each row of the target with the latest change of its key."""
        return compare_with_changes(
            self._target.identifier,
            self.lineage_table.identifier,
            self._key,
            self.traits.ordering_columns,
            columns=columns,
            target_types=target_types,
            change_types=lineage_types,
        )

    def _affected(self, cursor: Cursor) -> sql.Identifier:
        return create_affected_keys(cursor, self.lineage_table, self._key)
