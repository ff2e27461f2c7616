"""The auditor takes the types, columns and keys that a batch takes, and refuses those that a batch refuses."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from exactbatch import Append, Json, Pipeline, Upsert
from exactbatch.audit.check_access import check_visible
from exactbatch.audit.derived import find_stale_rows
from exactbatch.audit.latest_values import LatestValues
from exactbatch.audit.log_windows import OffsetWindow
from exactbatch.audit.run_audit import audit
from exactbatch.audit.snapshot import Snapshot
from exactbatch.audit.values import ExpectedValues
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.postgres.arrow import connect_arrow
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner
from support.writers import table_of, writer_of

PIPELINE_TYPES: Final = (
    "bigint", "real", "numeric", "boolean", "text", "timestamptz", "uuid", "real[]", "text[]",
)  # fmt: skip
TARGET_TYPES: Final = (*PIPELINE_TYPES, "smallint", "varchar(5)", "money", "regclass", "real_domain", "mood")
SINKS: Final = {
    "append": lambda name: Append(name),
    "upsert": lambda name: Upsert(name, key=("id",)),
    "latest": lambda name: Upsert(name, key=("id",), history=False),
}
LINEAGE: Final = (
    "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint"
)


def refusal(call: Callable[[], object]) -> type[Exception] | None:
    """Return the class of the error that a call raises for a table or a pipeline; None if it raises none."""
    try:
        call()
    except (TargetMismatch, ConfigurationError) as error:
        return type(error)
    return None


@pytest.mark.parametrize("kind", SINKS)
def test_an_audit_refuses_a_type_exactly_if_a_batch_does(database: str, connection: Any, kind: str) -> None:
    with transaction(connection) as cursor:
        cursor.execute("create domain real_domain as real[]; create type mood as enum ('a')")
        sink, differing = SINKS[kind]("public.t"), []
    outcomes: Counter[type[Exception] | None] = Counter()
    for of_pipeline in PIPELINE_TYPES:
        value = Json(f"id int, v {of_pipeline}")
        pipeline = Pipeline(name="p", topics=("t",), value=value, sink=sink)
        with connect_arrow(database, application="test", read_only=True) as arrow:
            for of_target in TARGET_TYPES:
                create_tables(connection, sink, value, of_target)
                by_batch = refusal(partial(prepared, connection, sink, value))
                by_audit = refusal(partial(audited, Snapshot(arrow, connection), pipeline))
                arrow.rollback()
                outcomes[by_batch] += 1
                if by_batch is not by_audit:
                    differing.append((of_pipeline, of_target, by_batch, by_audit))
    assert not differing
    assert min(outcomes[None], outcomes[TargetMismatch]) > 20, outcomes


def create_tables(connection: Any, sink: Any, value: Json, of_target: str) -> None:
    """Create the tables of a sink, of which the target has another type for the column v."""
    primary = "" if isinstance(sink, Append) else ", primary key (id)"
    lineage = "" if sink.kind.is_derived else f", {LINEAGE}"
    with transaction(connection) as cursor:
        cursor.execute("drop table if exists public.t, public.t_change, public.t_deleted")
        writer_of(sink).prepare(cursor, value.columns)
        cursor.execute("drop table public.t")
        cursor.execute(f"create table public.t (id int, v {of_target}{lineage}{primary})")


def prepared(connection: Any, sink: Any, value: Json) -> None:
    """Check the tables as a batch does."""
    with transaction(connection) as cursor:
        writer_of(sink).prepare(cursor, value.columns)


def audited(snapshot: Snapshot, pipeline: Pipeline) -> None:
    """Run the statements of an audit of values over an empty log."""
    writer = find_writer(pipeline.traits)
    with transaction(snapshot.connection) as cursor:
        check_visible(cursor, pipeline, writer, values=True)
    if pipeline.traits.is_derived:
        find_stale_rows(snapshot, pipeline, writer)
    if not pipeline.traits.keeps_every_row:
        latest = LatestValues(snapshot, pipeline, writer, {})
        latest._fold()
        latest.compare([], {}, {}, frozenset())
        return
    expected = ExpectedValues(snapshot, pipeline, writer, {})
    expected._fetch(expected._differing(OffsetWindow("t", 0, 0, 1)))


# Types of a column in the pipeline and in the target; in each, a value that both hold.
PAIRS: Final = (
    ("int", "smallint", 5), ("bigint", "int", 6), ("bigint", "smallint", 7), ("smallint", "int", 8),
    ("int", "bigint", 9), ("int", "numeric", 10), ("bigint", "numeric(10,2)", 11), ("smallint", "bigint", 12),
    ("numeric(6,2)", "numeric", 1.5), ("numeric", "numeric(8,2)", 2.25), ("text", "varchar", "a"),
    ("text", "varchar(5)", "b"), ("text", "text", "c"), ("date", "date", "2026-01-01"),
    ("timestamptz", "timestamptz(3)", "2026-01-01T00:00:00Z"),
)  # fmt: skip


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("role", ["key", "version"])
def test_keys_and_versions_may_have_other_types_in_the_target(
    world: BatchRunner, make_topic: Any, make_pipeline: Any, history: bool, role: str
) -> None:
    topic = make_topic(1)
    names = [f"c{number}" for number, _ in enumerate(PAIRS)]
    key, version = (tuple(names), None) if role == "key" else (("n",), tuple(names))
    sink = Upsert(f'public."{topic.name}"', key=key, version=version, history=history)
    table = table_of(sink, world.connection)
    columns = ", ".join(f"{name} {pair[1]}" for name, pair in zip(names, PAIRS, strict=True))
    lineage = "" if history else f", {LINEAGE}"
    world.execute(f"create table {table} (n int, w text, {columns}{lineage}, primary key ({', '.join(key)}))")
    value = Json(
        "n int, w text, " + ", ".join(f"{n} {pair[0]}" for n, pair in zip(names, PAIRS, strict=True))
    )
    keys = None
    if role == "key":
        keys = Json(", ".join(f"{name} {pair[0]}" for name, pair in zip(names, PAIRS, strict=True)))
    pipeline = make_pipeline(topic, sink=sink, value=value, message_key=keys)
    values = {name: pair[2] for name, pair in zip(names, PAIRS, strict=True)}
    others = values | {"c0": 1}
    topic.produce(*(json.dumps({"n": number, "w": f"w{number}", **values}).encode() for number in (1, 2)))
    topic.produce(json.dumps({"n": 3, "w": "w3", **others}).encode())
    if role == "key":
        topic.produce(None, key=json.dumps(others).encode())
    world.run(pipeline)
    report = audit(pipeline, world.settings, values=True)
    assert report.is_exact, report
    world.execute(f"update {table} set w = 'x' where n = 2")
    assert audit(pipeline, world.settings, values=True).findings["stale"] == 1


def test_a_decimal_keeps_its_scale_in_a_wider_column(
    world: BatchRunner, make_topic: Any, make_pipeline: Any
) -> None:
    topic = make_topic(1)
    table = f'public."{topic.name}"'
    world.execute(f"create table {table} (v numeric, {LINEAGE})")
    pipeline = make_pipeline(topic, sink=Append(table), value=Json("v numeric(6,2)"))
    topic.produce(b'{"v": 1.5}', b'{"v": 2.00}')
    world.run(pipeline)
    assert [str(v) for (v,) in world.rows(f"select v from {table} order by 1")] == ["1.50", "2.00"]
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f"update {table} set v = 1.5 where v = 1.5")
    assert audit(pipeline, world.settings, values=True).findings["changed"] == 1


def test_an_upsert_of_as_many_columns_as_a_table_may_have_is_audited(
    world: BatchRunner, make_topic: Any, make_pipeline: Any
) -> None:
    """A join of two tables may have 1,664 columns."""
    for columns, history in ((835, True), (1_590, False)):
        wide(world, make_topic(1), make_pipeline, columns, history=history)


@pytest.mark.slow
@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("columns", [835, 1_200, 1_590])
def test_wide_upserts_are_audited(
    world: BatchRunner, make_topic: Any, make_pipeline: Any, columns: int, history: bool
) -> None:
    wide(world, make_topic(1), make_pipeline, columns, history=history)


def wide(world: BatchRunner, topic: Any, make_pipeline: Any, columns: int, *, history: bool) -> None:
    sink = Upsert(f'public."{topic.name}"', key=("id",), history=history)
    names = [f"c{number}" for number in range(columns - 1)]
    pipeline = make_pipeline(topic, sink=sink, value=Json("id int, " + ", ".join(f"{n} int" for n in names)))
    topic.produce(*(json.dumps({"id": number, names[-1]: number}).encode() for number in (1, 2, 2)))
    world.run(pipeline)
    assert audit(pipeline, world.settings).is_exact
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f"update {table_of(sink, world.connection)} set {names[-1]} = 0 where id = 2")
    assert audit(pipeline, world.settings, values=True).findings["stale"] == 1
