"""A unique value that moves from row to row, within a batch or between batches, ends where the source has it."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from exactbatch import Append, ToTopic, Upsert
from exactbatch.errors import TargetMismatch
from support.environment import LONG, draw_seed
from support.staged_batches import Batches, Database, trigger

COLUMNS = "id int, email text, version int"
BATCHES = 1000 if LONG else 200
SINKS = {
    "history": Upsert("public.t", key=("id",)),
    "history and version": Upsert("public.t", key=("id",), version="version"),
    "latest only": Upsert("public.t", key=("id",), history=False),
    "latest only and version": Upsert("public.t", key=("id",), version="version", history=False),
    "together": [Append("public.log"), Upsert("public.t", key=("id",))],
}
INDEXES = {
    "a unique constraint": "alter table t add constraint one_each unique (email)",
    "a unique index": "create unique index one_each on t (email)",
    "a unique index that holds nulls to be equal": "create unique index one_each on t (email) nulls not distinct",
    "a partial index": "create unique index one_each on t (email) where id > 0",
    "an index on an expression": "create unique index one_each on t (lower(email) text_pattern_ops)",
    "an index on two columns": "create unique index one_each on t (active, email)",
    "an index on a generated column": "alter table t add lowered text generated always as (lower(email)) stored; "
    "create unique index one_each on t (lowered)",
    "an index with a collation": 'create unique index one_each on t (email collate "C")',
    "a deferrable constraint": "alter table t add constraint one_each unique (email) deferrable initially deferred",
    "an exclusion constraint": "alter table t add constraint one_each exclude using hash (email with =)",
    "an exclusion constraint on ranges": "alter table t add constraint one_each "
    "exclude using gist (int4range(ascii(email), ascii(email) + 1) with &&)",
}
# What the source has, and the changes of the next batch, in their order; a row without an e-mail is a delete.
MOVES: Mapping[str, tuple[Mapping[int, str], list[tuple[int, str | None]]]] = {
    "a hand-over to a smaller key": ({1: "a", 2: "b"}, [(2, "c"), (1, "b")]),
    "a hand-over to a greater key": ({1: "a", 2: "b"}, [(1, "c"), (2, "a")]),
    "a swap": ({1: "a", 2: "b"}, [(1, "x"), (2, "a"), (1, "b")]),
    "a rotation of three": ({1: "a", 2: "b", 3: "c"}, [(1, "x"), (2, "a"), (3, "b"), (1, "c")]),
    "a rotation of three, backwards": ({1: "a", 2: "b", 3: "c"}, [(1, "x"), (3, "a"), (2, "c"), (1, "b")]),
    "delete, and reuse by a new key": ({1: "a", 2: "b"}, [(2, None), (3, "b")]),
    "delete, and reuse by an old key": ({1: "a", 2: "b"}, [(2, None), (1, "b")]),
    "release, and a new smaller key": ({5: "a", 6: "b"}, [(5, "c"), (1, "a")]),
    "release, and a new greater key": ({5: "a", 6: "b"}, [(5, "c"), (9, "a")]),
    "one value from key to key": ({1: "a", 2: "b", 3: "c"}, [(1, "d"), (2, "a"), (2, "e"), (3, "a")]),
    "a swap and a chain": (
        {1: "a", 2: "b", 3: "c", 4: "d"},
        [(4, "x"), (3, "d"), (1, "y"), (2, "a"), (1, "b"), (7, "c")],
    ),
    "a chain of shifts": (
        {number: chr(96 + number) for number in range(1, 10)},
        [(number, chr(97 + number)) for number in range(9, 0, -1)],
    ),
}


@dataclass
class Source:
    """A table with a unique e-mail, and its changes in the order of their commits."""

    made: Batches
    state: dict[int, str] = field(default_factory=dict)
    version: int = 0

    def changes(self, *changes: tuple[int, str | None]) -> list[tuple[Any, ...]]:
        rows = []
        for key, email in changes:
            self.version += 1
            if email is None:
                self.state.pop(key, None)
            else:
                self.state[key] = email
            rows.append((key, email, self.version, email is None))
        return rows

    def run(self, *changes: tuple[int, str | None]) -> None:
        self.made.run(*self.changes(*changes))


def emails(db: Database) -> dict[int, str]:
    return dict(db.rows("select id, email from t"))


def started(db: Database, batches: Any, sink: str, index: str) -> Source:
    """An empty target; `active` is a column that the pipeline does not write."""
    source = Source(batches(COLUMNS, SINKS[sink]))
    source.run((0, "nobody"))
    db.execute(f"alter table t add active boolean default true; {index}")
    return source


# `make test` tries each index with one sink in turn, `make test-slow` all other pairs.
PAIRS = [
    pytest.param(
        sink, index, id=f"{sink}-{index}", marks=[] if number % len(SINKS) == turn else pytest.mark.slow
    )
    for turn, sink in enumerate(SINKS)
    for number, index in enumerate(INDEXES)
]


@pytest.mark.parametrize(("sink", "index"), PAIRS)
def test_values_move_between_the_rows_of_a_batch(db, batches, sink, index):
    source = started(db, batches, sink, INDEXES[index])
    for before, moves in MOVES.values():
        source.run(*before.items())
        source.run(*moves)
        assert emails(db) == source.state
        source.run(*((key, None) for key in [*source.state]))
    source.run((1, "a"), (2, "b"))
    source.run((2, "c"), (1, "b"))
    source.made.replay((0, 0, len(source.made.log[0]) - 2))
    source.made.replay()
    assert emails(db) == source.state


@pytest.mark.slow
@pytest.mark.parametrize("sink", SINKS)
def test_random_transactions_of_a_source_that_is_valid_after_each(db, batches, sink):
    """A transaction gives any rows any e-mails; its changes come in any order, as with a deferrable constraint."""
    chance = random.Random(draw_seed())
    index = chance.choice(["a unique constraint", "an index on an expression", "an exclusion constraint"])
    source = started(db, batches, sink, INDEXES[index])
    free = set("abcdefgh")
    for number in range(BATCHES // len(SINKS)):
        changes: list[tuple[int, str | None]] = []
        for _ in range(chance.randint(1, 3)):
            keys = chance.sample(range(8), chance.randint(1, 6))
            free |= {
                source.state[key] for key in keys if key in source.state and source.state[key] in "abcdefgh"
            }
            given = [chance.random() < 0.2 for _ in keys]
            emails_ = chance.sample(sorted(free), len(keys))
            transaction = [
                (key, None if gone else email) for key, email, gone in zip(keys, emails_, given, strict=True)
            ]
            free -= {email for _, email in transaction if email}
            changes += source.changes(*transaction)
        source.made.run(*changes)
        assert emails(db) == source.state, number
    source.made.replay()
    assert emails(db) == source.state


REFERENCES = {
    "no action": True,
    "no action deferrable initially deferred": True,
    "restrict": False,
    "cascade": False,
    "set null": False,
    "set default": False,
}


@pytest.mark.parametrize("action", REFERENCES)
@pytest.mark.parametrize("sink", ["history", "latest only"])
def test_rows_that_other_rows_reference(db, batches, sink, action):
    """No child is lost: rows that hand values over are updated, and those that exchange them stay as they are if the
    foreign key took that for a delete."""
    source = started(db, batches, sink, INDEXES["a unique constraint"])
    source.run((1, "a"), (2, "b"), (3, "c"))
    db.execute(
        f"create table child (parent int default 0 references t on delete {action}); "
        "insert into child values (1), (2), (3)"
    )
    source.run((3, "d"), (2, "c"), (1, "b"))
    assert emails(db) == source.state
    before, swap = dict(source.state), source.changes((1, "c"), (2, "b"))
    if REFERENCES[action]:
        source.made.run(*swap)
    else:
        with pytest.raises(TargetMismatch, match="rows of the batch exchange values of one_each") as caught:
            source.made.run(*swap)
        assert caught.value.sqlstate is None
        assert caught.value.constraint == "one_each"
        assert emails(db) == before
        remedy = "drop the constraint one_each, and add UNIQUE (email) deferrable initially deferred"
        assert remedy in str(caught.value)
        db.execute(
            "alter table t drop constraint one_each, "
            "add constraint one_each unique (email) deferrable initially deferred"
        )
        source.made.run(*swap)
    assert emails(db) == source.state
    assert db.rows("select parent from child order by 1") == [(1,), (2,), (3,)]


def test_rows_whose_moving_values_other_rows_reference(db, batches):
    """Children follow a value from row to row, one step after the other."""
    source = started(db, batches, "history", INDEXES["a unique constraint"])
    source.run((1, "a"), (2, "b"))
    db.execute(
        "create table child (id int, email text references t (email) on update cascade); "
        "insert into child values (1, 'a'), (2, 'b')"
    )
    source.run((2, "c"), (1, "b"))
    assert db.rows("select id, email from child order by 1") == [(1, "b"), (2, "c")]
    with pytest.raises(TargetMismatch, match="foreign key .*child"):
        source.run((2, "b"), (1, "c"))
    assert db.rows("select id, email from child order by 1") == [(1, "b"), (2, "c")]


@pytest.mark.parametrize("sink", ["history", "latest only"])
def test_columns_that_the_pipeline_does_not_write_keep_their_values(db, batches, sink):
    source = started(db, batches, sink, INDEXES["an index on a generated column"])
    db.execute(
        "alter table t add number bigint generated always as identity (start 100), add note text default 'new', "
        "add gone int, add serial bigserial; alter table t drop column gone"
    )
    source.run((1, "a"), (2, "b"))
    db.execute("update t set note = 'kept ' || id, active = null where id > 0")
    before = db.rows("select id, number, note, active, serial from t order by 1")
    source.run((2, "a"), (1, "b"))
    assert emails(db) == source.state
    assert db.rows("select id, number, note, active, serial from t order by 1") == before
    assert db.rows("select count(*) from t where lowered <> email") == [(0,)]


@pytest.mark.parametrize("sink", ["history", "latest only"])
def test_rows_exchange_values_only_if_no_trigger_takes_that_for_a_delete(db, batches, sink):
    source = started(db, batches, sink, INDEXES["a unique index"])
    source.run((1, "a"), (2, "b"))
    db.execute("create table seen (what text)")
    db.execute(trigger("t", "after delete", "insert into seen values ('deleted'); return null;"))
    source.run((2, "c"), (1, "b"))
    assert emails(db) == source.state
    with pytest.raises(TargetMismatch, match=r"An index cannot be deferred: .* or drop trigger meddle"):
        source.run((2, "b"), (1, "c"))
    assert not db.rows("select from seen")
    db.execute("drop trigger meddle on t")
    source.run((2, "b"), (1, "c"))
    assert emails(db) == source.state


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("index", ["a unique constraint", "an exclusion constraint"])
def test_rows_that_end_with_the_same_value_are_refused(db, batches, sink, index):
    source = started(db, batches, sink, INDEXES[index])
    source.run((1, "a"), (2, "b"), (3, "c"))
    before = emails(db)
    for changes in ([(1, "c"), (2, "a")], [(4, "a")], [(1, "z"), (2, "z")], [(5, "z"), (6, "z")]):
        with pytest.raises(TargetMismatch, match=r"it refuses what the batch writes: .*offset \d") as caught:
            source.run(*changes)
        assert caught.value.sqlstate == ("23P01" if "exclusion" in index else "23505")
        assert caught.value.from_offset is not None
        assert emails(db) == before


def test_a_change_that_is_older_than_its_row_takes_no_part(db, batches):
    made = batches(COLUMNS, SINKS["latest only and version"])
    made.run((1, "a", 10, False), (2, "b", 10, False))
    db.execute(INDEXES["a unique index"])
    # The e-mail of the first row stays, so the second one cannot have it.
    with pytest.raises(TargetMismatch) as caught:
        made.run((1, "b", 5, False), (2, "a", 11, False))
    assert caught.value.sqlstate == "23505"
    made.run((1, "x", 5, False), (2, "c", 11, False), (3, "b", 1, False))
    assert emails(db) == {1: "a", 2: "c", 3: "b"}


def test_new_keys_with_ranges_that_rows_of_the_target_have(db, batches):
    """The target has rows before the first batch, which an exclusion constraint finds before the key does."""
    db.execute("create table t (id int, email text, version int, exclude using hash (email with =))")
    db.execute("alter table t add primary key (id); insert into t values (1, 'a', 0), (2, 'b', 0)")
    source = Source(batches(COLUMNS, SINKS["history"]))
    source.run((2, "a"), (1, "b"))
    assert emails(db) == source.state


def test_results_of_rows_that_exchange_values_are_forwarded_once(db, batches):
    made = batches(COLUMNS, SINKS["history"], forward=ToTopic("results"))
    made.run((1, "a", 1, False), (2, "b", 1, False))
    db.execute(f"{INDEXES['a unique index']}; delete from exactbatch.outbox")
    made.run((1, "b", 2, False), (2, "a", 2, False))
    values = [json.loads(bytes(value)) for (value,) in db.rows("select value from exactbatch.outbox")]
    assert sorted((value["id"], value["email"]) for value in values) == [(1, "b"), (2, "a")]
