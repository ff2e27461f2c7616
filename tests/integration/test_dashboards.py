"""The views for dashboards, and the Grafana dashboard over them, on a real ledger."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from exactbatch import Append, Json, Pipeline
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.dashboard import DASHBOARD, VIEWS, queries
from support.ledger_page import documented
from support.page_ledger import fail_newest, fill_story

HOUR = timedelta(hours=1)
COLUMNS = {
    "Overdue pipelines": ["overdue"],
    "Failing pipelines": ["failing"],
    "Open batches": ["open"],
    "Rejects": ["rejected"],
    "Pipelines: age of the last commit": [
        *("pipeline", "seconds_since_commit", "freshness_seconds", "overdue", "waiting_since"),
        *("failing_batch_id", "failures", "error"),
    ],
    "Rows committed": ["time", "metric", "rows"],
    "Records rejected": ["time", "metric", "rejected"],
    "Seconds per batch": ["time", "metric", "seconds"],
    "Open batches, the oldest first": [
        *("batch_id", "pipeline", "kind", "origin", "planned_at", "seconds_open"),
        *("failures", "failed_at", "error", "retryable"),
    ],
    "Failed batches, the latest failure first": [
        *("batch_id", "pipeline", "kind", "status", "failures", "first_failed_at", "failed_at"),
        *("error", "retryable"),
    ],
    "$pipeline": ["pipeline"],
}


def pipeline(name: str, freshness: timedelta | None = None) -> Pipeline:
    return Pipeline(
        name=name,
        topics=(name,),
        value=Json("id int, name text"),
        sink=Append(f"public.{name}"),
        freshness=freshness,
    )


@pytest.fixture
def story(connection) -> Any:
    """A ledger whose pipeline `late` has had an advance planned for an hour, which fails, and is superseded."""
    fill_story(connection, pipeline("late", HOUR / 2), UUID(int=1))
    fail_newest(connection, "late", "the value 'secret'", retryable=True)
    with transaction(connection) as cursor:
        cursor.execute(
            "update exactbatch.batch set status = 'superseded', planned_at = planned_at - interval '1 hour' "
            "where status = 'planned'"
        )
        cursor.execute(
            "insert into exactbatch.batch (pipeline, kind, origin) values ('late', 'advance', 'cli') returning batch_id"
        )
    return connection


def rows(connection: Any, statement: str) -> list[dict[str, Any]]:
    with transaction(connection) as cursor:
        cursor.execute(statement)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def states(connection: Any) -> dict[str, dict[str, Any]]:
    return {row["pipeline"]: row for row in rows(connection, "select * from exactbatch.pipeline_state")}


def test_each_statement_of_the_dashboard_returns_rows_with_the_columns_of_its_panel(story):
    now = datetime.now(UTC)
    shown = {}
    for query in queries():
        found = rows(story, query.expanded(["late"], now - timedelta(days=1), now + HOUR))
        assert found, query.title
        shown[query.title] = list(found[0])
        overrides = query.panel.get("fieldConfig", {}).get("overrides", ())
        assert {each["matcher"]["options"] for each in overrides} <= set(found[0])
    assert shown == COLUMNS


def test_the_dashboard_names_no_server_and_sends_every_statement_to_the_chosen_one():
    chosen = {"type": "grafana-postgresql-datasource", "uid": "${datasource}"}
    [source, pipelines] = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", chosen["type"])
    assert pipelines["datasource"] == chosen
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == chosen
        for target in panel["targets"]:
            assert target["datasource"] == chosen
            assert target["format"] == ("time_series" if panel["type"] == "timeseries" else "table")


def test_a_superseded_advance_does_not_hide_how_long_records_have_waited(story):
    [late] = states(story).values()
    assert (late["overdue"], late["freshness_seconds"]) == (True, 1800)
    assert datetime.now(UTC) - late["waiting_since"] >= HOUR
    # The newest advance is 41st, after it came a replay and a backfill.
    assert (late["last_batch_id"], late["failing_batch_id"], late["open_batch_id"]) == (40, 43, 44)
    assert (late["error"], late["failures"], late["retryable"]) == ("TargetMismatch", 1, True)
    [opened] = rows(story, "select * from exactbatch.open_batches")
    assert (opened["batch_id"], opened["failures"]) == (44, None)


def test_a_pipeline_is_overdue_in_the_ledger_only_if_an_advance_is_planned_for_longer_than_its_freshness(
    story,
):
    with transaction(story) as cursor:
        ledger = Ledger(story)
        ledger.registry.register(pipeline("idle", timedelta(microseconds=1)))
        ledger.registry.register(pipeline("unlimited"))
        ledger.registry.register(pipeline("late", 2 * HOUR))
        cursor.execute(
            "insert into exactbatch.batch (pipeline, kind, origin, planned_at) "
            "values ('unlimited', 'advance', 'cli', now() - interval '1 year')"
        )
    assert {name: state["overdue"] for name, state in states(story).items()} == {
        "idle": False,
        "late": False,
        "unlimited": None,
    }
    with transaction(story) as cursor:
        cursor.execute("update exactbatch.batch set status = 'superseded' where status = 'planned'")
        Ledger(story).registry.register(pipeline("late", timedelta(seconds=1)))
    # Nothing is planned any more: its offsets may have been recorded as lost.
    assert [state["waiting_since"] for state in states(story).values()] == [None] * 3
    assert not states(story)["late"]["overdue"]


def test_the_views_have_the_columns_that_the_page_documents_and_no_text_of_a_record(story):
    found = []
    for row in rows(
        story,
        "select c.relname as view, a.attname as name, "
        "replace(format_type(a.atttypid, a.atttypmod), 'timestamp with time zone', 'timestamptz') as type "
        "from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 "
        "where c.relnamespace = 'exactbatch'::regnamespace and c.relkind = 'v' order by c.relname, a.attnum",
    ):
        found.append((row["view"], row["name"], row["type"]))
    assert {view for view, _, _ in found} == set(VIEWS)
    assert sorted(documented("### "), key=lambda each: each[0]) == found
    for view in VIEWS:
        assert "secret" not in str(rows(story, f"select * from exactbatch.{view}"))
