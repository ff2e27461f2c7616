"""Debezium's events of every type and mode, loaded through a batch: the target holds what the source had."""

import json

import pytest

from exactbatch import Append, Debezium, Upsert
from exactbatch.audit.run_audit import audit
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import (
    CONNECTORS,
    array,
    data,
    decimal,
    encoded,
    envelope,
    time,
    typed,
    unscaled,
)
from support.registry import registry_server


def named(number: int) -> str:
    return f"x{number}"


def produce(topic, schema, row, op="c", **source):
    before, after = (row, None) if op == "d" else (None, row)
    payload = {"before": before, "after": after, "source": source, "op": op}
    topic.produce(json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode())


@pytest.mark.parametrize("connector", CONNECTORS)
def test_target_holds_what_the_source_had(world, make_topic, make_pipeline, connector):
    values = CONNECTORS[connector]
    columns = {named(at): value.schema for at, value in enumerate(values)}
    schema = envelope({"id": typed("int32"), **columns}, {})
    topic = make_topic()
    produce(topic, schema, {"id": 1} | {named(at): value.written for at, value in enumerate(values)})
    produce(topic, schema, {"id": 2})
    form = Debezium(
        ", ".join(["id int", *(f"{named(at)} {value.column}" for at, value in enumerate(values))])
    )
    pipeline = make_pipeline(topic, value=form, sink=Append(f'public."{topic.name}"'))
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (2, 2, 0)
    printed = ", ".join(f"{named(at)}::text" for at in range(len(values)))
    world.connection.rollback()
    [row] = world.rows(f'select {printed} from public."{topic.name}" where id = 1')
    found = dict(zip((value.source for value in values), row, strict=True))
    assert found == {value.source: value.printed for value in values}
    assert audit(pipeline, world.settings, values=True).is_exact
    world.connection.cursor().execute(f'update public."{topic.name}" set {named(3)} = null where id = 1')
    world.connection.commit()
    report = audit(pipeline, world.settings, values=True)
    assert not report.is_exact


def test_events_that_tell_of_no_row_are_counted_and_audited(world, make_topic, make_pipeline):
    topic = make_topic()
    schema = envelope({"id": typed("int32")}, {"lsn": typed("int64"), "sequence": typed("string")})
    produce(topic, schema, {"id": 1}, lsn=1, sequence='["0","1"]')
    heartbeat = {"type": "struct", "fields": [{"type": "int64", "field": "ts_ms"}]}
    for value in ({"schema": heartbeat, "payload": {"ts_ms": 1}}, {"ts_ms": 1}):
        topic.produce(json.dumps(value).encode())
    produce(topic, schema, {"id": 1}, op="d", lsn=2, sequence='["1","2"]')
    topic.produce(None)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version=("commit_lsn", "lsn"))
    pipeline = make_pipeline(topic, value=Debezium("id int", version="postgres"), sink=sink)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (5, 2, 0, 3)
    report = audit(pipeline, world.settings)
    assert report.is_exact
    assert sum(each.tombstones for each in report.partitions) == 3
    # A row for an event that tells of none is found, as is a change without a row.
    table, before = f'public."{topic.name}_change"', 0
    for offset in (1, 2, 4):
        world.execute(f"update {table} set kafka_offset = {offset} where kafka_offset = {before}")
        for values in (False, True):
            [found] = audit(pipeline, world.settings, values=values).partitions
            assert (found.missing.first, found.unexpected.first) == ([0], [offset])
        before = offset


def test_truncates_are_applied_and_audited(world, make_topic, make_pipeline):
    """Of two partitions, each with a truncate and changes on either side of it."""
    topic = make_topic(2)

    def event(op: str, lsn: int, number: int | None = None, partition: int = 0) -> None:
        after = {"id": number} if op == "c" else None
        value = {
            "before": None,
            "after": after,
            "source": {"lsn": lsn, "sequence": f'["{lsn - 1}","{lsn}"]'},
            "op": op,
        }
        topic.produce(json.dumps(value).encode(), partition=partition)

    event("c", 1, 1)
    event("c", 6, 2)
    event("c", 2, 3, partition=1)
    event("t", 5, partition=1)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version=("commit_lsn", "lsn"))
    value = Debezium("id int", version="postgres", truncate="apply")
    pipeline = make_pipeline(topic, value=value, sink=sink)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (4, 4, 0, 0)
    assert world.rows(f'select id from public."{topic.name}"') == [(2,)]
    event("c", 4, 4)
    event("t", 7)
    event("c", 8, 5, partition=1)
    world.run(pipeline)
    assert world.rows(f'select id from public."{topic.name}"') == [(5,)]
    assert audit(pipeline, world.settings, values=True).is_exact
    for wrong in ("lsn = 9", "deleted = false", "id = 5"):
        world.execute(f'create table kept as select * from public."{topic.name}_change"')
        world.execute(f'update public."{topic.name}_change" set {wrong} where id is null and lsn = 7')
        assert not audit(pipeline, world.settings, values=True).is_exact
        world.execute(f'delete from public."{topic.name}_change"')
        world.execute(f'insert into public."{topic.name}_change" select * from kept; drop table kept')
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f'insert into public."{topic.name}" values (4, 3, 4)')
    report = audit(pipeline, world.settings)
    assert (report.target.stale, report.is_exact) == (1, False)


def test_avro_with_a_registry_is_loaded_and_audited(world, make_topic, make_pipeline):
    schema = envelope(
        {"id": typed("int32"), "price": decimal(2), "at": time("int64", "MicroTimestamp")},
        {"lsn": typed("int64"), "sequence": typed("string")},
    )
    heartbeat = {"type": "struct", "name": "h.Heartbeat", "fields": [{"type": "int64", "field": "ts_ms"}]}
    topic = make_topic()

    def event(number, op="c"):
        row = {"id": number, "price": unscaled(-number), "at": number}
        before, after = (row, None) if op == "d" else (None, row)
        return {
            "before": before,
            "after": after,
            "source": {"lsn": number, "sequence": f'["{max(number - 1, 0)}","{number}"]'},
            "op": op,
            "ts_ms": 1,
        }

    def body(of, schema_id, value):
        return bytes([0, 0, 0, 0, schema_id]) + avro_body(of, value)

    topic.produce(*(body(schema, 7, event(number)) for number in range(50)))
    topic.produce(body(heartbeat, 8, {"ts_ms": 1}), None, body(schema, 7, event(51, "d")), b"\0\0\0\0\7")
    with registry_server() as registry:
        registry.has(7, avro_schema(schema))
        registry.has(8, avro_schema(heartbeat))
        form = Debezium(
            "id int, price numeric(9,2), at timestamp", version="postgres", registry=registry.address
        )
        sink = Upsert(f'public."{topic.name}"', key=("id",), version=("commit_lsn", "lsn"))
        pipeline = make_pipeline(topic, value=form, sink=sink, max_rejects=1)
        batch = world.run(pipeline).batch
        assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (54, 51, 1, 2)
        [row] = world.rows(f'select price::text, at::text from public."{topic.name}" where id = 7')
        assert row == ("-0.07", "1970-01-01 00:00:00.000007")
        assert audit(pipeline, world.settings).is_exact
        assert audit(pipeline, world.settings, values=True).is_exact
        world.connection.cursor().execute(f'update public."{topic.name}_change" set price = 0 where id = 7')
        world.connection.commit()
        [found] = audit(pipeline, world.settings, values=True).partitions
        assert found.changed.first == [7]


@pytest.mark.parametrize("history", [None, True, False])
def test_arrays_of_encoded_values_with_null_elements(world, make_topic, make_pipeline, history):
    """Several records, so that the elements of one do not become those of another."""
    columns = {
        "ns": ("numeric(10,2)[]", array(decimal(2)), [unscaled(-150), None, unscaled(7)], "{-1.50,NULL,0.07}"),
        "bs": ("bytea[]", array(typed("bytes")), [None, encoded(b"\xfe\0")], r'{NULL,"\\xfe00"}'),
        "us": ("uuid[]", array(data("string", "Uuid")), [None, f"{'0' * 8}-0000-0000-0000-{'0' * 11}1"],
               f"{{NULL,{'0' * 8}-0000-0000-0000-{'0' * 11}1}}"),
        "ts": ("timestamp[]", array(time("int64", "MicroTimestamp")), [1, None, -1],
               '{"1970-01-01 00:00:00.000001",NULL,"1969-12-31 23:59:59.999999"}'),
    }  # fmt: skip
    schema = envelope({"id": typed("int32"), **{name: each[1] for name, each in columns.items()}}, {})
    topic = make_topic()
    produce(topic, schema, {"id": 1} | {name: each[2] for name, each in columns.items()})
    produce(topic, schema, {"id": 2} | {name: [] for name in columns})
    produce(topic, schema, {"id": 3} | dict.fromkeys(columns))
    produce(topic, schema, {"id": 4} | {name: [None] for name in columns})
    produce(topic, schema, {"id": 5} | {name: each[2] for name, each in columns.items()}, op="u")
    produce(topic, schema, {"id": 6, "ns": [[unscaled(1)]]})
    target = f'public."{topic.name}"'
    sink = Append(target) if history is None else Upsert(target, key=("id",), history=history)
    form = Debezium(", ".join(["id int", *(f"{name} {each[0]}" for name, each in columns.items())]))
    pipeline = make_pipeline(topic, value=form, sink=sink, max_rejects=1)
    batch = world.run(pipeline).batch
    assert (batch.rows, batch.rejected) == (5, 1)
    shown = ", ".join(f"{name}::text" for name in columns)
    found = {number: rest for number, *rest in world.rows(f"select id, {shown} from {target}")}
    whole = [each[3] for each in columns.values()]
    assert found == {1: whole, 2: ["{}"] * 4, 3: [None] * 4, 4: ["{NULL}"] * 4, 5: whole}
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize("in_avro", [False, True])
def test_null_stays_null_although_its_schema_has_a_default(world, make_topic, make_pipeline, in_avro):
    optional = {**typed("string"), "default": "dflt"}
    schema = envelope({"id": typed("int32"), "note": optional}, {})
    topic = make_topic()
    rows = [{"id": 1, "note": None}, {"id": 2, "note": "x"}, *([] if in_avro else [{"id": 3}])]
    with registry_server() as registry:
        for row in rows:
            if in_avro:
                event = {"before": None, "after": row, "source": {}, "op": "c", "ts_ms": 1}
                topic.produce(b"\0\0\0\0\7" + avro_body(schema, event))
            else:
                produce(topic, schema, row)
        written = json.loads(json.dumps(avro_schema(schema)).replace(
            '"name": "note", "type": ["null", "string"], "default": null',
            '"name": "note", "type": ["null", "string"], "default": "dflt"'))  # fmt: skip
        registry.has(7, written)
        address = registry.address if in_avro else None
        pipeline = make_pipeline(topic, value=Debezium("id int, note text", registry=address))
        world.run(pipeline)
        expected = [(row["id"], row.get("note")) for row in rows]
        assert world.target(pipeline, "id, note") == expected
        assert audit(pipeline, world.settings, values=True).is_exact
