"""What each SQLSTATE means: every code of Postgres has an error, and the documentation says the same."""

import itertools
import re
from pathlib import Path
from typing import Any, Final

import psycopg2
import psycopg2.errorcodes
import pytest

from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    PostgresUnavailable,
    StagedRowsDiffer,
    StatementRefused,
    TasksFailed,
    UnexpectedError,
)
from exactbatch.errors.sqlstates import (
    LOST,
    MEANINGS,
    NO_SQLSTATE,
    UNLISTED,
    connection_error,
    error_for,
    is_refusal,
    meaning,
)
from exactbatch.errors.translation import translate, translate_all_errors, translate_errors

DOCS: Final = Path(__file__).parents[2] / "docs" / "errors.md"
# Postgres 18 has these, and psycopg2 does not know them.
CODES: Final = {
    code
    for code in vars(psycopg2.errorcodes).values()
    if isinstance(code, str) and re.fullmatch(r"[0-9A-Z]{5}", code)
} | {"25P04", "57P05", "55P04", "42P10"}
RETRYABLE: Final = {"08", "40", "53", "58", "72", "F0", "XX"}
ALSO_RETRYABLE: Final = {
    "25006", "25P03", "25P04", "55P03", "57000", "57014", "57P01", "57P02", "57P03", "57P05",
    "42P06", "42P07", "HV001", "HV00N",
}  # fmt: skip
LOST_CODES: Final = {"40003", "57P01", "57P02"}


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_of_postgres_is_retryable_or_terminal_and_says_what_it_is(code):
    error = error_for(code, "what the server said", where="batch 7")
    assert error.retryable == (code[:2] in RETRYABLE or code in ALSO_RETRYABLE)
    assert str(error).startswith(f"batch 7: {meaning(code).what}: what the server said (SQLSTATE {code}). ")
    assert str(error).endswith(meaning(code).remedy)
    is_lost = code.startswith("08") or code in LOST_CODES
    assert ("connection to Postgres was lost" in str(error)) == is_lost
    # Successes and warnings are no errors, but for somebody's `raise`.
    assert (meaning(code) is UNLISTED) == (code[:2] in ("00", "01", "02", "0F", "10"))


def test_a_code_that_nobody_knows_is_terminal():
    assert type(error_for("MY001", "because")) is StatementRefused
    assert type(error_for("99999", "because")) is StatementRefused


def test_only_a_staging_table_that_is_gone_is_read_again():
    gone = error_for("42P01", 'relation "exactbatch_staging.batch_1_a_rows" does not exist')
    assert type(gone) is StagedRowsDiffer
    assert type(error_for("42P01", 'relation "public.flights" does not exist')) is StatementRefused


def test_a_row_with_the_words_of_a_pooler_is_not_the_poolers_error():
    detail = (
        "duplicate key value violates unique constraint (Key (word)=(query_wait_timeout) already exists.)"
    )
    assert type(error_for("23505", detail)) is StatementRefused
    for sqlstate in (None, "08P01"):
        assert "no free connection" in str(error_for(sqlstate, "query_wait_timeout"))


def test_what_refuses_rows_is_told_from_the_servers_own_trouble():
    assert all(
        map(is_refusal, ("22003", "23505", "42501", "42P01", "44000", "54000", "55000", "0A000", "P0001"))
    )
    assert not any(
        map(is_refusal, (None, "08006", "25006", "40001", "53100", "55P03", "57014", "57P01", "XX000"))
    )


CONNECTING: Final = [
    ('connection to server at "h", port 1 failed: FATAL:  password authentication failed for user "u"', "28P01"),
    ('connection to server at "h", port 1 failed: fe_sendauth: no password supplied', "28P01"),
    ('connection to server at "h", port 1 failed: FATAL:  no pg_hba.conf entry for host "::1"', "28000"),
    ('connection to server at "h", port 1 failed: FATAL:  role "r" does not exist', "28000"),
    ('connection to server at "h", port 1 failed: FATAL:  role "r" is not permitted to log in', "28000"),
    ('Failed to connect: connection to server at "h" failed: FATAL:  database "d" does not exist', "3D000"),
    ('connection to server at "h", port 1 failed: FATAL:  permission denied for database "d"', "42501"),
    ('connection to server at "h", port 1 failed: FATAL:  no such user: u', "28000"),
    ('connection to server at "h", port 1 failed: FATAL:  no such database: d', "3D000"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "code"), CONNECTING)
def test_a_login_that_is_refused_is_terminal(said, code):
    error = connection_error(said)
    assert type(error) is ConfigurationError
    assert f"{said} (SQLSTATE {code})" in str(error)
    # Of two servers one may still let it in.
    both = connection_error(f'connection to server at "a", port 1 failed: Connection refused; {said}')
    assert type(both) is PostgresUnavailable


def test_message_of_libpq_ends_in_one_punctuation_mark():
    refused = "connection failed: Connection refused\n\tIs the server running and accepting connections?"
    assert "accepting connections? Check" in str(connection_error(refused))


@pytest.mark.parametrize(
    "said",
    [
        'connection to server at "h", port 1 failed: Connection refused',
        'could not translate host name "h" to address: Name or service not known',
    ],
)
def test_server_that_cannot_take_session_now_can_be_tried_again(said):
    assert type(connection_error(said)) is PostgresUnavailable
    assert f"cannot connect to Postgres: {said}. " in str(connection_error(said))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("FATAL:  sorry, too many clients already", "the server has no free session: "),
        (
            'FATAL:  too many connections for role "u"',
            "Raise max_connections, or the connection limit of the role",
        ),
        ("FATAL:  the database system is starting up", "Postgres is starting up or shutting down: "),
        (
            "FATAL:  query_wait_timeout",
            "the pooler had no free connection within its query_wait_timeout: ",
        ),
    ],
)
def test_what_is_known_of_server_that_lets_in_nobody_now_is_told(said, told):
    error = connection_error(f'connection to server at "h", port 1 failed: {said}')
    assert type(error) is PostgresUnavailable
    assert told in str(error)


class FromAdbc(Exception):
    """As the error of ADBC's driver manager, which is a test's own class elsewhere."""

    __module__ = "adbc_driver_manager"

    def __init__(self, message: str, sqlstate: str | None = None, **details: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.details = [(name.encode(), value.encode()) for name, value in details.items()]


def adbc(message: str, sqlstate: str | None = None, **details: str) -> ExactbatchError:
    error = translate(FromAdbc(message, sqlstate, **details), "t[0] 0..5")
    assert error is not None
    return error


def test_what_adbc_raises_is_told_by_what_the_server_said():
    check = adbc(
        "INTEGRITY: [libpq] Failed …",
        "23514",
        PG_DIAG_MESSAGE_PRIMARY="new row violates",
        PG_DIAG_MESSAGE_DETAIL="Failing row contains (40).",
    )
    assert "t[0] 0..5: a constraint refuses the rows of the statement: new row violates " in str(check)
    assert "(Failing row contains (40).) (SQLSTATE 23514)" in str(check)
    lost = adbc("IO: Failed to prepare query: FATAL:  terminating connection\nserver closed the connection\n")
    assert "the connection to Postgres was lost: Failed to prepare query: FATAL: " in str(lost)
    untold = adbc("NOT_FOUND: [libpq] Failed to execute query: ERROR:  relation does not exist\nQuery was: x")
    assert str(untold).startswith(f"t[0] 0..5: {NO_SQLSTATE.what}: ")
    assert "Query was" not in str(untold)
    assert "lost" not in str(untold)
    assert type(adbc("IO: [libpq] Failed to connect: connection to server at x failed: timeout")) is (
        PostgresUnavailable
    )
    assert type(adbc('IO: [libpq] Failed to connect: database "x" does not exist')) is ConfigurationError


def test_what_adbc_asks_for_itself_tells_no_sqlstate():
    query = "IO: [libpq] Failed to execute query 'SELECT attr.attname,\n atttypid': "
    denied = adbc(query + "ERROR:  permission denied for schema exactbatch_staging\n")
    assert type(denied) is ConfigurationError
    assert (
        "a privilege is missing: ERROR:  permission denied for schema exactbatch_staging (SQLSTATE 42501)"
        in (str(denied))
    )
    waited = adbc("IO: [libpq] Failed to execute query 'SELECT version();': FATAL:  query_wait_timeout\n")
    assert type(waited) is PostgresUnavailable
    assert "t[0] 0..5: the pooler had no free connection within its query_wait_timeout: FATAL: " in str(
        waited
    )


def test_a_value_with_the_words_of_another_error_is_the_servers_refusal_of_it():
    said = 'invalid input syntax for type integer: "Python exception: no connection to the server"'
    refused = adbc(f"INVALID_ARGUMENT: {said}", "22P02", PG_DIAG_MESSAGE_PRIMARY=said)
    assert type(refused) is StatementRefused
    assert said in str(refused)


def test_a_mistake_in_what_adbc_is_given_is_no_lost_connection():
    wrapped = adbc(
        "IO: nanoarrow call failed: (22) Invalid argument. Type error: a bug. Detail: Python exception: Traceback "
        '(most recent call last):\n  File "x.py", line 9, in gen\nTypeError: a bug in the decoder\n'
    )
    assert type(wrapped) is UnexpectedError
    assert (
        "unexpected error in exactbatch or in the pipeline's own code: TypeError: a bug in the decoder"
        in (str(wrapped))
    )


def test_errors_of_other_libraries_become_our_own_and_none_other_does():
    from confluent_kafka import KafkaException
    from kafka.errors import KafkaError
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    found: list[Any] = [
        PySparkRuntimeError("no JVM"),
        Py4JError("gone"),
        KafkaError("x"),
        KafkaException("y"),
    ]
    names = [type(translate(each)).__name__ for each in found]
    assert names == ["TasksFailed", "TasksFailed", "KafkaUnavailable", "KafkaUnavailable"]
    assert translate(ValueError("x")) is None
    assert translate(psycopg2.ProgrammingError("no results to fetch")) is None
    with pytest.raises(TasksFailed), translate_errors():
        raise Py4JError("gone")
    with pytest.raises(KeyError), translate_errors():
        raise KeyError("x")


def test_unforeseen_error_says_where_it_was_raised_and_its_trace_is_logged(caplog):
    with pytest.raises(UnexpectedError) as caught, translate_all_errors():
        len(3)  # type: ignore[arg-type]
    assert "TypeError: object of type 'int' has no len(), raised in test_sqlstates.py, line " in str(
        caught.value
    )
    assert [record.exc_info is not None for record in caplog.records] == [True]
    caplog.clear()
    for passes in (StatementRefused("x"), LookupError("y")):
        with pytest.raises(type(passes)), translate_all_errors(but=(LookupError,)):
            raise passes
    assert not caplog.text


def table() -> str:
    """The table of the documentation, as the code makes it. The message of an error says what the code means."""
    codes: dict[type[ExactbatchError], list[str]] = {}
    for code, each in itertools.chain(MEANINGS.items(), [("none", LOST), ("any other", UNLISTED)]):
        codes.setdefault(each.error, []).append(f"{code}xxx" if len(code) == 2 else code)
    lines = ["| error | retryable | SQLSTATE |", "|---|---|---|"]
    for error, found in codes.items():
        lines.append(f"| `{error.__name__}` | {'yes' if error.retryable else 'no'} | {', '.join(found)} |")
    return "\n".join(lines)


def test_the_documentation_has_the_table_of_the_code():
    assert table() in DOCS.read_text(encoding="utf-8"), f"put this into {DOCS}:\n{table()}"
