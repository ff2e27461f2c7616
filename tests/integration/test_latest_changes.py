"""Which change of a key is the latest: a staged one, or one that an earlier batch left."""

import random
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from exactbatch import Pipeline, Upsert
from exactbatch.errors import KeyOnTwoPartitions, StagedRowsDiffer, TargetMismatch
from exactbatch.postgres import connection as connections
from exactbatch.sinks.upsert import latest_changes, latest_rows
from support.environment import LONG
from support.staged_batches import (
    Batches,
    Database,
    differences_that_the_audit_finds,
    rows_that_the_audit_finds,
)

COLUMNS = "id int, name text, version int"
VERSIONED = Upsert("public.t", key=("id",), version="version")
BY_OFFSET = Upsert("public.t", key=("id",))
BY_POSITION = Upsert("public.t", key=("id",), version=("file", "version", "row"))
STEPS = 300 if LONG else 30


def state(db: Database) -> dict[int, str]:
    return dict(db.rows("select id, name from t"))


def is_what_the_auditor_expects(made: Batches) -> bool:
    return differences_that_the_audit_finds(made) == 0


@pytest.mark.parametrize(
    ("earlier", "later", "name"),
    [
        ((1, "a", 5, False), (1, "b", 6, False), "b"),
        ((1, "a", 5, False), (1, "b", 4, False), "a"),
        ((1, "a", 5, False), (1, "b", 5, False), "b"),
        ((1, "a", 5, False), (1, "b", None, False), "a"),
        ((1, "a", None, False), (1, "b", 0, False), "b"),
        ((1, "a", None, False), (1, "b", None, False), "b"),
        ((1, "a", 5, True), (1, "b", 4, False), None),
        ((1, "a", 5, True), (1, "b", 6, False), "b"),
        ((1, "a", 5, False), (1, "b", 4, True), "a"),
        ((1, "a", 5, False), (1, "b", 5, True), None),
        ((1, "a", 5, False), (1, "b", None, True), "a"),
    ],
)
@pytest.mark.parametrize("many", [1, latest_changes.MANY_KEYS])
def test_the_greatest_version_is_the_latest_and_then_the_greatest_offset(
    db, batches, monkeypatch, earlier, later, name, many
):
    monkeypatch.setattr(latest_changes, "MANY_KEYS", many)
    expected = {2: "other"} | ({} if name is None else {1: name})
    made = batches(COLUMNS, VERSIONED)
    made.run(earlier, (2, "other", 1, False))
    made.run(later)
    assert state(db) == expected
    assert is_what_the_auditor_expects(made)
    made.replay((0, 2, 3))
    assert state(db) == expected
    sink = Upsert("public.u", key=("id",), version="version")
    both = Batches(db.connection, Pipeline(name="q", topics=("q",), value=made.pipeline.value, sink=sink))
    both.run(earlier, later)
    assert dict(db.rows("select id, name from u")) == ({} if name is None else {1: name})


def test_versions_of_a_type_whose_operators_the_login_does_not_find_are_ordered_by_their_type(
    db, batches, monkeypatch
):
    """To citext B is greater than a, and to text it is smaller."""
    monkeypatch.setattr(latest_changes, "MANY_KEYS", 1)
    db.execute("create schema ext; create extension citext schema ext")
    made = batches("id int, name text, version ext.citext", VERSIONED)
    made.run((1, "earlier", "B", False))
    made.run((1, "later", "a", False))
    assert state(db) == {1: "earlier"}


@pytest.mark.parametrize(
    ("earlier", "later", "name"),
    [
        (("a", 900, 3), ("b", 4, 0), "later"),
        (("b", 4, 0), ("a", 900, 3), "earlier"),
        (("a", 4, 1), ("a", 5, 0), "later"),
        (("a", 5, 0), ("a", 4, 1), "earlier"),
        (("a", 5, 0), ("a", 5, 1), "later"),
        (("a", 5, 1), ("a", 5, 0), "earlier"),
        (("a", 5, 1), ("a", 5, 1), "later"),
        ((None, 9, 9), ("a", 0, 0), "later"),
        (("a", 0, 0), (None, 9, 9), "earlier"),
        (("a", None, 9), ("a", 0, 0), "later"),
        (("a", 0, 0), ("a", None, 9), "earlier"),
        ((None, 3, None), (None, 3, 1), "later"),
        ((None, 3, 1), (None, 3, None), "earlier"),
        ((None, None, None), (None, None, None), "later"),
    ],
)
@pytest.mark.parametrize("many", [1, latest_changes.MANY_KEYS])
@pytest.mark.parametrize("together", [True, False])
def test_of_several_versions_the_first_that_differs_decides(
    db, batches, monkeypatch, earlier, later, name, many, together
):
    monkeypatch.setattr(latest_changes, "MANY_KEYS", many)
    made = batches('id int, name text, file text, version int, "row" int', BY_POSITION)
    changes = [(1, "earlier", *earlier, False), (1, "later", *later, False)]
    for run in [changes] if together else [changes[:1], changes[1:]]:
        made.run(*run)
    assert state(db) == {1: name}
    assert is_what_the_auditor_expects(made)


@pytest.mark.parametrize("version", [5, None])
@pytest.mark.parametrize("many", [1, latest_changes.MANY_KEYS])
def test_equal_versions_in_two_partitions_are_refused_whichever_batches_they_are_in(
    db, batches, monkeypatch, version, many
):
    monkeypatch.setattr(latest_changes, "MANY_KEYS", many)
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "in 1", version, False), (2, "b", 1, False), partition=1)
    tied = r"\(id\) = \(1\) in t\[0\] and t\[1\]"
    for deleted in (False, True):
        with pytest.raises(KeyOnTwoPartitions, match=f"the latest have the same version.*{tied}"):
            made.run((2, "c", 2, False), (1, "in 1" if deleted else "in 0", version, deleted))
    assert state(db) == {1: "in 1", 2: "b"}
    # Offsets decide within a partition, and a later change decides between partitions.
    made.run((1, "in 0", version, False), (1, "later", 6, False))
    made.log[0][1] = (1, "in 0 again", version, False)
    with pytest.raises(KeyOnTwoPartitions, match=tied):
        made.replay((0, 1, 2))
    with pytest.raises(KeyOnTwoPartitions, match=tied):
        made.replay()  # both are staged
    assert state(db) == {1: "later", 2: "b"}


def test_equal_changes_in_two_partitions_have_one_outcome(db, batches):
    """A source that sends a change once more, after a partition was added to the topic."""
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 5, False), (2, None, 5, True), partition=1)
    made.run((1, "a", 5, False), (2, None, 5, True))
    assert state(db) == {1: "a"}
    made.replay()
    made.replay((0, 0, 2))
    assert state(db) == {1: "a"}
    assert is_what_the_auditor_expects(made)


def test_an_earlier_change_that_is_the_latest_again(db, batches):
    """What a replay retracts was the latest change of its key, and its record gives another key now."""
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False), (2, "b", 1, False))
    made.run((1, "c", 2, False), (2, "d", 2, False))
    made.log[0][2] = (3, "e", 2, False)
    made.replay((0, 2, 4))
    assert state(db) == {1: "a", 2: "d", 3: "e"}
    assert is_what_the_auditor_expects(made)


def test_an_earlier_delete_that_is_the_latest_change_again(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False), (1, None, 5, True))
    made.run((1, "c", 9, False))
    assert state(db) == {1: "c"}
    made.log[0][2] = (2, "d", 9, False)
    made.replay((0, 2, 3))
    assert state(db) == {2: "d"}
    assert is_what_the_auditor_expects(made)


def test_a_key_all_of_whose_changes_are_retracted_has_no_row(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False), (2, "b", 1, False))
    made.log[0] = [(3, "c", 1, False), (2, "b", 1, False)]
    made.replay()
    assert state(db) == {2: "b", 3: "c"}


@pytest.mark.parametrize("many", [1, latest_changes.MANY_KEYS])
def test_a_key_on_two_partitions_is_refused_whichever_batches_its_changes_are_in(
    db, batches, monkeypatch, many
):
    monkeypatch.setattr(latest_changes, "MANY_KEYS", many)
    made = batches(COLUMNS, BY_OFFSET)
    made.run((1, "a", 0, False), (2, "b", 0, False))
    made.run((3, "c", 0, False), (4, "d", 0, False), partition=1)
    on_two = r"\(id\) = \(2\) in t\[0\] and t\[1\]"
    with pytest.raises(KeyOnTwoPartitions, match=on_two):
        made.run((2, "x", 0, False), partition=1)
    made.log[1][0] = (2, "x", 0, False)
    with pytest.raises(KeyOnTwoPartitions, match=on_two):
        made.replay()  # both of its changes are staged
    assert state(db) == {1: "a", 2: "b", 3: "c", 4: "d"}


def test_a_changed_place_of_a_change_that_is_kept_is_noticed(db, batches, monkeypatch):
    """No session but this one may move what the table of changes holds; if one does, nothing is written."""
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 5, False), (2, "b", 5, False))
    execute = connections.Cursor.execute

    def moving(self: Any, query: Any, *arguments: Any) -> None:
        if "create temporary table" in str(query) and "exactbatch_kept'" in str(query):
            execute(self, "update t_change set name = name")
        execute(self, query, *arguments)

    monkeypatch.setattr(connections.Cursor, "execute", moving)
    with pytest.raises(StagedRowsDiffer, match="expected 1 changes where they were found, found 0"):
        made.run((1, "late", 4, False))
    monkeypatch.undo()
    assert state(db) == {1: "a", 2: "b"}


def test_a_small_batch_reads_only_the_changes_of_its_keys(db, batches, monkeypatch):
    made = batches(COLUMNS, VERSIONED)
    made.run((0, "first", 1, False))
    db.execute(
        "insert into t_change select n, 'n', 1, false, 'other', 0, n, now(), 7 from generate_series(1, 50000) n; "
        "insert into t select n, 'n', 1 from generate_series(1, 50000) n; analyze t_change; analyze t"
    )
    plans: list[str] = []
    execute = connections.Cursor.execute

    def explained(self: Any, query: Any, *arguments: Any) -> None:
        text = query.as_string(self) if hasattr(query, "as_string") else str(query)
        if (
            text.startswith(("create temporary table", 'insert into "public"', "delete from"))
            and '"t' in text
        ):
            execute(self, f"explain {text}")
            if "with no data" not in text:
                plans.append("\n".join(row[0] for row in self.fetchall()))
        execute(self, query, *arguments)

    monkeypatch.setattr(connections.Cursor, "execute", explained)
    made.run(*((number, "new", 2, number % 3 == 0) for number in range(1, 20)), (20, "late", 0, False))
    monkeypatch.undo()
    assert len(plans) >= 5
    assert not [plan for plan in plans if "Seq Scan on t" in plan], plans
    assert db.rows("select count(*) from t where name = 'new'") == [(13,)]
    assert db.rows("select name from t where id = 20") == [("n",)]


@pytest.mark.slow
@pytest.mark.parametrize("sink", [VERSIONED, BY_OFFSET, BY_POSITION], ids=["version", "offset", "position"])
def test_any_history_ends_as_the_auditor_expects(db, batches, monkeypatch, sink):
    """Keys that come late, twice, with equal versions or none; deletes; replays that give other keys.

    Equal versions in two partitions are refused unless the changes are equal, and then leave nothing.
    """
    monkeypatch.setattr(latest_rows, "_is_cached", lambda *_: chance.random() < 0.5)
    chance = random.Random(5)
    made = batches(
        "id int, name text, version int, file text, row int" if sink is BY_POSITION else COLUMNS, sink
    )

    def row(partition: int) -> tuple[Any, ...]:
        number = chance.randrange(12)
        if sink.version is None:  # a key stays in its partition
            number = 2 * number + partition
        if sink.version is not None and chance.random() < 0.04:
            tied = (8,) if sink is VERSIONED else (8, "c", None)
            return chance.randrange(3), chance.choice(["a", "b"]), *tied, False
        # None of one partition is equal to one of the other.
        version: tuple[Any, ...] = (chance.choice([None, *range(0, 8, 2)] if partition else range(1, 8, 2)),)
        if sink is BY_POSITION:
            version = (*version, chance.choice([None, "a", "b"]), chance.choice([None, 1, 2]))
        return number, f"{chance.random()}", *version, chance.random() < 0.2

    def ties() -> bool:
        """Whether the latest changes of a key in the two partitions have one version, and differ."""
        latest: dict[tuple[int, int], Any] = {}
        for partition, log in made.log.items():
            for each in log:
                order = [(part is not None, part or 0) for part in each[2:3]]
                if sink is BY_POSITION:
                    order = [
                        (each[3] is not None, each[3] or ""),
                        *((part is not None, part or 0) for part in (each[2], each[4])),
                    ]
                at = each[0], partition
                if at not in latest or order >= latest[at][0]:
                    latest[at] = order, each
        return sink.version is not None and any(
            (number, 1 - partition) in latest
            and latest[number, 1 - partition][0] == order
            and latest[number, 1 - partition][1] != each
            for (number, partition), (order, each) in latest.items()
        )

    many, refused = latest_changes.MANY_KEYS, 0
    for step in range(STEPS):
        monkeypatch.setattr(latest_changes, "MANY_KEYS", chance.choice([1, many]))
        partition = chance.randrange(2)
        log = made.log.setdefault(partition, [])
        before = [*log]
        if step % 4 == 3 and log:
            first = chance.randrange(len(log))
            until = chance.randint(first + 1, len(log))
            for offset in range(first, until):
                if chance.random() < 0.5:
                    log[offset] = row(partition)
            if ties():
                with pytest.raises(KeyOnTwoPartitions):
                    made.replay((partition, first, until))
                log[:], refused = before, refused + 1
            else:
                made.replay((partition, first, until))
        else:
            rows = [row(partition) for _ in range(chance.randint(1, 30))]
            log.extend(rows)
            is_tied, log[:] = ties(), before
            if is_tied:
                with pytest.raises(KeyOnTwoPartitions):
                    made.run(*rows, partition=partition)
                refused += 1
            else:
                made.run(*rows, partition=partition)
        assert is_what_the_auditor_expects(made), step
    assert (refused > 0) == (sink.version is not None)


@pytest.mark.parametrize("is_cached", [True, False])
def test_rows_are_written_in_the_order_of_their_keys(db, batches, monkeypatch, is_cached):
    """New rows, changed ones, and with them one whose latest change an earlier batch has left."""
    monkeypatch.setattr(latest_rows, "_is_cached", lambda *_: is_cached)
    made = batches(COLUMNS, VERSIONED)
    made.run(*((number * 7919 % 500, "new", 1, False) for number in range(500)))
    assert db.rows("select id from t order by ctid") == [(number,) for number in range(500)]
    made.run((250, "late", 0, False), *((number * 7919 % 500, "changed", 2, False) for number in range(250)))
    written = db.rows("select id from t where name = 'changed' order by ctid")
    assert len(written) == 250
    assert written == sorted(written)
    assert is_what_the_auditor_expects(made)


def test_rows_that_the_target_has_before_their_first_change_are_updated(db, batches):
    db.execute(
        "create table t (id int primary key, name text, version int); insert into t values (2, 'old', 9)"
    )
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False), (2, "b", 1, False), (3, "c", 1, False))
    assert state(db) == {1: "a", 2: "b", 3: "c"}
    assert is_what_the_auditor_expects(made)


def test_a_row_that_another_session_inserts_at_the_same_time_is_updated(db, batches, database):
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False))
    other = connections.connect(database, application="another writer")
    with connections.transaction(other) as cursor:
        cursor.execute("insert into t values (2, 'theirs', 9)")
        thread = threading.Thread(target=lambda: made.run((2, "b", 1, False), (3, "c", 1, False)))
        thread.start()
        thread.join(1)
        assert thread.is_alive()
    thread.join(60)
    other.close()
    assert state(db) == {1: "a", 2: "b", 3: "c"}


def test_a_constraint_that_refuses_a_new_row_is_named_with_its_offset(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False))
    db.execute("alter table t add constraint one_each unique (name)")
    with pytest.raises(
        TargetMismatch, match=r"one_each.*; this concerns 1 record of the batch, at t\[0\] offset 2"
    ):
        made.run((2, "b", 1, False), (3, "a", 1, False))
    assert state(db) == {1: "a"}


INDEXES = "select pg_get_indexdef(indexrelid) from pg_index where indrelid = 't_change'::regclass"


def test_the_index_of_changes_is_created_with_the_first_ones(db, batches):
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False))
    (index,) = [text for (text,) in db.rows(INDEXES) if "using btree" in text.lower()]
    assert index.endswith("ON public.t_change USING btree (id)")
    made.run((2, "b", 1, False))
    made.replay()
    assert [text for (text,) in db.rows(INDEXES) if "using btree" in text.lower()] == [index]


@pytest.mark.parametrize(
    "statement",
    [
        "create index on t_change (id, version)",
        "drop index t_change_id_idx; insert into t_change select 5, 'e', 1, false, 'other', 0, 1, now(), 9",
    ],
    ids=["another index on the key", "changes without an index"],
)
def test_no_index_is_created_besides_another_one_or_on_changes_that_have_none(db, batches, statement):
    made = batches(COLUMNS, VERSIONED)
    made.run((1, "a", 1, False))
    if statement.startswith("create"):
        db.execute("drop index t_change_id_idx; delete from t_change")
    db.execute(statement)
    before = db.rows(INDEXES)
    made.run((2, "b", 1, False))
    assert db.rows(INDEXES) == before


# The type of a column, a type to which the target's column is then changed, values that it cannot hold, some that it
# can, and the type to which the table of changes is changed, if any: as if the pipeline had had another type.
NARROWED = [
    ("text", "varchar(3)", ["abcdef", "abc "], ["abc", "", None], ""),
    ("text", "char(3)", ["abcdef"], ["ab"], ""),
    ("text", "short", ["abcdef", "no"], ["abc", None], ""),
    ("text", "money_of", ["1.2345"], ["1.2", "1", "1e1"], ""),
    ("text", "jsonb", ['{"a": 1, "a": 2}'], ['{"a":  1}', "[]"], ""),
    ("text", "uuid", [], ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"], ""),
    ("text", "numeric(10,2)", ["1.2345"], ["1.2", "1e1"], ""),
    ("text", "real", ["0.123456789"], ["0.5"], ""),
    ("text", "timestamp(0)", ["2026-01-01 00:00:00.5"], ["2026-01-01T00:00:00"], ""),
    ("text[]", "varchar(3)[]", ["{a,abcdef}"], ["{a,abc,NULL}"], ""),
    ("varchar(9)", "varchar(3)", ["abcdef"], ["abc"], ""),
    ("numeric(20,4)", "numeric(10,2)", ["1.2345", "1e12"], ["1.2", "NaN"], ""),
    ("numeric", "numeric(10,2)", ["1.2345"], ["1.2", "1.20000"], ""),
    ("numeric", "cents", ["1.2345"], ["1.2", "1.20000"], ""),
    ("numeric(20,4)", "int", ["1.5", "3000000000"], ["1.0"], ""),
    ("numeric(20,4)", "real", ["123456.1234"], ["1.5"], ""),
    ("numeric(20,4)[]", "numeric(10,2)[]", ["{1.5,1.2345}"], ["{1.5,1}"], ""),
    ("bigint", "int", ["3000000000"], ["3"], ""),
    ("bigint", "double precision", ["9007199254740993", "9223372036854775807"], ["3"], ""),
    ("bigint", "numeric(5,-2)", ["1234"], ["1200"], ""),
    ("double precision", "real", ["0.123456789"], ["0.5", "NaN", "Infinity"], ""),
    ("double precision", "bigint", ["1.5"], ["2"], ""),
    ("int", "int", ["1.5"], ["1"], "double precision"),
    ("int", "numeric(5,1)", ["1.25"], ["1.5"], "double precision"),
    ("timestamp", "timestamp(0)", ["2026-01-01 00:00:00.5"], ["2026-01-01 00:00:00"], ""),
    ("timestamptz", "timestamptz(1)", ["2026-01-01 00:00:00.15Z"], ["2026-01-01 00:00:00.1Z"], ""),
    ("interval", "interval(0)", ["1.5 seconds"], ["30 days"], ""),
]
DOMAINS = (
    "create domain short as varchar(3) check (value <> 'no'); create domain cents as numeric(10,2); "
    "create domain money_of as numeric(10,2)"
)


# Postgres itself refuses to cast these.
UNCASTABLE = ("no", "1e12", "3000000000", '{"a": 1, "a": 2}')


@dataclass
class Narrowed:
    """Batches with many values, and then each column of the target has another type.

    Column v<n> has the type of case n, and key k has the k-th of the values, in the column of its case: at offset k,
    with null after it. A replay of `taken_back` brings the value of its key back.
    """

    made: Batches
    values: list[tuple[int, str]]  # the number of the case, and the value

    @property
    def names(self) -> list[str]:
        return [f"v{number}" for number in range(len(NARROWED))]

    def taken_back(self, key: int) -> tuple[int, int, int]:
        """The range of the change that has set a key to null, which is a delete of another key now."""
        offset = len(self.values) + key
        return 0, offset, offset + 1

    def stored(self, db: Database, kept_as: str = "") -> list[tuple[Any, ...]]:
        """The target as text; of the changes, what it should be after all values have come back."""
        columns = ", ".join(f"{name}::text" for name in self.names)
        if kept_as:
            columns = ", ".join(
                f"{name}::{case[1] if kept_as == 'narrower' else case[4] or case[0]}::text"
                for name, case in zip(self.names, NARROWED, strict=True)
            )
        where = f"t_change where kafka_offset < {len(self.values)}" if kept_as else "t"
        return db.rows(f"select id, {columns} from {where} order by id")


def find_columns(types: list[str]) -> str:
    return ", ".join(["id int", *(f"v{number} {type_}" for number, type_ in enumerate(types))])


def narrowed(db: Database, batches: Any, values: list[tuple[int, str]]) -> Narrowed:
    db.execute(DOMAINS)
    made = batches(find_columns([case[0] for case in NARROWED]), BY_OFFSET)

    def row(key: int, number: int | None = None, value: str | None = None, *, deleted: bool = False) -> Any:
        return (key, *(value if each == number else None for each in range(len(NARROWED))), deleted)

    made.run(
        *(
            row(key, number, None if NARROWED[number][4] else value)
            for key, (number, value) in enumerate(values)
        )
    )
    made.run(*(row(key) for key in range(len(values))))
    for key, (number, value) in enumerate(values):
        if widened := NARROWED[number][4]:
            db.execute(f"alter table t_change alter v{number} type {widened}")
            db.execute(f"update t_change set v{number} = '{value}' where kafka_offset = {key}")
    for number, (type_, narrower, *_) in enumerate(NARROWED):
        if narrower != type_:
            db.execute(f"alter table t alter v{number} type {narrower} using v{number}::text::{narrower}")
    made.log[0][len(values) :] = [row(-1, deleted=True)] * len(values)
    return Narrowed(made, values)


def values_of(at: int) -> list[tuple[int, str]]:
    return [(number, value) for number, case in enumerate(NARROWED) for value in case[at]]


def test_an_earlier_change_that_the_target_cannot_hold_any_more_is_refused(db, batches):
    them = narrowed(db, batches, values_of(2))
    made, before = them.made, them.stored(db)
    for key, (number, value) in enumerate(them.values):
        change = rf"an earlier change .* \(id\) = \({key}\), t\[0\] offset {key} in .*t_change"
        with pytest.raises(TargetMismatch, match=f"column v{number}: it cannot hold {change}") as caught:
            made.replay(them.taken_back(key))
        assert (caught.value.column, caught.value.from_offset) == (f"v{number}", key), value
    assert them.stored(db) == before
    kept = [case[4] or case[0] for case in NARROWED]
    for number, type_ in enumerate(kept):
        db.execute(f"alter table t alter v{number} type {type_} using null")
    made.pipeline = batches(find_columns(kept), BY_OFFSET).pipeline
    made.columns = made.pipeline.value.columns
    made.replay((0, len(them.values), 2 * len(them.values)))
    assert them.stored(db) == them.stored(db, kept_as="it is")
    assert rows_that_the_audit_finds(made) == 0


def test_an_earlier_change_that_the_target_holds_in_another_type_is_restored(db, batches):
    them = narrowed(db, batches, values_of(3))
    them.made.replay((0, len(them.values), 2 * len(them.values)))
    assert them.stored(db) == them.stored(db, kept_as="narrower")
    assert rows_that_the_audit_finds(them.made) == 0


def test_the_audit_finds_a_row_whose_value_the_cast_has_changed(db, batches):
    them = narrowed(db, batches, [each for each in values_of(2) if each[1] not in UNCASTABLE])
    db.execute(f"delete from t_change where kafka_offset >= {len(them.values)}")
    for key, (number, _) in enumerate(them.values):
        kept = f"select v{number}::{NARROWED[number][1]} from t_change where kafka_offset = {key}"
        db.execute(f"update t set v{number} = ({kept}) where id = {key}")
    assert rows_that_the_audit_finds(them.made) == len(them.values)
