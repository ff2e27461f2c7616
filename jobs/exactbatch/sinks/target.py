"""The table that a sink writes to: its name, its columns, and what it refuses."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, PostgresUnavailable, TargetMismatch
from exactbatch.errors.sqlstates import refuses
from exactbatch.postgres.catalog import Fact, changers_of, check_kinds, check_schema, guards_of, read_facts
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.types import WRITTEN, WRITTEN_FROM, pg_types, refusal_of_null
from exactbatch.sinks.cast import Cast
from exactbatch.sinks.refusal import refusal
from exactbatch.sinks.writes import PSYCOPG2_WRITES, Writes

_MAX_NAME: Final = 63  # bytes of a Postgres identifier
# A statement that changes the table waits for its lock no longer than readers that queue behind it can bear.
_DDL_TRIES: Final = 4
_DDL_LOCK_TIMEOUT: Final = "1s"
_DDL_PAUSE: Final = 0.5  # seconds
_IDENTIFIER: Final = re.compile(r'"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*)')

_COMPARED_AS: Final = {
    **dict.fromkeys(("smallint", "integer", "bigint"), "numeric"),
    "character varying": "text",
}

# What to do with columns that the pipeline has and its target has not.
Evolve = Literal["refuse", "add"]

# The columns of a table, with placeholders for its schema and name.
COLUMNS_OF: Final = f"""
select c.relkind, a.attname, {WRITTEN.format(modifier="a.atttypmod")} as type,
       a.attnotnull and not a.atthasdef and a.attidentity = '' as required,
       a.attgenerated <> '' or a.attidentity = 'a' as generated,
       t.oid::bigint as type_oid, a.atttypmod as modifier,
       (select quote_ident(cn.nspname) || '.' || quote_ident(co.collname) from pg_collation co
        join pg_namespace cn on cn.oid = co.collnamespace where co.oid = a.attcollation) as collation
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type t on t.oid = a.atttypid
{WRITTEN_FROM}
where n.nspname = {{}} and c.relname = {{}}
"""  # noqa: S608  # constants, and placeholders

_CASCADES: Final = """
with recursive family as (
    select %(table)s::regclass::oid as oid union select relid::oid from pg_partition_tree(%(table)s::regclass)
), carried as (
    select k.conrelid, k.confrelid, k.conname, k.confdeltype from pg_constraint k
    join family f on f.oid = k.confrelid
    where k.contype = 'f' and k.confdeltype in ('c', 'n', 'd') and k.conparentid = 0
    union
    select k.conrelid, k.confrelid, k.conname, k.confdeltype from pg_constraint k
    join carried c on k.confrelid = c.conrelid and c.confdeltype = 'c'
    where k.contype = 'f' and k.confdeltype in ('c', 'n', 'd') and k.conparentid = 0
)
select n.nspname::text, r.relname::text, c.conname::text,
       case c.confdeltype when 'c' then 'cascade' when 'n' then 'set null' else 'set default' end,
       c.confrelid::regclass::text, c.conrelid in (select oid from family)
from carried c join pg_class r on r.oid = c.conrelid join pg_namespace n on n.oid = r.relnamespace
order by 1, 2, 3
"""
# Columns whose type, or that of their domain, is an extension's in a schema off the search_path.
_HIDDEN_OPERATORS: Final = """
with recursive types as (
    select a.attname, a.atttypid as oid from pg_attribute a
    where a.attrelid = %s::regclass and a.attname = any(%s) and a.attnum > 0
    union
    select t.attname, y.typbasetype from types t join pg_type y on y.oid = t.oid where y.typtype = 'd'
)
select t.attname::text, n.nspname::text, y.typname::text
from types t join pg_type y on y.oid = t.oid join pg_namespace n on n.oid = y.typnamespace
where y.typtype = 'b' and y.typcategory <> 'A' and n.nspname <> 'pg_catalog'
  and n.nspname <> all(current_schemas(true))
order by 1 limit 1
"""
_NOT_REPLICATED: Final = """
with family as (
    select %s::regclass::oid as oid union select relid::oid from pg_partition_tree(%s::regclass)
)
select format('%%I.%%I', n.nspname, c.relname), p.pubname::text, i.columns is not null
from family f join pg_class c on c.oid = f.oid and c.relkind = 'r' join pg_namespace n on n.oid = c.relnamespace
join pg_publication p on (p.pubdelete or p.pubupdate) and (
    p.puballtables
    or exists (select from pg_publication_rel r where r.prpubid = p.oid
               and (r.prrelid = c.oid or r.prrelid in (select relid from pg_partition_ancestors(c.oid))))
    or exists (select from pg_publication_namespace s where s.pnpubid = p.oid and (s.pnnspid = c.relnamespace
               or s.pnnspid in (select a.relnamespace from pg_partition_ancestors(c.oid) t
                                join pg_class a on a.oid = t.relid))))
left join lateral (
    -- Not pg_get_replica_identity_index(): Postgres might ask it of a table that somebody drops meanwhile.
    -- A key `without overlaps` is no identity: its equality is not that of the columns.
    select array_agg(k.column_number) as columns
    from pg_index i cross join unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k (column_number)
    where i.indrelid = c.oid and not i.indisexclusion
    and (c.relreplident = 'd' and i.indisprimary or c.relreplident = 'i' and i.indisreplident)
    having count(*) > 0
    union all
    select array_agg(a.attnum) from pg_attribute a
    where c.relreplident = 'f' and a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    having c.relreplident = 'f'
) i on true
left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid and r.prattrs is not null
where i.columns is null or not i.columns <@ r.prattrs::int2[]
order by 1, 2 limit 1
"""


@dataclass(frozen=True)
class TargetTable:
    """A table, written `schema.table`; a part that is not lower-case goes in double quotes.

    Raises ConfigurationError for what is no such name.
    """

    written: str

    def __post_init__(self) -> None:
        if not _is_table_name(self.written):
            raise ConfigurationError(
                f"expected a target as 'schema.table', lower-case or in double quotes, found {self.written!r}"
            )

    @property
    def name(self) -> tuple[str, str]:
        """Schema and table as Postgres stores them; the schema is public when none is written."""
        parts = [
            match[1].replace('""', '"') if match[1] else match[2]
            for match in _IDENTIFIER.finditer(self.written)
        ]
        return (parts[0], parts[1]) if len(parts) > 1 else ("public", parts[0])

    @property
    def identifier(self) -> sql.Composable:
        """The table as an SQL identifier."""
        return sql.Identifier(*self.name)

    def beside(self, suffix: str) -> str:
        """The name, as it is written, of the table beside this one whose name has a suffix more.

        Raises ConfigurationError when it is longer than Postgres stores it.
        """
        schema, name = self.name[0], self.name[1] + suffix
        # Postgres cuts a longer name with no more than a notice, down to the target's own.
        if len(name.encode()) > _MAX_NAME:
            raise ConfigurationError(
                f"target {self.written}: expected a name that leaves room for the table {name!r} beside it, in "
                f"{_MAX_NAME} bytes, found {len(name.encode())}. Choose a shorter one."
            )
        return f"{_quoted(schema)}.{_quoted(name)}"

    def prepare(
        self,
        cursor: Cursor,
        columns: Sequence[Column],
        *,
        lineage: Sequence[Column] = (),
        required: Sequence[str] = (),
        key: Sequence[str] = (),
        evolve: Evolve = "refuse",
        exact: bool = False,
    ) -> bool:
        """Create the table when it is missing, and otherwise check its columns; return whether it was missing.

        A new table has `required` columns that may not be null, and `key`, if any, as its primary key. With
        evolve="add", `columns` that an older table lacks are added to it; never those of the lineage. With
        `exact` no column may need a cast.

        Raises TargetMismatch, which names the column and both types.
        """
        check_schema(self.written, self.name[0])
        # Two launches that create the same target at once: the second waits here and then finds it.
        self.lock(cursor)
        facts = self.facts(cursor)
        check_kinds(self.written, facts)
        if facts:
            if evolve == "add":
                self._add(cursor, columns)
            self._check_columns(cursor, (*columns, *lineage), exact=exact)
            self._check_replicated(cursor)
            return False
        definitions = [
            sql.SQL("{} {}{}").format(
                sql.Identifier(column.name),
                sql.SQL(column.type),
                sql.SQL(" not null" if column.name in required else ""),
            )
            for column in (*columns, *lineage)
        ]
        if key:
            names = sql.SQL(", ").join(map(sql.Identifier, key))
            definitions.append(sql.SQL("primary key ({})").format(names))
        # Even where the schema is there, `if not exists` asks for the privilege to create one.
        cursor.execute("select to_regnamespace(quote_ident(%s)) is null", self.name[:1])
        if cursor.fetchone()[0]:
            cursor.execute(sql.SQL("create schema {}").format(sql.Identifier(self.name[0])))
        self._create(cursor, definitions, key)
        # A type of the owner's own may be one that text cannot become.
        self._check_columns(cursor, (*columns, *lineage), exact=exact)
        return True

    def _create(self, cursor: Cursor, definitions: Sequence[sql.Composable], key: Sequence[str]) -> None:
        create = sql.SQL("create table {} ({})").format(self.identifier, sql.SQL(", ").join(definitions))
        cursor.execute("savepoint create_table")
        try:
            cursor.execute(create)
        except psycopg2.errors.UndefinedObject as error:
            if not key:
                raise
            cursor.execute("rollback to savepoint create_table")
            raise TargetMismatch(
                f"target {self.written}, key ({', '.join(key)}): {error.diag.message_primary}, so Postgres cannot "
                f"keep one row for each key. Choose a key whose values can be ordered."
            ) from error
        cursor.execute("release savepoint create_table")
        if not key:
            # A table without a key could not be deleted from once a publication has it.
            cursor.execute(sql.SQL("alter table {} replica identity full").format(self.identifier))

    def check_copied_into(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        """Check that rows can be copied into the table by several transactions at once, with no cast between.

        Raises TargetMismatch, which names the column, whose type must be exactly the one that is written, or
        the constraint, which could refuse one range's rows because of another's.
        """
        found = self._columns_found(cursor)
        for column in columns:
            if (actual := found[column.name].type) != column.type:
                raise TargetMismatch(
                    f"target {self.written}, column {column.name}: expected exactly the type {column.type}, "
                    f"because commit='partition' copies rows without a cast, found {actual}. Change the "
                    f"column's type, or use commit='batch'."
                )
        cursor.execute(
            """
            select i.indexrelid::regclass::text
            from pg_index i
            where (i.indisunique or i.indisexclusion) and i.indrelid in (
                select %(table)s::regclass union select relid from pg_partition_tree(%(table)s::regclass)
            )
            order by 1 limit 1
            """,
            {"table": self.identifier.as_string(cursor)},
        )
        if (constraint := cursor.fetchone()) is not None:
            raise TargetMismatch(
                f"target {self.written}: expected no primary key, unique or exclusion constraint or unique index, "
                f"because with commit='partition' ranges are written independently of each other, found "
                f"{constraint[0]}. Drop it, or use commit='batch'."
            )
        altering = [fact for fact in self.facts(cursor) if fact.is_guard and "BEFORE" in fact.guard]
        if altering:
            raise TargetMismatch(
                f"target {self.written}: {guards_of(altering)} could alter rows on their way, and with "
                f"commit='partition' nothing is staged to compare them with. Drop it, or use commit='batch'."
            )
        cursor.execute("select current_setting('track_counts')")
        if cursor.fetchone()[0] != "on":
            raise TargetMismatch(
                f"target {self.written}: expected Postgres to count the rows that arrive in it "
                f"(track_counts = on, the default), found it off. Switch it on, or use commit='batch'."
            )

    def lock(self, cursor: Cursor) -> None:
        """Wait until no other transaction holds this table's name, and hold it to the end of this one."""
        cursor.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (".".join(self.name),))

    def exists(self, cursor: Cursor) -> bool:
        """Whether there is such a table. Raises TargetMismatch when something else bears its name."""
        return bool(self._columns_found(cursor))

    def columns(self, cursor: Cursor) -> list[str]:
        """The names of the table's columns; none where there is no table."""
        return list(self._columns_found(cursor))

    def facts(self, cursor: Cursor) -> tuple[Fact, ...]:
        """What the database says of the table and its partitions; nothing while there is no such table."""
        return read_facts(cursor, [self.identifier.as_string(cursor)])

    def guards(self, cursor: Cursor) -> str:
        """The triggers and rules that may alter what is written; empty where there are none."""
        return guards_of(self.facts(cursor))

    def check_plain(self, cursor: Cursor) -> None:
        """Raise TargetMismatch where a trigger or a rule is on the table, which is exactbatch's own."""
        if guards := self.guards(cursor):
            raise TargetMismatch(
                f"table {self.written}: {guards} could alter what exactbatch keeps here for itself. Nothing was "
                f"written. Drop it, or put it on the target."
            )

    def check_key(self, cursor: Cursor, key: Sequence[str], other: "TargetTable") -> None:
        """Raise TargetMismatch where the two tables do not agree on which keys are equal.

        They do where the types of the columns compare alike, and collations take only the same texts for equal.
        """
        here, there = self._columns_found(cursor), other._columns_found(cursor)
        for name in key:
            if _equality(here[name].type) != _equality(there[name].type):
                raise TargetMismatch(
                    f"target {self.written}, column {name}: the key has the type {here[name].type} here and "
                    f"{there[name].type} in {other.written}: keys that differ in one table could be equal in the "
                    f"other. Nothing was written. Give both the same type."
                )
        for table in (self, other):
            table.check_collations(cursor, key)

    def check_collations(self, cursor: Cursor, key: Sequence[str]) -> None:
        """Raise TargetMismatch where a collation takes different keys for equal."""
        cursor.execute(
            "select a.attname::text, c.collname::text "
            "from pg_attribute a join pg_collation c on c.oid = a.attcollation "
            "where a.attrelid = %s::regclass and a.attname = any(%s) and not c.collisdeterministic",
            (self.identifier.as_string(cursor), list(key)),
        )
        if (found := cursor.fetchone()) is not None:
            raise TargetMismatch(
                f"target {self.written}, column {found[0]}: its collation {found[1]} takes different texts for "
                f"equal, so that rows of different keys would become one. Nothing was written. Give the column a "
                f"deterministic collation."
            )

    def check_operators(self, cursor: Cursor, key: Sequence[str]) -> None:
        """Raise TargetMismatch where `=` of a key's type is one that the login's search_path does not find.

        Postgres would take that of another type then, as text's for citext, which an index of the key does not.
        """
        cursor.execute(_HIDDEN_OPERATORS, (self.identifier.as_string(cursor), list(key)))
        if (found := cursor.fetchone()) is not None:
            name, schema, type_ = found
            raise TargetMismatch(
                f"target {self.written}, column {name}: the operators of its type {schema}.{type_} are in the "
                f"schema {schema}, which is not on the login's search_path, so Postgres would compare the values "
                f"as those of another type. Nothing was written. Put it there, for every login that runs the "
                f"pipeline or audits it: alter role … set search_path = public, {_quoted(schema)};"
            )

    def check_cascades(self, cursor: Cursor, allowed: Sequence[str] = ()) -> None:
        """Raise TargetMismatch when deleting rows would change tables that are not `allowed`.

        Foreign keys with on delete cascade, set null or set default carry a delete on, table by table.
        """
        cursor.execute(_CASCADES, {"table": self.identifier.as_string(cursor)})
        names = {TargetTable(each).name for each in allowed}
        if refused := [row for row in cursor.fetchall() if (row[0], row[1]) not in names or row[5]]:
            schema, table, constraint, action, referenced, own = refused[0]
            written = f"{_quoted(schema)}.{_quoted(table)}"
            raise TargetMismatch(
                f"target {self.written}: a replay deletes rows and inserts them again, and the foreign key "
                f"{constraint} of {schema}.{table} to {referenced} (on delete {action}) would change rows of "
                f"{'the target itself' if own else f'{schema}.{table}'} for good. Nothing was written. Let the "
                f"foreign key be without that and deferrable initially deferred"
                + ("." if own else f", or allow it: Append(…, cascade=({written!r},)).")
            )

    def delete(self, cursor: Cursor, statement: sql.Composable, *, left: sql.Composable | None) -> int:
        """Run a statement that deletes from the table; return the number of deleted rows.

        A statement may return a row instead: the number that this is to return, and at last that of the rows.

        `left` is a query of how many of these rows are still there, None where nothing could keep them back.

        Raises TargetMismatch when the table refuses, when rows are left, or when triggers change other rows.
        """
        before = self._writes_where_watched(cursor)
        cursor.execute("savepoint write")
        try:
            cursor.execute(statement)
            gone, rows = _numbers(cursor)
        except psycopg2.errors.ForeignKeyViolation as error:
            cursor.execute("rollback to savepoint write")
            raise TargetMismatch(
                f"target {self.written}: rows that have to go are referenced: {error.diag.message_detail} Nothing "
                f"was written. Where a replay writes these rows again, let the foreign key wait for it: alter "
                f"table … alter constraint {_quoted(error.diag.constraint_name or '…')} deferrable "
                f"initially deferred; otherwise delete the rows that reference them first."
            ) from error
        except psycopg2.Error as error:
            if not refuses(error.pgcode):
                raise
            cursor.execute("rollback to savepoint write")
            raise refusal(cursor, self.written, error, None) from error
        cursor.execute("release savepoint write")
        if left is not None:
            self._check_gone(cursor, left)
        if before is not None and not (done := self._writes(cursor) - before).is_delete_of(rows):
            raise self._meddled(cursor, f"a statement deleted {rows} rows", done)
        return gone

    def _check_gone(self, cursor: Cursor, left: sql.Composable) -> None:
        cursor.execute(left)
        if remaining := int(cursor.fetchone()[0]):
            cause = self.guards(cursor) or "a trigger, a rule or a policy of the table"
            raise TargetMismatch(
                f"target {self.written}: {remaining} rows that were deleted are still there: {cause} keeps them. "
                f"They would be there twice, or for good. Nothing was written. Let this login delete them."
            )

    def _writes(self, cursor: Cursor) -> Writes:
        cursor.execute(PSYCOPG2_WRITES, (self.identifier.as_string(cursor),) * 2)
        return Writes(*cursor.fetchone())

    def _writes_where_watched(self, cursor: Cursor) -> Writes | None:
        """What this transaction has done to the table; None where only its own statements can change a row."""
        if not (changers := changers_of(self.facts(cursor))):
            return None
        cursor.execute("select current_setting('track_counts')")
        if cursor.fetchone()[0] != "on":
            raise TargetMismatch(
                f"target {self.written}: {changers} may change other rows than the batch writes, and Postgres "
                f"does not count what it does, because track_counts is off. Nothing was written. Switch "
                f"track_counts on (the default), or drop it."
            )
        return self._writes(cursor)

    def _meddled(self, cursor: Cursor, statement: str, done: Writes) -> TargetMismatch:
        return TargetMismatch(
            f"target {self.written}: {statement}, and Postgres counts {done}: {changers_of(self.facts(cursor))} "
            f"changes rows of the target beside those. Nothing was written. Drop it, or let it write into other "
            f"tables only. A BEFORE trigger may fill columns that the pipeline does not write."
        )

    @contextmanager
    def untouched(self, cursor: Cursor, *, by: "TargetTable") -> Iterator[None]:
        """Raise TargetMismatch where what is written into another table within changes rows of this one.

        Triggers of that table do so, at once or when their constraint is checked.
        """
        before = self._writes(cursor) if by._writes_where_watched(cursor) is not None else None
        yield
        if before is not None and not (done := self._writes(cursor) - before).is_insert_of(0):
            raise TargetMismatch(
                f"target {self.written}: while the batch wrote into {by.written}, Postgres counts {done} here: "
                f"{changers_of(by.facts(cursor))} of {by.written} does that. Nothing was written. Drop it, or let "
                f"it write into other tables only."
            )

    def lock_writers(self, cursor: Cursor) -> None:
        """Let nobody change the table's definition to the end of this transaction; others may write."""
        cursor.execute(sql.SQL("lock table {} in row exclusive mode").format(self.identifier))

    def missing_index(self, cursor: Cursor) -> str | None:
        """The statement that creates an index for replays, where the table is there and has none."""
        cursor.execute(
            """
            select exists (
                select from pg_index i
                join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
                where i.indrelid = c.oid and i.indisvalid and i.indpred is null
                and a.attname in ('batch_id', 'kafka_topic', 'kafka_partition', 'kafka_offset')
            ) from (select to_regclass(%s)::oid as oid) c where c.oid is not null
            """,
            (self.identifier.as_string(cursor),),
        )
        row = cursor.fetchone()
        return None if row is None or row[0] else f"create index concurrently on {self.written} (batch_id);"

    def check_unique(self, cursor: Cursor, key: Sequence[str], *, nulls_once: bool = False) -> None:
        """Raise TargetMismatch unless no two rows can have the same key.

        With `nulls_once` a null in the key counts as a value like any other.
        """
        cursor.execute(
            "select array_agg(a.attname::text order by a.attname) from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid "
            # int2vector counts from 0; what comes after the key columns is included beside them.
            "and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
            "where i.indrelid = %s::regclass and i.indisunique and i.indimmediate and i.indpred is null "
            "and i.indisvalid and i.indisready "
            "and i.indexprs is null and (i.indisprimary or i.indnullsnotdistinct or not %s) "
            "group by i.indexrelid",
            (self.identifier.as_string(cursor), nulls_once),
        )
        if sorted(key) in [row[0] for row in cursor.fetchall()]:
            return
        names = ", ".join(key)
        clause = "unique nulls not distinct" if nulls_once else "unique"
        raise TargetMismatch(
            f"target {self.written}: expected a primary key or unique constraint on exactly ({names}), the key "
            f"of the pipeline{', that takes nulls for equal' if nulls_once else ''}, found none. Add it: "
            f"alter table {self.written} add {clause} ({names});"
        )

    def execute(
        self, cursor: Cursor, statement: sql.Composable, *, candidates: sql.Composable | None = None
    ) -> int:
        """Run a statement that writes into the table; return the number of written rows.

        A statement may return a row instead, as that of delete().

        Raises TargetMismatch when the table refuses a row, where `candidates`, a query of the rows that are to be
        written with their lineage, tells their offsets, and when triggers change other rows.
        """
        before = self._writes_where_watched(cursor)
        cursor.execute("savepoint write")
        try:
            cursor.execute(statement)
            written, rows = _numbers(cursor)
            # A deferred constraint would speak at the commit, when nobody could tell which rows are meant.
            cursor.execute("set constraints all immediate")
        except psycopg2.Error as error:
            if not refuses(error.pgcode):
                raise
            cursor.execute("rollback to savepoint write")
            raise refusal(cursor, self.written, error, candidates) from error
        cursor.execute("release savepoint write")
        if before is not None and not (done := self._writes(cursor) - before).is_insert_of(rows):
            raise self._meddled(cursor, f"a statement wrote {rows} rows", done)
        return written

    def casts(self, cursor: Cursor, columns: Sequence[Column]) -> tuple[Cast, ...]:
        """How each staged column becomes a column of the table, which prepare() has seen.

        Casts that are made of the same columns later are equal to these unless a type has changed.
        """
        return tuple(self._casts(cursor, columns, self._columns_found(cursor)))

    def _casts(
        self, cursor: Cursor, columns: Sequence[Column], found: "Mapping[str, _FoundColumn]"
    ) -> Iterator[Cast]:
        if absent := [column.name for column in columns if column.name not in found]:
            raise TargetMismatch(
                f"table {self.written}: there is no column {', '.join(absent)} any more. Nothing was written. Add "
                f"it again, or let the pipeline do so: evolve='add'."
            )
        types = pg_types(cursor, {found[column.name].its_type for column in columns})
        for column in columns:
            its = found[column.name]
            type_ = types[its.its_type]
            yield Cast(column, type_, refusal_of_null(cursor, type_), its.collation)

    def _add(self, cursor: Cursor, columns: Sequence[Column]) -> None:
        there = self._columns_found(cursor)
        added = [
            sql.SQL("add column {} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
            for column in columns
            if column.name not in there
        ]
        if added:
            statement = sql.SQL("alter table {} {}").format(self.identifier, sql.SQL(", ").join(added))
            self._change(cursor, statement)

    def _change(self, cursor: Cursor, statement: sql.Composable) -> None:
        """Run a statement that needs the table for itself, without holding up readers for long.

        Raises PostgresUnavailable, retryable, when others hold the table.
        """
        cursor.execute("select current_setting('lock_timeout')")
        own = cursor.fetchone()[0]
        for attempt in range(_DDL_TRIES):
            if attempt:
                time.sleep(_DDL_PAUSE)
            cursor.execute("savepoint change")
            try:
                cursor.execute("select set_config('lock_timeout', %s, true)", (_DDL_LOCK_TIMEOUT,))
                cursor.execute(statement)
            except psycopg2.errors.LockNotAvailable:
                cursor.execute("rollback to savepoint change")
                continue
            cursor.execute("select set_config('lock_timeout', %s, true)", (own,))
            cursor.execute("release savepoint change")
            return
        cursor.execute(
            "select string_agg(distinct "
            "format('%%s (%%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename)), ', ') "
            "from pg_locks l join pg_stat_activity a using (pid) "
            "where l.relation = %s::regclass and l.granted and l.pid <> pg_backend_pid()",
            (self.identifier.as_string(cursor),),
        )
        raise PostgresUnavailable(
            f"target {self.written} is in use by {cursor.fetchone()[0] or 'another session'}, so no column could "
            f"be added to it in {_DDL_TRIES} tries of {_DDL_LOCK_TIMEOUT}; waiting longer would hold up its "
            f"readers. Nothing was written. Try again when these sessions of pg_stat_activity have ended."
        )

    def _check_replicated(self, cursor: Cursor) -> None:
        """Raise TargetMismatch when a publication has the table, and no row of it could be deleted for that."""
        cursor.execute(_NOT_REPLICATED, (self.identifier.as_string(cursor),) * 2)
        if (found := cursor.fetchone()) is None:
            return
        table, publication, identified = found
        lacking, remedy = (
            (
                "the columns that it has of the table lack some of the replica identity",
                "Let it have them all.",
            )
            if identified
            else (
                "the table has no replica identity",
                f"Give it one: alter table {table} replica identity full;",
            )
        )
        raise TargetMismatch(
            f"target {self.written}: the publication {publication} sends deletes and updates of {table} on, and "
            f"{lacking}, so Postgres refuses them. Nothing was written. {remedy}"
        )

    def _check_columns(self, cursor: Cursor, columns: Sequence[Column], *, exact: bool) -> None:
        there = self._columns_found(cursor)
        for column in columns:
            actual = there.get(column.name)
            if actual is None:
                raise TargetMismatch(
                    f"target {self.written}: expected a column {column.name} of type {column.type}, found none. "
                    f"Add it: alter table {self.written} add column {_quoted(column.name)} {column.type}; or let "
                    f"the pipeline do so: evolve='add'."
                )
            if actual.generated:
                raise TargetMismatch(
                    f"target {self.written}, column {column.name}: expected a column that can be written, found "
                    f"one that is generated always. Leave it out of the pipeline's schema."
                )
        for cast in self._casts(cursor, columns, there):
            column, actual = cast.column, there[cast.column.name]
            if not (cast.is_plain or actual.type == column.type if exact else cast.is_possible):
                raise TargetMismatch(
                    f"target {self.written}, column {column.name}: expected type {column.type}, as the pipeline "
                    f"writes it, found {actual.type}. Change the pipeline's schema or the column's type."
                )
        written = {column.name for column in columns}
        for name, actual in there.items():
            if actual.required and name not in written:
                raise TargetMismatch(
                    f"target {self.written}, column {name}: expected a column that the pipeline writes, one "
                    f"with a default or one that may be null, found {actual.type} not null without a default. "
                    f"Add it to the pipeline's schema, or give it a default."
                )

    def _columns_found(self, cursor: Cursor) -> "dict[str, _FoundColumn]":
        cursor.execute(COLUMNS_OF.format("%s", "%s"), self.name)
        rows = cursor.fetchall()
        if rows and rows[0][0] not in ("r", "p"):
            raise TargetMismatch(
                f"target {self.written}: expected a table, found something else of that name (a view, a sequence "
                f"or an index). Give the pipeline another target."
            )
        return {name: _FoundColumn(*row) for _, name, *row in rows}


@dataclass(frozen=True, slots=True)
class _FoundColumn:
    type: str
    required: bool
    generated: bool
    oid: int
    modifier: int
    collation: str | None

    @property
    def its_type(self) -> tuple[int, int]:
        return self.oid, self.modifier


def _numbers(cursor: Cursor) -> tuple[int, int]:
    """What a statement returns first, and how many rows it wrote; both the same where it returns no row."""
    found = cursor.fetchone() if cursor.description else (cursor.rowcount,)
    return int(found[0]), int(found[-1])


def _equality(type_: str) -> str:
    """How a type compares: alike for types of which one value is equal in both or in neither."""
    plain = re.sub(r"\(\d+(?:,\d+)?\)", "", type_)
    return _COMPARED_AS.get(plain, plain)


def _quoted(name: str) -> str:
    """An identifier as it can be pasted into a statement; the program's own go through psycopg2.sql."""
    return '"{}"'.format(name.replace('"', '""'))


def _is_table_name(text: str) -> bool:
    part = _IDENTIFIER.pattern
    return re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text) is not None
