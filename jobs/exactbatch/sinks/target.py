"""The table that a sink writes to: its name, its columns, and what it refuses."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import psycopg2
from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.sinks.cast import Cast
from exactbatch.sinks.pg_types import WRITTEN, WRITTEN_FROM, pg_types, refusal_of_null
from exactbatch.sinks.refusal import refusal
from exactbatch.sqlstates import refuses

_MAX_NAME: Final = 63  # bytes of a Postgres identifier
_IDENTIFIER: Final = re.compile(r'"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*)')

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
        cursor: Any,
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
        # Two launches that create the same target at once: the second waits here and then finds it.
        self.lock(cursor)
        if self.exists(cursor):
            if evolve == "add":
                self._add(cursor, columns)
            self._check_columns(cursor, (*columns, *lineage), exact=exact)
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
        cursor.execute(
            sql.SQL("create table {} ({})").format(self.identifier, sql.SQL(", ").join(definitions))
        )
        # A type of the owner's own may be one that text cannot become.
        self._check_columns(cursor, (*columns, *lineage), exact=exact)
        return True

    def check_copied_into(self, cursor: Any, columns: Sequence[Column]) -> None:
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
        cursor.execute("select current_setting('track_counts')")
        if cursor.fetchone()[0] != "on":
            raise TargetMismatch(
                f"target {self.written}: expected Postgres to count the rows that arrive in it "
                f"(track_counts = on, the default), found it off. Switch it on, or use commit='batch'."
            )

    def lock(self, cursor: Any) -> None:
        """Wait until no other transaction holds this table's name, and hold it to the end of this one."""
        cursor.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (".".join(self.name),))

    def exists(self, cursor: Any) -> bool:
        """Whether there is such a table. Raises TargetMismatch when something else bears its name."""
        return bool(self._columns_found(cursor))

    def check_unique(self, cursor: Any, key: Sequence[str], *, nulls_once: bool = False) -> None:
        """Raise TargetMismatch unless no two rows can have the same key.

        With `nulls_once` a null in the key counts as a value like any other.
        """
        cursor.execute(
            "select array_agg(a.attname::text order by a.attname) from pg_index i "
            "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey) "
            "where i.indrelid = %s::regclass and i.indisunique and i.indimmediate and i.indpred is null "
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
        self, cursor: Any, statement: sql.Composable, *, candidates: sql.Composable | None = None
    ) -> int:
        """Run a statement that writes into the table; return how many rows it wrote.

        Raises TargetMismatch when the table refuses a row; `candidates`, a query of the rows that are to be
        written with their lineage, then tells their offsets.
        """
        cursor.execute("savepoint write")
        try:
            cursor.execute(statement)
            written = int(cursor.rowcount)
            # A deferred constraint would speak at the commit, when nobody could tell which rows are meant.
            cursor.execute("set constraints all immediate")
        except psycopg2.Error as error:
            if not refuses(error.pgcode):
                raise
            cursor.execute("rollback to savepoint write")
            raise refusal(cursor, self.written, error, candidates) from error
        cursor.execute("release savepoint write")
        return written

    def casts(self, cursor: Any, columns: Sequence[Column]) -> tuple[Cast, ...]:
        """How each staged column becomes a column of the table, which prepare() has seen.

        Casts that are made of the same columns later are equal to these unless a type has changed.
        """
        return tuple(self._casts(cursor, columns, self._columns_found(cursor)))

    def _casts(
        self, cursor: Any, columns: Sequence[Column], found: "Mapping[str, _FoundColumn]"
    ) -> Iterator[Cast]:
        types = pg_types(cursor, {found[column.name].its_type for column in columns})
        for column in columns:
            its = found[column.name]
            type_ = types[its.its_type]
            yield Cast(column, type_, refusal_of_null(cursor, type_), its.collation)

    def _add(self, cursor: Any, columns: Sequence[Column]) -> None:
        there = self._columns_found(cursor)
        for column in columns:
            if column.name not in there:
                cursor.execute(
                    sql.SQL("alter table {} add column {} {}").format(
                        self.identifier, sql.Identifier(column.name), sql.SQL(column.type)
                    )
                )

    def _check_columns(self, cursor: Any, columns: Sequence[Column], *, exact: bool) -> None:
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

    def _columns_found(self, cursor: Any) -> "dict[str, _FoundColumn]":
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


def _quoted(name: str) -> str:
    """An identifier as it can be pasted into a statement; the program's own go through psycopg2.sql."""
    return '"{}"'.format(name.replace('"', '""'))


def _is_table_name(text: str) -> bool:
    part = _IDENTIFIER.pattern
    return re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text) is not None
