"""Each version of Postgres from 14 on checks values alike; an older one is refused by its version."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.ledger import migrate
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import Connection, connect, transaction
from exactbatch.postgres.dsn import refused_connection
from exactbatch.postgres.types import find_named_type, is_refused, refusal, repeats_a_field
from exactbatch.sinks.aggregate.group_key import check_group_key, create_group_key, group_key
from exactbatch.sinks.tables.target import TargetTable
from support.postgres_versions import started

OPENERS: Final = (connect, connect_arrow)  # that of the driver, and that of executors
VERSIONS: Final = (14, 15, 16)  # each lacks less of Postgres 18 than the one before
TYPES: Final = """
create type mood as enum ('ok', 'so "so"');
create type pair as (first int, second text);
create domain short as varchar(3) check (value <> 'bad');
create domain many as int[] check (cardinality(value) < 3);
create type span as range (subtype = numeric);
"""
INPUTS: Final = (
    ("integer", "12", " 12 ", "", "NULL", "1.5", "12a", "99999999999"),
    ("numeric(5,2)", "1.234", "999.99", "999.995", "1e3", "NaN", "{1}"),
    ("numeric(5,2)[]", "{1.5,NULL}", "{{1},{2}}", "{1000}", "1.5", "{1,"),
    ("character varying(3)", "abc", "ab ", "abc ", "abcd", 'a"\\'),
    ("character varying(3)[]", '{abc,"a,b","\\"\\\\"}', "{abcd}", "{a"),
    ("character(2)", "a", "abc"),
    ("boolean", "yes", "2"),
    ("jsonb", '{"a": "\\"x\\\\y"}', "{'a': 1}", '"\\u0000"', "[1,"),
    ("json", "{}", "{"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0ee"),
    ("timestamp with time zone", "2026-02-28 10:00:00+02", "2026-02-30", "infinity", "25:00"),
    ("time without time zone", "24:00:00", "24:01"),
    ("interval", "1 mon", "1 moon"),
    ("inet", "10.0.0.1/8", "10.0.0.256"),
    ("bytea", "\\x00ff", "\\x0", "\\9"),
    ("public.mood", "ok", 'so "so"', "OK", ""),
    ("public.mood[]", '{ok,"so \\"so\\""}', "{OK}"),
    ("public.pair", "(1,a)", "(a,1)", "(1)"),
    ("public.short", "abc", "bad", "abcd"),
    ("public.many", "{1,2}", "{1,2,3}", "{a}", "1"),
    ("public.span", "[1,2)", "[2,1)", "[1"),
)


@pytest.fixture(
    scope="module", params=[None, *(pytest.param(each, marks=pytest.mark.slow) for each in VERSIONS)]
)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of a database with a ledger: of the run's own server, or of one of a version."""
    if request.param is None:
        stack, template = (request.getfixturevalue(name) for name in ("stack", "ledger_template"))
        yield make_dsn(stack.postgres_dsn, dbname=template)
        return
    with started(request.param) as stack:
        with closing(connect(stack.postgres_dsn, application="tests")) as connection:
            migrate(connection)
        yield stack.postgres_dsn


@pytest.fixture
def server(address: str) -> Iterator[Connection]:
    """A connection to such a database, in which every test rolls back what it does."""
    with closing(connect(address, application="tests")) as connection:
        yield connection


@pytest.mark.slow
@pytest.mark.parametrize("opener", OPENERS)
def test_postgres_13_is_refused_by_its_version(opener: Any) -> None:
    with started(13) as stack, pytest.raises(ConfigurationError) as caught:
        opener(stack.postgres_dsn, application="tests")
    assert str(caught.value) == "expected Postgres 14 or newer, found 13. Upgrade the server."


@pytest.mark.parametrize("opener", OPENERS)
def test_a_server_that_is_too_old_is_refused_also_behind_a_pooler_that_drops_options(
    database: str, opener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exactbatch.postgres.server_version.OLDEST", 990000)
    with pytest.raises(
        ConfigurationError, match=r"expected Postgres 99 or newer, found \d\d\. Upgrade the server"
    ):
        opener(database, application="tests")


@pytest.mark.parametrize("answer", ['unrecognized configuration parameter "x"', "unbekannter Parameter »x«"])
def test_an_old_server_is_refused_by_its_version_in_whatever_language_it_answers(
    database: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exactbatch.postgres.server_version.OLDEST", 990000)
    error = refused_connection(f"connection to server failed: FATAL: {answer}", database, with_options=True)
    assert str(error).startswith("expected Postgres 99 or newer, found ")
    assert isinstance(error, ConfigurationError)


@pytest.mark.parametrize("opener", OPENERS)
def test_a_parameter_that_the_server_does_not_know_is_named(database: str, opener: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        opener(make_dsn(database, options="-c colour=red"), application="tests")
    assert "the server has no configuration parameter 'colour' (" in str(caught.value)
    assert "Remove it from the options of the connection string and from PGOPTIONS." in str(caught.value)


def test_a_text_is_refused_exactly_if_its_type_refuses_it_and_with_the_same_message(
    server: Connection,
) -> None:
    with transaction(server) as cursor:
        cursor.execute(TYPES)
        for type_name, *texts in INPUTS:
            type_ = find_named_type(cursor, type_name)
            cursor.execute(f"create temporary table written (value {type_name})")
            for text in texts:
                expected = error_of_insert(cursor, text)
                given = (sql.Literal(text), type_.sql_name, type_.modifier)
                cursor.execute(sql.SQL("select {}, {}").format(is_refused(*given), refusal(*given)))
                assert cursor.fetchone() == (expected is not None, expected), (type_name, text)
                # It gives the same on servers that have functions of their own.
                cursor.execute(
                    "select exactbatch.refusal_of_input(%s, %s::regtype, %s)",
                    (text, type_.sql_name, type_.modifier),
                )
                assert cursor.fetchone() == (expected,), (type_name, text)
            cursor.execute("drop table written")
        server.rollback()


def error_of_insert(cursor: Any, text: str) -> str | None:
    """Return the message of the error that a text gives in a literal of a column's type."""
    cursor.execute("savepoint input")
    try:
        cursor.execute(sql.SQL("insert into written values ({})").format(sql.Literal(text)))
    except psycopg2.Error as error:
        cursor.execute("rollback to savepoint input")
        return error.diag.message_primary
    cursor.execute("release savepoint input")
    return None


DOCUMENTS: Final = (
    ('{"a": 1, "b": {"a": [{"a": 1}]}}', False),
    ("[]", False),
    ('"a"', False),
    ("{}", False),
    ('[{"a": 1}, {"a": 2}]', False),
    ('{"a": 1, "A": 2, "": 3, " ": 4}', False),
    ('{"a": 1, "a": 1}', True),
    (r'{"a": 1, "\u0061": 2}', True),
    ('{"x": [1, [{"y": {"a": null, "b": 0, "a": []}}]]}', True),
    ('[{}, {"": 1, "": 2}]', True),
)


@pytest.mark.parametrize(("document", "repeats"), DOCUMENTS)
def test_a_field_that_an_object_names_twice_is_found(
    server: Connection, document: str, repeats: bool
) -> None:
    with transaction(server) as cursor:
        cursor.execute("select exactbatch.repeats_a_field(%s)", (document,))
        assert cursor.fetchone() == (repeats,)
        cursor.execute(sql.SQL("select {}").format(repeats_a_field(sql.Literal(document))))
        assert cursor.fetchone() == (repeats,)


def test_an_error_of_the_server_is_not_taken_for_one_of_a_value(server: Connection) -> None:
    with transaction(server) as cursor:
        cursor.execute(
            "create function public.fails(value text) returns boolean language plpgsql as "
            "$$ begin raise 'no space' using errcode = '53100'; end $$; "
            "create domain public.failing as text check (public.fails(value))"
        )
        with pytest.raises(psycopg2.errors.DiskFull):
            cursor.execute("select exactbatch.refusal_of_input('x', 'public.failing'::regtype, -1)")
        server.rollback()


@pytest.fixture(params=["as the server can", "as with Postgres 14"])
def keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make keys as the server can, or without `nulls not distinct`."""
    if request.param == "as with Postgres 14":
        monkeypatch.setattr("exactbatch.sinks.aggregate.group_key.NULLS_NOT_DISTINCT", 990000)


GROUPS: Final = (
    Column("name", "text"),
    Column("tags", "text[]"),
    Column("parts", "public.many"),
    Column("at", "timestamp with time zone"),
    Column("size", "numeric"),
)
ROWS: Final = tuple(
    f"({name}, {tags}, {parts}, {at}, {size})"
    for name in ("null", "''", "'null'")
    for tags in ("null", "'{}'", "'{null}'", "'{a}'")
    for parts in ("null", "'{}'", "'{null}'")
    for at in ("null", "'infinity'")
    for size in ("null", "1.0", "1.00")
)


@pytest.mark.usefixtures("keys")
def test_a_target_has_one_row_for_each_group_also_where_values_are_null(server: Connection) -> None:
    table = TargetTable("public.grouped")
    with transaction(server) as cursor:
        cursor.execute(TYPES)
        columns = ", ".join(f"{column.name} {column.type}" for column in GROUPS)
        cursor.execute(f"create table grouped ({columns})")
        create_group_key(cursor, table, GROUPS)
        check_group_key(cursor, table, GROUPS)
        statement = sql.SQL("insert into grouped values {} on conflict ({}) do nothing").format(
            sql.SQL(", ".join(ROWS * 2)), group_key(GROUPS)
        )
        cursor.execute(statement)
        cursor.execute(statement)
        cursor.execute("select count(*) from grouped")
        # 1.0 and 1.00 are one group.
        assert cursor.fetchone() == (3 * 4 * 3 * 2 * 2,)
        server.rollback()


@pytest.mark.usefixtures("keys")
def test_an_existing_target_needs_the_key_that_the_message_creates(server: Connection) -> None:
    table, groups = TargetTable("public.grouped"), (Column("name", "text"), Column("tags", "text[]"))
    with transaction(server) as cursor:
        cursor.execute("create table grouped (name text, tags text[], unique (name, tags))")
        with pytest.raises(
            TargetMismatch, match=r"exactly.*that treats nulls as equal, found none"
        ) as caught:
            check_group_key(cursor, table, groups)
        cursor.execute(str(caught.value).partition("it: ")[2])
        check_group_key(cursor, table, groups)
        if cursor.connection.server_version < 150000:
            cursor.execute(
                "create collation loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
            )
            cursor.execute(
                "create unique index loose_one on grouped "
                "((array[name]) collate loose, (tags is null), coalesce(tags, '{}'))"
            )
            with pytest.raises(TargetMismatch, match=r"index public.loose_one compares the key by a coll"):
                check_group_key(cursor, table, groups)
        server.rollback()
