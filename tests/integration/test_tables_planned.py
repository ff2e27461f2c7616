"""Plans of many tables, without processing any."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from typer.testing import CliRunner

from exactbatch import TopicPattern
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, TopicMissing
from exactbatch.ledger import DagRun, Ledger
from exactbatch.operations.status import load_tables_status
from exactbatch.planning import plan_tables as planning
from exactbatch.planning.plan_tables import plan_tables, preview_tables
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from support.shop import Shop
from support.topics import await_leaders

WINDOW = ReplayRequest(window=(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)))


@pytest.fixture
def tables(stack, admin, connection):
    """Three tables, of which two are registered."""
    shop = Shop(stack.kafka_properties, admin)
    shop.create("orders", "customers", "event")
    tables = shop.tables()
    with transaction(connection):
        for member in tables.members([shop.topic("orders"), shop.topic("customers")]):
            Ledger(connection).registry.register(member)
    return tables


@pytest.fixture
def with_a_table_that_cannot_be_made(tables):
    """The tables, of which the function refuses one."""

    def refusing(topic):
        if topic.table == "event":
            raise KeyError("event")
        return tables.pipeline(topic)

    return replace(tables, pipeline=refusing)


def test_a_table_that_cannot_be_made_stops_no_other(
    with_a_table_that_cannot_be_made, connection, kafka_log, settings, monkeypatch
):
    tables = with_a_table_that_cannot_be_made
    name = f"{tables.name}.event"

    def plans(**options: Any) -> dict[str, Any]:
        options = {"run": None, "request": None, "origin": "cli"} | options
        return {each.name: each.error for each in plan_tables(connection, kafka_log, tables, **options)}

    (refused,) = [each for each in plans().values() if each is not None]
    assert f"its function raises KeyError for the topic '{tables.name}.public.event'" in str(refused)
    assert sorted(plans()) == sorted(f"{tables.name}.{table}" for table in ("orders", "customers", "event"))
    assert list(plans(only=["orders"])) == [f"{tables.name}.orders"]
    assert plans(only=["event"]).keys() == {name}
    one = ReplayRequest(ranges=(RequestedRange(f"{tables.name}.public.orders", 0, 0, 1),))
    assert list(plans(run=DagRun("shop", "run", 0), request=one, origin="manual")) == [
        f"{tables.name}.orders"
    ]
    that = ReplayRequest(ranges=(RequestedRange(f"{tables.name}.public.event", 0, 0, 1),))
    with pytest.raises(ConfigurationError, match="its function raises KeyError for the topic"):
        plans(run=DagRun("shop", "run", 0), request=that, origin="manual")
    assert isinstance(preview_tables(connection, kafka_log, tables)[name], ConfigurationError)
    status = load_tables_status(connection, kafka_log, tables)
    assert list(status.errors) == [name]
    assert len(status.members) == 2

    module = ModuleType("tables_that_cannot_be_made")
    module.shop = tables
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for variable, value in settings.as_environment().items():
        monkeypatch.setenv(variable, value)
    done = {
        command: CliRunner().invoke(app, [command, f"{module.__name__}:shop", "--json"])
        for command in ("register", "audit", "plan")
    }
    assert {command: each.exit_code for command, each in done.items()} == {
        "register": 42,
        "audit": 3,
        "plan": 0,
    }
    assert "its function raises KeyError" in done["register"].stderr
    assert len(json.loads(done["register"].stdout)["members"]) == 2
    audited = {each["pipeline"]: each["error"] for each in json.loads(done["audit"].stdout)["members"]}
    assert sorted(audited) == sorted(f"{tables.name}.{table}" for table in ("orders", "customers", "event"))
    assert [each for each in audited if "raises KeyError" in audited[each]] == [name]


def test_a_topic_whose_table_has_the_name_of_a_registered_one_stops_no_table(
    tables, connection, kafka_log, admin
):
    second = f"{tables.name}.another.orders"
    for created in admin.create_topics([NewTopic(second, 1, 1)]).values():
        created.result(60)
    await_leaders(admin, second, 1)
    tables = replace(tables, topics=TopicPattern(rf"{tables.name}\..*"))
    plans = {each.name: each for each in plan_tables(connection, kafka_log, tables, None, None, origin="cli")}
    assert plans.keys() == {second, *(f"{tables.name}.{table}" for table in ("orders", "customers", "event"))}
    assert [name for name, each in plans.items() if each.error is not None] == [second]
    assert "Let a group of the pattern match what tells them apart" in str(plans[second].error)
    assert plans[f"{tables.name}.orders"].pipeline.topics == (f"{tables.name}.public.orders",)
    that = ReplayRequest(ranges=(RequestedRange(second, 0, 0, 1),))
    with pytest.raises(ConfigurationError, match="would both be"):
        plan_tables(connection, kafka_log, tables, None, that, origin="cli")


@pytest.mark.parametrize("origin", ["backfill", "manual"])
def test_a_window_passes_over_tables_that_have_processed_nothing(tables, connection, kafka_log, origin):
    plans = plan_tables(connection, kafka_log, tables, DagRun("shop", "run", 0), WINDOW, origin=origin)
    assert [(each.batch, each.error) for each in plans] == [(None, None)] * 3
    assert all("has been processed yet; the next advance" in each.because for each in plans)


def test_only_the_first_table_that_is_gone_is_waited_for(tables, connection, kafka_log, monkeypatch):
    patience = []

    def gone(_connection: Any, broker: Any, *_: Any, **__: Any) -> None:
        patience.append(broker._settle)
        raise TopicMissing("gone", topic="gone")

    monkeypatch.setattr(planning, "_plan", gone)
    plans = plan_tables(connection, kafka_log, tables, None, None, origin="cli")
    assert [type(each.error) for each in plans] == [TopicMissing] * 3
    assert patience == [kafka_log._settle, 0, 0]
    assert kafka_log._settle > 0
