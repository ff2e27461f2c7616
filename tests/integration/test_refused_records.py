"""A record whose row the target refuses becomes a reject, if max_rejects allows it: the same one in every run, retry,
replay and audit."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from exactbatch import Append, Json, Pipeline, Upsert, failpoints
from exactbatch.audit.run_audit import audit
from exactbatch.errors import PostgresUnavailable, TargetMismatch, TooManyRejects
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.batch_runner import LINEAGE, BatchRunner
from support.replays import ranges

COLUMNS = "id int, name text, size int"
_LONG = "".join(f"{(number * 7919) % 1_000_003:x}" for number in range(3_000))  # does not compress well


@dataclass(frozen=True)
class Kind:
    """What a target refuses. `refused` are offsets of `RECORDS`, and `reason` is part of the first one's reason."""

    name: str
    ddl: str
    refused: tuple[int, ...]
    reason: str


# By offset: each kind refuses some of these records, and no other kind does.
RECORDS: list[dict[str, Any]] = [
    {"id": 0, "name": "a", "size": 10},
    {"id": 1, "name": "b", "size": 20},
    {"id": 2, "name": "a", "size": 30},  # the name of 0
    {"id": 3, "name": "A", "size": 40},  # its lower case is that of 0
    {"id": 4, "name": None, "size": 50},
    {"id": 5, "name": "c", "size": -1},
    {"id": 6, "name": "d", "size": 31},  # next to 30
    {"id": 7, "name": "e", "size": 666},
    {"id": 8, "name": _LONG, "size": 70},
    {"id": 9, "name": "a", "size": 90},  # the name of 0
]

KINDS = [
    Kind("unique", "alter table {t} add constraint u unique (name)", (2, 8, 9), "(name)=(a) already exists"),
    Kind(
        "deferred",
        "alter table {t} add constraint u unique (name) deferrable initially deferred",
        (2, 8, 9),
        "(name)=(a)",
    ),
    Kind("expression", "create unique index u on {t} (md5(lower(name)))", (2, 3, 9), 'unique constraint "u"'),
    Kind(
        "partial", "create unique index u on {t} (md5(name)) where size >= 30", (9,), 'unique constraint "u"'
    ),
    Kind(
        "check",
        "alter table {t} add constraint u check (size > 0 and name <> 'z')",
        (5,),
        "size = -1",
    ),
    Kind("not-null", "alter table {t} alter name set not null", (4,), "column 'name': null"),
    Kind(
        "foreign-key",
        "alter table {t} add constraint u foreign key (size) references known",
        (7,),
        "found size = 666",
    ),
    Kind(
        "exclusion",
        "alter table {t} add constraint u exclude using gist (int4range(size, size + 2) with &&)",
        (6,),
        "exclusion",
    ),
    Kind("index-entry", "create index u on {t} (name)", (8,), "index row requires"),
    Kind(
        "trigger",
        "create trigger no after insert or update on {t} for each row execute function no()",
        (7,),
        "no such size",
    ),
    Kind("division", "create index u on {t} ((1 / (size + 1)))", (5,), "division by zero"),
]


@pytest.fixture
def topic(make_topic):
    topic = make_topic(retention_ms="-1")
    topic.produce(*(json.dumps(each).encode() for each in RECORDS))
    return topic


SINKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "append": lambda target: {"sink": Append(target)},
    "history": lambda target: {"sink": Upsert(target, key=("id",))},
    "latest": lambda target: {"sink": Upsert(target, key=("id",), history=False)},
    "transform": lambda target: {
        "sink": Append(target),
        "transform": "select id, name, size, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp from records",
    },
    "by-batch": lambda target: {"sink": Append(target, layout="by_batch", min_offsets=1)},
    "by-range": lambda target: {"sink": Append(target), "commit": "partition"},
}
# A target that is partitioned by batch has unique indexes over batch_id alone; ranges refuse all of them.
_WITHOUT_OTHER_ROWS = {
    "by-batch": ("check", "not-null", "index-entry", "trigger", "division"),
    "by-range": ("check", "not-null", "foreign-key", "index-entry", "trigger", "division"),
}
# `make test` tries each kind with two sinks in turn, `make test-slow` all other pairs.
MATRIX = [
    pytest.param(
        sink, kind, id=f"{sink}-{kind.name}", marks=[] if number % 3 == turn % 3 else pytest.mark.slow
    )
    for turn, sink in enumerate(SINKS)
    for number, kind in enumerate(KINDS)
    if kind.name in _WITHOUT_OTHER_ROWS.get(sink, (kind.name,))
]


def create(world: BatchRunner, pipeline: Pipeline, kind: Kind) -> None:
    with transaction(world.connection) as cursor:
        find_writer(pipeline.traits).prepare(cursor, pipeline.value.columns)
    world.execute("create table known (size int primary key)")
    world.execute("insert into known select distinct unnest(array[10, 20, 30, 31, 40, 50, -1, 70, 90])")
    world.execute(
        "create function no() returns trigger language plpgsql as $$ begin "
        "if new.size = 666 then raise 'no such size'; end if; return new; end $$"
    )
    world.execute(kind.ddl.format(t=pipeline.traits.target))


def rejected(world: BatchRunner, pipeline: Pipeline) -> dict[int, str]:
    return dict(
        world.rows(
            'select "offset", reason from exactbatch.rejected_record where pipeline = %s order by 1',
            pipeline.name,
        )
    )


def ids(world: BatchRunner, pipeline: Pipeline) -> list[int]:
    return [row[0] for row in world.rows(f"select id from {pipeline.traits.target} order by id")]


@pytest.mark.parametrize(("sink", "kind"), MATRIX)
def test_what_the_target_refuses_is_rejected_in_each_run_retry_replay_and_audit(
    world, topic, make_pipeline, replays, monkeypatch, kind, sink
):
    pipeline = make_pipeline(
        topic, value=Json(COLUMNS), max_rejects=5, **SINKS[sink](f'public."{topic.name}"')
    )
    create(world, pipeline, kind)
    expected = [each for each in range(10) if each not in kind.refused]

    def check() -> None:
        found = rejected(world, pipeline)
        assert tuple(found) == kind.refused
        assert kind.reason in found[kind.refused[0]]
        assert ids(world, pipeline) == expected
        assert audit(pipeline, world.settings, values=sink != "transform").is_exact

    batch_id = world.plan(pipeline)
    if sink != "by-range":  # whose executors commit
        monkeypatch.setitem(failpoints.actions, "publish.before_commit", "error")
        with pytest.raises(RuntimeError, match="failpoint"):
            world.process(pipeline, batch_id)
        monkeypatch.delitem(failpoints.actions, "publish.before_commit")
    batch = world.process(pipeline, batch_id).batch
    assert (batch.records, batch.rows, batch.rejected) == (10, len(expected), len(kind.refused))
    check()
    reasons = rejected(world, pipeline)
    replays.run(pipeline, ranges((0, 10), topic=topic))
    check()
    assert rejected(world, pipeline) == reasons
    for offset in kind.refused:
        replays.run(pipeline, ranges((offset, offset + 1), topic=topic))
    check()


@pytest.mark.parametrize("sink", ["append", "history", "latest", "transform"])
def test_without_rejects_the_error_names_all_offsets(world, topic, make_pipeline, sink):
    pipeline = make_pipeline(topic, value=Json(COLUMNS), **SINKS[sink](f'public."{topic.name}"'))
    create(world, pipeline, KINDS[0])
    message = world.refused(TargetMismatch, pipeline)
    assert (
        f"; this concerns 3 records of the batch, at {topic.name}[0] offset 2, {topic.name}[0] offset 8, "
        in message
    )
    assert "let max_rejects allow for these" in message


def test_more_refused_records_than_allowed_end_the_batch(world, topic, make_pipeline):
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=1)
    create(world, pipeline, KINDS[0])
    message = world.refused(TooManyRejects, pipeline)
    assert f"{topic.name}[0] offset 2: duplicate key value" in message


def test_a_unique_index_may_have_a_column_that_is_not_written(world, topic, make_pipeline):
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=5)
    ddl = "alter table {t} add region text default 'x'; create unique index on {t} (region, md5(name))"
    create(world, pipeline, Kind("default", ddl, (), ""))
    world.run(pipeline)
    assert list(rejected(world, pipeline)) == [2, 9]


def test_refused_rows_are_found_in_a_table_with_a_rule(world, topic, make_pipeline):
    """Postgres does not say which rows of such a table exclude each other."""
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=5)
    create(world, pipeline, KINDS[0])
    target = pipeline.traits.target
    world.execute(
        f"create rule also as on insert to {target} do also update known set size = 1 where size = -2"
    )
    world.run(pipeline)
    assert list(rejected(world, pipeline)) == [2, 8, 9]
    assert ids(world, pipeline) == [0, 1, 3, 4, 5, 6, 7]


def test_a_trigger_that_refuses_each_statement_refuses_all_records(world, topic, make_pipeline):
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=5)
    create(world, pipeline, KINDS[0])
    world.execute(
        "create function never() returns trigger language plpgsql as $$ begin raise 'closed'; end $$; "
        f"create trigger never before insert on {pipeline.traits.target} execute function never()"
    )
    assert "10 records" in world.refused(TooManyRejects, pipeline)


def test_what_several_constraints_refuse_is_found_in_one_batch(world, topic, make_pipeline):
    """A row that a check refuses takes no name from a later one."""
    topic.produce(b'{"id": 10, "name": "f", "size": -2}', b'{"id": 11, "name": "f", "size": 110}', b"no json")
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=9)
    create(world, pipeline, KINDS[4])
    world.execute(f"create unique index one_each on {pipeline.traits.target} (md5(name))")
    world.execute(f"alter table {pipeline.traits.target} alter id type smallint, add check (id <> 1)")
    topic.produce(b'{"id": 70000, "name": "g", "size": 120}')
    assert world.run(pipeline).batch.rejected == 7
    found = rejected(world, pipeline)
    assert list(found) == [1, 2, 5, 9, 10, 12, 13]
    assert ids(world, pipeline) == [0, 3, 4, 6, 7, 8, 11]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_a_record_with_several_rows_is_rejected_as_a_whole(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(
        b'{"names": ["a", "b"]}', b'{"names": ["c", "a"]}', b'{"names": ["c", "d"]}', b'{"names": ["d"]}'
    )
    pipeline = make_pipeline(topic, value=Json("name text from 'names[]'"), max_rejects=2)
    create(world, pipeline, Kind("unique", "create unique index u on {t} (name)", (), ""))
    assert world.run(pipeline).batch.rejected == 2
    assert list(rejected(world, pipeline)) == [1, 3]
    assert world.rows(f"select name from {pipeline.traits.target} order by 1") == [
        ("a",),
        ("b",),
        ("c",),
        ("d",),
    ]
    assert world.is_exact(pipeline)


@pytest.mark.parametrize("history", [True, False])
def test_the_key_of_a_refused_change_keeps_what_older_changes_gave_it(
    world, make_topic, make_pipeline, replays, history
):
    topic = make_topic(retention_ms="-1")
    sink = Upsert(f'public."{topic.name}"', key=("id",), history=history)
    pipeline = make_pipeline(topic, value=Json("id int, name text"), max_rejects=9, sink=sink)
    create(world, pipeline, Kind("unique", "create unique index u on {t} (lower(name))", (), ""))

    def send(*changes: tuple[int, str]) -> None:
        topic.produce(*(json.dumps({"id": key, "name": name}).encode() for key, name in changes))

    def state() -> dict[int, str]:
        return dict(world.rows(f"select id, name from {sink.target}"))

    send((1, "a"), (2, "b"), (3, "c"))
    world.run(pipeline)
    # 1 gives up a, which 2 takes; 3 takes c, which it has; 4 wants b, which 2 gave up; 5 and 1 want b.
    send((2, "a"), (4, "B"), (1, "d"), (5, "e"), (5, "b"), (3, "C"), (1, "b"))
    world.run(pipeline)
    assert state() == {1: "d", 2: "a", 3: "C", 4: "B", 5: "e"}
    assert list(rejected(world, pipeline)) == [7, 9]
    assert audit(pipeline, world.settings, values=True).is_exact
    replays.run(pipeline, ranges((3, 10), topic=topic))
    assert state() == {1: "d", 2: "a", 3: "C", 4: "B", 5: "e"}
    assert list(rejected(world, pipeline)) == [7, 9]
    # Nothing is left of what excluded them.
    world.execute("drop index u")
    replays.run(pipeline, ranges((7, 8), (9, 10), topic=topic))
    assert state() == {1: "b", 2: "a", 3: "C", 4: "B", 5: "b"}
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize("sqlstate", ["53100", "40P01", "55P03", "57014"])
def test_an_error_of_the_server_makes_no_reject(world, topic, make_pipeline, sqlstate):
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=9)
    create(world, pipeline, KINDS[0])
    # The unique constraint refuses a row before, so that the search meets the error.
    world.execute(
        "create or replace function no() returns trigger language plpgsql as $$ begin "
        f"if new.size = 666 then raise 'server' using errcode = '{sqlstate}'; end if; return new; end $$"
    )
    world.execute(KINDS[9].ddl.format(t=pipeline.traits.target))
    assert sqlstate in world.refused(PostgresUnavailable, pipeline)


def test_a_row_without_a_partition_is_a_reject_until_there_is_one(world, topic, make_pipeline, replays):
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=9)
    target = pipeline.traits.target
    world.execute(f"create table {target} ({COLUMNS}, {LINEAGE}) partition by range (size)")
    world.execute(f"create table small partition of {target} for values from (minvalue) to (60)")
    world.run(pipeline)
    assert list(rejected(world, pipeline)) == [7, 8, 9]
    world.execute(f"create table large partition of {target} for values from (60) to (maxvalue)")
    replays.run(pipeline, ranges((7, 10), topic=topic))
    assert ids(world, pipeline) == list(range(10))
    assert rejected(world, pipeline) == {}


def test_a_row_may_refer_to_one_of_its_own_batch(world, make_topic, make_pipeline):
    topic = make_topic()
    parents = [(1, 2), (2, 0), (3, 9), (4, 3), (5, 4), (6, 1), (0, None)]
    topic.produce(*(json.dumps({"id": key, "size": parent}).encode() for key, parent in parents))
    sink = Upsert(f'public."{topic.name}"', key=("id",))
    pipeline = make_pipeline(topic, value=Json("id int, size int"), max_rejects=9, sink=sink)
    create(world, pipeline, Kind("own", "alter table {t} add foreign key (size) references {t}", (), ""))
    world.run(pipeline)
    assert ids(world, pipeline) == [0, 1, 2, 6]
    assert list(rejected(world, pipeline)) == [2, 3, 4]


@pytest.mark.parametrize(
    ("ddl", "rows", "refused"),
    [
        # The first needs a row that shares its name with none.
        (
            "alter table {t} add foreign key (size) references {t}",
            [(0, "a", 1), (1, "z", None), (2, "a", 0)],
            [2],
        ),
        # The fourth leaves its name to the last.
        (
            "alter table {t} add exclude using gist (int4range(size, size + 2) with &&)",
            [(0, "q", 1), (1, "q", 100), (2, "z", 10), (3, "a", 11), (4, "a", 30)],
            [1, 3],
        ),
    ],
    ids=["reference", "exclusion"],
)
def test_rows_that_share_a_name_are_tried_with_the_others_that_they_depend_on(
    world, make_topic, make_pipeline, ddl, rows, refused
):
    topic = make_topic()
    topic.produce(*(json.dumps(dict(zip(("id", "name", "size"), row, strict=True))).encode() for row in rows))
    sink = Upsert(f'public."{topic.name}"', key=("id",))
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=9, sink=sink)
    create(world, pipeline, Kind("both", f"{ddl}; create unique index on {{t}} (name)", (), ""))
    world.run(pipeline)
    assert list(rejected(world, pipeline)) == refused


def test_a_refused_row_of_one_target_is_rejected_for_all(world, topic, make_pipeline):
    first, second = Append(f'public."{topic.name}_log"'), Upsert(f'public."{topic.name}"', key=("id",))
    pipeline = make_pipeline(topic, value=Json(COLUMNS), max_rejects=9, sink=[first, second])
    with transaction(world.connection) as cursor:
        find_writer(pipeline.traits).prepare(cursor, pipeline.value.columns)
    world.execute(
        f"create unique index u on {second.target} (md5(name)); alter table {first.target} add check (size > 0)"
    )
    world.run(pipeline)
    assert list(rejected(world, pipeline)) == [2, 5, 9]
    for sink in (first, second):
        assert world.rows(f"select count(*) from {sink.target}") == [(7,)]
    assert audit(pipeline, world.settings, values=True).is_exact


def test_a_row_that_comes_from_many_records_is_no_reject(world, topic, make_pipeline):
    sink = Append(f'public."{topic.name}"', lineage="batch")
    pipeline = make_pipeline(
        topic, value=Json(COLUMNS), max_rejects=9, sink=sink, transform="select count(*) as n from records"
    )
    world.execute(f"create table {sink.target} (n bigint check (n < 5), batch_id bigint not null)")
    assert "No record can be rejected for it." in world.refused(TargetMismatch, pipeline)
