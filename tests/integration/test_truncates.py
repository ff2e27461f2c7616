"""Truncates that an Upsert applies: each deletes what is not newer, in whichever order changes and truncates arrive."""

import random
from typing import Any, Final

import pytest

from exactbatch import Debezium, Pipeline, ToTopic, Upsert
from exactbatch.errors import TargetMismatch
from exactbatch.ledger import Ledger, find_parts
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.environment import LONG
from support.staged_batches import ID, Batches, Database, differences_that_the_audit_finds

STEPS: Final = 600 if LONG else 40
VALUE: Final = Debezium("id int, part text, name text", version="postgres", truncate="apply")
SINK: Final = Upsert("public.t", key=("id", "part"), version=("commit_lsn", "lsn"))


def pipeline(name: str = "p", **options: Any) -> Pipeline:
    return Pipeline(**{"name": name, "topics": (name,), "value": VALUE, "sink": SINK} | options)


def write(number: int, name: str, *position: int) -> tuple[Any, ...]:
    return number, "x", name, *position, False, None


def delete(number: int, *position: int) -> tuple[Any, ...]:
    return number, "x", None, *position, True, None


def truncate(*position: int) -> tuple[Any, ...]:
    return None, None, None, *position, True, None


def state(db: Database) -> dict[int, str]:
    return dict(db.rows("select id, name from t order by id"))


@pytest.fixture
def made(connection: Any) -> Batches:
    return Batches(connection, pipeline(), takes_any_order=True)


@pytest.mark.parametrize("together", [True, False])
def test_a_truncate_deletes_what_is_not_newer(db, made, together):
    changes = [
        write(1, "old", 1, 5),
        write(2, "older part of the version decides", 2, 1),
        write(3, "in the same place", 2, 3),
        truncate(2, 3),
        write(4, "newer", 2, 4),
        write(5, "much newer", 3, 1),
    ]
    for run in [changes] if together else [[each] for each in changes]:
        made.run(*run)
    assert state(db) == {4: "newer", 5: "much newer"}
    assert differences_that_the_audit_finds(made) == 0


def test_a_change_that_arrives_after_the_truncate_stays_deleted_if_it_is_older(db, made):
    published = made.run(truncate(5, 0), write(1, "first", 1, 0))
    assert (published.batch.records, published.batch.rows) == (2, 2)
    made.run(write(2, "late", 4, 9), partition=1)
    made.run(write(3, "newer", 5, 1), partition=1)
    assert state(db) == {3: "newer"}
    made.run(truncate(3, 0))  # a late one changes nothing
    assert state(db) == {3: "newer"}
    assert differences_that_the_audit_finds(made) == 0


def test_a_replay_retracts_a_truncate_and_applies_it_again(db, made):
    made.run(write(1, "a", 1, 0), write(2, "b", 2, 0), truncate(3, 0), write(3, "c", 4, 0))
    made.run(truncate(2, 0), delete(3, 5, 0), write(4, "d", 6, 0), partition=1)
    right = made.log[0][2]
    made.log[0][2] = write(5, "was none", 3, 0)
    made.replay((0, 2, 3))
    assert state(db) == {4: "d", 5: "was none"}  # the older truncate still counts
    assert differences_that_the_audit_finds(made) == 0
    made.log[1][0] = write(6, "nor this", 2, 0)
    made.replay((1, 0, 1))
    assert state(db) == {1: "a", 2: "b", 4: "d", 5: "was none", 6: "nor this"}
    assert differences_that_the_audit_finds(made) == 0
    made.log[0][2] = right
    made.replay((0, 2, 3))
    assert state(db) == {4: "d"}
    made.replay()
    assert state(db) == {4: "d"}
    assert differences_that_the_audit_finds(made) == 0


def test_a_value_from_before_a_truncate_is_not_known(db, made):
    """It is the value of another row: the insert that followed the truncate has not arrived."""
    changed = 1, "x", None, 4, 0, False, ["name"]
    made.run(write(1, "before", 1, 0), write(2, "before", 1, 0), truncate(2, 0))
    made.run((*changed,), write(2, "after", 3, 0), (2, *changed[1:]))
    rejected = db.rows('select partition, "offset" from exactbatch.rejected_record')
    assert (state(db), rejected) == ({2: "after"}, [(0, 3)])
    made.run(write(1, "after", 3, 0))
    made.replay((0, 3, 4))
    assert state(db) == {1: "after", 2: "after"}
    made.run((3, *changed[1:]), write(3, "before", 1, 0), truncate(3, 0), partition=1)
    assert db.rows('select partition, "offset" from exactbatch.rejected_record') == [(1, 0)]
    # These rows are newer. Their value stays until the insert that followed the late truncate arrives.
    assert state(db) == {1: "after", 2: "after"}
    assert differences_that_the_audit_finds(made) == 0


def test_a_program_that_rejects_truncates_honors_those_that_are_stored(db, connection, made):
    made.run(write(1, "a", 1, 0), truncate(3, 0))
    value = Debezium("id int, part text, name text", version="postgres")
    rejecting = Batches(connection, pipeline(value=value), log=made.log, launches=50, takes_any_order=True)
    rejecting.run(write(2, "late", 2, 0), write(3, "new", 4, 0))
    assert state(db) == {3: "new"}


def test_a_row_that_is_none_of_the_pipelines_stays(db, connection, made):
    made.run(write(1, "a", 1, 0))
    db.execute("insert into t (id, part, name) values (9, 'x', 'by hand')")
    made.run(truncate(2, 0))
    assert state(db) == {9: "by hand"}


def test_pipelines_that_share_a_target_cannot_apply_truncates(db, connection, made):
    made.run(write(1, "a", 1, 0))
    Batches(connection, pipeline("q"))
    with pytest.raises(
        TargetMismatch, match="a truncate deletes all of its rows, and the pipeline shares it with q"
    ):
        made.run(write(2, "b", 2, 0))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("id int not null", "column id: it is not null, and a truncate has no key"),
        (
            "lsn public.number",
            "column lsn: with truncate='apply', a version must have a type of Postgres itself",
        ),
    ],
)
def test_a_table_of_changes_that_cannot_hold_truncates_is_refused(db, made, column, said):
    db.execute("create domain number as bigint")
    columns = {"id": "id int", "lsn": "lsn bigint"} | {column.split()[0]: column}
    db.execute(
        f"create table t_change ({columns['id']}, part text, name text, commit_lsn bigint, {columns['lsn']}, "
        "deleted boolean, unchanged_columns text[], kafka_topic text, kafka_partition int, kafka_offset bigint, "
        "kafka_timestamp timestamptz, batch_id bigint)"
    )
    with pytest.raises(TargetMismatch) as refused:
        made.run(write(1, "a", 1, 0))
    assert said in str(refused.value)


def test_the_audit_finds_a_row_that_a_truncate_should_have_deleted_and_a_missing_one(db, made):
    made.run(write(1, "a", 1, 0), truncate(2, 0), write(2, "b", 3, 0))
    assert differences_that_the_audit_finds(made) == 0
    db.execute("insert into t (id, part, name, commit_lsn, lsn) values (1, 'x', 'a', 1, 0)")
    assert differences_that_the_audit_finds(made) == 1
    db.execute("delete from t")
    assert differences_that_the_audit_finds(made) == 1


def test_compaction_drops_what_a_truncate_has_deleted_and_keeps_the_newest_one(db, made):
    made.run(write(1, "a", 1, 0), truncate(2, 0), write(2, "b", 3, 0), truncate(4, 0), write(3, "c", 5, 0))
    made.run(write(4, "d", 1, 0), truncate(6, 0))
    _compact(made, 5)
    kept = db.rows("select kafka_offset from t_change order by 1")
    assert kept == [(3,), (4,), (5,), (6,)]
    assert state(db) == {}
    made.log[0][6] = write(5, "was none", 6, 0)
    made.replay((0, 5, 7))
    assert state(db) == {3: "c", 5: "was none"}
    made.run(write(6, "late", 3, 9), write(2, "late", 3, 9))
    assert state(db) == {3: "c", 5: "was none"}
    assert differences_that_the_audit_finds(made) == 0


def test_the_rows_that_a_truncate_deletes_are_forwarded_as_tombstones(db, connection):
    made = Batches(
        connection, pipeline(forward=ToTopic("results", keyed_by=("id", "part"))), takes_any_order=True
    )
    made.run(write(1, "a", 1, 0), write(2, "b", 2, 0), write(3, "newer", 9, 0))
    made.run(write(4, "late", 3, 0), truncate(4, 0))
    sent = db.rows(
        "select change, convert_from(key, 'UTF8')::json ->> 'id' as id, value is null as is_tombstone "
        "from exactbatch.outbox "
        "where batch_id = (select max(batch_id) from exactbatch.batch) order by id"
    )
    assert sent == [("deleted", "1", True), ("deleted", "2", True)]


@pytest.mark.slow
def test_any_order_over_partitions_and_replays_is_what_a_plain_program_says(db, made):
    chance = random.Random(3)
    for _ in range(STEPS):
        partition = chance.randrange(3)
        log = made.log.setdefault(partition, [])
        if log and chance.random() < 0.35:
            first = chance.randrange(len(log))
            until = chance.randint(first + 1, len(log))
            if chance.random() < 0.5:
                log[first:until] = [_any_change(chance, partition) for _ in range(until - first)]
            made.replay((partition, first, until))
        else:
            made.run(
                *(_any_change(chance, partition) for _ in range(chance.randint(1, 6))), partition=partition
            )
        assert state(db) == _expected(made.log)
        assert differences_that_the_audit_finds(made) == 0


def _any_change(chance: random.Random, partition: int) -> tuple[Any, ...]:
    # No position of one partition is equal to one of another.
    position = chance.randrange(30), chance.randrange(0, 6, 3) + partition
    kind = chance.random()
    if kind < 0.08:
        return truncate(*position)
    number = chance.randrange(12)
    return delete(number, *position) if kind < 0.2 else write(number, f"{chance.random()}", *position)


def _expected(log: dict[int, list[tuple[Any, ...]]]) -> dict[int, str]:
    ordered = sorted(
        (row[3:5], row[0] is None, partition, offset, row)
        for partition, rows in log.items()
        for offset, row in enumerate(rows)
    )
    rows: dict[int, str] = {}
    for *_, row in ordered:
        number, _, name, _, _, deleted, _ = row
        if number is None:
            rows.clear()
        elif deleted:
            rows.pop(number, None)
        else:
            rows[number] = name
    return dict(sorted(rows.items()))


def _compact(made: Batches, until: int) -> None:
    ledger = Ledger(made.connection)
    with transaction(made.connection) as cursor:
        ranges = [OffsetRange(made.topic, 0, 0, until, ID)]
        parts = find_parts(cursor, made.pipeline, ranges, ledger.coverage.read_all(made.pipeline))
        find_writer(made.pipeline.traits).compactor.compact(cursor, parts)
