"""A driver of many tables that is killed in the middle: the next try is exact, and processes only what is left."""

import signal
from pathlib import Path

import pytest

from exactbatch.audit.run_audit import audit
from exactbatch.ledger import Ledger
from exactbatch.model import PlannedBatch
from exactbatch.planning.plan_tables import plan_tables
from exactbatch.postgres.connection import transaction
from support.shop import Shop
from support.waiting import wait_for

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c", "event", "z")


@pytest.fixture
def shop(stack, admin):
    shop = Shop(stack.kafka_properties, admin)
    shop.create(*NAMES)
    for number, name in enumerate(NAMES):
        shop.produce(name, *range(number + 1))
    return shop


def start(world, tables, plans, failpoints=""):
    (world.folder / f"{tables.name}.py").write_text(
        f"from exactbatch import *\nfrom support.shop import MakeMember\nshop = {tables!r}\n"
    )
    batches = [
        PlannedBatch(each.name, each.batch.batch_id, each.batch.plan_id) for each in plans if each.batch
    ]
    return world.start(
        ["--pipeline", f"{tables.name}:shop", "--batches", *map(str, batches)],
        {"EXACTBATCH_FAILPOINTS": failpoints, **world.settings.as_environment()},
    )


@pytest.mark.parametrize("moment", ["job.after_stage", "publish.before_commit", "publish.after_commit"])
def test_a_driver_that_is_killed_in_the_middle_is_followed_by_one_that_is_exact(
    world, shop, moment, tmp_path
):
    tables = shop.tables(at_a_time=1)
    members = tables.members(map(shop.topic, NAMES))
    with transaction(world.connection):
        for member in members:
            Ledger(world.connection).registry.register(member)
    plans = plan_tables(world.connection, world.log, tables, None, None, origin="cli")
    # With the first table at that moment; the others follow.
    gate = tmp_path / "gate"
    driver = start(world, tables, plans, f"{moment}=hold:{gate}")

    wait_for(Path(f"{gate}.held").exists, driver=driver)
    driver.signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    statuses = [world.batch(each.batch.batch_id).status for each in plans if each.batch]
    assert statuses.count("committed") == (1 if moment == "publish.after_commit" else 0)
    driver = start(world, tables, plans)
    assert driver.wait() == 0, driver.output
    for number, member in enumerate(members):
        found = audit(member, world.settings, values=True)
        assert (found.is_exact, found.rows) == (True, number + 1)


def test_the_message_of_a_driver_names_the_tables_that_failed(world, shop):
    shop.produce_bytes("b", b"bad")
    tables = shop.tables()
    members = tables.members(map(shop.topic, NAMES))
    with transaction(world.connection):
        for member in members:
            Ledger(world.connection).registry.register(member)
    plans = plan_tables(world.connection, world.log, tables, None, None, origin="cli")
    driver = start(world, tables, plans)
    assert driver.wait() == 42, driver.output
    line = driver.error_line("TablesFailed")
    assert (
        f"1 of 5 tables of {tables.name!r} failed; the others are done: {tables.name}.b: TooManyRejects"
        in line
    )
    assert [world.batch(each.batch.batch_id).status for each in plans if each.batch].count("committed") == 4
