"""Values that the source left out keep what the row had, in whichever order the changes and truncates arrive."""

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import pytest

from exactbatch import Debezium, Pipeline, Upsert
from exactbatch.errors import ConfigurationError, KeyOnTwoPartitions, TargetMismatch
from exactbatch.ledger import Ledger, find_parts
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.environment import LONG
from support.staged_batches import Batches, Database, differences_that_the_audit_finds

COLUMNS: Final = "id int, name text, body text, file text, pos int"
SINK: Final = Upsert("public.t", key=("id",), version=("file", "pos"))
STEPS: Final = 1000 if LONG else 45
NO_BODY: Final = ("body",)
VALUE: Final = Debezium(COLUMNS)


class WithTruncates(Debezium):
    """Change events with truncates, which the columns of the version order."""

    @property
    def truncate_order(self) -> tuple[str, ...]:
        return ("file", "pos")


def describe_batches(connection: Any, value: Debezium = VALUE) -> Batches:
    return Batches(connection, Pipeline(name="p", topics=("t",), value=value, sink=SINK))


def row(
    number: int | None,
    name: str | None,
    body: str | None,
    pos: int,
    unavailable: tuple[str, ...] | None = None,
    *,
    deleted: bool = False,
    file: str = "bin.1",
) -> tuple[Any, ...]:
    return number, name, body, file, pos, deleted, list(unavailable) if unavailable else None


def state(db: Database) -> list[tuple[Any, ...]]:
    return db.rows("select id, name, body from t order by id")


def rejected(db: Database) -> list[tuple[int, int]]:
    return db.rows('select partition, "offset" from exactbatch.rejected_record order by 1, 2')


@pytest.fixture
def made(connection: Any) -> Batches:
    return describe_batches(connection)


@pytest.mark.parametrize("together", [True, False])
def test_a_value_that_was_left_out_is_that_of_the_newest_older_change_that_has_it(db, made, together):
    changes = [
        row(1, "a", "first", 1),
        row(1, "a", "second", 3),
        row(1, "b", None, 4, NO_BODY),
        row(1, None, "third", 5, ("name",)),
        row(1, None, None, 6, ("name", "body")),
        row(2, "x", None, 1),  # null is a value
        row(2, "y", None, 2, NO_BODY),
    ]
    for run in [changes] if together else [[each] for each in changes]:
        made.run(*run)
    assert state(db) == [(1, "b", "third"), (2, "y", None)]
    assert rejected(db) == []
    assert differences_that_the_audit_finds(made) == 0


def test_equal_versions_in_two_partitions_one_of_which_leaves_a_value_out_are_refused(db, made):
    """One keeps the value, and the other sets null."""
    made.run(row(1, "a", "first", 1), row(1, "b", None, 5, NO_BODY))
    with pytest.raises(KeyOnTwoPartitions, match="the latest have the same version"):
        made.run(row(1, "b", None, 5), partition=1)
    assert state(db) == [(1, "b", "first")]
    made.run(row(1, "b", None, 5, NO_BODY), partition=1)
    assert state(db) == [(1, "b", "first")]
    assert differences_that_the_audit_finds(made) == 0


def test_an_older_change_that_arrives_later_gives_its_value(db, made):
    made.run(row(1, "a", "first", 1))
    made.run(row(1, "b", None, 5, NO_BODY))
    assert state(db) == [(1, "b", "first")]
    made.run(row(1, "a", "late", 3), partition=1)
    assert state(db) == [(1, "b", "late")]
    made.run(row(1, "a", "later still", 2), partition=1)
    assert state(db) == [(1, "b", "late")]
    assert differences_that_the_audit_finds(made) == 0


def test_a_replay_that_writes_or_retracts_the_older_change_changes_the_value(db, made):
    made.run(row(1, "a", "first", 1), row(1, "a", "second", 2))
    made.run(row(1, "b", None, 5, NO_BODY))
    made.log[0][1] = row(1, "a", "corrected", 2)
    made.replay((0, 1, 2))
    assert state(db) == [(1, "b", "corrected")]
    made.log[0][1] = row(7, "g", "other key", 2)
    made.replay((0, 1, 2))
    assert state(db) == [(1, "b", "first"), (7, "g", "other key")]
    assert differences_that_the_audit_finds(made) == 0


def test_a_replay_that_retracts_the_only_older_change_is_refused_unless_it_includes_the_later_one(db, made):
    made.run(row(1, "a", "first", 1))
    made.run(row(1, "b", None, 5, NO_BODY))
    made.log[0][0] = row(7, "g", "other key", 1)
    with pytest.raises(
        TargetMismatch, match=r"column 'body' out of the change at t\[0\] offset 1, and this replay"
    ):
        made.replay((0, 0, 1))
    assert state(db) == [(1, "b", "first")]
    made.replay((0, 0, 2))
    assert (state(db), rejected(db)) == ([(7, "g", "other key")], [(0, 1)])
    made.log[0][0] = row(1, "a", "again", 1)
    made.replay((0, 0, 2))
    assert (state(db), rejected(db)) == ([(1, "b", "again")], [])


def without_its_insert_an_update_is_refused_and_then_a_reject(db: Database, made: Batches) -> None:
    """The insert of the row is at offset 2; the update, which leaves out a value, comes at offset 3."""
    made.run(row(1, "c", None, 4, NO_BODY))
    made.log[0][2] = row(7, "g", "other key", 3)
    with pytest.raises(TargetMismatch, match=r"column 'body' out of the change at t\[0\] offset 3"):
        made.replay((0, 2, 3))
    assert state(db) == [(1, "c", "new")]
    made.replay((0, 2, 4))
    assert (state(db), rejected(db)) == ([(7, "g", "other key")], [(0, 3)])


def test_a_replay_that_retracts_the_insert_after_a_delete_brings_no_value_of_the_deleted_row(db, made):
    made.run(row(1, "a", "of the deleted row", 1), row(1, None, None, 2, deleted=True))
    made.run(row(1, "b", "new", 3))
    without_its_insert_an_update_is_refused_and_then_a_reject(db, made)


def test_a_replay_that_retracts_the_insert_after_a_truncate_brings_no_value_from_before_the_truncate(
    db, connection
):
    made = describe_batches(connection, WithTruncates(COLUMNS))
    truncate = row(None, None, None, 2, deleted=True)
    made.run(row(1, "a", "from before the truncate", 1), truncate, row(1, "b", "new", 3))
    without_its_insert_an_update_is_refused_and_then_a_reject(db, made)


def test_a_replay_that_retracts_a_truncate_brings_no_value_from_before_an_older_truncate(db, connection):
    made = describe_batches(connection, WithTruncates(COLUMNS))
    older, newer = (row(None, None, None, pos, deleted=True) for pos in (2, 5))
    made.run(row(1, "a", "from before the older truncate", 1), older, row(1, "b", "new", 3))
    made.run(row(1, "c", None, 4, NO_BODY), newer)
    made.log[0][2], made.log[0][4] = row(7, "g", "other key", 3), row(8, "h", "no truncate", 5)
    made.replay((0, 2, 3))  # the row that needs the value is truncated
    with pytest.raises(TargetMismatch, match=r"column 'body' out of the change at t\[0\] offset 3"):
        made.replay((0, 4, 5))
    made.replay((0, 3, 5))
    assert (state(db), rejected(db)) == ([(7, "g", "other key"), (8, "h", "no truncate")], [(0, 3)])


def test_a_late_truncate_leaves_a_row_the_value_that_a_late_delete_has_left_it(db, connection):
    made = describe_batches(connection, WithTruncates(COLUMNS))
    made.run(row(1, "a", "first", 1), row(1, "b", None, 5, NO_BODY))
    made.run(row(1, None, None, 3, deleted=True), partition=1)
    made.run(row(None, None, None, 4, deleted=True), partition=1)
    assert state(db) == [(1, "b", "first")]
    made.replay((1, 1, 2))
    assert state(db) == [(1, "b", "first")]


def test_a_change_whose_value_is_not_known_is_a_reject_until_a_replay_finds_it(db, made):
    published = made.run(row(1, "b", None, 5, NO_BODY), row(2, "x", "whole", 1))
    assert (published.batch.rows, published.batch.rejected) == (1, 1)
    ((reason,),) = db.rows("select reason from exactbatch.rejected_record")
    assert reason.startswith(
        "column 'body': the source left the value out because it had not changed, and no older"
    )
    made.run(row(1, "a", "first", 1))
    assert state(db) == [(1, "a", "first"), (2, "x", "whole")]
    made.replay((0, 0, 1))
    assert (state(db), rejected(db)) == ([(1, "b", "first"), (2, "x", "whole")], [])


def test_a_reject_gives_its_values_to_no_other_change(db, made):
    """The second change has a name, but lacks a body, which nothing has; the third lacks that name."""
    made.run(row(1, "n", None, 5, NO_BODY), row(1, None, "b", 6, ("name",)), row(2, "x", "y", 1))
    assert (state(db), rejected(db)) == ([(2, "x", "y")], [(0, 0), (0, 1)])


def test_the_value_of_a_deleted_row_is_not_that_of_the_next_row_of_its_key(db, made):
    made.run(row(1, "a", "old", 1), row(1, None, None, 2, deleted=True), row(1, "b", None, 4, NO_BODY))
    assert (state(db), rejected(db)) == ([], [(0, 2)])
    made.run(row(1, "a", "new", 3))
    made.replay((0, 2, 3))
    assert (state(db), rejected(db)) == ([(1, "b", "new")], [])


def test_a_table_of_changes_from_before_gets_the_column(db, connection):
    plain = Batches(connection, Pipeline(name="q", topics=("q",), value=_whole(), sink=SINK))
    plain.run((1, "a", "first", "bin.1", 1, False))
    made = describe_batches(connection)
    made.run(row(1, "b", None, 5, NO_BODY))
    assert state(db) == [(1, "b", "first")]
    # A pipeline of the same target whose format has all values keeps what was left out of others' changes.
    plain.run((1, "a", "late", "bin.1", 3, False))
    assert state(db) == [(1, "b", "late")]
    assert differences_that_the_audit_finds(made) == 0


def _whole() -> Any:
    from exactbatch import Json

    return Json(COLUMNS)


def test_the_name_of_the_column_is_taken():
    with pytest.raises(
        ConfigurationError, match="'unchanged_columns', under which an Upsert lists the columns"
    ):
        Pipeline(
            name="p",
            topics=("t",),
            value=Debezium("id int, unchanged_columns text[]"),
            sink=Upsert("public.t", key=("id",)),
        )


@dataclass
class Change:
    """One record, as the model knows it: what it says, and what it leaves out."""

    place: tuple[int, int]
    row: tuple[Any, ...]

    @property
    def key(self) -> int | None:
        """The key; None for a truncate."""
        return None if self.row[0] is None else int(self.row[0])

    @property
    def order(self) -> tuple[Any, ...]:
        return self.row[3], self.row[4], self.key is None, *self.place

    @property
    def version(self) -> tuple[Any, ...]:
        return self.row[3], self.row[4]

    @property
    def deleted(self) -> bool:
        return bool(self.row[5])

    @property
    def lacks(self) -> set[str]:
        return set(self.row[6] or ())

    def value(self, name: str) -> Any:
        return self.row[("id", "name", "body").index(name)]


@dataclass
class Model:
    """All changes that were accepted, by place. A plain program, which keeps everything."""

    changes: dict[tuple[int, int], Change] = field(default_factory=dict)
    # The keys of which the last batch has retracted changes, or truncates that had deleted their rows.
    retracted: set[int] = field(default_factory=set)

    def accept(self, batch: list[Change]) -> set[tuple[int, int]]:
        """Take the changes of a batch, after those in their places are gone; return the places of rejects."""
        others = dict(self.changes)
        self._retract([old for each in batch if (old := others.pop(each.place, None)) is not None], others)
        refused: set[tuple[int, int]] = set()
        while True:
            known = [*others.values(), *(each for each in batch if each.place not in refused)]
            more = {
                each.place
                for each in batch
                if each.place not in refused and not each.deleted and not self._is_known(each, known)
            }
            if not more:
                break
            refused |= more
        self.changes = others | {each.place: each for each in batch if each.place not in refused}
        return refused

    def _retract(self, gone: list[Change], others: dict[tuple[int, int], Change]) -> None:
        self.retracted = {each.key for each in gone if each.key is not None}
        if newest := max((each.version for each in gone if each.key is None), default=None):
            for key in {each.key for each in others.values() if each.key is not None}:
                of_key = [each for each in others.values() if each.key == key]
                if max(each.version for each in of_key) <= newest:
                    self.retracted.add(key)

    def _is_known(self, change: Change, known: list[Change]) -> bool:
        missing = change.lacks
        older = [each for each in known if each.key in (change.key, None) and each.order < change.order]
        for each in sorted(older, key=lambda each: each.order, reverse=True):
            if each.deleted or not missing:
                break
            missing = missing & each.lacks
        return not missing

    def target(self) -> list[tuple[Any, ...]] | None:
        """The rows; None if a value of one is not known."""
        rows = []
        truncates = [each for each in self.changes.values() if each.key is None]
        for key in sorted({each.key for each in self.changes.values() if each.key is not None}):
            of_key = sorted(
                (each for each in self.changes.values() if each.key == key), key=lambda each: each.order
            )
            if of_key[-1].deleted or any(each.order > of_key[-1].order for each in truncates):
                continue
            found: list[Any] = [key]
            for name in ("name", "body"):
                having = [each for each in of_key if not each.deleted and name not in each.lacks]
                if not having:
                    return None
                ends = (
                    [*truncates, *(each for each in of_key if each.deleted)] if key in self.retracted else []
                )
                if any(having[-1].order < each.order < of_key[-1].order for each in ends):
                    return None
                found.append(having[-1].value(name))
            rows.append(tuple(found))
        return rows


class Source:
    """A table whose changes are captured: binlogs rotate, snapshots are read, unchanged values are left out, and
    truncates delete all rows."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.rows, self.file, self.pos = chance, dict[int, tuple[str | None, str | None]](), 1, 0

    def event(self) -> tuple[Any, ...]:
        chance = self.chance
        self.pos += 1
        if chance.random() < 0.1:
            self.file, self.pos = self.file + 1, 0
        number, file = chance.randrange(5), f"bin.{self.file:04}"
        if chance.random() < 0.07:
            self.rows.clear()
            if chance.random() < 0.5 and self.pos:  # where a snapshot has just been taken
                self.pos -= 1
            return row(None, None, None, self.pos, deleted=True, file=file)
        if (
            number not in self.rows or chance.random() < 0.1
        ):  # an insert, or a read of an incremental snapshot
            if number not in self.rows:
                self.rows[number] = f"{chance.random()}", chance.choice([None, f"{chance.random()}"])
            return row(number, *self.rows[number], self.pos, file=file)
        if chance.random() < 0.15:
            del self.rows[number]
            return row(number, None, None, self.pos, deleted=True, file=file)
        name, body = self.rows[number]
        unavailable = chance.choice([("name",), ("body",), ("name", "body"), ()])
        if "name" not in unavailable:
            name = f"{chance.random()}"
        if "body" not in unavailable:
            body = f"{chance.random()}"
        self.rows[number] = name, body
        sent = (None if "name" in unavailable else name), (None if "body" in unavailable else body)
        return row(number, *sent, self.pos, unavailable, file=file)


@pytest.mark.parametrize("compacts", [False, True])
def test_any_order_of_events_gives_what_a_plain_program_says_and_in_the_end_the_source(
    db, connection, compacts
):
    """Late and repeated events over partitions, replays, and compactions of what no later step may retract."""
    made = describe_batches(connection, WithTruncates(COLUMNS))
    chance = random.Random(11 + compacts)
    source, model = Source(chance), Model()
    pool: list[tuple[Any, ...]] = []
    sent: list[tuple[Any, ...]] = []
    refused: set[tuple[int, int]] = set()
    horizons = {0: 0, 1: 0, 2: 0}

    def publish(partition: int, first: int, rows: list[tuple[Any, ...]], *, replay: bool) -> None:
        nonlocal refused, model
        batch = [Change((partition, first + at), each) for at, each in enumerate(rows)]
        before = replace(model)
        more = model.accept(batch)
        expected = model.target()
        if expected is None:
            assert replay
            with pytest.raises(TargetMismatch, match="this replay retracts the only older change"):
                made.replay((partition, first, first + len(rows)))
            model = before
        else:
            if replay:
                made.replay((partition, first, first + len(rows)))
            else:
                made.run(*rows, partition=partition)
            refused = {place for place in refused if place not in {each.place for each in batch}} | more
        assert state(db) == model.target()
        assert set(rejected(db)) == refused
        assert differences_that_the_audit_finds(made) == 0

    for _ in range(STEPS):
        pool += [source.event() for _ in range(chance.randint(1, 8))]
        if sent and chance.random() < 0.3:
            pool.append(chance.choice(sent))
        partition = chance.randrange(3)
        log = made.log.setdefault(partition, [])
        kind = chance.random()
        if kind < 0.3 and len(log) > horizons[partition]:
            first = chance.randrange(horizons[partition], len(log))
            until = chance.randint(first + 1, len(log))
            if chance.random() < 0.3:  # a program that gives other keys, until it is corrected
                wrong = [each if each[0] is None else (each[0] + 10, *each[1:]) for each in log[first:until]]
                right, log[first:until] = log[first:until], wrong
                publish(partition, first, wrong, replay=True)
                log[first:until] = right
            publish(partition, first, log[first:until], replay=True)
        elif compacts and kind < 0.4:
            horizons = {
                each: chance.randint(horizons[each], len(made.log.get(each, ()))) for each in horizons
            }
            before = model.target()
            _compact(made, horizons)
            places = {tuple(place) for place in db.rows("select kafka_partition, kafka_offset from t_change")}
            assert all(place in places for place in model.changes if place[1] >= horizons[place[0]])
            model.changes = {place: each for place, each in model.changes.items() if place in places}
            assert model.target() == before == state(db)
            assert differences_that_the_audit_finds(made) == 0
        else:
            chance.shuffle(pool)
            count = chance.randint(1, 10)
            rows, pool = pool[:count], pool[count:]
            sent += rows
            publish(partition, len(log), rows, replay=False)
    chance.shuffle(pool)
    publish(0, len(made.log.setdefault(0, [])), [*pool, source.event()], replay=False)
    if not compacts:
        everything = [(each, 0, len(rows)) for each, rows in made.log.items() if rows]
        made.replay(*everything)
        assert state(db) == sorted((number, *values) for number, values in source.rows.items())


def _compact(made: Batches, horizons: dict[int, int]) -> None:
    ranges = [OffsetRange("t", each, 0, end, UUID(int=1)) for each, end in horizons.items() if end]
    with transaction(made.connection) as cursor:
        ledger = Ledger(made.connection)
        parts = find_parts(cursor, made.pipeline, ranges, ledger.coverage.read_all(made.pipeline))
        find_writer(made.pipeline.traits).compactor.compact(cursor, parts)
