"""Upsert: the latest state of each key, derived from all changes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import ClassVar, Final, Literal

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, TargetMismatch
from exactbatch.options import check_types
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.append import Append, Part
from exactbatch.sinks.cast import Cast, Misfit, check_on_the_way, misfits
from exactbatch.sinks.groups import differs, has_one_image, listed
from exactbatch.sinks.refusal import candidates
from exactbatch.sinks.target import Evolve, TargetTable
from exactbatch.sinks.touched import TOUCHED, create_touched, take_back_touching

DELETED: Final = Column("deleted", "boolean")
_LATEST: Final = sql.Identifier("exactbatch_latest")
_KEYS_SHOWN: Final = 5
# How many changes were dropped and kept, by (topic, partition).
Compacted = dict[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True)
class Upsert:
    """Keep in `target` one row for each key, as its latest change has it; none when that was a delete.

    All changes are kept, with their lineage, in `<target>_change`, and the target is computed from them for
    the keys that a batch touches, in the same transaction: so a replay, which takes changes back, is exact,
    also for a delete or for a row that stood under a wrong key. compact() drops old ones.

    The latest change is the one with the greatest `version` (a column, such as a log sequence number or a
    time), and among equal ones, or without a version, the one at the greatest offset. Without a version all
    changes of a key have to be in one partition, or their order is not known.
    """

    kind: ClassVar[str] = "upsert"
    lineage: ClassVar[Literal["record"]] = "record"
    keeps_deletes: ClassVar[bool] = True
    needs_lineage: ClassVar[bool] = True

    target: str
    key: tuple[str, ...]
    version: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        _ = self._target
        if not self.key or len(set(self.key)) < len(self.key):
            raise ConfigurationError(
                f'expected the key of {self.target} as a tuple of columns, key=("id",), found {self.key!r}'
            )

    @property
    def needs_last_records_only(self) -> bool:
        """Whether rows are what the last records of their keys say; an older one may have a greater version."""
        return self.version is None

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.target)

    @cached_property
    def contributions(self) -> Append:
        """The table of changes."""
        return Append(self._target.beside("_change"))

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        """The table of changes and the target, in the order in which tables are locked."""
        return (*self.contributions.tables, self._target)

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
        ordered = [*self.key, *([] if self.version is None else [self.version])]
        if plain := [c.name for c in columns if c.name in ordered and (c.element or c.type) == "json"]:
            raise ConfigurationError(
                f"{self.target}: key and version have to be values that can be compared, and {', '.join(plain)} "
                f"is json: write jsonb"
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

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        """Create target and table of changes when they are missing, and otherwise check their columns.

        Raises TargetMismatch, which names the column and both types, or the missing unique constraint.
        """
        # First, as publish does: two pipelines may share the target.
        self._target.lock(cursor)
        if not self._target.prepare(cursor, columns, key=self.key, evolve=evolve):
            self._target.check_unique(cursor, self.key)
        if self.contributions.prepare(cursor, self.staged_columns(columns), evolve=evolve):
            cursor.execute(
                sql.SQL("create index on {} ({})").format(self.contributions.table, self._names(self.key))
            )
        self._target.check_key(cursor, self.key, self.contributions.tables[0])
        self._target.check_operators(cursor, self.key)
        check_on_the_way(
            self.target,
            self.contributions.casts(cursor, self.staged_columns(columns)),
            self._target.casts(cursor, columns),
        )

    def check_shared(self, cursor: Cursor, columns: Sequence[Column], others: Sequence[str]) -> None:
        """Raise TargetMismatch when the changes have columns that this pipeline does not write, and others do.

        A replay would write its records' changes anew without them.
        """
        own = {column.name for column in (*self.staged_columns(columns), *self.contributions.lineage_columns)}
        if extra := sorted(set(self.contributions.tables[0].columns(cursor)) - own):
            raise TargetMismatch(
                f"table {self.contributions.target}: this pipeline does not write the columns {', '.join(extra)}. "
                f"The target {self.target} is shared with {', '.join(others)}: rows would lose the values of "
                f"these columns. Nothing was written. Let all of these pipelines write the same columns, or give "
                f"them different targets."
            )

    def check_replay(self, cursor: Cursor) -> None:
        """Raise TargetMismatch when a replay would change tables that refer to the changes."""
        self.contributions.check_replay(cursor)

    def counts(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:
        """How many changes take_back() would delete of each part."""
        return self.contributions.counts(cursor, parts)

    def take_back(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """Delete the changes that batches have written in ranges; return how many that was."""
        self._target.lock(cursor)
        create_touched(cursor, self.contributions, self.key)
        with self._target.untouched(cursor, by=self.contributions.tables[0]):
            return take_back_touching(cursor, self.contributions, parts, self.key, count=sql.SQL("count(*)"))

    def count(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        """How many changes take_back() would delete."""
        return self.contributions.count(cursor, parts)

    def first_since(self, cursor: Cursor, parts: Sequence[Part], at: datetime) -> dict[tuple[str, int], int]:
        """The offset of the first change that is not from before a time, by its Kafka timestamp, in each
        (topic, partition) that has one; a change without a timestamp may be from any time."""
        if (some := self._any_of(parts)) is None:
            return {}
        cursor.execute(
            sql.SQL(
                "select kafka_topic, kafka_partition, min(kafka_offset) from {change} "
                "where ({some}) and (kafka_timestamp < {at}) is not true group by 1, 2"
            ).format(change=self.contributions.table, some=some, at=sql.Literal(at))
        )
        return {(topic, partition): offset for topic, partition, offset in cursor.fetchall()}

    def preview_compact(self, cursor: Cursor, parts: Sequence[Part]) -> Compacted:
        """What compact() would return; nothing is dropped."""
        return self._count_compacted(
            cursor,
            parts,
            sql.SQL("select kafka_topic, kafka_partition from judged where goes"),
        )

    def compact(self, cursor: Cursor, parts: Sequence[Part]) -> Compacted:
        """Drop the changes in these parts that nothing that comes later, and no replay beyond them, can make a
        row again. Returns how many were dropped and kept, by (topic, partition). The target stays as it is.
        """
        return self._count_compacted(
            cursor,
            parts,
            sql.SQL(
                "delete from {change} c using judged j where j.goes and c.tableoid = j.tableoid "
                "and c.ctid = j.ctid returning c.kafka_topic, c.kafka_partition"
            ).format(change=self.contributions.table),
        )

    def _count_compacted(self, cursor: Cursor, parts: Sequence[Part], gone: sql.Composable) -> Compacted:
        if (below := self._any_of(parts)) is None:
            return {}
        cursor.execute(
            sql.SQL(
                "with judged as materialized ({judged}), gone as ({gone}) "
                "select kafka_topic, kafka_partition, sum(dropped)::int8 as dropped, sum(kept)::int8 as kept "
                "from ("
                "select kafka_topic, kafka_partition, 1 as dropped, 0 as kept from gone union all "
                "select kafka_topic, kafka_partition, 0, 1 from judged where not goes) counted group by 1, 2"
            ).format(judged=self._judged(below), gone=gone)
        )
        return {(topic, partition): (dropped, kept) for topic, partition, dropped, kept in cursor.fetchall()}

    def _any_of(self, parts: Sequence[Part]) -> sql.Composable | None:
        """What is true of all changes that batches have written in ranges; None where there is no batch."""
        conditions = [sql.SQL("({})").format(each) for each in self.contributions.conditions(parts)]
        return sql.SQL(" or ").join(conditions) if conditions else None

    def _judged(self, below: sql.Composable) -> sql.Composable:
        """Each change below the horizon, and whether it goes.

        The latest of a key stays, with all that tie with it: what lies above may be taken back, and then it is
        the row again. A latest change that is a delete says the same as none where nothing older can come: no
        version lets a change be late, and the key has no change elsewhere.
        """
        spent_delete = (
            sql.SQL(
                # Below the horizon older changes of the key go as well.
                "deleted and not exists (select from {change} o where {same_key} and ("
                "(o.kafka_topic, o.kafka_partition) <> (b.kafka_topic, b.kafka_partition) "
                "or o.kafka_offset = b.kafka_offset and not o.deleted "
                "or o.kafka_offset <= b.kafka_offset and ({below}) is not true))"
            ).format(
                change=self.contributions.table,
                same_key=sql.SQL(" and ").join(
                    sql.SQL("o.{0} = b.{0}").format(_id(name)) for name in self.key
                ),
                below=below,
            )
            if self.version is None
            else sql.SQL("false")
        )
        return sql.SQL(
            "select tableoid, ctid, kafka_topic, kafka_partition, "
            "rank() over (partition by {key} order by {order}) > 1 or {spent_delete} as goes "
            "from {change} b where {below}"
        ).format(
            key=self._names(self.key),
            order=self._latest_first,
            spent_delete=spent_delete,
            change=self.contributions.table,
            below=below,
        )

    def insert_staged(
        self,
        cursor: Cursor,
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
        # Two pipelines may share the target: each has to see what the other has committed before.
        self._target.lock(cursor)
        create_touched(cursor, self.contributions, self.key)
        with self._target.untouched(cursor, by=self.contributions.tables[0]):
            inserted = self.contributions.insert_staged(
                cursor,
                staging=staging,
                columns=self.staged_columns(columns),
                batch_id=batch_id,
                attempts=attempts,
            )
        types = {cast.column.name: cast.type for cast in self.contributions.casts(cursor, columns)}
        cursor.execute(
            sql.SQL(
                "insert into {touched} ({names}) select distinct {key} from {staging} "
                "where task_attempt = any({attempts})"
            ).format(
                touched=TOUCHED,
                names=self._names(self.key),
                # In the types of the changes: a staged uuid is text.
                key=sql.SQL(", ").join(
                    sql.SQL("{}::{}").format(_id(name), sql.SQL(types[name])) for name in self.key
                ),
                staging=staging,
                attempts=sql.Literal(list(attempts)),
            )
        )
        cursor.execute(sql.SQL("analyze {}").format(TOUCHED))
        if self.version is None:
            self._check_partitions(cursor)
        casts = self._target.casts(cursor, columns)
        staged = sql.SQL("{} and not deleted").format(candidates(casts, staging, attempts))
        with self.contributions.tables[0].untouched(cursor, by=self._target):
            self._derive(cursor, casts, staged)
        return inserted

    def misfits(self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int) -> list[Misfit]:
        """What is true of staged changes that the types of the changes or of the target cannot hold."""
        return [
            *self.contributions.misfits(cursor, self.staged_columns(columns), batch_id=batch_id),
            *misfits(self._target.casts(cursor, columns)),
        ]

    def check_one_change(
        self, cursor: Cursor, columns: Sequence[Column], *, staging: sql.Composable, attempts: Sequence[int]
    ) -> None:
        """Raise TargetMismatch when a staged record gives two changes of a key between which nothing decides."""
        ordered = [*self.key, *([] if self.version is None else [self.version])]
        casts = {cast.column.name: cast for cast in self.contributions.casts(cursor, columns)}
        # The first branch gives the types and collations by which the changes are compared.
        cursor.execute(
            sql.SQL(
                "select {texts} as change, kafka_topic as topic, kafka_partition as partition, "
                'kafka_offset as "offset" from ('
                "select {names}, kafka_topic, kafka_partition, kafka_offset from {change} where false union all "
                "select {values}, kafka_topic, kafka_partition, kafka_offset from {staging} "
                "where task_attempt = any({attempts})) staged "
                "group by {names}, 2, 3, 4 having count(*) > 1 order by 2, 3, 4 limit {most}"
            ).format(
                texts=sql.SQL(" || ', ' || ").join(
                    sql.SQL("coalesce({}::text, 'null')").format(_id(name)) for name in ordered
                ),
                names=self._names(ordered),
                change=self.contributions.table,
                values=sql.SQL(", ").join(casts[name].expression for name in ordered),
                staging=staging,
                attempts=sql.Literal(list(attempts)),
                most=sql.Literal(_KEYS_SHOWN),
            )
        )
        if found := cursor.fetchall():
            shown = "; ".join(
                f"{row.topic}[{row.partition}] offset {row.offset}: ({row.change})" for row in found
            )
            raise TargetMismatch(
                f"target {self.target}: a record gives several changes of one key, and nothing says which of them "
                f"is the latest. The first, as ({', '.join(ordered)}): {shown}. Nothing was written. Let the "
                f"transform give one change for each key and record, or changes whose version differs."
            )

    def _check_partitions(self, cursor: Cursor) -> None:
        # The names of the key need not be such as a Python tuple could have.
        aliased = sql.SQL(", ").join(
            sql.SQL("{} as {}").format(_id(name), _id(f"key_{index}")) for index, name in enumerate(self.key)
        )
        cursor.execute(
            sql.SQL(
                "select {aliased}, array_agg(distinct kafka_topic || '[' || kafka_partition || ']') as partitions "
                "from {change} join (select distinct {key} from {touched}) touched using ({key}) "
                "group by {key} having count(distinct (kafka_topic, kafka_partition)) > 1 "
                "order by {key} limit {most}"
            ).format(
                aliased=aliased,
                key=self._names(self.key),
                change=self.contributions.table,
                touched=TOUCHED,
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

    def _derive(self, cursor: Cursor, casts: Sequence[Cast], staged: sql.Composable) -> None:
        """Compute the touched keys' rows from all their changes; `staged` are those of this batch."""
        names = [each.column.name for each in casts]
        # Equal keys can look different: the row has the key as its latest change writes it.
        written = [
            cast.column.name
            for cast in casts
            if cast.column.name not in self.key or not has_one_image(cast.type)
        ]
        order = sql.SQL(", ").join([*map(_id, self.key), self._latest_first])
        parts = {
            "target": self.table,
            "change": self.contributions.table,
            "touched": TOUCHED,
            "latest": _LATEST,
            "key": self._names(self.key),
            "names": self._names(names),
            "values": sql.SQL(", ").join(
                sql.SQL("{}::{}").format(_id(cast.column.name), sql.SQL(cast.type)) for cast in casts
            ),
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
        gone = sql.SQL(
            "(select distinct {key} from {touched}) l where {same_key} "
            "and not exists (select from {latest} l where {same_key} and not l.deleted)"
        ).format(**parts)
        guards = self._target.guards(cursor)
        self._target.delete(
            cursor,
            sql.SQL("delete from {} t using {}").format(self.table, gone),
            # To look again costs as much as the statement: only where something could have kept rows back.
            left=sql.SQL("select count(*) from {} t, {}").format(self.table, gone) if guards else None,
        )
        # A row that stays as it is, is not written: no dead row, and no trigger that sees a change.
        update = (
            sql.SQL("do update set {} where {}").format(
                sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(_id(name)) for name in written),
                differs(written, "t", "excluded"),
            )
            if written
            else sql.SQL("do nothing")
        )
        self._target.execute(
            cursor,
            sql.SQL(
                "insert into {target} as t ({names}) select {values} from {latest} where not deleted "
                "on conflict ({key}) {update}"
            ).format(**parts, update=update),
            candidates=staged,
        )
        if guards:
            self._check_derived(cursor, casts, parts, gone, guards)

    def _check_derived(
        self,
        cursor: Cursor,
        casts: Sequence[Cast],
        parts: Mapping[str, sql.Composable],
        gone: sql.Composable,
        guards: str,
    ) -> None:
        """The touched keys' rows are those of their latest changes: a trigger may alter or swallow them."""
        cursor.execute(
            sql.SQL(
                "select count(*) filter (where t.tableoid is null) as missing, count(*) as differ, "
                "(select count(*) from {target} t, {gone}) as left "
                "from {latest} l left join {target} t on {same_key} where not l.deleted "
                "and (t.tableoid is null or record_image_ne(row({stored}), row({computed})))"
            ).format(
                **parts,
                gone=gone,
                stored=listed([cast.column.name for cast in casts], of="t"),
                computed=sql.SQL(", ").join(
                    sql.SQL("{}::{}").format(sql.Identifier("l", cast.column.name), sql.SQL(cast.type))
                    for cast in casts
                ),
            )
        )
        missing, differ, left = cursor.fetchone()
        if differ or left:
            raise TargetMismatch(
                f"target {self.target}: of the rows of this batch {missing} did not arrive, {differ - missing} "
                f"are not stored as they were written, and {left} that were deleted are still there: {guards} "
                f"alters them. Nothing was written. Drop it, or let it change only columns that the pipeline does "
                f"not write."
            )

    @property
    def _latest_first(self) -> sql.Composable:
        """The order of a key's changes."""
        version = [] if self.version is None else [sql.SQL("{} desc nulls last").format(_id(self.version))]
        place = ("kafka_topic", "kafka_partition", "kafka_offset")
        return sql.SQL(", ").join([*version, *(sql.SQL("{} desc").format(_id(name)) for name in place)])

    def _names(self, names: Sequence[str]) -> sql.Composable:
        return sql.SQL(", ").join(map(_id, names))


def _id(name: str) -> sql.Identifier:
    return sql.Identifier(name)
