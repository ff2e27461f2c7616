"""Functions and operators that a stranger creates for the very types of the arguments that the program's SQL passes.

Postgres prefers them to its own ones, which take the arguments after a conversion, wherever it finds both
(CVE-2018-1058). They cover each function that the text of the program or of docs/roles.sql names, and each operator.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import psycopg2
from psycopg2 import sql

from support.environment import DOCS, JOBS

# Types that Postgres converts into each other without being asked.
_TEXTS: Final = ("text", "name", "character varying", '"char"')
_NUMBERS: Final = ("smallint", "integer", "bigint", "oid", "regclass")
_ALL: Final = (*_TEXTS, *_NUMBERS, "boolean", "uuid", "timestamp with time zone")
_ARRAYS: Final = ("text[]", "name[]", "smallint[]", "integer[]", "bigint[]", "oid[]", "uuid[]")
_STAND_FOR: Final = {
    **dict.fromkeys(_TEXTS, _TEXTS),
    **dict.fromkeys((*_NUMBERS, "numeric", "double precision"), _NUMBERS),
    **dict.fromkeys(('"any"', "anyelement", "anynonarray", "anycompatible"), _ALL),
    **dict.fromkeys(("anyarray", "anycompatiblearray"), _ARRAYS),
}
_MOST_ARGUMENTS: Final = 3  # with more, the number of combinations is too large
_FUNCTIONS: Final = """
select p.proname::text, array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a (t, at)
                              order by at),
       p.provariadic <> 0 and p.proargtypes[p.pronargs - 1] = '"any"'::regtype
from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind in ('f', 'a', 'w')
and p.pronargs > 0 and p.proname = any(%s)
and not 'internal'::regtype = any(p.proargtypes) and not 'cstring'::regtype = any(p.proargtypes)
"""
_OPERATORS: Final = """
select distinct oprname::text from pg_operator where oprnamespace = 'pg_catalog'::regnamespace and oprleft <> 0
and oprname = any(%s)
"""
_OF_VALUES: Final = ("||", "+", "-", "*", "/", "%", "->", "->>")  # the others return a boolean
_OPERATOR_NAMES: Final = (
    *_OF_VALUES,
    *("=", "<>", "<", "<=", ">", ">=", "~", "!~", "~~", "!~~", "<@", "@>", "&&", "?"),
)
_AT_ONCE: Final = 1000  # statements
_BODY: Final = (
    "begin perform pg_catalog.nextval('trap.ran'); "
    "raise exception 'look-alike % ran as %, superuser: %', {name}, current_user, "
    "pg_catalog.current_setting('is_superuser'); end"
)


def set_trap(superuser: str) -> None:
    """Create what look-alikes note their calls in, which no rollback takes back."""
    with closing(psycopg2.connect(superuser)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(
            "create schema trap; create sequence trap.ran; grant usage on schema trap to public; "
            "grant usage on sequence trap.ran to public"
        )


def calls_of_look_alikes(superuser: str) -> int:
    """Return how many look-alikes were called."""
    with closing(psycopg2.connect(superuser)) as connection, connection.cursor() as cursor:
        cursor.execute("select case when is_called then last_value else 0 end from trap.ran")
        ((calls,),) = cursor.fetchall()
        return int(calls)


def plant_look_alikes(dsn: str, schema: str) -> int:
    """Create look-alikes in a schema, as the login of the connection string; return how many."""
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("set local search_path to pg_catalog, pg_temp")  # there may be look-alikes already
        functions = sorted(_functions(cursor))
        operators = sorted(_operators(cursor))
        cursor.execute("set local check_function_bodies to off")
        statements = [
            *(_function(schema, name, types) for name, types in functions),
            *(statement for name, types in operators for statement in _operator(schema, name, types)),
        ]
        for start in range(0, len(statements), _AT_ONCE):
            cursor.execute(sql.SQL("; ").join(statements[start : start + _AT_ONCE]))
        return len(functions) + len(operators)


def _functions(cursor: psycopg2.extensions.cursor) -> set[tuple[str, tuple[str, ...]]]:
    """Return names and types of arguments, without those of Postgres's own functions."""
    cursor.execute(_FUNCTIONS, (sorted(_words()),))
    rows = cursor.fetchall()
    own = {(name, tuple(types)) for name, types, _ in rows}
    made: set[tuple[str, tuple[str, ...]]] = set()
    for name, types, is_variadic in rows:
        shapes = [types[:-1] + types[-1:] * count for count in range(4)] if is_variadic else [types]
        for shape in shapes:
            if 0 < len(shape) <= _MOST_ARGUMENTS:
                made.update(
                    (name, each) for each in itertools.product(*(_STAND_FOR.get(t, (t,)) for t in shape))
                )
    return {(name, types) for name, types in made - own if not any(t.startswith("any") for t in types)}


def _operators(cursor: psycopg2.extensions.cursor) -> set[tuple[str, tuple[str, ...]]]:
    """Return names and types of operands, without those of Postgres's own operators."""
    cursor.execute(_OPERATORS, (list(_OPERATOR_NAMES),))
    names = [name for (name,) in cursor.fetchall()]
    cursor.execute(
        "select oprname::text, format_type(oprleft, null), format_type(oprright, null) from pg_operator"
    )
    own = {(name, (left, right)) for name, left, right in cursor.fetchall()}
    pairs: list[tuple[str, ...]] = [*itertools.product(_ALL, _ALL), *((each, each) for each in _ARRAYS)]
    return {(name, types) for name in names for types in pairs} - own


def _words() -> set[str]:
    """Return every word before a parenthesis in the program's text, and in docs/roles.sql."""
    files = [*JOBS.rglob("*.py"), *JOBS.rglob("*.sql"), DOCS / "roles.sql"]
    return {word for file in files for word in re.findall(r"\b([a-z_][a-z0-9_]*)\(", file.read_text())}


def _function(schema: str, name: str, types: Sequence[str]) -> sql.Composable:
    signature = f"{name}({', '.join(types)})"
    return sql.SQL("create function {}({}) returns {} language plpgsql as {}").format(
        sql.Identifier(schema, name),
        sql.SQL(", ".join(types)),
        sql.SQL("text"),
        sql.Literal(_BODY.replace("{name}", f"'{signature}'")),
    )


def _operator(schema: str, name: str, types: Sequence[str]) -> Iterator[sql.Composable]:
    number = "".join(f"{ord(character):x}" for character in name)
    result = types[0] if name in _OF_VALUES else "boolean"
    function = sql.Identifier(schema, f"operator_{number}")
    yield sql.SQL("create function {}({}) returns {} language plpgsql as {}").format(
        function,
        sql.SQL(", ".join(types)),
        sql.SQL(result),
        sql.Literal(_BODY.replace("{name}", f"'{types[0]} {name} {types[1]}'")),
    )
    yield sql.SQL("create operator {}.{} (leftarg = {}, rightarg = {}, function = {})").format(
        sql.Identifier(schema), sql.SQL(name), sql.SQL(types[0]), sql.SQL(types[1]), function
    )
