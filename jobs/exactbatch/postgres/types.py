"""The types of a target's columns with their parts: of domains, arrays, composites and ranges; and whether Postgres
takes a text as a value of a type, and with which message it refuses one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import psycopg2
from psycopg2 import sql

from exactbatch.errors import ConfigurationError
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.server_version import INPUT_CHECKS, Since

# The names of pg_type.typtype's letters, and "array", for which it has none.
Kind = Literal["base", "array", "composite", "domain", "enum", "multirange", "pseudo", "range"]
_KINDS: Final[Mapping[str, Kind]] = {
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "m": "multirange",
    "p": "pseudo",
    "r": "range",
}
# A type's name with its modifier, as a statement must write it. format_type() omits a schema that is in the search
# path; here types that are not built in have it, as in a pipeline's schema.
SQL_NAME: Final = """
case when b.typnamespace = 'pg_catalog'::regnamespace then format_type(t.oid, {modifier})
     else quote_ident(bn.nspname) || '.' || quote_ident(b.typname)
          || substr(format_type(b.oid, {modifier}), length(format_type(b.oid, null)) + 1)
          || case when b.oid <> t.oid then '[]' else '' end
end
"""
# The joins that SQL_NAME needs, to pg_type t: the element of a true array, or the type itself, and its schema.
SQL_NAME_FROM: Final = """
left join pg_type element on element.typarray = t.oid
join pg_type b on b.oid = coalesce(element.oid, t.oid)
join pg_namespace bn on bn.oid = b.typnamespace
"""
_TYPES: Final = """
with recursive wanted (oid) as (
  select unnest(%s::oid[])
  union
  select part.oid
  from wanted w
  join pg_type t on t.oid = w.oid
  cross join lateral (
    select t.typbasetype as oid where t.typtype = 'd'
    union all select e.oid from pg_type e where e.typarray = t.oid
    union all select a.atttypid from pg_attribute a
              where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
    union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid
    union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid
  ) part
)
select t.oid::bigint as oid, n.nspname as schema, t.typname as name, t.typtype as kind,
  p.provolatile = 'i' as immutable,
  (select e.oid from pg_type e where e.typarray = t.oid) as element,
  t.typbasetype as base, t.typtypmod as base_modifier,
  (select coalesce(r.rngsubtype, m.rngtypid) from (select) one
   left join pg_range r on r.rngtypid = t.oid left join pg_range m on m.rngmultitypid = t.oid) as range_of,
  array(select row(a.atttypid, a.atttypmod)::text from pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        order by a.attnum) as attributes,
  case t.typtype
    -- Before Postgres 17, pg_constraint has no `not null` of domains.
    when 'd' then array(select pg_get_constraintdef(c.oid) from pg_constraint c
                        where c.contypid = t.oid and c.contype <> 'n' order by c.conname)
                  || case when t.typnotnull then '{NOT NULL}'::text[] end
    when 'e' then array(select e.enumlabel::text from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder)
    when 'c' then array(select a.attname::text from pg_attribute a
                        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum)
    else '{}'::text[]
  end as details
from wanted w join pg_type t on t.oid = w.oid join pg_namespace n on n.oid = t.typnamespace
join pg_proc p on p.oid = t.typinput
"""
_NAMES: Final = f"""
select t.oid, pair.modifier, {SQL_NAME.format(modifier="pair.modifier")} as sql_name
from unnest(%s::oid[], %s::int[]) pair (oid, modifier) join pg_type t on t.oid = pair.oid {SQL_NAME_FROM}
"""  # noqa: S608  # constants only
_HEADER: Final = 4  # bytes, which Postgres adds to what numeric(p,s), varchar(n) and char(n) declare
_Pair = tuple[int, int]  # a type's oid, and its modifier or -1
# What the ledger has for servers that cannot say it themselves; migration 0022 creates it.
_REFUSAL: Final = sql.Identifier("exactbatch", "refusal_of_input")
_REPEATS: Final = sql.Identifier("exactbatch", "repeats_a_field")


@dataclass(frozen=True, slots=True)
class PgType:
    """A type with its modifier, such as (10,2) in numeric(10,2), and the types that it is made of.

    `name` is the name in pg_type, such as "int4", with the schema unless the type is built in; `sql_name` is
    the name that a statement writes. `parts` holds the base type of a domain, the elements of an array, the attributes
    of a composite, or the bounds of a range; `details` the constraints of a domain, the labels of an enum, or the
    names of attributes. `is_immutable` is true if a text means the same value under any setting and at any time.
    """

    oid: int
    schema: str
    name: str
    sql_name: str
    modifier: int
    kind: Kind
    is_immutable: bool
    parts: tuple["PgType", ...]
    details: tuple[str, ...]

    @property
    def leaf(self) -> "PgType":
        """The type below any domains."""
        return self.parts[0].leaf if self.kind == "domain" else self

    @property
    def has_constraints(self) -> bool:
        """True if the type is a domain that may refuse values."""
        return self.kind == "domain" and (bool(self.details) or self.parts[0].has_constraints)


def pg_types(cursor: Cursor, wanted: Iterable[_Pair]) -> dict[_Pair, PgType]:
    """Return the types of these pairs of an oid and a modifier, by two queries of the catalogs."""
    wanted = set(wanted)
    cursor.execute(_TYPES, ([oid for oid, _ in wanted],))
    rows = {row.oid: row for row in cursor.fetchall()}
    pairs: set[_Pair] = set()
    for pair in wanted:
        pairs.update(_pairs(pair, rows))
    cursor.execute(_NAMES, ([oid for oid, _ in pairs], [modifier for _, modifier in pairs]))
    sql_names = {(row.oid, row.modifier): row.sql_name for row in cursor.fetchall()}
    return {pair: _type(pair, rows, sql_names) for pair in wanted}


def find_named_type(cursor: Cursor, name: str) -> PgType:
    """Return a type by its name in a pipeline's schema, such as "numeric(50,2)" or "public.mood".

    Raises ConfigurationError if the database does not have the type.
    """
    cursor.execute("select to_regtype(%s)::oid as oid", (name,))
    (oid,) = cursor.fetchone()
    if oid is None:
        raise ConfigurationError(f"the database has no type {name}. Create it, or correct the schema.")
    modifier = find_modifier(name)
    return pg_types(cursor, {(oid, modifier)})[oid, modifier]


def find_modifier(name: str) -> int:
    """Return the modifier, as pg_attribute has it, of a type by its name in a pipeline's schema; -1 if it has none."""
    numbers = [int(number) for number in re.findall(r"(?<=[(,])\d+", name)] if "." not in name else []
    match numbers:
        case [precision, scale]:
            return (precision << 16 | scale) + _HEADER
        case [length]:
            return length + _HEADER
        case _:
            return -1


def refusal_of_null(cursor: Cursor, type_: PgType) -> str | None:
    """Return Postgres's message when null is cast to a type; None if the type accepts null."""
    if not type_.has_constraints:
        return None
    cursor.execute("savepoint null_of_domain")
    try:
        cursor.execute(sql.SQL("select null::{}").format(sql.SQL(type_.sql_name)))
    except psycopg2.Error as error:
        # A snapshot cannot be shared from within a savepoint.
        cursor.execute("rollback to savepoint null_of_domain; release savepoint null_of_domain")
        return str(error.diag.message_primary)
    cursor.execute("release savepoint null_of_domain")
    return None


def _pairs(pair: _Pair, rows: Mapping[int, Any]) -> Iterator[_Pair]:
    yield pair
    for part in _parts(pair, rows):
        yield from _pairs(part, rows)


def _parts(pair: _Pair, rows: Mapping[int, Any]) -> list[_Pair]:
    oid, modifier = pair
    row = rows[oid]
    if row.element is not None:
        return [(row.element, modifier)]
    if row.kind == "d":
        return [(row.base, row.base_modifier)]
    if row.range_of is not None:
        return [(row.range_of, -1)]
    attributes = (attribute.strip("()").split(",") for attribute in row.attributes)
    return [(int(type_oid), int(type_modifier)) for type_oid, type_modifier in attributes]


def _type(pair: _Pair, rows: Mapping[int, Any], sql_names: Mapping[_Pair, str]) -> PgType:
    row = rows[pair[0]]
    return PgType(
        oid=row.oid,
        schema=row.schema,
        name=row.name if row.schema == "pg_catalog" else f"{row.schema}.{row.name}",
        sql_name=sql_names[pair],
        modifier=pair[1],
        kind="array" if row.element is not None else _KINDS[row.kind],
        is_immutable=row.immutable,
        parts=tuple(_type(part, rows, sql_names) for part in _parts(pair, rows)),
        details=tuple(row.details),
    )


def can_check_input(cursor: Cursor) -> bool:
    """True if the database has what the conditions of this module call."""
    cursor.execute("select to_regproc('exactbatch.repeats_a_field') is not null")
    return cursor.connection.server_version >= INPUT_CHECKS or bool(cursor.fetchone()[0])


def is_refused(text: sql.Composable, type_name: str, modifier: int) -> sql.Composable:
    """Return the condition that Postgres refuses a text as input of a type; false or null for a text that is null.

    `type_name` is the type as a statement writes it, with its modifier, and `modifier` that as pg_attribute has it, or
    -1.
    """
    return Since(
        INPUT_CHECKS,
        sql.SQL("not pg_input_is_valid({}, {})").format(text, sql.Literal(type_name)),
        sql.SQL("{} is not null").format(_refusal(text, type_name, modifier)),
    )


def refusal(text: sql.Composable, type_name: str, modifier: int) -> sql.Composable:
    """Return the message with which Postgres refuses a text as input of a type; null if it takes it."""
    return Since(
        INPUT_CHECKS,
        sql.SQL("(pg_input_error_info({}, {})).message").format(text, sql.Literal(type_name)),
        _refusal(text, type_name, modifier),
    )


def repeats_a_field(document: sql.Composable) -> sql.Composable:
    """Return the condition that an object in a valid JSON text names a field twice; null for a null."""
    return Since(
        INPUT_CHECKS,
        sql.SQL("{} is not json with unique keys").format(document),
        sql.SQL("{}({})").format(_REPEATS, document),
    )


def _refusal(text: sql.Composable, type_name: str, modifier: int) -> sql.Composable:
    return sql.SQL("{}({}, {}::regtype, {})").format(
        _REFUSAL, text, sql.Literal(type_name), sql.Literal(modifier)
    )
