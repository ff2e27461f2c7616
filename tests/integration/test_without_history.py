"""Upsert(…, history=False): the target holds the latest change of each key, and nothing else is kept."""

import random
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from exactbatch import Pipeline, Upsert
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, TargetMismatch
from exactbatch.ledger import Ledger, find_parts
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.environment import LONG
from support.staged_batches import Batches, Database, trigger

COLUMNS = "id int, name text, version int, minor int"
VERSIONED = Upsert("public.t", key=("id",), version=("version", "minor"), history=False)
BY_OFFSET = Upsert("public.t", key=("id",), history=False)
STEPS = 400 if LONG else 40


def row(number: int, name: str | None, version: int | None = 1, *, deleted: bool = False) -> tuple[Any, ...]:
    return number, name, version, 0, deleted


def state(db: Database) -> dict[int, str]:
    return dict(db.rows("select id, name from t"))


def markers(db: Database) -> dict[int, int]:
    return dict(db.rows("select id, kafka_offset from t_deleted"))


def compacted(made: Batches, *until: tuple[int, int]) -> dict[tuple[str, int], tuple[int, int]]:
    with transaction(made.connection) as cursor:
        ranges = [OffsetRange("t", partition, 0, end, UUID(int=1)) for partition, end in until]
        parts = find_parts(
            cursor, made.pipeline, ranges, Ledger(made.connection).coverage.read_all(made.pipeline)
        )
        compactor = find_writer(made.pipeline.traits).compactor
        assert compactor is not None
        preview = compactor.preview(cursor, parts)
        assert compactor.compact(cursor, parts) == preview
        return dict(preview)


def test_a_row_carries_the_lineage_of_its_latest_change(db, batches):
    made = batches(COLUMNS, VERSIONED)
    first = made.run(row(1, "a", 1), row(2, "b", 5), row(1, "c", 2)).batch
    second = made.run(row(2, "late", 4), row(3, "d", 1), partition=1).batch
    assert (first.rows, second.rows) == (3, 2)
    assert db.rows("select id, name, kafka_partition, kafka_offset, batch_id from t order by id") == [
        (1, "c", 0, 2, first.batch_id),
        (2, "b", 0, 1, first.batch_id),
        (3, "d", 1, 1, second.batch_id),
    ]
    assert db.rows("select to_regclass('t_change') is null") == [(True,)]


@pytest.mark.parametrize(
    ("earlier", "later", "name"),
    [
        ((5, False), (6, False), "later"),
        ((5, False), (4, False), "earlier"),
        ((5, False), (5, False), "later"),
        ((5, False), (None, False), "earlier"),
        ((None, False), (0, False), "later"),
        ((None, False), (None, False), "later"),
        ((5, True), (4, False), None),
        ((5, True), (5, False), "later"),
        ((5, True), (6, False), "later"),
        ((5, False), (4, True), "earlier"),
        ((5, False), (5, True), None),
        ((5, False), (None, True), "earlier"),
        ((None, True), (None, False), "later"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_the_greatest_version_is_the_latest_and_then_the_greatest_offset(
    db, batches, earlier, later, name, together
):
    made = batches(COLUMNS, VERSIONED)
    changes = [row(1, "earlier", earlier[0], deleted=earlier[1]), row(1, "later", later[0], deleted=later[1])]
    for changed in [changes] if together else [changes[:1], changes[1:]]:
        made.run(*changed)
    assert state(db) == ({} if name is None else {1: name})
    assert len(markers(db)) == (name is None)
    before = db.rows("select id, name, kafka_offset from t")
    made.replay()
    assert db.rows("select id, name, kafka_offset from t") == before


def test_a_marker_keeps_a_late_change_from_bringing_the_row_back_until_it_is_dropped(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "a", 1), row(1, None, 5, deleted=True), row(2, None, 5, deleted=True))
    made.run(row(1, "late", 4), row(2, "new", 6))
    assert (state(db), markers(db)) == ({2: "new"}, {1: 1})
    assert compacted(made, (0, 1)) == {}
    assert compacted(made, (0, 4)) == {("t", 0): (1, 0)}
    made.run(row(1, "very late", 4))
    assert state(db) == {1: "very late", 2: "new"}


def test_the_first_marker_since_a_time_stops_the_horizon(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, None, 1, deleted=True), row(2, None, 1, deleted=True), row(3, None, 1, deleted=True))
    db.execute("update t_deleted set kafka_timestamp = '2026-06-01' where id = 2")
    db.execute("update t_deleted set kafka_timestamp = null where id = 3")
    with transaction(made.connection) as cursor:
        parts = [(OffsetRange("t", 0, 0, 3, UUID(int=1)), [1])]
        compactor = find_writer(made.pipeline.traits).compactor
        assert compactor.first_since(cursor, parts, datetime(2026, 5, 1, tzinfo=UTC)) == {("t", 0): 1}
        assert compactor.first_since(cursor, parts, datetime(2026, 7, 1, tzinfo=UTC)) == {("t", 0): 2}
        assert compactor.first_since(cursor, [(parts[0][0], [])], datetime(2026, 7, 1, tzinfo=UTC)) == {}


def test_a_replay_applies_its_records_again_and_retracts_nothing(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "a", 1), row(2, "wrong", 2), row(3, "wrong key", 3), row(4, None, 9, deleted=True))
    made.run(row(1, "b", 9))
    made.log[0][:4] = [row(1, "a again", 1), row(2, "right", 1), row(5, "right key", 3), row(4, "back", 1)]
    published = made.replay((0, 0, 4))
    assert published.batch.rows == 4
    # Record 1 is older than the row; records 2 and 4 have a lower version now, and replace their own results.
    assert state(db) == {1: "b", 2: "right", 3: "wrong key", 4: "back", 5: "right key"}
    assert markers(db) == {}


@pytest.mark.parametrize("deleted", [False, True], ids=["row", "marker"])
def test_an_older_change_does_not_replace_a_row_whose_record_gives_it_no_more(db, batches, deleted):
    made = batches(COLUMNS, VERSIONED)
    made.run(
        row(1, "first", 1),
        row(1, "third", 3, deleted=deleted),
        row(2, "low", 1),
        row(2, "high", 3, deleted=deleted),
    )
    made.run(row(1, "second", 2))
    assert (state(db), markers(db)) == (({}, {1: 1, 2: 3}) if deleted else ({1: "third", 2: "high"}, {}))
    made.log[0][1], made.log[0][3] = row(3, "other key", 3), row(2, "lowest", 0)
    made.replay((0, 0, 4))
    replaced = {2: "low", 3: "other key"}
    assert (state(db), markers(db)) == ((replaced, {1: 1}) if deleted else ({1: "third", **replaced}, {}))


def test_without_a_version_a_key_stays_in_its_partition(db, batches):
    made = batches(COLUMNS, BY_OFFSET)
    made.run(row(1, "a"), row(2, "b"), row(3, None, deleted=True))
    made.run(row(4, "c"), partition=1)
    for changed in (row(1, "x"), row(1, None, deleted=True), row(3, "x")):
        with pytest.raises(KeyOnTwoPartitions, match=r"\(id\) = \([13]\) in t\[0\] and t\[1\]"):
            made.run(changed, partition=1)
    made.log[1][0] = row(2, "both staged")
    with pytest.raises(KeyOnTwoPartitions, match=r"\(id\) = \(2\) in t\[0\] and t\[1\]"):
        made.replay()
    assert state(db) == {1: "a", 2: "b", 4: "c"}
    made.run(row(3, "d"), row(1, None, deleted=True))
    assert state(db) == {2: "b", 3: "d", 4: "c"}


def test_rows_that_were_there_before_are_older_unless_their_version_is_greater(db, batches):
    db.execute(
        "create table t (id int primary key, name text, version int, minor int, kafka_topic text, kafka_partition int, "
        "kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint, note text)"
    )
    db.execute("insert into t values (1, 'old', 1, 0), (2, 'old', 9, 0), (3, 'old', 1, 0)")
    db.execute("update t set note = 'kept'")
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "new", 1), row(2, "new", 1), row(3, None, 1, deleted=True), row(4, "new", 1))
    assert db.rows("select id, name, note from t order by id") == [
        (1, "new", "kept"),
        (2, "old", "kept"),
        (4, "new", None),
    ]


@pytest.mark.parametrize(
    ("body", "when", "found"),
    [
        ("if new.id = 2 then return null; end if; return new;", "before insert", "1 did not arrive"),
        (
            "if new.id = 1 then return null; end if; return new;",
            "before update",
            "1 did not replace an older row",
        ),
        ("new.name := 'x'; return new;", "before insert or update", "not stored as they were written"),
        ("new.kafka_offset := 99; return new;", "before insert", "not stored as they were written"),
        ("return null;", "before delete", "rows that were deleted are still there"),
    ],
)
def test_a_trigger_that_alters_or_drops_rows_is_noticed(db, batches, body, when, found):
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "a", 1), row(3, "c", 1))
    before = db.rows("select * from t order by id")
    db.execute(trigger("t", when, body))
    with pytest.raises(TargetMismatch, match=found):
        made.run(row(1, "b", 2), row(2, "b", 2), row(3, None, 2, deleted=True))
    assert db.rows("select * from t order by id") == before
    assert markers(db) == {}


def test_a_harmless_trigger_is_allowed_also_where_changes_are_late(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "a", 5))
    db.execute(trigger("t", "before insert or update", "return new;"))
    made.run(row(1, "late", 2), row(2, "b", 2))
    assert state(db) == {1: "a", 2: "b"}


def test_a_harmless_trigger_is_allowed_where_the_target_has_wider_types(db, batches):
    db.execute(
        "create table t (id bigint primary key, name text, version bigint, minor numeric, kafka_topic text, "
        "kafka_partition bigint, kafka_offset bigint, kafka_timestamp timestamptz, batch_id numeric)"
    )
    db.execute(trigger("t", "before insert or update", "return new;"))
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "a", 1), row(2, "b", 2))
    made.run(row(1, "late", 0), row(2, "c", 3))
    assert state(db) == {1: "a", 2: "c"}


def test_a_trigger_of_the_target_that_changes_markers_is_noticed(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, None, 5, deleted=True), row(2, "b", 1))
    db.execute(trigger("t", "after update", "delete from public.t_deleted; return null;"))
    with pytest.raises(
        TargetMismatch, match="while the batch wrote into public.t, Postgres counts .* 1 deleted"
    ):
        made.run(row(2, "c", 2))
    assert (state(db), markers(db)) == ({2: "b"}, {1: 0})


def test_a_version_has_a_type_of_postgres(db, batches):
    db.execute("create schema ext; create extension citext schema ext")
    sink = Upsert("public.t", key=("id",), version="version", history=False)
    with pytest.raises(
        TargetMismatch, match="column version: without a history, a version must have a type of"
    ):
        batches("id int, name text, version ext.citext", sink).run((1, "a", "b", False))


def test_history_is_part_of_the_identity(connection):
    with_history = Upsert("public.t", key=("id",), version=("version", "minor"))
    made = Batches(connection, Pipeline(name="p", topics=("t",), value=_value(), sink=VERSIONED))
    made.run(row(1, "a"))
    other = Pipeline(name="q", topics=("u",), value=_value(), sink=with_history)
    with transaction(connection), pytest.raises(ConfigurationError, match="both write to the table public.t"):
        Ledger(connection).registry.register(other)


def _value() -> Any:
    from exactbatch import Json

    return Json(COLUMNS)


TIED = r"the latest have the same version.*\(id\) = \(1\) in t\[0\] and t\[1\]"


@pytest.mark.parametrize("version", [5, None])
@pytest.mark.parametrize("deleted", [False, True])
def test_equal_versions_in_two_partitions_are_refused_unless_the_changes_are_equal(
    db, batches, version, deleted
):
    """Whether the other one is a row or a marker."""
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "a", version, deleted=deleted), row(2, "b", 1))
    for each in (row(1, "b", version), row(1, "a", version, deleted=not deleted)):
        with pytest.raises(KeyOnTwoPartitions, match=TIED):
            made.run(row(2, "c", 2), each, partition=1)
    expected = {2: "b"} if deleted else {1: "a", 2: "b"}
    assert (state(db), len(markers(db))) == (expected, deleted)
    if not deleted:
        made.run(row(1, "a", version), partition=1)
        assert state(db) == expected
    made.run(row(1, "b", version), row(1, "later", 6), partition=1)
    assert (state(db), markers(db)) == ({1: "later", 2: "b"}, {})


def test_equal_versions_of_one_batch_are_refused_unless_the_changes_are_equal(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run(row(1, "a", 5))
    made.run(row(1, "a", 5), row(2, "b", 1), partition=1)
    made.log[1][0] = row(1, "b", 5)
    with pytest.raises(KeyOnTwoPartitions, match=TIED):
        made.replay()
    assert state(db) == {1: "a", 2: "b"}
    made.log[1][0] = row(1, "a", 5)
    made.replay()
    assert state(db) == {1: "a", 2: "b"}


@pytest.mark.slow
@pytest.mark.parametrize("sink", [VERSIONED, BY_OFFSET], ids=["version", "offset"])
def test_any_history_ends_as_a_plain_program_says(db, batches, sink):
    """Late, repeated and deleted keys over partitions, and replays of records that give the same keys again."""
    chance = random.Random(7)
    made = batches(COLUMNS, sink)

    def change(partition: int) -> tuple[Any, ...]:
        number = chance.randrange(9)
        if sink is BY_OFFSET:  # a key stays in its partition
            number = 2 * number + partition
        # None of one partition is equal to one of the other.
        version = chance.choice([None, *range(0, 6, 2)] if partition else range(1, 6, 2))
        return number, f"{chance.random()}", version, chance.choice([None, 1, 2]), chance.random() < 0.3

    def order(place: tuple[int, int], changed: tuple[Any, ...]) -> tuple[Any, ...]:
        versions = changed[2:4] if sink is VERSIONED else ()
        return *((each is not None, each or 0) for each in versions), *place

    for step in range(STEPS):
        partition = chance.randrange(2)
        log = made.log.setdefault(partition, [])
        if step % 4 == 3 and log:
            first = chance.randrange(len(log))
            until = chance.randint(first + 1, len(log))
            for offset in range(first, until):  # another program, with the same keys and order
                number, _, version, minor, deleted = log[offset]
                log[offset] = (number, f"{chance.random()}", version, minor, deleted)
            made.replay((partition, first, until))
        else:
            made.run(*(change(partition) for _ in range(chance.randint(1, 30))), partition=partition)
        latest: dict[int, tuple[Any, ...]] = {}
        places = [((part, offset), each) for part, log in made.log.items() for offset, each in enumerate(log)]
        for place, changed in sorted(places, key=lambda each: order(*each)):
            latest[changed[0]] = (*place, changed)
        assert db.rows(
            "select id, name, version, minor, kafka_partition, kafka_offset from t order by id"
        ) == [(*changed[:4], *place) for _, (*place, changed) in sorted(latest.items()) if not changed[4]], (
            step
        )
        assert markers(db) == {
            number: offset for number, (_, offset, changed) in latest.items() if changed[4]
        }
