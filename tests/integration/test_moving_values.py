"""A unique value that moves from one row to another within a batch, or between batches, arrives where the source has it."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from exactbatch import Append, Together, Upsert
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
    "together": Together((Append("public.log"), Upsert("public.t", key=("id",)))),
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


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("sink", SINKS)
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
