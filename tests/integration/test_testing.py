"""exactbatch.testing against real batches: the same records give the same rows, rejects and targets."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg2
import pyarrow.compute as pc
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import (
    Aggregate,
    Append,
    Count,
    Debezium,
    Json,
    Max,
    Min,
    Pipeline,
    Sum,
    Text,
    Upsert,
    Window,
    WithKeyAndHeaders,
)
from exactbatch.errors import ConfigurationError, TargetMismatch, TransformFailed, TransformRefused
from exactbatch.testing import Record, load

PARTITIONS = 3
POSITIONS = count(1)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
EVENTS = Json(
    "id int, carrier text, at timestamptz, delay int, version int, price numeric(10,2), share float8, ok bool"
)
EVENT_COLUMNS = "id, carrier, at, delay, version, price, share, ok"
ROW = Debezium("id int, name text, body text", version="postgres", truncate="apply")


def events(random_: random.Random, partition: int) -> Record:
    """An event, or what is none."""
    kind = random_.random()
    if kind < 0.1:
        return Record(
            random_.choice([b"", b"{", b'{"id": "x"}', b"\xff", b'{"id": 1.5}', b'{"id": 1e99}']), None
        )
    if kind < 0.2:
        return Record(None, json.dumps({"id": random_.randrange(6)}))
    event = {
        "id": random_.randrange(6),
        "carrier": random_.choice(["AA", "UA", None, "é"]),
        "at": random_.choice([None, (NOON + timedelta(minutes=random_.randrange(-300, 300))).isoformat()]),
        "delay": random_.choice([None, random_.randrange(-20, 300)]),
        "version": random_.choice([None, random_.randrange(1000)]),
        "price": random_.choice([None, "12.50", -3, 99999999.99, "1e2"]),
        "share": random_.choice([None, 0.1, -0.0, 0, 1e300]),
        "ok": random_.choice([None, True, False]),
    }
    for name in random_.sample(sorted(event.keys() - {"id"}), random_.randrange(3)):
        del event[name]
    return Record(json.dumps(event), timestamp=NOON + timedelta(seconds=random_.randrange(10_000)))


def by_partition(random_: random.Random, partition: int) -> Record:
    """An event whose id is in one partition."""
    record = events(random_, partition)
    if record.value is None:
        return Record(None, json.dumps({"id": 3 * random_.randrange(6) + partition}))
    if isinstance(record.value, str):  # an event
        event = json.loads(record.value)
        return Record(json.dumps({**event, "id": 3 * event["id"] + partition}))
    return record


def changes(random_: random.Random, partition: int) -> Record:
    """A change as Debezium sends it: values may be left out, and the table may be truncated."""
    lsn = next(POSITIONS)
    sequence = None if random_.random() < 0.1 else f'["{lsn - 1}","{lsn}"]'
    op = random_.choices(["c", "u", "d", "t", "m"], [6, 8, 3, 0.1, 0.5])[0]
    row = {
        "id": random_.randrange(8),
        "name": random_.choice(["a", "b", None, "__debezium_unavailable_value"]),
        "body": random_.choice(["long", "__debezium_unavailable_value", "__debezium_unavailable_value"]),
    }
    before, after = (row, None) if op == "d" else (None, row) if op in "cu" else (None, None)
    if random_.random() < 0.05:
        return Record(None, "key")
    return Record(
        json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn, "sequence": sequence}})
    )


def orders(random_: random.Random, partition: int) -> Record:
    """An order with any number of items."""
    items = [{"sku": random_.choice("abc"), "n": number} for number in range(random_.randrange(4))]
    if random_.random() < 0.1:
        items.append({"sku": 1})
    headers = random_.choice([(), [("trace", "x")], [("trace", b"\xff")], [("trace", None), ("other", b"y")]])
    key = random_.choice([None, "k", b"\xff"])
    return Record(random_.choice([json.dumps({"items": items}), None]), key, headers)


@dataclass(frozen=True)
class Case:
    """A pipeline, its records, and a query for each target: what it holds in the order in which load() gives it."""

    sink: Callable[[str], Any]
    queries: dict[str, str]
    records: Callable[[random.Random, int], Record] = events
    changes: dict[str, Any] = field(default_factory=dict)


def keyed(query: str = f"select {EVENT_COLUMNS} from {{}} order by id nulls first") -> dict[str, str]:
    return {"{}": query}


APPENDED = f"select {EVENT_COLUMNS} from {{}} order by kafka_partition, kafka_offset"
KEY = {"message_key": Json("id int")}
CASES = {
    "append": Case(Append, {"{}": APPENDED}),
    "by_batch": Case(lambda t: Append(t, layout="by_batch"), {"{}": APPENDED}),
    "upsert": Case(lambda t: Upsert(t, ("id",), "version"), keyed(), by_partition),
    "upsert by offset": Case(lambda t: Upsert(t, ("id",)), keyed(), by_partition, KEY),
    "upsert by several": Case(
        lambda t: Upsert(t, ("id",), ("share", "at", "version")), keyed(), by_partition
    ),
    "upsert without history": Case(
        lambda t: Upsert(t, ("id",), "version", history=False), keyed(), by_partition
    ),
    "together": Case(
        lambda t: [Append(f"{t}_raw"), Upsert(t, ("id",), "version")],
        {
            "{}_raw": f"select {EVENT_COLUMNS}, deleted from {{}}_raw order by kafka_partition, kafka_offset",
            **keyed(),
        },
        by_partition,
    ),
    "debezium": Case(
        lambda t: Upsert(t, ("id",), ("commit_lsn", "lsn")),
        keyed("select id, name, body, commit_lsn, lsn from {} order by id"),
        changes,
        {"value": ROW},
    ),
    "aggregate": Case(
        lambda t: Aggregate(
            t,
            ("carrier", Window("at", "1 hour")),
            {
                "n": Count(),
                "delays": Count("delay"),
                "total": Sum("delay"),
                "prices": Sum("price"),
                "least": Min("price"),
                "best": Min("delay"),
                "worst": Max("delay"),
                "last": Max("at"),
                "share": Max("share"),
            },
            allowed_lateness="1 hour",
        ),
        {
            "{}": "select carrier, at_window, n, delays, total, prices, least, best, worst, last, share, final, "
            'revisions from {} order by carrier collate "C" nulls first, at_window'
        },
    ),
    "aggregate by float and kafka_timestamp": Case(
        lambda t: Aggregate(
            t, ("share", "ok", Window("kafka_timestamp", "15 minutes", "quarter")), {"n": Count()}
        ),
        {"{}": "select share, ok, quarter, n from {} order by share nulls first, ok nulls first, quarter"},
    ),
    "several rows": Case(
        Append,
        {"{}": "select sku, n, k, trace, h::text from {} order by kafka_partition, kafka_offset, n"},
        orders,
        {
            "value": WithKeyAndHeaders(
                Json("sku text from 'items[].sku', n int from 'items[].n'"),
                key=Text("k"),
                headers={"trace": Text("trace")},
                all_headers="h",
            )
        },
    ),
    "sql": Case(
        Append,
        {"{}": "select id, hour, delay from {} order by kafka_partition, kafka_offset, hour nulls first"},
        changes={
            "transform": "select id, explode(array(hour(at), 99)) hour, delay * 2L delay, kafka_topic, "
            "kafka_partition, kafka_offset, kafka_timestamp from records where delay > 0"
        },
    ),
    "sql of an upsert": Case(
        lambda t: Upsert(t, ("id",), "version"),
        keyed("select id, carrier, version from {} order by id"),
        by_partition,
        changes={
            "transform": "select nullif(id, 1) id, upper(carrier) carrier, version, nullif(deleted, version = 3) "
            "deleted, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp from records",
        },
    ),
    "sql by batch": Case(
        lambda t: Append(t, lineage="batch"),
        {"{}": "select carrier, n from {} order by carrier"},
        changes={
            "transform": "select carrier, count(*) n from records where carrier is not null "
            "group by carrier order by carrier"
        },
    ),
}


@pytest.fixture
def empty_database(database: str) -> Iterator[str]:
    """A database without a ledger."""
    admin = psycopg2.connect(database)
    admin.autocommit = True
    name = "for_" + admin.info.dbname
    with admin.cursor() as cursor:
        cursor.execute(f"create database {name}")
        yield make_dsn(database, dbname=name)
        cursor.execute(f"drop database {name} with (force)")
    admin.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_load_gives_what_a_batch_writes(name, world, make_topic, make_pipeline, empty_database):
    case, random_ = CASES[name], random.Random(name)
    topic = make_topic(PARTITIONS)
    target = f"public.{topic.name}"
    options = {"value": EVENTS, "sink": case.sink(target), "max_reject_share": 1.0, **case.changes}
    pipeline = make_pipeline(topic, **options)
    records = []
    for number in range(200):
        record = case.records(random_, number % PARTITIONS)
        time = record.timestamp or NOON
        records.append(Record(record.value, record.key, record.headers, None, number % PARTITIONS, time))
        milliseconds = records[-1].milliseconds
        value = record.value.encode() if isinstance(record.value, str) else record.value
        headers = list(record.headers) or None
        topic.produce(
            value, partition=number % PARTITIONS, key=record.key, headers=headers, timestamp=milliseconds
        )
    batch = world.run(pipeline).batch
    written = {name.format(target): world.rows(query.format(target)) for name, query in case.queries.items()}
    rejected = world.rows(
        'select topic, partition, "offset", reason, value, key from exactbatch.rejected_record order by 1, 2, 3'
    )
    assert len(rejected) > (0 if name != "sql by batch" else -1)
    assert all(len(rows) > 2 for rows in written.values())

    def check(loaded: Any) -> None:
        found = [
            (each.topic, each.partition, each.offset, each.reason, each.value, each.key)
            for each in loaded.rejects
        ]
        assert found == [(*row[:4], *(part and bytes(part) for part in row[4:])) for row in rejected]
        assert {
            name: [tuple(row.values()) for row in rows] for name, rows in loaded.targets.items()
        } == written
        assert (loaded.records, len(loaded.rejects), loaded.tombstones, loaded.dropped) == (
            batch.records,
            batch.rejected,
            batch.tombstones,
            batch.dropped,
        )
        if not isinstance(pipeline.sink, list):
            assert len(loaded.rows) == batch.rows

    check(load(pipeline, records))
    check(load(pipeline, records, postgres=empty_database))
    replayed = load(pipeline, *(records[start : start + 70] for start in (0, 70, 140)), replay=pipeline)
    for row in (row for rows in replayed.targets.values() for row in rows if "revisions" in row):
        row["revisions"] = 0  # later batches and the replay have changed final windows
    check(replayed)


@pytest.fixture
def database_of_the_load(empty_database):
    """Executes statements in the database that load() gets."""
    connection = psycopg2.connect(empty_database)
    connection.autocommit = True
    with connection.cursor() as cursor:
        yield cursor
    connection.close()


def test_postgres_rejects_what_the_types_and_checks_refuse_and_leaves_nothing(
    empty_database, database_of_the_load
):
    database_of_the_load.execute("create schema shop; create type shop.mood as enum ('good', 'bad')")
    value = Json("id uuid, mood shop.mood, amount numeric, tags text[]")
    pipeline = Pipeline(
        name="p", topics=("t",), value=value, sink=Append("shop.moods"), checks=("amount > 0",), max_rejects=9
    )
    good = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    records = [
        json.dumps({"id": good, "mood": "good", "amount": 1.50, "tags": ["a", None]}),
        json.dumps({"id": "x"}),
        json.dumps({"mood": "worse"}),
        json.dumps({"amount": -1}),
    ]
    loaded = load(pipeline, records, postgres=empty_database)
    assert loaded.target == [{"id": good, "mood": "good", "amount": "1.5", "tags": ["a", None]}]
    assert [(each.offset, each.reason) for each in loaded.rejects] == [
        (1, "column 'id', uuid: invalid input syntax for type uuid: \"x\""),
        (2, "column 'mood', shop.mood: invalid input value for enum shop.mood: \"worse\""),
        (3, 'check "amount > 0" failed: amount = -1'),
    ]
    assert loaded.unverified == {}
    database_of_the_load.execute(
        "select to_regclass('shop.moods') is null and to_regnamespace('exactbatch') is null"
    )
    assert database_of_the_load.fetchone() == (True,)


def test_an_existing_target_and_its_constraints_count(empty_database, database_of_the_load):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.t"))
    database_of_the_load.execute(
        "create table t (id int check (id < 5), kafka_topic text, kafka_partition int, kafka_offset bigint, "
        "kafka_timestamp timestamptz, batch_id bigint)"
    )
    database_of_the_load.execute("insert into t values (1, 't', 0, -1, null, 0)")
    assert load(pipeline, [], postgres=empty_database).target == [{"id": 1}]
    assert load(pipeline, ['{"id": 4}'], postgres=empty_database).target == [{"id": 1}, {"id": 4}]
    loaded = load(pipeline, ['{"id": 4}', '{"id": 5}'], postgres=empty_database)
    with pytest.raises(TargetMismatch, match="t_id_check"):
        _ = loaded.target
    allowed = load(replace(pipeline, max_rejects=1), ['{"id": 4}', '{"id": 5}'], postgres=empty_database)
    assert allowed.target == [{"id": 1}, {"id": 4}]
    assert [each.offset for each in allowed.rejects] == [1]
    assert "found id = 5" in allowed.rejects[0].reason
    database_of_the_load.execute("alter table t drop column id")
    with pytest.raises(TargetMismatch, match="id"):
        load(pipeline, [], postgres=empty_database)


def test_a_database_with_a_ledger_is_refused(connection, database):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.t"))
    with pytest.raises(ConfigurationError, match="has a ledger"):
        load(pipeline, [], postgres=database)


def test_a_bad_check_is_an_error(empty_database):
    pipeline = Pipeline(
        name="p", topics=("t",), value=Json("id int"), sink=Append("public.t"), checks=("ids > 0",)
    )
    with pytest.raises(ConfigurationError, match="check 'ids > 0'"):
        load(pipeline, [], postgres=empty_database)


def test_times_beyond_those_of_python(empty_database):
    value = Json("d date, at timestamptz, t timestamp")
    pipeline = Pipeline(name="p", topics=("t",), value=value, sink=Append("public.t"))
    row = {"d": "0000-02-29", "at": "0000-12-31T23:59:59.5Z", "t": "0000-01-01T00:00:00"}
    expected = {"d": "0001-02-29 BC", "at": "0001-12-31 23:59:59.5+00 BC", "t": "0001-01-01 00:00:00 BC"}
    for postgres in (None, empty_database):
        loaded = load(pipeline, [json.dumps(row)], postgres=postgres)
        assert loaded.rows == loaded.target == [expected]


def test_a_transform_fails_with_its_record(spark):
    pipeline = Pipeline(
        name="p",
        topics=("t",),
        value=Json("id int"),
        sink=Append("public.t"),
        transform="select 1 div (2 - id) x, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp "
        "from records",
    )
    with pytest.raises(TransformFailed, match=r"t\[0\] offset 1: the transform failed"):
        load(pipeline, ['{"id": 1}', '{"id": 2}'])


def test_a_row_with_the_lineage_of_no_record_is_refused(spark):
    def forged(records):
        def forge(batches):
            for batch in batches:
                at = batch.schema.get_field_index("kafka_offset")
                yield batch.set_column(at, "kafka_offset", pc.add(batch.column(at), 1))

        return records.mapInArrow(forge, records.schema)

    pipeline = Pipeline(
        name="p",
        topics=("t",),
        value=Json("id int"),
        sink=Append("public.t"),
        transform=forged,
        allow_nondeterministic=("forge",),
    )
    with pytest.raises(TransformRefused, match=r"lineage \(t, 0, 2, None\), which no decoded record has"):
        load(pipeline, ['{"id": 1}', '{"id": 2}'])
