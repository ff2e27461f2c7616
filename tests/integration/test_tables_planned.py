"""Plans of many tables, without processing any."""

from datetime import UTC, datetime
from typing import Any

import pytest

from exactbatch.errors import TopicMissing
from exactbatch.ledger import Ledger, Run
from exactbatch.planning import plan_tables as planning
from exactbatch.planning.plan_tables import plan_tables
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import transaction
from support.shop import Shop

WINDOW = ReplayRequest(window=(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)))


@pytest.fixture
def tables(stack, admin, connection):
    """Three tables, of which two are registered."""
    shop = Shop(stack.kafka_properties, admin)
    shop.create("orders", "customers", "event")
    tables = shop.tables()
    with transaction(connection):
        for member in tables.members([shop.topic("orders"), shop.topic("customers")]):
            Ledger(connection).register(member)
    return tables


@pytest.mark.parametrize("origin", ["backfill", "manual"])
def test_a_window_passes_over_tables_that_have_processed_nothing(tables, connection, kafka_log, origin):
    plans = plan_tables(connection, kafka_log, tables, Run("shop", "run", 0), WINDOW, origin=origin)
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
