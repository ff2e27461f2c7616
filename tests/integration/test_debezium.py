"""Debezium's events of every type and mode, loaded through a batch: the target holds what the source had."""

import json

import pytest

from exactbatch import Append, Debezium, Upsert
from exactbatch.audit.audit import audit
from support.debezium_types import CONNECTORS, envelope, typed


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
    schema = envelope({"id": typed("int32")}, {"lsn": typed("int64")})
    produce(topic, schema, {"id": 1}, lsn=1)
    heartbeat = {"type": "struct", "fields": [{"type": "int64", "field": "ts_ms"}]}
    for value in ({"schema": heartbeat, "payload": {"ts_ms": 1}}, {"ts_ms": 1}):
        topic.produce(json.dumps(value).encode())
    produce(topic, schema, {"id": 1}, op="d", lsn=2)
    topic.produce(None)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version="lsn")
    pipeline = make_pipeline(topic, value=Debezium("id int", version="postgres"), sink=sink)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected, batch.tombstones) == (5, 2, 0, 3)
    report = audit(pipeline, world.settings)
    assert report.is_exact
    assert sum(each.tombstones for each in report.partitions) == 3
    # A row for an event that tells of none is found, as is a change without a row.
    table = f'public."{topic.name}_change"'
    world.connection.cursor().execute(f"update {table} set kafka_offset = 1 where kafka_offset = 0")
    world.connection.commit()
    report = audit(pipeline, world.settings)
    [found] = report.partitions
    assert found.missing.first == [0]
