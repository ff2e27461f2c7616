"""The statements of docs/howto/alerts.md find what they are for, and nothing on a quiet ledger."""

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg2
import pytest

from exactbatch import Append, Json, Pipeline
from exactbatch.postgres.connection import transaction
from support.environment import DOCS
from support.page_ledger import fail_newest, fill_story

PAGE = (DOCS / "howto" / "alerts.md").read_text(encoding="utf-8")
STATEMENTS = dict(re.findall(r"^```sql\n-- ([\w ]+): .*\n((?:.*\n)+?)```", PAGE, re.M))
MONITORED = {"sessions", "staging", "long"}  # by a member of pg_monitor
COMMITTED = (
    "update exactbatch.batch set {} where batch_id = (select max(batch_id) from exactbatch.batch where {})"
)
PLANTED = {
    "overdue": COMMITTED.format("planned_at = now() - interval '2 hours'", "status = 'planned'"),
    "silent": "update exactbatch.batch set committed_at = committed_at - interval '2 hours' "
    "where committed_at is not null",
    "rejects": COMMITTED.format("rejected = 2, rows = rows - 2", "status = 'committed' and kind = 'advance'"),
    "slow": COMMITTED.format(
        "planned_at = committed_at - interval '10 minutes'", "status = 'committed' and kind = 'advance'"
    ),
    "left over": "insert into exactbatch.batch (pipeline, kind, origin, planned_at) "
    "values ('flights', 'replay', 'cli', now() - interval '2 hours')",
    "staging": "create unlogged table exactbatch_staging.rows_1_1 (id int)",
}


@pytest.fixture
def ledger(connection: Any) -> Any:
    """A pipeline whose newest batch is planned, and whose older ones have committed without a reject."""
    pipeline = Pipeline(
        name="flights",
        topics=("flights",),
        value=Json("id int, name text"),
        sink=Append("public.flight"),
        freshness=timedelta(hours=1),
    )
    fill_story(connection, pipeline, UUID(int=1))
    forge(
        connection, "update exactbatch.batch set rejected = 0 where committed_at > now() - interval '2 hours'"
    )
    return connection


def forge(connection: Any, statement: str) -> None:
    """Run a statement that the ledger itself would refuse."""
    with transaction(connection) as cursor:
        cursor.execute("set local session_replication_role = replica")
        cursor.execute(statement)


@pytest.fixture
def reporter(database: str, deployment: Any) -> Callable[[str], list[tuple[Any, ...]]]:
    """A function that returns the rows of a statement of the page, as a dashboard's login sees them."""

    def run(name: str) -> list[tuple[Any, ...]]:
        statement = STATEMENTS[name]
        # A gigabyte is too much for a test; eight kilobytes are a page of a table.
        statement = statement.replace("> 1e9", ">= 0").replace("2 hours", "0 seconds")
        with closing(psycopg2.connect(database)) as session, session.cursor() as cursor:
            cursor.execute(f"set role {'pg_monitor' if name in MONITORED else 'exactbatch_reporter'}")
            cursor.execute(statement)
            return cursor.fetchall()

    return run


@pytest.mark.parametrize("name", ["stuck", "failing", *PLANTED])
def test_an_alert_finds_what_it_is_for(ledger, reporter, name):
    assert reporter(name) == []
    if name in PLANTED:
        forge(ledger, PLANTED[name])
    else:
        fail_newest(ledger, "flights", "it fails", retryable=name == "failing")
        forge(ledger, "update exactbatch.batch_failure set failures = 3")
    assert len(reporter(name)) == 1
    others = {"stuck", "failing", *PLANTED} - {name}
    assert {other for other in others if reporter(other)} == set()


def test_a_long_transaction_and_few_free_sessions_are_found(ledger, reporter, database, monkeypatch):
    assert reporter("sessions") == reporter("long") == []
    named = {"application_name": "exactbatch"}
    with closing(psycopg2.connect(database, **named)) as session, session.cursor() as cursor:
        cursor.execute("select 1")
        assert len(reporter("long")) == 1
    monkeypatch.setitem(STATEMENTS, "sessions", STATEMENTS["sessions"].replace("0.9", "0.0"))
    assert len(reporter("sessions")) == 1


def test_every_statement_of_the_page_is_tested():
    assert set(STATEMENTS) == {"stuck", "failing", *PLANTED, "sessions", "long"}
    assert PAGE.count("```sql") == len(STATEMENTS)


def test_the_filters_over_the_lag_find_what_they_are_for():
    quiet = {
        "overdue": False,
        "seconds_until_removed": None,
        "partitions": [{"trouble": None, "held_back": 0}],
    }
    filters = re.findall(r"^\$ jq -e '(.*)' lag.json$", PAGE, re.M)
    loud = [
        {"overdue": True},
        {"seconds_until_removed": 60},
        {"partitions": [{"trouble": "the log is too short", "held_back": 0}]},
    ]
    for number, change in enumerate([{}, *loud]):
        lag = json.dumps({"pipelines": [{**quiet, **change}]})
        found = [
            subprocess.run(["jq", "-e", each], input=lag, text=True, stdout=subprocess.DEVNULL).returncode
            for each in filters
        ]
        assert found == [int(number == position) for position in range(1, len(filters) + 1)]
