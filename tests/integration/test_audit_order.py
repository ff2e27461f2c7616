"""The auditor finds keys whose latest change nothing determines, with an order of its own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message
from psycopg2 import sql

from exactbatch import Debezium, Json, Pipeline, Upsert
from exactbatch.audit.audit_result import PartitionAudit
from exactbatch.audit.latest_comparison import LatestComparison
from exactbatch.audit.latest_values import LatestValues
from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.run_audit import audit
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.unordered_changes import unordered_changes
from exactbatch.formats.decoders import find_decoder
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.writers import writer_of

VALUE = Debezium("id int, name text", version="postgres")
VERSION = VALUE.position_columns


def event(id_: int, position: int | None, name: str = "at") -> bytes:
    """A change of a row at a position of Postgres's log, or a row of a snapshot without one."""
    row = {"id": id_, "name": f"{name} {position}"}
    source: dict[str, Any] = {
        "connector": "postgresql",
        "snapshot": "false" if position else "true",
        "lsn": position,
    }
    source["sequence"] = None if position is None else json.dumps([str(position - 1), str(position)])
    op = "c" if position else "r"
    return json.dumps({"op": op, "before": None, "after": row, "source": source, "ts_ms": 1}).encode()


def fold(
    database: str, connection: Any, pipeline: Pipeline, partitions: Sequence[Sequence[bytes]], window: int = 2
) -> LatestComparison:
    """Fold records, some at a time, and compare them with an empty target."""
    with transaction(connection) as cursor:
        find_writer(pipeline.traits).prepare(cursor, pipeline.value.columns)
    audits = [PartitionAudit("t", number, 0, len(values)) for number, values in enumerate(partitions)]
    with connect_arrow(database, application="test", read_only=True) as arrow:
        latest = LatestValues(Snapshot(arrow, connection), pipeline, find_writer(pipeline.traits), {})
        for number, values in enumerate(partitions):
            for start in range(0, len(values), window):
                part = values[start : start + window]
                offsets = np.arange(start, start + len(part))
                records = LogRecords([Message("t", number, value=value) for value in part])
                latest.add("t", number, offsets, records, np.ones(len(part), np.int64))
                latest.differing()
        return latest.compare(audits, {("t", each.partition): 0 for each in audits}, {}, frozenset())


def changes_of(
    database: str,
    connection: Any,
    pipeline: Pipeline,
    partitions: Sequence[Sequence[bytes]],
    horizon: int = 0,
) -> tuple[int, list[str]]:
    """Compare the same changes in a table of changes."""
    writer = find_writer(pipeline.traits)
    with transaction(connection) as cursor:
        writer.prepare(cursor, pipeline.value.columns)
        for number, values in enumerate(partitions):
            for offset, decoded in enumerate(
                find_decoder(pipeline.value).decode(pa.array(values, pa.binary())).rows.to_pylist()
            ):
                names = [*decoded, "deleted", "kafka_topic", "kafka_partition", "kafka_offset", "batch_id"]
                cursor.execute(
                    f"insert into {writer.lineage_table.identifier.as_string(cursor)} "
                    f"({', '.join(names)}) values ({', '.join(['%s'] * len(names))})",
                    (*decoded.values(), False, "t", number, offset, 1),
                )
    with connect_arrow(database, application="test", read_only=True) as arrow:
        log = f"select 't' as topic, n as partition, {horizon} as horizon from generate_series(0, 9) n"
        return unordered_changes(
            Snapshot(arrow, connection), pipeline, find_writer(pipeline.traits), sql.SQL(log)
        )


def debezium(history: bool) -> Pipeline:
    sink = Upsert("public.t", key=("id",), version=VERSION, history=history)
    return Pipeline(name="p", topics=("t",), value=VALUE, sink=sink)


def unordered(
    database: str, connection: Any, pipeline: Pipeline, *partitions: Sequence[bytes]
) -> tuple[int, list[str]]:
    if pipeline.traits.keeps_every_row:
        return changes_of(database, connection, pipeline, partitions)
    found = fold(database, connection, pipeline, partitions)
    return found.unordered, [note for note in found.notes if "key (" in note]


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize(
    ("positions", "wrong"),
    [
        ((100, 200, 300), []),
        (
            (100, 300, 200),
            [2],
        ),  # a delete and another insert of a key, whose positions are not in commit order
        ((100, 300, 200, 400), [2]),
        ((100, 200, 300, 100, 200, 300), []),  # the connector started again, and repeats itself
        ((100, 200, 300, 100), []),
        ((100, 300, 100, 200), [3]),  # a repetition, and then a change that the partition has not had
        ((100, None, 200), []),  # a row of a snapshot
        ((None, 100), []),
    ],
)
def test_positions_that_go_back_in_a_partition_are_found_unless_they_repeat_earlier_ones(
    database: str, connection: Any, history: bool, positions: Sequence[int | None], wrong: list[int]
) -> None:
    others = [event(2, number) for number in (1, 2)]
    records = [event(1, position) for position in positions]
    count, notes = unordered(database, connection, debezium(history), records, others)
    assert (count, notes) == (
        len(wrong),
        [
            f"t[0] offset {offset}, key (1): its position is before that of an earlier change of the key in the "
            f"partition, and it repeats none"
            for offset in wrong
        ],
    )


@pytest.mark.parametrize("history", [True, False])
def test_changes_with_one_version_in_two_partitions_are_unordered_if_they_are_the_latest(
    database: str, connection: Any, history: bool
) -> None:
    first = [event(1, 100), event(2, 100), event(3, 200), event(4, None), event(5, 100), event(5, 200)]
    second = [
        event(1, 100, "other"),
        event(2, 200),
        event(3, 100),
        event(4, None, "other"),
        event(5, 100),
        event(6, 100),  # equal to the last byte
        event(7, 100, "other"),
        event(7, 200),  # a later change decides
    ]
    first += [event(6, 100), event(7, 100)]
    count, notes = unordered(database, connection, debezium(history), first, second)
    assert (count, notes) == (
        2,
        [
            "key (1): nothing says which of the changes at t[0] offset 0 and t[1] offset 0 is the latest",
            "key (4): nothing says which of the changes at t[0] offset 3 and t[1] offset 3 is the latest",
        ],
    )


@pytest.mark.parametrize("history", [True, False])
def test_without_a_version_a_key_in_two_partitions_is_unordered(
    database: str, connection: Any, history: bool
) -> None:
    sink = Upsert("public.t", key=("id",), history=history)
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=sink)
    count, notes = unordered(database, connection, pipeline, [b'{"id": 1}', b'{"id": 2}'], [b'{"id": 1}'])
    assert count == 1
    assert notes == [
        "key (1): nothing says which of the changes at t[0] offset 0 and t[1] offset 0 is the latest"
    ]


def test_a_version_of_ones_own_may_go_back(database: str, connection: Any) -> None:
    """It says which change is the latest, and an older one may come late."""
    for history in (True, False):
        sink = Upsert(f"public.t{history:d}", key=("id",), version="v", history=history)
        pipeline = Pipeline(name="p", topics=("t",), value=Json("id int, v int"), sink=sink)
        records = [b'{"id": 1, "v": 9}', b'{"id": 1, "v": 5}']
        assert unordered(database, connection, pipeline, records) == (0, [])


def test_changes_below_the_horizon_of_compaction_say_nothing_about_positions(
    database: str, connection: Any
) -> None:
    """What they repeated may have been dropped."""
    records = [event(1, 300), event(1, 200), event(1, 250)]
    pipeline = debezium(history=True)
    assert changes_of(database, connection, pipeline, [records], horizon=1) == (0, [])


@pytest.mark.parametrize("history", [True, False])
def test_an_audit_of_changes_that_nothing_orders_is_not_exact(
    world: BatchRunner, make_topic: Any, make_pipeline: Any, history: bool
) -> None:
    """A batch had other versions; then the pipeline takes them from another field."""
    topic = make_topic(2)
    sink = Upsert(f'public."{topic.name}"', key=("id",), version="v", history=history)
    loaded = make_pipeline(topic, sink=sink, value=Json("id int, name text, v int from 'loaded'"))
    topic.produce(json.dumps({"id": 1, "name": "older", "loaded": 1, "v": 5}).encode(), partition=1)
    topic.produce(json.dumps({"id": 1, "name": "newer", "loaded": 2, "v": 5}).encode(), partition=0)
    world.run(loaded)
    assert audit(loaded, world.settings, values=True).is_exact
    pipeline = replace(loaded, value=Json("id int, name text, v int"))
    for table in writer_of(sink).tables:
        world.execute(f"update {table.identifier.as_string(world.connection)} set v = 5")
    report = audit(pipeline, world.settings, values=True)
    assert {kind: count for kind, count in report.findings.items() if count and kind != "stale"} == {
        "unordered": 1
    }
    assert report.target.notes == [
        f"key (1): nothing says which of the changes at {topic.name}[0] offset 0 and {topic.name}[1] offset 0 is the "
        f"latest"
    ]
    assert not report.is_exact
