"""What a target, a database or a role refuses for good: one terminal error that names it, and nothing written.

Batches run in this process, without Spark.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn
from typer.testing import CliRunner

import process_batch as job
from exactbatch import Json
from exactbatch.cli import load_pipeline as cli_pipeline
from exactbatch.cli.app import app
from exactbatch.errors import (
    ConfigurationError,
    RetryableError,
    StatementRefused,
    TargetMismatch,
    TasksFailed,
)
from exactbatch.errors.sqlstates import LOST, meaning
from exactbatch.postgres.connection import connect, transaction
from support.faults.answered_batches import AnsweredBatches, outcome, process, process_replay

Refused = Callable[..., str]


def refused(case: AnsweredBatches, flow: Callable[[AnsweredBatches], Any]) -> str:
    """The message of the terminal error with which a batch ends that leaves nothing behind."""
    work = flow(case)
    before = case.seen()
    error = outcome(work)
    assert isinstance(error, TargetMismatch | StatementRefused), error
    assert not error.retryable
    assert case.seen() == before
    assert LOST.what not in str(error)
    return str(error)


def execute(case: AnsweredBatches, statements: str) -> None:
    with transaction(case.connection) as cursor:
        cursor.execute(statements)


def with_target(statements: str) -> Any:
    """Statements in which TARGET stands for the case's target."""
    return lambda case: execute(case, statements.replace("TARGET", case.pipeline.traits.target))


DOMAIN = "create domain public.known as varchar(8) not null; alter table TARGET alter name type public.known"
RAISING = (
    "create function public.judge(text) returns boolean language plpgsql immutable as "
    "$$ begin if $1 = 'n0' then raise 'n0 is not to be judged'; end if; return true; end $$; "
    "create domain public.judged as varchar(8) check (public.judge(value)); "
    "alter table TARGET alter name type public.judged"
)
REFUSING = (
    "create function public.stays() returns trigger language plpgsql as $$ begin raise 'rows stay'; end $$; "
    "create trigger stays before delete on TARGET for each row execute function public.stays()"
)
PUBLISHING = "alter table TARGET replica identity nothing; create publication everything for all tables"
# Sink, what is done to its target, the batch, and what is said of it.
REFUSALS: list[tuple[str, str, Any, list[str]]] = [
    (
        "append",
        PUBLISHING,
        process_replay,
        ["replica identity"],
    ),
    ("append", REFUSING, process_replay, ["P0001", "rows stay"]),
    ("upsert", "create table public.note (id int references TARGET)", process, ["still referenced"]),
]


@pytest.mark.parametrize(("case", "change", "flow", "said"), REFUSALS, indirect=["case"])
def test_delete_that_database_refuses_is_terminal_and_quoted(case, change, flow, said):
    with_target(change)(case)
    if "note" in change:
        execute(case, "insert into public.note values (0)")
        case.topic.produce(None, key=b'{"id": 0}')
    message = refused(case, flow)
    assert all(each in message for each in said), message


def reasons(case: AnsweredBatches) -> str:
    """Why records of the last batch are rejects."""
    with transaction(case.connection) as cursor:
        cursor.execute(
            "select string_agg(reason, '; ') from exactbatch.rejected_record where batch_id = %s",
            (case.batch_id,),
        )
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("case", ["append"], indirect=True)
@pytest.mark.parametrize(("change", "said"), [(DOMAIN, "null"), (RAISING, "n0 is not to be judged")])
def test_what_domain_refuses_or_fails_over_is_reject_that_names_column(case, change, said):
    with_target("delete from TARGET")(case)
    with_target(change)(case)
    case.topic.produce(b'{"id": 5}')
    assert outcome(process(case)) is None
    assert said in reasons(case)
    assert "name" in reasons(case)


@pytest.mark.parametrize("case", ["append"], indirect=True)
def test_more_columns_than_table_can_have_are_limit_and_no_lost_connection(case):
    columns = ", ".join(f"c{number} int" for number in range(1597))
    case.pipeline = replace(case.pipeline, value=Json(columns), evolve="add")
    message = refused(case, process)
    assert "a limit of Postgres is exceeded: tables can have at most 1600 columns" in message


@pytest.mark.parametrize(("code", "ends"), [("54000", StatementRefused), ("40001", TasksFailed)])
@pytest.mark.parametrize("case", ["append"], indirect=True)
def test_what_stays_so_on_executor_ends_batch_and_what_may_pass_is_tried_again(case, code, ends):
    case.answers.refuse(None)
    process(case)()
    copies = [each.text.startswith('copy "exactbatch_staging"') for each in case.answers.asked]
    work, before = process(case), case.seen()
    case.answers.refuse(copies.index(True), code)
    error = outcome(work)
    assert type(error) is ends
    assert f"{case.topic.name}[0] 8..12, staging its rows: {meaning(code).what}: " in str(error)
    assert case.seen() == before
    case.answers.refuse(None)
    assert process(case)().wrote
    case.assert_exact()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dbname": "nowhere"}, r"does not exist \(SQLSTATE 3D000\)"),
        # A server that asks for passwords does not say which roles it has.
        ({"user": "nobody_here", "password": "any"}, r"Postgres refuses this login: .*\(SQLSTATE 28P01\)"),
    ],
)
def test_a_database_or_role_that_is_not_there_is_terminal(database, wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        connect(make_dsn(database, **wrong), application="tests")


OUTERMOST = [
    (
        TypeError("no such thing"),
        1,
        "UnexpectedError: unexpected error in exactbatch or in the pipeline's own code",
    ),
    (StatementRefused("for good"), 42, "StatementRefused: for good"),
    (psycopg2.OperationalError("gone"), 1, f"PostgresUnavailable: {LOST.what}: gone"),
]


def failing(error: Exception) -> Callable[[str], None]:
    def fails(_reference: str) -> None:
        raise error

    return fails


@pytest.mark.parametrize(("error", "status", "said"), OUTERMOST)
def test_a_command_and_the_job_end_with_one_message_and_a_status(monkeypatch, caplog, error, status, said):
    monkeypatch.setattr(cli_pipeline, "load_named", failing(error))
    done = CliRunner().invoke(app, ["plan", "flights"])
    assert done.exit_code == status
    assert said in " ".join(done.output.split())
    monkeypatch.setattr(job, "load_object", failing(error))
    monkeypatch.setattr("sys.argv", ["process_batch.py", "--pipeline", "x:y", "--batches", "y:1:"])
    caplog.clear()
    assert job.main() == status
    assert said in caplog.messages[-2]
    assert "exactbatch explain" in caplog.messages[-1]
    # Not in the text: once a test has started Spark, its formatter may be that of JSON lines.
    assert any(record.exc_info for record in caplog.records) == isinstance(error, TypeError)


@pytest.mark.parametrize(("error", "status", "said"), OUTERMOST)
def test_task_of_airflow_ends_at_once_or_goes_on_to_its_retries(error, status, said):
    from exactbatch.airflow.exceptions import airflow_errors
    from exactbatch.airflow.versions import AirflowFailException, AirflowSkipException

    with (
        pytest.raises(AirflowFailException if status == 42 else RetryableError) as caught,
        airflow_errors(),
    ):
        raise error
    assert said in f"{type(caught.value).__name__}: {caught.value}"
    with pytest.raises(AirflowSkipException), airflow_errors():
        raise AirflowSkipException("nothing new")
