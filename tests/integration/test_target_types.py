"""Every type that a target may have takes the values that it can hold; any other value is a reject."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from exactbatch import Append, Json, Pipeline, Upsert
from exactbatch.errors import ConfigurationError, TargetMismatch, TooManyRejects
from support.batch_runner import BatchRunner
from support.topics import Topic

Produced = Callable[..., Topic]


@pytest.fixture
def produced(make_topic):
    """A topic with one JSON object for each argument."""

    def make(*objects: dict[str, Any], partitions: int = 1) -> Topic:
        topic = make_topic(partitions)
        topic.produce(*(json.dumps(each).encode() for each in objects))
        return topic

    return make


LINEAGE = (
    "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint"
)


def target(pipeline: Pipeline) -> str:
    return pipeline.traits.target


def rejected(world: BatchRunner, pipeline: Pipeline) -> dict[int, str]:
    return dict(
        world.rows(
            'select "offset", reason from exactbatch.rejected_record where pipeline = %s', pipeline.name
        )
    )


# The type of the target's column, what the pipeline says, good values, and bad ones with a part of the reason.
CASES = [
    ("uuid", "uuid", ["00000000-0000-0000-0000-000000000001"], [("x", 'invalid input syntax for type uuid: "x"')]),
    ("varchar(3)", "varchar(3)", ["", "abc", "äöü"], [("abcd", "too long"), ("abc ", "without loss, found abc ")]),
    ("char(2)", "char(2)", ["ab"], [("abc", "too long")]),
    ("shop.mood", "shop.mood", ["sad"], [("angry", 'invalid input value for enum shop.mood: "angry"')]),
    ("shop.even", "shop.even", ["2"], [("3", "violates check constraint"), ("x", "invalid input syntax")]),
    ("time", "time", ["23:59:59.5"], [("25:00", "out of range")]),
    ("interval", "interval", ["1 day 2 hours"], [("soon", "invalid input syntax")]),
    ("inet", "inet", ["10.0.0.1/8"], [("10.0.0.300", "invalid input syntax")]),
    ("smallint", "int", [-32768, 32767], [(32768, 'out of range for type smallint')]),
    ("integer", "bigint", [2**31 - 1], [(2**31, "out of range for type integer")]),
    ("numeric(4,1)", "numeric(10,2)", [999.9, 1.5], [(1.25, "without loss, found 1.25"), (99999, "overflow")]),
    ("numeric(30,0)", "bigint", [2**62], []),
    ("integer", "double precision", [2], [(2.5, "invalid input syntax"), (1e30, "is out of range for type integer")]),
    ("uuid", "text", ["00000000-0000-0000-0000-000000000001"], [("x", "invalid input syntax for type uuid")]),
    ("numeric(4,1)", "text", ["1.5", "1.50"], [("1.55", "without loss"), ("12345", "overflow"), ("x", "invalid")]),
    ("timestamp(0) with time zone", "timestamptz", ["2026-01-01T00:00:00Z"], [("2026-01-01T00:00:00.5Z", "loss")]),
    ("date", "text", ["2026-02-28"], [("2026-02-30", "out of range")]),
    ("integer", "integer", [1, None], []),
    ("bigint", "smallint", [1], []),
    ("boolean", "text", ["yes"], [("maybe", "invalid input syntax for type boolean")]),
]  # fmt: skip


def test_value_is_row_where_column_can_hold_it_and_else_reject(world, produced, make_pipeline):
    """A column for each case, and one record for each value, with null in the other columns."""
    world.execute("create schema shop; create type shop.mood as enum ('sad', 'glad')")
    world.execute("create domain shop.even as int check (value % 2 = 0)")
    good = [(number, value) for number, case in enumerate(CASES) for value in case[2]]
    bad = [(number, value, reason) for number, case in enumerate(CASES) for value, reason in case[3]]
    values = [*good, *((number, value) for number, value, _ in bad)]
    topic = produced(*({"id": n, f"x{number}": value} for n, (number, value) in enumerate(values)))
    written = ", ".join(f"x{number} {case[1]}" for number, case in enumerate(CASES))
    pipeline = make_pipeline(topic, value=Json(f"id int, {written}"), max_rejects=len(bad))
    actual = ", ".join(f"x{number} {case[0]}" for number, case in enumerate(CASES))
    world.execute(f"create table {target(pipeline)} (id int, {actual}, {LINEAGE})")
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (len(values), len(good), len(bad))
    found = world.target(pipeline, "id, " + ", ".join(f"x{number}::text" for number in range(len(CASES))))
    assert [row[0] for row in found] == list(range(len(good)))
    for (id_, *texts), (number, value) in zip(found, good, strict=True):
        text = None if value is None else str(value)
        [same] = world.rows(
            f"select x{number} is not distinct from %s::{CASES[number][0]} from {target(pipeline)} where id = %s",
            *(text, id_),
        )
        assert same == (True,), (CASES[number], value)
        assert [each for each in range(len(CASES)) if texts[each] is not None] == [number] * (
            text is not None
        )
    reasons = rejected(world, pipeline)
    assert sorted(reasons) == list(range(len(good), len(values)))
    for (number, _, reason), (_, said) in zip(bad, sorted(reasons.items()), strict=True):
        assert said.startswith(f"column 'x{number}', ")
        assert reason in said
    assert world.is_exact(pipeline)


def test_reject_that_target_refuses_keeps_key_value_and_headers(world, make_topic, make_pipeline):
    topic = make_topic(2)
    for partition in (0, 1):  # rows on both sides, and rejects far apart from each other
        values = [
            json.dumps({"id": n, "x": 40_000 if n in (7, 8, 4990) else n}) for n in range(partition, 5000, 2)
        ]
        headers = [("h", b"\xff"), ("none", None)]
        topic.produce(*map(str.encode, values), key=b"\x00k", headers=headers, partition=partition)
    pipeline = make_pipeline(topic, value=Json("id int, x int"), max_rejects=3)
    world.execute(f"create table {target(pipeline)} (id int, x smallint, {LINEAGE})")
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (5000, 4997, 3)
    kept = world.rows(
        'select partition, "offset", key, value, headers from exactbatch.rejected_record order by 1, 2'
    )
    assert [(row[0], row[1], bytes(row[2]), json.loads(bytes(row[3]))["id"]) for row in kept] == [
        (0, 4, b"\x00k", 8),
        (0, 2495, b"\x00k", 4990),
        (1, 3, b"\x00k", 7),
    ]
    assert kept[0][4] == [["h", "/w=="], ["none", None]]
    assert world.is_exact(pipeline)
    assert world.staging() == []


def test_more_rejects_than_allowed_fail_batch_and_name_first(world, produced, make_pipeline):
    topic = produced({"id": "x"}, *({"id": n, "x": "no"} for n in range(5)))
    pipeline = make_pipeline(topic, value=Json("id int, x uuid"), max_rejects=2)
    message = world.refused(TooManyRejects, pipeline)
    assert "3 or more of the 6 records read were rejected (50 %); max_rejects=2 allows 2" in message
    assert f"{topic.name}[0] offset 0: column 'id', integer: " in message
    assert (
        f"{topic.name}[0] offset 1: column 'x', uuid: invalid input syntax for type uuid: \"no\"" in message
    )


def test_an_upsert_checks_values_against_changes_and_target(world, produced, make_pipeline):
    world.execute("create type public.mood as enum ('sad', 'glad')")
    topic = produced(
        {"id": 1, "u": "00000000-0000-0000-0000-000000000001", "n": 1.5, "m": "glad"},
        {"id": 2, "u": "none", "n": 1.5},
        {"id": 1, "u": "00000000-0000-0000-0000-000000000002", "n": 1.25},
        {"id": 3, "m": "angry"},
    )
    sink = Upsert(f'public."{topic.name}"', key=("id",))
    pipeline = make_pipeline(
        topic, value=Json("id int, u uuid, n numeric(5,2), m text"), sink=sink, max_rejects=3
    )
    world.execute(f"create table {target(pipeline)} (id int primary key, u uuid, n numeric(4,1), m mood)")
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (4, 1, 3)
    assert world.rows(f"select id, u::text, n::text, m::text from {target(pipeline)}") == [
        (1, "00000000-0000-0000-0000-000000000001", "1.5", "glad")
    ]
    assert "invalid input syntax for type uuid" in rejected(world, pipeline)[1]
    assert "without loss, found 1.25" in rejected(world, pipeline)[2]
    assert world.is_exact(pipeline)


# How the target is restrained, the ids of the records, what the message says, and the offsets that it names.
REFUSALS = [
    ("add constraint small check (id < 3)", (1, 3, 4), 'violates check constraint "small"', (1, 2)),
    ("add constraint one unique (id, name)", (1, 2, 2), 'violates unique constraint "one"', (2,)),
    ("add constraint known foreign key (id) references known", (1, 2, 5), 'constraint "known"', (2,)),
    (
        "add constraint late foreign key (id) references known deferrable initially deferred",
        (5, 2, 1),
        'constraint "late"',
        (0,),
    ),
    ("alter column id set not null", (1, None, 2), 'null value in column "id"', (1,)),
    (
        "add constraint apart exclude using gist (int4range(id, id + 2) with &&)",
        (1, 4, 5),
        'violates exclusion constraint "apart"',
        (2,),
    ),
]


@pytest.mark.parametrize(
    ("restraint", "ids", "reason", "offsets"), REFUSALS, ids=[each[0].split()[2] for each in REFUSALS]
)
def test_a_constraint_that_fails_names_itself_and_the_offsets(
    world, produced, make_pipeline, restraint, ids, reason, offsets
):
    topic = produced(*({"id": each, "name": "x"} for each in ids))
    pipeline = make_pipeline(topic)
    world.execute("create table known (id int primary key); insert into known values (1), (2), (3)")
    world.execute(f"create table {target(pipeline)} (id int, name text, {LINEAGE})")
    world.execute(f"alter table {target(pipeline)} {restraint}")
    message = world.refused(TargetMismatch, pipeline)
    assert f"target {target(pipeline)}: it refuses what the batch writes: " in message
    assert reason in message
    records = "1 record" if len(offsets) == 1 else f"{len(offsets)} records"
    places = ", ".join(f"{topic.name}[0] offset {offset}" for offset in offsets)
    assert f"; this concerns {records} of the batch, at {places} (SQLSTATE" in message
    assert "Nothing was written. Correct the target" in message


def test_a_constraint_of_an_upserts_target_names_the_offsets_too(world, produced, make_pipeline):
    topic = produced({"id": 1, "name": "x"}, {"id": 2, "name": "y"}, {"id": 2, "name": "x"})
    pipeline = make_pipeline(topic, sink=Upsert(f'public."{topic.name}"', key=("id",)))
    world.execute(f"create table {target(pipeline)} (id int primary key, name text check (name <> 'x'))")
    batch_id = world.plan(pipeline)
    with pytest.raises(
        TargetMismatch, match=r"this concerns 2 records of the batch, at \S+ offset 0, \S+ offset 2 "
    ) as caught:
        world.process(pipeline, batch_id)
    error = caught.value
    assert (error.topic, error.partition, error.from_offset, error.until_offset) == (topic.name, 0, 0, 1)
    assert (error.constraint, error.sqlstate) == (f"{topic.name}_name_check", "23514")


def test_a_trigger_that_refuses_a_row_is_quoted(world, produced, make_pipeline):
    pipeline = make_pipeline(produced({"id": 1}))
    world.execute(f"create table {target(pipeline)} (id int, name text, {LINEAGE})")
    world.execute(
        "create function no() returns trigger language plpgsql as $$ begin raise 'not on a Sunday'; end $$"
    )
    world.execute(f"create trigger no before insert on {target(pipeline)} for each row execute function no()")
    message = world.refused(TargetMismatch, pipeline)
    assert "what the batch writes: not on a Sunday; this concerns 1 record of the batch, at " in message
    assert " offset 0 (SQLSTATE P0001)" in message


def test_partitioned_target_takes_rows_into_its_partitions_and_names_rows_without_one(
    world, produced, make_pipeline
):
    topic = produced({"id": 1, "at": "2026-01-31T23:59:59Z"}, {"id": 2, "at": "2026-02-01T00:00:00Z"})
    pipeline = make_pipeline(topic, value=Json("id int, at timestamptz"))
    world.execute(
        f"create table {target(pipeline)} (id int, at timestamptz not null, {LINEAGE}) partition by range (at)"
    )
    world.execute(
        f"create table january partition of {target(pipeline)} for values from ('2026-01-01Z') to ('2026-02-01Z')"
    )
    message = world.refused(TargetMismatch, pipeline)
    assert "no partition of relation" in message
    assert f"this concerns 1 record of the batch, at {topic.name}[0] offset 1" in message
    world.execute(
        f"create table rest partition of {target(pipeline)} for values from ('2026-02-01Z') to ('2026-03-01Z')"
    )
    assert world.run(pipeline).batch.rows == 2
    assert world.rows("select (select id from january) a, (select id from rest) b") == [(1, 2)]
    assert world.is_exact(pipeline)


def test_identity_default_and_generated_columns_are_targets_own(world, produced, make_pipeline):
    pipeline = make_pipeline(produced({"id": 4}), sink=Append('"Sho p"."Tab""le"'), value=Json("id int"))
    world.execute('create schema "Sho p"')
    world.execute(
        f'create table "Sho p"."Tab""le" (nr bigint generated always as identity primary key, id int, '
        f"twice int generated always as (id * 2) stored, at timestamptz not null default now(), {LINEAGE})"
    )
    world.run(pipeline)
    assert world.rows('select nr, id, twice, at is not null from "Sho p"."Tab""le"') == [(1, 4, 8, True)]
    assert world.is_exact(pipeline)


def test_a_generated_column_cannot_be_written(world, produced, make_pipeline):
    pipeline = make_pipeline(produced({"id": 4}))
    world.execute(
        f"create table {target(pipeline)} (id int generated always as identity, name text, {LINEAGE})"
    )
    assert "column id: the column is generated always" in world.refused(TargetMismatch, pipeline)


def test_a_missing_target_gets_the_types_of_the_pipeline(world, produced, make_pipeline):
    world.execute("create type public.mood as enum ('sad', 'glad')")
    columns = 'u uuid, v varchar(3), m public.mood, n numeric(50,2), "T" time, i interval'
    row = {"u": "00000000-0000-0000-0000-000000000001", "v": "abc", "m": "sad", "T": "12:00", "i": "1 day"}
    pipeline = make_pipeline(produced(row), value=Json(columns.replace("n numeric(50,2), ", "")))
    world.run(pipeline)
    assert world.rows(f'select u::text, v, m::text, "T"::text, i::text from {target(pipeline)}') == [
        (row["u"], "abc", "sad", "12:00:00", "1 day")
    ]
    assert world.is_exact(pipeline)


@pytest.mark.parametrize(
    ("declared", "stored", "good", "found", "bad"),
    [
        (
            "real",
            "integer",
            [1e6, 2147483520.0, 0.0, -1e6],
            [1000000, 2147483520, 0, -1000000],
            [0.5, 2147483648.0],
        ),
        (
            "double precision",
            "bigint",
            [1e15, 2.0**62, 5.0],
            [10**15, 2**62, 5],
            [1e15 + 0.5, 2.0**63, 1e300],
        ),
        (
            "numeric(10,2)[]",
            "integer[]",
            [[5, 7, None], [], None],
            [[5, 7, None], [], None],
            [[5, 7.25], [2**31]],
        ),
        ("real[]", "smallint[]", [[1e4, 3]], [[10000, 3]], [[1e6], [0.5]]),
    ],
)
def test_a_number_that_is_an_integer_is_one_however_it_is_written(
    world, produced, make_pipeline, declared, stored, good, found, bad
):
    topic = produced(*({"x": each} for each in (*good, *bad)))
    pipeline = make_pipeline(topic, value=Json(f"x {declared}"), max_rejects=len(bad))
    world.execute(f"create table {target(pipeline)} (x {stored}, {LINEAGE})")
    world.run(pipeline)
    assert world.rows(f"select x from {target(pipeline)} order by kafka_offset") == [
        (each,) for each in found
    ]
    refused = world.rows('select "offset" from exactbatch.rejected_record order by 1')
    assert refused == [(offset,) for offset in range(len(good), len(good) + len(bad))]
    assert world.is_exact(pipeline)


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_new_columns_are_added_where_the_pipeline_says_so(world, produced, make_pipeline, kind):
    topic = produced({"id": 1, "name": "a", "size": 7})
    sink = (
        Append(f'public."{topic.name}"')
        if kind == "append"
        else Upsert(f'public."{topic.name}"', key=("id",))
    )
    pipeline = make_pipeline(topic, sink=sink)
    world.run(pipeline)
    topic.produce(json.dumps({"id": 2, "name": "b", "size": 8}).encode())
    wider = make_pipeline(topic, sink=sink, value=Json("id int, name text, size int"))
    message = world.refused(TargetMismatch, wider) if kind == "append" else _refused(world, wider)
    assert "expected a column size of type integer, found none. Add it: " in message
    assert "evolve='add'" in message
    evolving = make_pipeline(topic, sink=sink, value=Json("id int, name text, size int"), evolve="add")
    world.run(evolving)
    assert world.rows(f"select id, size from {target(pipeline)} order by 1") == [(1, None), (2, 8)]
    assert world.is_exact(evolving)


def test_lineage_columns_are_never_added(world, produced, make_pipeline):
    pipeline = make_pipeline(produced({"id": 1}), evolve="add")
    world.execute(f"create table {target(pipeline)} (id int, name text)")
    message = world.refused(TargetMismatch, pipeline)
    assert (
        "expected a column kafka_topic of type text, found none, nor kafka_partition, kafka_offset, "
        in message
    )
    assert "evolve" not in message
    [statement] = re.findall(r"Add them: (alter table .*)\.$", message)
    world.execute(statement)
    world.run(pipeline)
    assert world.is_exact(pipeline)


def test_a_wrong_word_for_evolve_and_json_as_a_key_are_refused():
    with pytest.raises(ConfigurationError, match="expected evolve to be 'refuse' or 'add', found 'yes'"):
        Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("t"), evolve="yes")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match="the values of key and version must be comparable, and j is"
    ):
        Pipeline(name="p", topics=("t",), value=Json("id int, j json"), sink=Upsert("t", key=("j",)))


def _refused(world: BatchRunner, pipeline: Pipeline) -> str:
    batch_id = world.plan(pipeline)
    with pytest.raises(TargetMismatch) as caught:
        world.process(pipeline, batch_id)
    return str(caught.value)
