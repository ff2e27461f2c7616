"""A Route: each record is in exactly one of several targets, by the value of a column."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import fastavro
import pytest
from psycopg2 import sql

from exactbatch import Aggregate, Append, Avro, Count, Debezium, Json, Pipeline, Route, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError, IdentityChanged, TargetMismatch, TooManyRejects
from exactbatch.ledger import Ledger
from exactbatch.operations.compact import compact_changes
from exactbatch.operations.prune import prune_history
from exactbatch.operations.replay_preview import preview_registered
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.writers import find_writer
from support.registry import registry_server
from support.topics import Topic

SCHEMA = "kind text, id int, name text, total int"


def event(kind: str | None, id_: int | None = 1, **more: object) -> bytes:
    return json.dumps({"kind": kind, "id": id_, **more}).encode()


def table(topic: Topic, suffix: str) -> str:
    return f'public."{topic.name}_{suffix}"'


def route(topic: Topic, **options: object) -> Route:
    return Route(
        by="kind",
        to={
            "order": Append(table(topic, "order")),
            "customer": Upsert(table(topic, "customer"), key="id"),
            "product": Upsert(table(topic, "product"), key=("id", "name")),
        },
        columns={
            table(topic, "order"): ("id", "total"),
            table(topic, "customer"): ("id", "name"),
        },
        **options,
    )


@pytest.fixture
def registry():
    with registry_server() as registry:
        yield registry


@pytest.fixture
def topic(make_topic):
    return make_topic()


@pytest.fixture
def pipeline(topic, make_pipeline):
    return make_pipeline(topic, value=Json(SCHEMA), sink=route(topic), max_rejects=5)


def rows(world, topic: Topic, suffix: str, columns: str = "*") -> list[tuple[object, ...]]:
    return sorted(world.rows(f"select {columns} from {table(topic, suffix)}"))


def replay(world, topic, pipeline, first: int, until: int):
    request = ReplayRequest(ranges=(RequestedRange(topic.name, 0, first, until),))
    batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    assert batch_id is not None
    world.process(pipeline, batch_id)


def produce_some(topic: Topic) -> None:
    topic.produce(
        event("order", 1, total=5),
        event("customer", 1, name="a"),
        event("product", 1, name="x", total=3),
        event("customer", 1, name="b"),
        event("order", 2, total=7),
        event("product", 1, name="x", total=4),
    )


def test_each_record_is_in_its_target_alone(world, topic, pipeline):
    produce_some(topic)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (6, 6, 0)
    assert rows(world, topic, "order", "id, total, deleted") == [(1, 5, False), (2, 7, False)]
    assert rows(world, topic, "customer") == [(1, "b")]
    assert rows(world, topic, "product") == [("product", 1, "x", 4)]
    for values in (False, True):
        report = audit(pipeline, world.settings, values=values)
        assert report.is_exact, report
        found = [(each.rows, each.elsewhere, each.tombstones) for each in report.partitions]
        assert found == [(2, 4, 0)] * 3


def test_the_schema_of_a_record_leads_to_its_target(world, topic, make_pipeline, registry):
    def written(schema_id: int, record: str, **fields: object) -> bytes:
        types = {"id": "long", "name": "string", "total": "long"}
        schema = {
            "type": "record",
            "name": f"com.shop.{record}",
            "fields": [{"name": each, "type": types[each]} for each in fields],
        }
        registry.has(schema_id, schema)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), fields)
        return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()

    pipeline = make_pipeline(
        topic,
        value=Avro(
            registry=registry.address, fields="id bigint, name text, total bigint", schema_name="kind"
        ),
        sink=Route(
            by="kind",
            to={
                "com.shop.Order": Append(table(topic, "order")),
                "com.shop.Customer": Upsert(table(topic, "customer"), key="id"),
            },
            columns={table(topic, "order"): ("id", "total"), table(topic, "customer"): ("id", "name")},
        ),
        max_rejects=5,
    )
    topic.produce(
        written(1, "Order", id=1, total=5),
        written(2, "Customer", id=1, name="a"),
        written(3, "Customer", id=1, name="b", total=9),
        written(4, "Refund", id=2),
    )
    assert world.run(pipeline).batch.rejected == 1
    assert rows(world, topic, "order", "id, total") == [(1, 5)]
    assert rows(world, topic, "customer") == [(1, "b")]
    assert world.rows("select reason from exactbatch.rejected_record") == [
        (
            "column 'kind': 'com.shop.Refund' leads to no target: the Route has com.shop.Customer, com.shop.Order and "
            "no rest",
        )
    ]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_a_record_without_a_target_is_a_reject(world, topic, pipeline):
    topic.produce(event("order"), event("refund", 2), event(None, 3))
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (1, 2)
    reasons = world.rows('select reason from exactbatch.rejected_record order by "offset"')
    assert [reason for (reason,) in reasons] == [
        "column 'kind': 'refund' leads to no target: the Route has customer, order, product and no rest",
        "column 'kind': null leads to no target: the Route has customer, order, product and no rest",
    ]
    assert audit(pipeline, world.settings, values=True).is_exact
    topic.produce(event("refund", 4))
    world.refused(TooManyRejects, replace(pipeline, max_rejects=0))


def test_the_rest_has_a_target_of_its_own_if_one_is_given(world, topic, make_pipeline):
    pipeline = make_pipeline(topic, value=Json(SCHEMA), sink=route(topic, rest=Append(table(topic, "rest"))))
    topic.produce(event("order"), event("refund", 2), event(None, 3))
    assert world.run(pipeline).batch.rejected == 0
    assert rows(world, topic, "rest", "id, kind") == [(2, "refund"), (3, None)]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_values_with_equal_sinks_share_a_target(world, topic, make_pipeline):
    shared = Append(table(topic, "shared"))
    pipeline = make_pipeline(
        topic,
        value=Json(SCHEMA),
        sink=Route(by="kind", to={"a": shared, "b": shared, "c": Append(table(topic, "c"))}),
    )
    topic.produce(event("a", 1), event("b", 2), event("c", 3))
    world.run(pipeline)
    assert rows(world, topic, "shared", "id") == [(1,), (2,)]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_a_replay_retracts_from_all_targets(world, topic, pipeline):
    produce_some(topic)
    world.run(pipeline)
    request = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 1, 5),))
    assert preview_replay(world.connection, world.log, pipeline, request).rows == 4
    with transaction(world.connection):
        definition = Ledger(world.connection).registry.read(pipeline.name)
    registered = preview_registered(world.connection, world.log, definition, request, replays_compacted=False)
    assert registered.rows == 4
    for suffix in ("order", "customer_change", "product_change"):
        world.execute(f"update {table(topic, suffix)} set id = 9")
    replay(world, topic, pipeline, 0, 6)
    assert rows(world, topic, "order", "id, total") == [(1, 5), (2, 7)]
    assert rows(world, topic, "customer") == [(1, "b")]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_other_routes_are_another_identity(world, topic, pipeline):
    produce_some(topic)
    world.run(pipeline)
    swapped = {**pipeline.sink.to, "refund": pipeline.sink.to["order"]}
    topic.produce(event("refund", 3, total=1))
    with pytest.raises(IdentityChanged, match="other_targets"):
        world.run(replace(pipeline, sink=replace(pipeline.sink, to=swapped)))
    more = replace(pipeline, sink=replace(pipeline.sink, columns={}), evolve="add")
    assert world.run(more).batch.rejected == 1  # other columns are the same routes


def test_folded_batches_are_replayed_in_all_targets(world, topic, pipeline):
    """Which batches have rows in a range is found in the targets: not every batch has some in each."""
    for suffix in ("order", "customer", "product"):
        topic.produce(event(suffix, 1, name="a", total=5))
        world.run(pipeline)
    prune_history(world.connection, pipeline, before=datetime.max.replace(tzinfo=UTC))
    replay(world, topic, pipeline, 0, 3)
    assert rows(world, topic, "order", "id, total") == [(1, 5)]
    assert rows(world, topic, "customer_change", "name") == [("a",)]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_a_row_without_a_target_is_never_left_out(world, topic, pipeline):
    """Its record is a reject; this is for the case that the rule did not find it."""
    topic.produce(event("order"))
    world.run(pipeline)
    writer, staged = find_writer(pipeline.traits), StagedRows(sql.Identifier("pg_temp", "staged"), 1, {1: 1})
    with transaction(world.connection) as cursor:
        cursor.execute(
            "create temporary table staged on commit drop as select 1 as task_attempt, 'refund'::text as kind, 1 as "
            "id, 'n'::text as name, 1 as total, false as deleted, 't'::text as kafka_topic, 0 as kafka_partition, "
            "0::bigint as kafka_offset, now() as kafka_timestamp"
        )
        with pytest.raises(TargetMismatch, match="1 staged rows have no target"):
            writer.insert_staged(cursor, staged, pipeline.value.columns)


def test_a_replay_takes_away_rows_of_targets_that_get_none(world, topic, pipeline):
    produce_some(topic)
    world.run(pipeline)
    strict = replace(pipeline, checks="kind <> 'customer'")
    replay(world, topic, strict, 0, 6)
    assert rows(world, topic, "customer") == []
    assert rows(world, topic, "product") == [("product", 1, "x", 4)]
    assert audit(strict, world.settings, values=True).is_exact


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("update {order} set total = 6 where kafka_offset = 0", "changed"),
        ("delete from {order} where kafka_offset = 0", "missing"),
        ("update {customer} set name = 'x'", "stale"),
        ("delete from {product}", "stale"),
        (
            "insert into {order} select 1, 1, false, kafka_topic, kafka_partition, 1, kafka_timestamp, batch_id "
            "from {order} where kafka_offset = 0",
            "unexpected",
        ),
    ],
)
@pytest.mark.parametrize("values", [True, False])
def test_an_audit_finds_a_planted_difference_in_any_target(world, topic, pipeline, statement, kind, values):
    produce_some(topic)
    world.run(pipeline)
    names = {suffix: table(topic, suffix) for suffix in ("order", "customer", "product")}
    world.execute(statement.format(**names))
    report = audit(pipeline, world.settings, values=values)
    assert report.is_exact == (kind == "changed" and not values)
    assert values is False or report.findings[kind] > 0


def test_an_audit_finds_records_in_the_wrong_target(world, topic, pipeline):
    produce_some(topic)
    world.run(pipeline)
    world.execute(
        f"with moved as (delete from {table(topic, 'order')} where kafka_offset = 0 returning *) "
        f"insert into {table(topic, 'customer_change')} (id, name, deleted, kafka_topic, kafka_partition, "
        "kafka_offset, kafka_timestamp, batch_id) select 7, null, false, kafka_topic, kafka_partition, kafka_offset, "
        "kafka_timestamp, batch_id from moved; "
        f"insert into {table(topic, 'customer')} values (7, null)"
    )
    found = audit(pipeline, world.settings).findings
    assert (found["missing"], found["unexpected"]) == (1, 1)


def test_an_audit_finds_a_record_that_no_target_has(world, topic, pipeline):
    topic.produce(event("order"), event("refund", 2))
    world.run(pipeline)
    world.execute("delete from exactbatch.rejected_record")
    assert audit(pipeline, world.settings).findings["missing"] > 0


def test_a_value_that_its_target_cannot_hold_rejects_only_its_record(world, topic, make_pipeline):
    pipeline = make_pipeline(
        topic, value=Json("kind text, id int, name text, total bigint"), sink=route(topic), max_rejects=3
    )
    topic.produce(event("order", 1, total=1))
    world.run(pipeline)
    world.execute(f"alter table {table(topic, 'order')} alter column total type int")
    topic.produce(
        event("order", 2, total=3_000_000_000),
        event("product", 3, name="p", total=3_000_000_000),
        event("product", None, name="p"),
        event("order", None, total=2),
    )
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (2, 2)
    assert [
        reason for (reason,) in world.rows('select reason from exactbatch.rejected_record order by "offset"')
    ][1] == "column 'id': the key is null"
    assert rows(world, topic, "order", "coalesce(id, -1), total") == [(-1, 2), (1, 1)]
    assert rows(world, topic, "product", "id, total") == [(3, 3_000_000_000)]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_a_domain_that_raises_an_error_for_the_rows_of_others_does_not_reject_them(
    world, topic, make_pipeline
):
    pipeline = make_pipeline(topic, value=Json(SCHEMA), sink=route(topic), max_rejects=3)
    world.execute(
        f"create domain public.even as int check (10 / (value % 2 - 1) is not null and value % 2 = 0); "
        f"create table {table(topic, 'order')} (id int, total public.even, deleted boolean, kafka_topic text, "
        "kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint)"
    )
    topic.produce(
        event("order", 1, total=2), event("product", 1, name="x", total=3), event("order", 2, total=5)
    )
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (2, 1)
    assert rows(world, topic, "product", "total") == [(3,)]


def test_a_target_that_refuses_rows_rejects_their_records(world, topic, pipeline):
    topic.produce(event("order", 1, total=1))
    world.run(pipeline)
    world.execute(f"alter table {table(topic, 'order')} add check (total < 10)")
    topic.produce(event("order", 2, total=20), event("customer", 20, name="c"), event("order", 3, total=3))
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (2, 1)
    assert rows(world, topic, "order", "id") == [(1,), (3,)]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_rows_that_a_trigger_keeps_out_of_one_target_are_in_none(world, topic, pipeline):
    produce_some(topic)
    world.run(pipeline)
    world.execute(
        "create function public.skip_row() returns trigger language plpgsql as $$ begin return null; end $$; "
        f"create trigger skip before insert on {table(topic, 'order')} for each row execute function public.skip_row()"
    )
    topic.produce(event("order", 5), event("customer", 5, name="n"))
    with pytest.raises(TargetMismatch, match="1 rows were written, and 0 arrived"):
        world.run(pipeline)
    assert rows(world, topic, "customer") == [(1, "b")]


def test_debezium_events_of_many_tables_go_to_their_tables(world, topic, make_pipeline):
    value = Debezium("id int, name text, total int", version="postgres", source="table")
    version = ("commit_lsn", "lsn")
    pipeline = make_pipeline(
        topic,
        value=value,
        sink=Route(
            by="source_table",
            to={
                "customer": Upsert(table(topic, "customer"), key="id", version=version),
                "product": Upsert(table(topic, "product"), key="id", version=version),
            },
            rest=Append(table(topic, "rest")),
            columns={table(topic, "customer"): ("id", "name", *version)},
        ),
    )

    def change(of: str, op: str, lsn: int, /, **row: object) -> bytes:
        source = {"table": of, "sequence": f'["{lsn}", "{lsn}"]', "lsn": lsn}
        image = {"before": row} if op == "d" else {"after": row}
        return json.dumps({"op": op, "before": None, "after": None, "source": source, **image}).encode()

    topic.produce(
        change("customer", "c", 1, id=1, name="a"),
        change("product", "c", 2, id=1, total=3),
        change("stock", "c", 3, id=1),
        change("customer", "u", 4, id=1, name="b"),
        change("product", "d", 5, id=1),
        None,
    )
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.tombstones) == (5, 1)
    found = [
        (each.rows, each.elsewhere, each.tombstones) for each in audit(pipeline, world.settings).partitions
    ]
    assert found == [(1, 4, 1), (2, 3, 1), (2, 3, 1)]
    assert rows(world, topic, "customer", "id, name") == [(1, "b")]
    assert rows(world, topic, "product", "id") == []
    assert rows(world, topic, "rest", "source_table, id") == [("stock", 1)]
    assert audit(pipeline, world.settings, values=True).is_exact
    replay(world, topic, pipeline, 0, 6)
    assert rows(world, topic, "customer", "id, name") == [(1, "b")]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_compaction_drops_old_changes_of_all_upserts(world, topic, pipeline):
    produce_some(topic)
    world.run(pipeline)
    assert compact_changes(world.connection, world.log, pipeline, before=None).dropped == 2
    assert len(rows(world, topic, "order")) == 2
    assert audit(pipeline, world.settings).is_exact


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "size"}, "name a column of the pipeline of type text, found 'size'"),
        ({"by": "id"}, "found 'id', int"),
        ({"to": {"a": Append("a")}}, "expected two targets or more"),
        ({"to": {"a": Append("a"), "b": Append("public.a")}}, "two of the sinks write to one table"),
        ({"to": {"a": Append("a"), "b": Upsert("b", key="id", history=False)}}, "history=False"),
        (
            {"to": {"a": Append("a"), "b": Aggregate("b", ("id",), {"n": Count()})}},
            "Aggregate does not work next",
        ),
        (
            {"to": {"a": Upsert("a", key="id", version="total"), "b": Upsert("b", key="id")}},
            "differ in version",
        ),
        ({"columns": {"c": "id"}}, "expected the columns of a target, a, b, found those of 'c'"),
        ({"columns": {"a": "size"}}, "expected the columns of a among"),
        ({"columns": {"b": "name"}}, "expected the key of b among"),
        ({"other": Append("c")}, "Route has no option 'other'"),
    ],
)
def test_routes_that_cannot_work_are_refused(options, message):
    given = {"by": "kind", "to": {"a": Append("a"), "b": Upsert("b", key="id")}, **options}
    with pytest.raises(ConfigurationError, match=message):
        Pipeline(name="p", topics="t", value=Json(SCHEMA), sink=Route(**given))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": "select * from records"}, "one row for each record"),
        ({"message_key": Json("id int")}, "a tombstone has no value"),
        ({"commit": "partition"}, "several targets"),
    ],
)
def test_what_a_route_does_not_do_is_refused(options, message):
    sink = Route(by="kind", to={"a": Append("a"), "b": Upsert("b", key="id")})
    with pytest.raises(ConfigurationError, match=message):
        Pipeline(name="p", topics="t", value=Json(SCHEMA), sink=sink, **options)
