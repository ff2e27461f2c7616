"""Many tables in one run: each is exact by itself, even if another fails."""

import json
import sys
from dataclasses import replace
from types import ModuleType

import pytest
from kafka import KafkaAdminClient
from typer.testing import CliRunner

from exactbatch import Append, Pipeline, Tables, TableTopic
from exactbatch.airflow.page.dags import PipelineDag, with_members
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.process_batches import Outcome, process_batches
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, NotRegistered, TooManyRejects, TopicMissing
from exactbatch.ledger import DagRun, Ledger
from exactbatch.model import PlannedBatch
from exactbatch.operations.status import load_tables_status
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.members import selected
from exactbatch.planning.plan_tables import observe_members, plan_tables
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.run import RunPlan
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.shop import Shop

RUN = DagRun("shop", "run", 0)


@pytest.fixture
def shop(stack, admin):
    return Shop(stack.kafka_properties, admin)


@pytest.fixture
def command(settings, monkeypatch):
    """Run `exactbatch … MODULE:shop`, in this process."""
    module = ModuleType("tables_of_commands")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("COLUMNS", "200")
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def run(tables: Tables, name: str, *options: str, member: str = "") -> object:
        module.shop = tables  # type: ignore[attr-defined]
        return CliRunner().invoke(app, [name, f"{module.__name__}:shop{member and '.' + member}", *options])

    return run


def register(world, tables, *names):
    with transaction(world.connection):
        for member in tables.members(tables.topic_names if not names else map(names_topic(tables), names)):
            Ledger(world.connection).registry.register(member)


def names_topic(tables):
    return lambda table: f"{tables.name}.public.{table}"


def plan(world, tables: Tables, *, run: DagRun | None = None, request=None, only=()) -> list[RunPlan]:
    origin = "cli" if run is None else "manual"
    return plan_tables(world.connection, world.log, tables, run, request, origin=origin, only=only)


def process(world, tables: Tables, plans: list[RunPlan]) -> list[Outcome]:
    batches = [
        PlannedBatch(each.name, each.batch.batch_id, each.batch.plan_id) for each in plans if each.batch
    ]
    return process_batches(DriverEngine(world.spark), tables, batches, world.settings)


def run_all(world, tables: Tables, **options) -> dict[str, Outcome]:
    outcomes = process(world, tables, plan(world, tables, **options))
    return {each.batch.pipeline.removeprefix(tables.prefix): each for each in outcomes}


def ids(world, pipeline: Pipeline) -> list[int]:
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    return [each for (each,) in world.rows(f"select id from {table} order by id")]


@pytest.mark.slow
def test_fifty_tables_are_exact_with_one_plan_and_one_status(world, shop, command, monkeypatch):
    names = [f"t{number:02}" for number in range(48)] + ["event1", "event2"]
    shop.create(*names)
    for number, name in enumerate(names):
        shop.produce(name, *range(number % 3 + 1))
    tables = shop.tables()
    done = command(tables, "register", "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["registered"]) == 50
    shown = json.loads(command(tables, "plan", "--json").stdout)
    assert sum(each["ranges"] != [] for each in shown["members"]) == 50

    requests = []
    ask = KafkaAdminClient.list_partition_offsets
    monkeypatch.setattr(
        KafkaAdminClient,
        "list_partition_offsets",
        lambda self, wanted, **options: requests.append(len(wanted)) or ask(self, wanted, **options),
    )
    plans = plan(world, tables)
    assert requests == [50, 50, 50], "the logs of all topics are asked for at once"
    monkeypatch.undo()
    for name, value in world.settings.as_environment().items():
        monkeypatch.setenv(name, value)
    outcomes = process(world, tables, plans)
    assert len(outcomes) == 50
    assert [each.error for each in outcomes if each.error] == []
    for number, name in enumerate(names):
        (member,) = tables.members([shop.topic(name)])
        assert ids(world, member) == list(range(number % 3 + 1))
    status = load_tables_status(world.connection, world.log, tables)
    assert (len(status.members), status.lag, status.troubles) == (50, 0, [])
    assert plan(world, tables)[0].because.startswith("nothing new")


def test_a_table_that_cannot_be_registered_stops_no_other(world, shop, command):
    shop.create("customers")
    tables = shop.tables()
    command(tables, "register")
    shop.create("event", "orders")

    def changed(topic: TableTopic) -> Pipeline:
        pipeline = tables.pipeline(topic)
        if topic.table == "customers":
            return replace(pipeline, sink=Append('public."customers"'))
        # Its target is that of customers, by other rules.
        return replace(pipeline, sink=Append('public."customers"')) if topic.table == "event" else pipeline

    bad = replace(tables, pipeline=changed)
    done = command(bad, "register", "--json")
    assert done.exit_code == 42, done.output
    assert "2 of 3 tables" in done.stderr
    assert "customers: IdentityChanged: " in done.stderr
    assert "event: ConfigurationError: " in done.stderr
    told, orders = json.loads(done.stdout), f"{tables.name}.orders"
    assert (told["members"], told["registered"]) == ([orders], [orders])
    names = "select name from exactbatch.pipeline order by name"
    assert world.rows(names) == [(f"{tables.name}.customers",), (orders,)]


@pytest.fixture
def three(shop):
    shop.create("orders", "customers", "event")
    for name in ("orders", "customers", "event"):
        shop.produce(name, 1, 2)
    return shop.tables()


def test_the_commands_act_on_all_members_or_on_one(world, shop, three, command):
    command(three, "register")
    assert set(run_all(world, three)) == {"orders", "customers", "event"}
    done = command(three, "status", "--json")
    assert json.loads(done.stdout)["lag"] == 0, done.output
    assert "committed" in command(three, "status").stdout
    assert "lag 0" in command(three, "status").stdout
    assert (
        json.loads(command(three, "status", "--json", member="orders").stdout)["pipeline"]
        == f"{shop.prefix}.orders"
    )
    audited = command(three, "audit", "--json", "--values")
    assert (audited.exit_code, json.loads(audited.stdout)["exact"]) == (0, True), audited.output
    lag = json.loads(command(three, "lag", "--json").stdout)
    assert [each["pipeline"].removeprefix(three.prefix) for each in lag["pipelines"]] == [
        "customers",
        "event",
        "orders",
    ]
    assert json.loads(command(three, "lag", "--json", member="orders").stdout)["lag"] == 0
    one = command(
        three, "replay", "--dry-run", "--json", "--range", f"{shop.topic('orders')}:0:0-1", member="orders"
    )
    assert json.loads(one.stdout)["rows"] == 1, one.output
    assert command(three, "replay", "--batch", "1").exit_code == 2
    assert command(three, "status", member="none").exit_code == 2
    world.execute("update public.\"event\" set name = 'planted'")
    audited = command(three, "audit", "--json", "--values")
    assert audited.exit_code == 3
    assert [each["exact"] for each in json.loads(audited.stdout)["members"]] == [True, False, True]


def test_a_bad_table_stops_no_other_and_a_retry_processes_only_what_is_left(world, shop, three, command):
    command(three, "register")
    shop.produce_bytes("orders", b"bad")
    plans = plan(world, three, run=RUN)
    outcomes = {each.batch.pipeline: each for each in process(world, three, plans)}
    assert isinstance(outcomes[f"{shop.prefix}.orders"].error, TooManyRejects)
    again = plan(world, three, run=RUN)
    assert [each.batch and each.batch.batch_id for each in again] == [
        each.batch and each.batch.batch_id for each in plans
    ]
    repeated = {each.batch.pipeline: each for each in process(world, three, again)}
    assert {
        name.removeprefix(three.prefix): each.published and each.published.wrote
        for name, each in repeated.items()
    } == {
        "customers": False,
        "event": False,
        "orders": None,
    }
    allowed = shop.tables(max_rejects=1)
    assert process(world, allowed, plan(world, allowed))[0].error is None
    assert json.loads(command(allowed, "audit", "--json").stdout)["exact"]


def test_a_table_that_cannot_be_planned_stops_no_other(world, shop, three, admin, command):
    command(three, "register")
    run_all(world, three)
    admin.delete_topics([shop.topic("orders")])[shop.topic("orders")].result(30)
    world.log._settle = 1.0
    shop.produce("event", 3)
    plans = {each.pipeline.name.removeprefix(three.prefix): each for each in plan(world, three)}
    assert isinstance(plans["orders"].error, TopicMissing)
    assert process(world, three, list(plans.values()))[0].error is None
    (member,) = three.members([shop.topic("event")])
    assert ids(world, member) == [1, 2, 3]
    status = load_tables_status(world.connection, world.log, three)
    assert isinstance(status.errors[f"{shop.prefix}.orders"], TopicMissing)
    assert len(status.members) == 2


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_table_that_joins_is_registered_by_the_plan_and_loses_no_record(world, shop, start, command):
    shop.create("orders")
    shop.produce("orders", 1)
    tables = shop.tables(start=start)
    command(tables, "register")
    plan(world, tables)
    shop.create("customers")
    shop.produce("customers", 5)
    status = load_tables_status(world.connection, world.log, tables)
    assert status.new == (f"{shop.prefix}.customers",)
    assert run_all(world, tables)["customers"].published is not None
    (member,) = tables.members([shop.topic("customers")])
    assert ids(world, member) == [5]
    assert world.is_exact(member)
    joined = world.rows("select pipeline, topic, pattern, start from exactbatch.joined_topic")
    assert joined == [(member.name, shop.topic("customers"), rf"{shop.prefix}\.public\..*", "earliest")]


@pytest.mark.parametrize("how", ["register", "register of one", "plan", "run of one"])
def test_a_table_that_joins_tables_at_work_starts_at_its_first_record_whatever_registers_it(
    world, shop, command, how
):
    shop.create("orders")
    tables = shop.tables(start="latest")
    command(tables, "register")
    plan(world, tables)
    shop.create("customers")
    shop.produce("customers", 5)
    if how == "register":
        assert command(tables, "register").exit_code == 0
    elif how == "register of one":
        for _ in range(2):
            assert command(tables, "register", "--share-topics", member="customers").exit_code == 0
    elif how == "plan":
        planned = json.loads(command(tables, "plan", "--json").stdout)["members"]
        (starts,) = (each["ranges"] for each in planned if each["pipeline"].endswith("customers"))
        assert [(each["from_offset"], each["until_offset"]) for each in starts] == [(0, 1)]
    else:  # it is registered by a plan that processes another table only
        plan(world, tables, only=["orders"])
        planned = json.loads(command(tables, "plan", "--json", member="customers").stdout)
        assert [(each["from_offset"], each["until_offset"]) for each in planned["ranges"]] == [(0, 1)]
    run_all(world, tables)
    (member,) = tables.members([shop.topic("customers")])
    assert ids(world, member) == [5]


def test_a_plan_does_not_use_what_was_observed_before_a_batch_committed(world, shop, three, command):
    command(three, "register")
    members = three.members([shop.topic("orders")])
    early = observe_members(world.connection, world.log, members)
    run_all(world, three)
    shop.produce("orders", 3)
    (member,) = members
    batch_id = freeze_advance(world.connection, world.log, member, origin="cli", observed=early[member.name])
    with transaction(world.connection):
        (range_,) = Ledger(world.connection).batches.read_ranges(batch_id)
    assert (range_.from_offset, range_.until_offset) == (2, 3)


def test_the_page_shows_members_as_pipelines_of_one_dag(world, shop, three, command):
    command(three, "register")
    dag = PipelineDag(shop.prefix, False, "kafka", "postgres", False, None, is_tables=True)
    other = PipelineDag("other", False, "kafka", "postgres", False, None)
    owners = {dag.dag_id: True, "other": False}
    assert [
        (each.dag_id, each.pipeline) for each in with_members(world.connection, [dag, other], owners)
    ] == [
        *((shop.prefix, f"{shop.prefix}.{name}") for name in ("customers", "event", "orders")),
        ("other", "other"),
    ]
    own = replace(dag, dag_id=f"{shop.prefix}.orders", is_tables=False)
    owners = {dag.dag_id: True, own.dag_id: False}
    assert [each.pipeline for each in with_members(world.connection, [dag, own], owners)] == [
        f"{shop.prefix}.{name}" for name in ("customers", "event", "orders")
    ], "a pipeline that has a DAG of its own is shown once"


def test_doctor_examines_all_members(world, shop, three, command, monkeypatch):
    monkeypatch.setenv("EXACTBATCH_FAST_PATH", "off")  # to try it takes seconds
    command(three, "register")
    done = command(three, "doctor", "--json")
    texts = [each["fact"] if "fact" in each else str(each) for each in json.loads(done.stdout)["findings"]]
    for name in ("customers", "event", "orders"):
        assert any(f"{shop.prefix}.{name} is registered as it is now" in text for text in texts), texts


def test_doctor_examines_the_member_that_is_named(world, shop, three, command, monkeypatch):
    monkeypatch.setenv("EXACTBATCH_FAST_PATH", "off")

    def found(member):
        findings = json.loads(command(three, "doctor", "--json", member=member).stdout)["findings"]
        return [each for each in findings if each["check"] == "pipelines"]

    command(three, "register", member="customers")
    assert [each["found"] for each in found("customers")] == [
        f"{shop.prefix}.customers is registered as it is now"
    ]
    (missing,) = found("orders")
    assert missing["found"] == f"no member 'orders' of the tables {shop.prefix!r} is registered"
    assert missing["remedy"] == "Run `exactbatch register tables_of_commands:shop.orders` once."


def test_an_unregistered_database_gets_no_tables_by_a_plan(world, three):
    with pytest.raises(NotRegistered, match="no member of the tables"):
        plan(world, three)


def test_requests_go_to_the_members_whose_they_are(world, shop, three, command):
    command(three, "register")
    first = run_all(world, three)
    batch_id = first["orders"].batch.batch_id
    for request in (
        ReplayRequest(ranges=(RequestedRange(shop.topic("orders"), 0, 0, 1),)),
        ReplayRequest(batch_ids=(batch_id,)),
    ):
        run = DagRun("shop", f"replay {request}", 0)
        assert set(run_all(world, three, run=run, request=request)) == {"orders"}
    with pytest.raises(ConfigurationError, match="loads this topic"):
        plan(world, three, run=RUN, request=ReplayRequest(ranges=(RequestedRange("other", 0, 0, 1),)))
    shop.produce("event", 9)
    shop.produce("orders", 9)
    assert set(run_all(world, three, only=["event"])) == {"event"}
    with pytest.raises(
        ConfigurationError, match="'none': .* has no such table. It has customers, event, orders"
    ):
        selected(three, three.members(map(shop.topic, ("orders", "customers", "event"))), ["none"])
    assert json.loads(command(three, "audit", "--json").stdout)["exact"]
