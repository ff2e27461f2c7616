"""Upsert: the latest state of each key, derived from all changes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, TargetMismatch
from exactbatch.sinks.append import Append, Part
from exactbatch.sinks.target import TargetTable

DELETED: Final = Column("deleted", "boolean")
_TOUCHED: Final = sql.Identifier("exactbatch_touched")
_LATEST: Final = sql.Identifier("exactbatch_latest")
_KEYS_SHOWN: Final = 5


@dataclass(frozen=True)
class Upsert:
    """Keep in `target` one row for each key, as its latest change has it; none when that was a delete.

    All changes are kept, with their lineage, in `<target>_change`, and the target is computed from them for
    the keys that a batch touches, in the same transaction: so a replay, which takes changes back, is exact,
    also for a delete or for a row that stood under a wrong key.

    The latest change is the one with the greatest `version` (a column, such as a log sequence number or a
    time), and among equal ones, or without a version, the one at the greatest offset. Without a version all
    changes of a key have to be in one partition, or their order is not known.
    """

    kind: ClassVar[str] = "upsert"
    lineage: ClassVar[Literal["record"]] = "record"
    keeps_deletes: ClassVar[bool] = True

    target: str
    key: tuple[str, ...]
    version: str | None = None

    def __post_init__(self) -> None:
        _ = self._target
        if isinstance(self.key, str) or not self.key or len(set(self.key)) < len(self.key):
            raise ConfigurationError(
                f'expected the key of {self.target} as a tuple of columns, key=("id",), found {self.key!r}'
            )

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target)

    @cached_property
    def contributions(self) -> Append:
        """The table of changes."""
        schema, name = self._target.name
        quoted = ".".join(f'"{part.replace(chr(34), chr(34) * 2)}"' for part in (schema, f"{name}_change"))
        return Append(quoted)

    @property
    def table(self) -> sql.Composable:
        """The target as an SQL identifier."""
        return self._target.identifier

    def check(self, columns: Sequence[Column]) -> None:
        """Raise ConfigurationError when key or version is no column, or a column has a name that is taken."""
        names = [column.name for column in columns]
        for what, name in [*(("key", each) for each in self.key), ("version", self.version)]:
            if name is not None and name not in names:
                raise ConfigurationError(
                    f"expected the {what} of {self.target} among the pipeline's columns, {', '.join(names)}, "
                    f"found {name!r}"
                )
        if self.version in self.key:
            raise ConfigurationError(
                f"expected a version beside the key of {self.target}, found {self.version!r} as both"
            )
        if DELETED.name in names:
            raise ConfigurationError(
                f"expected columns beside {DELETED.name!r}, which {self.target}_change has of its own, found it "
                f"in the pipeline's: rename it"
            )
        self.contributions.check(columns)

    def staged_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """What a staged row has beside its lineage: a change has one column more."""
        return (*columns, DELETED)

    def prepare(self, cursor: Any, columns: Sequence[Column]) -> None:
        """Create target and table of changes when they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, or the missing unique constraint.
        """
        if self.contributions.prepare(cursor, self.staged_columns(columns)):
            cursor.execute(
                sql.SQL("create index on {} ({})").format(self.contributions.table, self._names(self.key))
            )
        if self._target.prepare(cursor, columns, key=self.key):
            return
        cursor.execute(
            "select array_agg(a.attname::text order by a.attname) from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey) "
            "where i.indrelid = %s::regclass and i.indisunique and i.indimmediate and i.indpred is null "
            "and i.indexprs is null group by i.indexrelid",
            (self.table.as_string(cursor),),
        )
        if sorted(self.key) not in [row[0] for row in cursor.fetchall()]:
            raise TargetMismatch(
                f"target {self.target}: expected a primary key or unique constraint on exactly "
                f"({', '.join(self.key)}), the key of the pipeline, found none. Add it: alter table {self.target} "
                f"add unique ({', '.join(self.key)});"
            )

    def take_back(self, cursor: Any, parts: Sequence[Part]) -> int:
        """Delete the changes that batches have written in ranges; return how many that was."""
        self._create_touched(cursor)
        taken = 0
        for condition in self.contributions.conditions(parts):
            cursor.execute(
                sql.SQL(
                    "with gone as (delete from {change} where {condition} returning {key}), "
                    "touched as (insert into {touched} select distinct {key} from gone) "
                    "select count(*) from gone"
                ).format(
                    change=self.contributions.table,
                    condition=condition,
                    key=self._names(self.key),
                    touched=_TOUCHED,
                )
            )
            taken += cursor.fetchone()[0]
        return taken

    def count(self, cursor: Any, parts: Sequence[Part]) -> int:
        """How many changes take_back() would delete."""
        return self.contributions.count(cursor, parts)

    def insert_staged(
        self,
        cursor: Any,
        *,
        staging: sql.Composable,
        columns: Sequence[Column],
        batch_id: int,
        attempts: Sequence[int],
    ) -> int:
        """Insert the staged changes of these task attempts, and bring the target up to them.

        Returns how many changes arrived. Raises KeyOnTwoPartitions where the order of a key's changes is not
        known, and TargetMismatch when a constraint of the target refuses a row.
        """
        self._create_touched(cursor)
        inserted = self.contributions.insert_staged(
            cursor,
            staging=staging,
            columns=self.staged_columns(columns),
            batch_id=batch_id,
            attempts=attempts,
        )
        cursor.execute(
            sql.SQL(
                "insert into {touched} select distinct {key} from {staging} where task_attempt = any({attempts})"
            ).format(
                touched=_TOUCHED,
                key=self._names(self.key),
                staging=staging,
                attempts=sql.Literal(list(attempts)),
            )
        )
        cursor.execute(sql.SQL("analyze {}").format(_TOUCHED))
        if self.version is None:
            self._check_partitions(cursor)
        self._derive(cursor, columns)
        return inserted

    def _create_touched(self, cursor: Any) -> None:
        """The keys whose row in the target has to be computed again."""
        cursor.execute(
            sql.SQL(
                "create temporary table if not exists {} on commit drop as select {} from {} with no data"
            ).format(_TOUCHED, self._names(self.key), self.contributions.table)
        )

    def _check_partitions(self, cursor: Any) -> None:
        cursor.execute(
            sql.SQL(
                "select {key}, array_agg(distinct kafka_topic || '[' || kafka_partition || ']') "
                "from {change} join (select distinct {key} from {touched}) touched using ({key}) "
                "group by {key} having count(distinct (kafka_topic, kafka_partition)) > 1 "
                "order by {key} limit {most}"
            ).format(
                key=self._names(self.key),
                change=self.contributions.table,
                touched=_TOUCHED,
                most=sql.Literal(_KEYS_SHOWN),
            )
        )
        if found := cursor.fetchall():
            shown = "; ".join(
                f"({', '.join(map(repr, row[:-1]))}) in {' and '.join(row[-1])}" for row in found
            )
            raise KeyOnTwoPartitions(
                f"target {self.target}: expected all changes of a key in one partition, where offsets tell their "
                f"order, found the keys ({', '.join(self.key)}) = {shown}. Nothing was written. Give Upsert the "
                f"column that orders them, version=…, or let producers send a key to one partition."
            )

    def _derive(self, cursor: Any, columns: Sequence[Column]) -> None:
        """Compute the touched keys' rows from all their changes."""
        names = [each.name for each in columns]
        rest = [name for name in names if name not in self.key]
        version = [] if self.version is None else [sql.SQL("{} desc nulls last").format(_id(self.version))]
        order = sql.SQL(", ").join(
            [
                *map(_id, self.key),
                *version,
                *(
                    sql.SQL("{} desc").format(_id(name))
                    for name in ("kafka_topic", "kafka_partition", "kafka_offset")
                ),
            ]
        )
        parts = {
            "target": self.table,
            "change": self.contributions.table,
            "touched": _TOUCHED,
            "latest": _LATEST,
            "key": self._names(self.key),
            "names": self._names(names),
            "order": order,
            "same_key": sql.SQL(" and ").join(
                sql.SQL("l.{0} = t.{0}").format(_id(name)) for name in self.key
            ),
        }
        cursor.execute(
            sql.SQL(
                "create temporary table {latest} on commit drop as select distinct on ({key}) {names}, deleted "
                "from {change} join (select distinct {key} from {touched}) touched using ({key}) order by {order}"
            ).format(**parts)
        )
        cursor.execute(
            sql.SQL(
                "delete from {target} t using (select distinct {key} from {touched}) l where {same_key} "
                "and not exists (select from {latest} l where {same_key} and not l.deleted)"
            ).format(**parts)
        )
        # A row that stays as it is, is not written: no dead row, and no trigger that sees a change.
        update = (
            sql.SQL("do update set {} where ({}) is distinct from ({})").format(
                sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(_id(name)) for name in rest),
                sql.SQL(", ").join(sql.SQL("t.{}").format(_id(name)) for name in rest),
                sql.SQL(", ").join(sql.SQL("excluded.{}").format(_id(name)) for name in rest),
            )
            if rest
            else sql.SQL("do nothing")
        )
        self._target.execute(
            cursor,
            sql.SQL(
                "insert into {target} as t ({names}) select {names} from {latest} where not deleted "
                "on conflict ({key}) {update}"
            ).format(**parts, update=update),
        )

    def _names(self, names: Sequence[str]) -> sql.Composable:
        return sql.SQL(", ").join(map(_id, names))


def _id(name: str) -> sql.Identifier:
    return sql.Identifier(name)
