"""The types of a target's columns, taken apart: domains down to what they are over, arrays, composites, ranges."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import psycopg2
from psycopg2 import sql

from exactbatch.errors import ConfigurationError
from exactbatch.postgres.connection import Cursor

# How pg_type.typtype names them, and "array", which it does not.
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
# A type's name with its modifier, as a statement has to write it. format_type() leaves out a schema that is in
# the search path: types that are no built-in ones are spelt with it, as a pipeline has to write them.
WRITTEN: Final = """
case when b.typnamespace = 'pg_catalog'::regnamespace then format_type(t.oid, {modifier})
     else quote_ident(bn.nspname) || '.' || quote_ident(b.typname)
          || substr(format_type(b.oid, {modifier}), length(format_type(b.oid, null)) + 1)
          || case when b.oid <> t.oid then '[]' else '' end
end
"""
# What WRITTEN needs beside pg_type t: the element of a true array, or the type itself, and its schema.
WRITTEN_FROM: Final = """
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
    when 'd' then array(select pg_get_constraintdef(c.oid) from pg_constraint c where c.contypid = t.oid
                        order by c.conname)
    when 'e' then array(select e.enumlabel::text from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder)
    when 'c' then array(select a.attname::text from pg_attribute a
                        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum)
    else '{}'::text[]
  end as details
from wanted w join pg_type t on t.oid = w.oid join pg_namespace n on n.oid = t.typnamespace
join pg_proc p on p.oid = t.typinput
"""
_NAMES: Final = f"""
select t.oid, pair.modifier, {WRITTEN.format(modifier="pair.modifier")} as written
from unnest(%s::oid[], %s::int[]) pair (oid, modifier) join pg_type t on t.oid = pair.oid {WRITTEN_FROM}
"""  # noqa: S608  # constants only
_HEADER: Final = 4  # bytes, which Postgres adds to what numeric(p,s), varchar(n) and char(n) declare
_Pair = tuple[int, int]  # a type's oid, and its modifier or -1


@dataclass(frozen=True, slots=True)
class PgType:
    """A type with its modifier, as (10,2) in numeric(10,2), and the types that it is made of.

    `name` is as pg_type has it, as "int4", without the schema for a built-in type; `written` as a statement
    writes it. `parts` has what a domain is over, the elements of an array, the attributes of a composite, or the
    bounds of a range; `details` the constraints of a domain, the labels of an enum, or the names of attributes.
    `is_immutable` says whether reading text depends on it alone, on no setting and not on the time.
    """

    oid: int
    schema: str
    name: str
    written: str
    modifier: int
    kind: Kind
    is_immutable: bool
    parts: tuple["PgType", ...]
    details: tuple[str, ...]

    @property
    def leaf(self) -> "PgType":
        """The type without domains around it."""
        return self.parts[0].leaf if self.kind == "domain" else self

    @property
    def has_constraints(self) -> bool:
        """Whether a domain around the type refuses values, perhaps."""
        return self.kind == "domain" and (bool(self.details) or self.parts[0].has_constraints)


def pg_types(cursor: Cursor, wanted: Iterable[_Pair]) -> dict[_Pair, PgType]:
    """The types of these pairs of an oid and a modifier, by two queries of the catalogs."""
    wanted = set(wanted)
    cursor.execute(_TYPES, ([oid for oid, _ in wanted],))
    found = {row.oid: row for row in cursor.fetchall()}
    pairs: set[_Pair] = set()
    for pair in wanted:
        pairs.update(_pairs(pair, found))
    cursor.execute(_NAMES, ([oid for oid, _ in pairs], [modifier for _, modifier in pairs]))
    written = {(row.oid, row.modifier): row.written for row in cursor.fetchall()}
    return {pair: _type(pair, found, written) for pair in wanted}


def type_written(cursor: Cursor, written: str) -> PgType:
    """A type as a pipeline writes it, as "numeric(50,2)" or "public.mood".

    Raises ConfigurationError where the database has no such type.
    """
    cursor.execute("select to_regtype(%s)::oid as oid", (written,))
    (oid,) = cursor.fetchone()
    if oid is None:
        raise ConfigurationError(f"the database has no type {written}. Create it, or correct the schema.")
    numbers = [int(number) for number in re.findall(r"(?<=[(,])\d+", written)] if "." not in written else []
    match numbers:
        case [precision, scale]:
            modifier = (precision << 16 | scale) + _HEADER
        case [length]:
            modifier = length + _HEADER
        case _:
            modifier = -1
    return pg_types(cursor, {(oid, modifier)})[oid, modifier]


def refusal_of_null(cursor: Cursor, type_: PgType) -> str | None:
    """What Postgres says when null is made one of a type; None where it may be null."""
    if not type_.has_constraints:
        return None
    cursor.execute("savepoint null_of_domain")
    try:
        cursor.execute(sql.SQL("select null::{}").format(sql.SQL(type_.written)))
    except psycopg2.Error as error:
        cursor.execute("rollback to savepoint null_of_domain")
        return str(error.diag.message_primary)
    cursor.execute("release savepoint null_of_domain")
    return None


def _pairs(pair: _Pair, found: Mapping[int, Any]) -> Iterator[_Pair]:
    yield pair
    for part in _parts(pair, found):
        yield from _pairs(part, found)


def _parts(pair: _Pair, found: Mapping[int, Any]) -> list[_Pair]:
    oid, modifier = pair
    row = found[oid]
    if row.element is not None:
        return [(row.element, modifier)]
    if row.kind == "d":
        return [(row.base, row.base_modifier)]
    if row.range_of is not None:
        return [(row.range_of, -1)]
    attributes = (written.strip("()").split(",") for written in row.attributes)
    return [(int(of), int(its)) for of, its in attributes]


def _type(pair: _Pair, found: Mapping[int, Any], written: Mapping[_Pair, str]) -> PgType:
    row = found[pair[0]]
    return PgType(
        oid=row.oid,
        schema=row.schema,
        name=row.name if row.schema == "pg_catalog" else f"{row.schema}.{row.name}",
        written=written[pair],
        modifier=pair[1],
        kind="array" if row.element is not None else _KINDS[row.kind],
        is_immutable=row.immutable,
        parts=tuple(_type(part, found, written) for part in _parts(pair, found)),
        details=tuple(row.details),
    )
