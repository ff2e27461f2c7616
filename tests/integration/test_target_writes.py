"""What was written is what is there: triggers, rules and policies of a target, and equality to the byte."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from psycopg2 import sql

from exactbatch import Aggregate, Append, Count, Max, Min, OffsetRange, Sum, Upsert
from exactbatch.batch.publishing import publish as publish_module
from exactbatch.errors import ConfigurationError, PostgresUnavailable, StagedRowsDiffer, TargetMismatch
from exactbatch.postgres.connection import connect, transaction
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_checks import check_unique
from exactbatch.sinks.writers import find_writer
from support.staged_batches import ID, LINEAGE, Batches, rows_that_the_audit_finds, trigger

ROWS = tuple((number, number * 10) for number in range(5))
UPSERTS = tuple((number, number * 10, False) for number in range(5))
SINKS = {
    "append": (Append("public.t"), "t", ROWS),
    "upsert": (Upsert("public.t", key=("id",)), "t_change", UPSERTS),
    "aggregate": (
        Aggregate("public.t", group_by=("id",), aggregates={"n": Count(), "v": Sum("v")}),
        "t_partial",
        ROWS,
    ),
}


# Each way in which a table keeps what is deleted from it.
KEEPS = {
    "rule": "create rule keep as on delete to {table} do instead nothing",
    "before trigger": trigger("{table}", "before delete", "return null;"),
    "after trigger": trigger("{table}", "after delete", "insert into {table} values (old.*); return null;"),
}


@pytest.mark.parametrize("way", KEEPS)
@pytest.mark.parametrize("sink", SINKS)
def test_a_replay_whose_deletes_are_kept_back_is_refused(db, batches, sink, way):
    chosen, table, rows = SINKS[sink]
    made = batches("id int, v int", chosen)
    made.run(*rows)
    before = db.rows(f"select * from {table} order by 1")
    db.execute(KEEPS[way].replace("{table}", table))
    with pytest.raises(TargetMismatch, match="keep|meddle|rule|RETURNING"):
        made.replay()
    assert db.rows(f"select * from {table} order by 1") == before
    assert db.rows("select status from exactbatch.batch order by batch_id") == [("committed",), ("planned",)]


@pytest.mark.parametrize("way", KEEPS)
def test_a_tombstone_whose_delete_is_kept_back_is_refused(db, batches, way):
    made = batches("id int, v int", Upsert("public.t", key=("id",)))
    made.run(*UPSERTS)
    db.execute(KEEPS[way].replace("{table}", "t"))
    with pytest.raises(
        TargetMismatch,
        match="target public.t: 1 rows that were deleted are still there, because of .*(keep|meddle)",
    ):
        made.run((1, None, True))
    assert len(db.rows("select * from t")) == 5


# What a trigger does to rows on their way, or just after: when, and the body.
MEDDLES = {
    "swallows": ("before insert", "if new.id = 3 then return null; end if; return new;"),
    "alters": ("before insert", "if new.id = 3 then new.v := 0; end if; return new;"),
    "alters afterwards": ("after insert", "update t set v = 0 where id = 3; return null;"),
    "deletes afterwards": ("after insert", "delete from t where id = 3; return null;"),
    "swallows updates": ("before update", "return null;"),
    "alters updates": ("before update", "new.v := 0; return new;"),
}


@pytest.mark.parametrize("sink", SINKS)
def test_a_trigger_that_alters_what_is_written_is_refused(db, batches, sink):
    chosen, _, rows = SINKS[sink]
    made = batches("id int, v int", chosen)
    made.run(*rows[:3])
    before = db.rows("select * from t order by 1")
    new = [(row[0], row[1] + 1, *row[2:]) for row in rows]
    for way, (when, body) in MEDDLES.items():
        if sink == "append" and "update" in way:
            continue
        db.execute(trigger("t", when, body))
        with pytest.raises(
            TargetMismatch, match=r"target public.t.* trigger meddle \((BEFORE|AFTER)|arrived"
        ):
            made.run(*new)
        assert db.rows("select * from t order by 1") == before, way
        db.execute("drop function meddle cascade")
    made.run(*new)
    made.replay()


@pytest.mark.parametrize("sink", ["append", "upsert"])
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("new.kafka_timestamp := '2000-01-01 00:00Z';", "kafka_timestamp"),
        ("new.kafka_offset := new.kafka_offset + 1000;", "kafka_offset"),
        ("new.kafka_timestamp := '2000-01-01 00:00Z'; new.b := 0;", "kafka_timestamp, b"),
        (
            "new.kafka_timestamp := '2000-01-01 00:00Z'; new.kafka_partition := 7;",
            "kafka_partition, kafka_timestamp",
        ),
        ("new.c := 0;", "c"),
    ],
)
def test_a_column_of_the_lineage_that_a_trigger_alters_is_named_alone(db, batches, sink, body, named):
    chosen = Append("public.t") if sink == "append" else Upsert("public.t", key=("id",))
    made = batches("id int, a int, b int, c int", chosen)
    more = () if sink == "append" else (False,)
    made.run((1, 1, 1, 1, *more))
    table = "t_change" if sink == "upsert" else "t"
    db.execute(trigger(table, "before insert", f"{body} return new;"))
    with pytest.raises(TargetMismatch) as caught:
        made.run((2, 2, 2, 2, *more), (3, 3, 3, 3, *more))
    assert f", column {named}: 2 of 2 rows are not stored as they were written" in str(caught.value)


# Triggers that change rows which the batch does not write: sink, the table that they are on, when, the body.
OTHERS = {
    "append, deletes older rows": ("append", "t", "after insert", "delete from t where v < 100;"),
    "append, deletes and inserts again": (
        "append", "t", "after insert", "delete from t where kafka_offset = 0; "
        "insert into t values (0, 0, 't', 0, 0, now(), 1);",
    ),
    "append, updates older rows": ("append", "t", "after insert", "update t set v = 0 where v < 100;"),
    "append, before": ("append", "t", "before insert", "delete from t where v < 100;"),
    "upsert, deletes other keys": ("upsert", "t", "after update", "delete from t where id = 1;"),
    "upsert, alters other keys": ("upsert", "t", "after update", "update t set v = 0 where id = 1;"),
    "upsert, after a delete": ("upsert", "t", "after delete", "update t set v = 0 where id = 1;"),
    "upsert, of the changes": ("upsert", "t_change", "after insert", "update t set v = 0 where id = 1;"),
    "upsert, reaches the changes": ("upsert", "t", "after update", "delete from t_change where id = 1;"),
    "aggregate, alters other groups": ("aggregate", "t", "after update", "update t set v = 0 where id = 1;"),
}  # fmt: skip


@pytest.mark.parametrize("way", OTHERS)
def test_trigger_that_changes_rows_which_batch_does_not_write_is_refused(db, batches, way):
    """At once, and at the end of the transaction."""
    sink, table, when, body = OTHERS[way]
    chosen, _, rows = SINKS[sink]
    made = batches("id int, v int", chosen)
    made.run(*rows)
    for value, deferred in ((200, False), (300, True)):
        if deferred and when.startswith("before"):
            when = "after insert"
        before = db.rows("select * from t order by 1")
        guard = (
            "if pg_trigger_depth() < 2 then "
            + body
            + " end if; "
            + ("return new;" if when.startswith("before") else "return null;")
        )
        create = trigger(table, when, guard)
        if deferred:
            create = create.replace("create trigger", "create constraint trigger").replace(
                " for each", " deferrable initially deferred for each"
            )
        db.execute(create)
        with pytest.raises(TargetMismatch, match=r"Postgres count(s|ed) .* trigger meddle \((BEFORE|AFTER)"):
            made.run((2, None, True) if way.endswith("a delete") else (2, value, *rows[0][2:]))
        assert db.rows("select * from t order by 1") == before
        db.execute("drop function meddle cascade")
        made.run((2, value, *rows[0][2:]))
    made.replay()


def test_a_trigger_that_empties_a_partition_is_refused(db, batches):
    """What Postgres counts begins anew with a TRUNCATE; the table's file tells."""
    db.execute(
        f"create table t (id int, v int, {LINEAGE}) partition by range (id); "
        "create table t1 partition of t for values from (0) to (9); create table t2 partition of t default"
    )
    made = batches("id int, v int", Append("public.t"))
    made.run(*ROWS)
    db.execute(trigger("t", "before insert", "truncate t1; return null;", each="statement"))
    for row in ((1, 1), (99, 1)):
        with pytest.raises(
            TargetMismatch, match="1 inserted, 0 updated and 0 deleted after a TRUNCATE: trigger"
        ):
            made.run(row)
    assert len(db.rows("select * from t")) == len(ROWS)


@pytest.mark.parametrize(
    ("action", "counted"), [("cascade", "2 deleted"), ("set null", "1 updated and 1 deleted")]
)
def test_a_key_that_references_another_key_of_the_target(db, batches, action, counted):
    """Its row would go with the other one, or change, although its own latest change is no delete."""
    db.execute(f"create table t (id int primary key, v int references t on delete {action})")
    made = batches("id int, v int", Upsert("public.t", key=("id",)))
    made.run((1, None, False), (2, 1, False))
    with pytest.raises(
        TargetMismatch, match=rf"a statement deleted 1 rows, .* {counted}: foreign key public.t"
    ):
        made.run((1, None, True))
    made.run((1, None, True), (2, None, True))
    assert db.rows("select * from t") == []


def test_tables_with_triggers_need_the_counters_of_postgres(db, batches):
    made = batches("id int, v int", Append("public.t"))
    db.execute("select set_config('track_counts', 'off', false)")
    made.run((1, 1))
    db.execute(trigger("t", "after insert", "return null;"))
    with pytest.raises(TargetMismatch, match="track_counts is off"):
        made.run((2, 2))
    db.execute("reset track_counts")
    made.run((2, 2))


@pytest.mark.parametrize("sink", SINKS)
def test_triggers_that_leave_columns_of_pipeline_alone_are_welcome(db, batches, sink):
    chosen, _, rows = SINKS[sink]
    made = batches("id int, v int", chosen)
    made.run(*rows[:3])
    db.execute(
        "alter table t add column noted text; create table seen (id int); "
        + trigger("t", "before insert or update", "new.noted := 'now'; return new;")
        + ";"
        + trigger("t", "after insert or update", "insert into seen values (new.id); return null;", name="log")
    )
    made.run(*[(row[0], row[1] + 1, *row[2:]) for row in rows])
    made.replay()
    assert db.rows("select distinct noted from t") == [("now",)]


def test_a_column_that_is_altered_is_named(db, batches):
    db.execute(f"create table t (id int, v int, {LINEAGE})")
    db.execute(
        trigger("t", "before insert", "if new.id < 3 then new.v := 0; end if; return new;", name="audit_row")
    )
    made = batches("id int, v int", Append("public.t"))
    with pytest.raises(TargetMismatch) as caught:
        made.run(*((row[0], 7) for row in ROWS))
    assert str(caught.value).startswith(
        "target public.t, column v: 3 of 5 rows are not stored as they were written, because of trigger audit_row "
        "(BEFORE INSERT)"
    )


EQUAL = {
    "interval": ("interval", "30 days", "1 mon"),
    "numeric": ("numeric", "1.0", "1.00"),
    "double": ("double precision", "0", "-0"),
    "jsonb": ("jsonb", '{"a": 1.0}', '{"a": 1.000}'),
    "json": ("json", '{"a": 1}', '{"a":1}'),
    "citext": ("public.citext", "bob", "Bob"),
    "point": ("pg_catalog.point", "(0,0)", "(1,1)"),
    "circle": ("pg_catalog.circle", "<(0,0),1>", "<(9,9),1>"),
}


def test_upsert_writes_value_that_is_only_equal_to_old_one(db, batches):
    """A column of each type, and a key for each column."""
    db.execute("create extension if not exists citext")
    of_pipeline, of_target, olds, news = [], [], [], []
    for number, (type_, old, new) in enumerate(EQUAL.values()):
        plain = type_.removeprefix("pg_catalog.")
        of_pipeline.append(f"v{number} {'text' if plain != type_ else type_}")
        of_target.append((f"v{number}", plain))
        for rows, value in ((olds, old), (news, new)):
            rows.append((number, *(value if each == number else None for each in range(len(EQUAL))), False))
    made = batches(f"id int, {', '.join(of_pipeline)}", Upsert("public.t", key=("id",)))
    db.execute(f"create table t (id int primary key, {', '.join(map(' '.join, of_target))})")
    made.run(*olds)
    made.run(*news)
    columns = ", ".join(f"{name}::text" for name, _ in of_target)
    for number, (plain, (_, _, new)) in enumerate(
        zip((plain for _, plain in of_target), EQUAL.values(), strict=True)
    ):
        [found] = db.rows(f"select {columns} from t where id = {number}")
        assert [found[number]] == [each for (each,) in db.rows(f"select '{new}'::{plain}::text")]
    # What stays as it is to the byte is not written.
    before = db.rows("select id, xmin::text from t order by id")
    made.run(*news)
    assert db.rows("select id, xmin::text from t order by id") == before
    made.replay((0, 0, len(olds)))


KEYS = {
    "uuid": ("uuid", "00000000-0000-0000-0000-00000000000", str),
    "numeric": ("numeric", "1.", str),
    "numeric(40,2)": ("numeric(40,2)", "1.1", str),
    "inet": ("inet", "10.0.0.", str),
    "time": ("time", "10:00:0", str),
    "jsonb": ("jsonb", "", str),
    "enum": ("public.mood", "m", str),
    "citext": ("public.citext", "k", str),
    "varchar": ("varchar(9)", "k", str),
    "smallint": ("smallint", "", int),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_any_type_that_can_be_ordered(db, batches, name):
    type_, start, of = KEYS[name]
    db.execute("create extension if not exists citext; create type mood as enum ('m1', 'm2', 'm3')")
    made = batches(f"id {type_}, v int", Upsert("public.t", key=("id",)))
    one, two, three = (of(f"{start}{number}") for number in (1, 2, 3))
    made.run((one, 1, False), (two, 2, False))
    made.run((one, None, True), (two, 3, False), (three, 4, False))
    assert [row[0] for row in db.rows("select v from t order by v")] == [3, 4]
    made.replay((0, 2, 4))
    assert [row[0] for row in db.rows("select v from t order by v")] == [3, 4]
    made.replay()
    assert [row[0] for row in db.rows("select v from t order by v")] == [3, 4]


def test_a_key_is_written_as_its_latest_change_writes_it(db, batches):
    made = batches("id numeric, v int", Upsert("public.t", key=("id",)))
    made.run(("1.0", 1, False))
    made.run(("1.00", 1, False))
    assert db.rows("select id::text, v from t") == [("1.00", 1)]
    made.replay()
    assert db.rows("select id::text, v from t") == [("1.00", 1)]


def test_json_and_keys_without_order_are_refused_as_keys(db, batches):
    with pytest.raises(ConfigurationError, match="the values of key and version must be comparable"):
        batches("id json, v int", Upsert("public.t", key=("id",)))
    db.execute("create domain place as point")
    made = batches("id public.place, v int", Upsert("public.t", key=("id",)))
    with pytest.raises(TargetMismatch, match=r"key \(id\): data type .* has no default operator class"):
        made.run(("(0,0)", 1, False))


def test_equal_values_of_aggregate_are_stored_alike_in_any_order(db, batches):
    measures = {"lo": Min("v"), "hi": Max("v"), "zero": Max("f")}
    made = batches(
        "k numeric, v numeric, f double precision",
        Aggregate("public.t", group_by=("k",), aggregates=measures),
    )
    rows = [("1.0", "2.00", "0"), ("1.00", "2.0", "-0"), ("1", "2.000", "0")]
    made.run(*rows[:1])
    made.run(*rows[1:])
    first = db.rows("select k::text, lo::text, hi::text, zero::text from t")
    assert first == [("1", "2.0", "2.000", "0")]
    made.log[0].reverse()
    made.replay()
    assert db.rows("select k::text, lo::text, hi::text, zero::text from t") == first


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("alter table t alter column v type varchar(3)", "column v is now character varying(3), was text"),
        ("alter table t add check (length(v) < 9)", "constraint t_v_check is now CHECK"),
        (trigger("t", "before insert", "return null;"), "trigger meddle is now CREATE TRIGGER"),
        ("create rule no as on insert to t do instead nothing", "rule no is now"),
        ("create table c () inherits (t)", "inheritance child public.c"),
        ("alter table t set unlogged", "t is unlogged"),
        ("create table o (t bigint); alter table t add unique (kafka_offset); "
         "alter table o add foreign key (t) references t (kafka_offset) on delete cascade", "foreign key "
         "from elsewhere"),
    ],
)  # fmt: skip
def test_a_target_that_changes_while_a_batch_runs_is_noticed(db, batches, change, said):
    made = batches("id int, v text", Append("public.t"))
    made.run((1, "abc"))
    with pytest.raises((StagedRowsDiffer, TargetMismatch)) as caught:
        made.run((2, "abcdef"), meanwhile=lambda: db.execute(change))
    assert said in str(caught.value)
    assert db.rows("select v from t") == [("abc",)]


def test_partitions_may_come_while_a_batch_runs(db, batches):
    db.execute(
        f"create table t (id int, {LINEAGE}) partition by range (id); create table t1 partition of t default"
    )
    made = batches("id int", Append("public.t"))
    made.run((1,), meanwhile=lambda: db.execute("create table t2 partition of t for values from (5) to (9)"))
    foreign = "create unlogged table t3 partition of t for values from (9) to (19)"
    with pytest.raises(TargetMismatch, match="t3 is unlogged"):
        made.run((2,), meanwhile=lambda: db.execute(foreign))


@pytest.fixture
def overlapping(database, monkeypatch):
    """A function that runs a batch, and starts another one at a moment of its publish; the other waits for a lock."""
    watching = connect(database, application="watching", timeout=10)

    def run(first: Callable[[], Any], moment: str, second: Callable[[], Any]) -> None:
        started: list[Future[Any]] = []

        def at(name: str) -> None:
            if name == moment and not started:
                started.append(pool.submit(second))
                waits = 0
                while not waits:
                    assert not started[0].done()
                    with transaction(watching) as cursor:
                        cursor.execute("select count(*) from pg_locks where not granted")
                        waits = cursor.fetchone()[0]

        monkeypatch.setattr(publish_module, "failpoint", at)
        with ThreadPoolExecutor(1) as pool:
            first()
            started[0].result(60)

    yield run
    watching.close()


@pytest.fixture
def second(database):
    """A function that returns batches of another pipeline with the same target, on a connection of its own."""
    connection = connect(database, application="second", timeout=10)
    yield lambda first: Batches(connection, replace(first.pipeline, name="q", topics=("q",)))
    connection.close()


@pytest.mark.parametrize(
    ("sink", "newer", "expected"),
    [
        (Upsert("public.t", key=("id",), version="version"), (1, "NEW", 5, False), [("NEW", 5)]),
        (Upsert("public.t", key=("id",), version="version", history=False), (1, None, 5, True), []),
        (
            Aggregate(
                "public.t", group_by=("id",), aggregates={"name": Min("name"), "version": Sum("version")}
            ),
            (1, "NEW", 5),
            [("NEW", 8)],
        ),
    ],
    ids=["Upsert", "Upsert without a history, a delete", "Aggregate"],
)
def test_two_pipelines_that_share_a_target_see_each_other(
    db, batches, second, overlapping, sink, newer, expected
):
    """While one has derived a newer version and not committed, the other waits with the older one."""
    deleted = (False,) if isinstance(sink, Upsert) else ()
    first = batches("id int, name text, version int", sink)
    other = second(first)
    first.run((0, "x", 0, *deleted))
    other.run((9, "y", 0, *deleted))
    overlapping(lambda: first.run(newer), "publish.after_insert", lambda: other.run((1, "old", 3, *deleted)))
    assert db.rows("select name, version from t where id = 1") == expected


def test_two_first_batches_into_one_target_wait_for_each_other(db, batches, second, overlapping):
    """Both are staged. The one that has the target creates an index: the other must not hold the table of changes."""
    first = batches("id int, name text, version int", Upsert("public.t", key=("id",), version="version"))
    other = second(first)
    is_staged, may_publish = threading.Event(), threading.Event()

    def wait() -> None:
        is_staged.set()
        assert may_publish.wait(60)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(other.run, (2, "y", 0, False), meanwhile=wait)
        assert is_staged.wait(60)

        def publish() -> None:
            may_publish.set()
            running.result(60)

        overlapping(lambda: first.run((1, "x", 0, False)), "publish.after_advance", publish)
    assert db.rows("select id from t order by id") == [(1,), (2,)]


def test_column_that_cannot_be_added_at_once_holds_up_no_reader_for_long(db, batches, database):
    """A long SELECT holds the table: the batch gives up, and a second reader waits for a second at most."""
    db.execute(f"create table t (id int, {LINEAGE})")
    made = batches("id int, v int", Append("public.t"), evolve="add")
    reader, second = (connect(database, application=name, timeout=20) for name in ("a report", "a reader"))
    waits = []

    def read() -> None:
        for _ in range(4):
            started = time.monotonic()
            with transaction(second) as cursor:
                cursor.execute("select count(*) from t")
            waits.append(time.monotonic() - started)
            time.sleep(0.3)

    with transaction(reader) as cursor:
        cursor.execute("select count(*) from t")
        thread = threading.Thread(target=read)
        thread.start()
        with pytest.raises(PostgresUnavailable, match=r"is in use by \d+ \(a report\), so no column could"):
            made.run((1, 2))
    thread.join()
    assert max(waits) < 2
    made.run((1, 2))
    assert db.rows("select id, v from t") == [(1, 2)]
    # What the statement waits for otherwise has stayed as it was.
    assert db.rows("select current_setting('lock_timeout')") == [("10s",)]
    reader.close()
    second.close()


def test_a_cascade_that_is_allowed_by_name_is_carried_out(db, batches):
    db.execute(f"create table t (id int primary key, {LINEAGE})")
    db.execute("create table note (id int primary key references t on delete cascade)")
    db.execute("create table reply (id int references note on delete set null)")
    made = batches("id int", Append("public.t"))
    made.run((1,))
    db.execute("insert into note values (1); insert into reply values (1)")
    with pytest.raises(
        TargetMismatch, match="note_id_fkey of public.note .on delete|foreign key note_id_fkey"
    ):
        made.replay()
    assert db.rows("select * from note") == [(1,)]
    made.pipeline = replace(made.pipeline, sink=Append("public.t", cascade="public.note"))
    with pytest.raises(
        TargetMismatch, match=r"on delete set null\) would permanently change rows of public.reply"
    ):
        made.replay()
    made.pipeline = replace(made.pipeline, sink=Append("public.t", cascade=("public.note", "public.reply")))
    made.replay()
    assert db.rows("select * from note") == []


OTHERWISE = {
    "citext": ("id citext primary key", "the key has the type public.citext here and text in"),
    "char": ("id char(5) primary key", "the key has the type character"),
    "uuid": ("id uuid primary key", "the key has the type uuid here and text in"),
    "collation": (
        'id text collate "loose" primary key',
        "its collation loose makes different texts equal",
    ),
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_a_key_that_the_target_compares_otherwise_is_refused(db, batches, way):
    db.execute("create extension if not exists citext")
    db.execute(
        # Not every build of Postgres has ICU, the only provider of such collations.
        "create collation loose (provider = libc, locale = 'C'); "
        "update pg_collation set collisdeterministic = false where collname = 'loose'"
        if way == "collation"
        else "select 1"
    )
    key, said = OTHERWISE[way]
    db.execute(f"create table t ({key}, v int)")
    with pytest.raises(TargetMismatch, match=said):
        batches("id text, v int", Upsert("public.t", key=("id",))).run(("bob", 1, False))


# What compares text without regard to case, as a collation and as an operator class. Not every build of Postgres has
# ICU, the only provider of such collations; one that is only declared so must be refused as well.
LOOSE = """
create collation loose (provider = libc, locale = 'C');
update pg_collation set collisdeterministic = false where collname = 'loose';
create function same(text, text) returns bool immutable strict language sql as 'select lower($1) = lower($2)';
create function less(text, text) returns bool immutable strict language sql as 'select lower($1) < lower($2)';
create function more(text, text) returns bool immutable strict language sql as 'select lower($1) > lower($2)';
create function order_of(text, text) returns int immutable strict language sql
    as 'select bttextcmp(lower($1), lower($2))';
create operator === (leftarg = text, rightarg = text, function = same);
create operator <<< (leftarg = text, rightarg = text, function = less);
create operator >>> (leftarg = text, rightarg = text, function = more);
create operator class loose_ops for type text using btree as operator 1 <<<, operator 3 ===, operator 5 >>>,
    function 1 order_of(text, text);
create operator class same_name_ops for type text using btree as operator 1 <, operator 3 =, operator 5 >,
    function 1 order_of(text, text);
"""
LOOSE_INDEXES = {
    "a collation": ("(id collate loose)", "collation loose"),
    "an operator class": ("(id loose_ops)", "operator class loose_ops"),
    "an operator class with the usual operators": ("(id same_name_ops)", "operator class same_name_ops"),
    "included columns": ("(id collate loose) include (more)", "collation loose"),
    "a condition without a column": ("(id loose_ops) where 1 = 1", "operator class loose_ops"),
}


def aggregate_or_upsert(sink: str) -> tuple[Any, str, str]:
    """A sink whose rows `id` names, its columns, and its constraint."""
    if sink == "Upsert":
        return Upsert("public.t", key=("id",)), "v int", "unique (id)"
    aggregate = Aggregate("public.t", group_by=("id",), aggregates={"n": Count()})
    return aggregate, "n bigint", "unique nulls not distinct (id)"


@pytest.mark.parametrize("has_good_one", [False, True])
@pytest.mark.parametrize("sink", ["Upsert", "Aggregate"])
def test_a_unique_index_that_could_hold_different_keys_to_be_equal_is_refused(
    db, batches, sink, has_good_one
):
    made_sink, column, unique = aggregate_or_upsert(sink)
    db.execute(LOOSE)
    db.execute(f"create table t (id text, more int, {column}{', ' + unique if has_good_one else ''})")
    made = batches("id text, v int", made_sink)
    rows = [("a", 1, False), ("A", 2, False)] if sink == "Upsert" else [("a", 1), ("A", 2)]
    for of_index, said in LOOSE_INDEXES.values():
        db.execute(
            f"create unique index of_loose on t {of_index.replace(') where', ') nulls not distinct where')}"
        )
        said = f"column id: the unique index public.of_loose compares it by the {said}"
        with pytest.raises(TargetMismatch, match=said):
            made.run(rows[0])
        db.execute("drop index of_loose")
    if has_good_one:
        for row in rows:
            made.run(row)
        assert db.rows("select count(*) from t") == [(2,)]


KEPT_APART = {
    "varchar": ("id varchar(9), {unique}", "(id)"),
    "another order": ("id text, {unique}", "(id text_pattern_ops)"),
    "another deterministic collation": ('id text collate "POSIX", {unique}', '(id collate "C")'),
    "an expression": ("id text, {unique}", "(id, (id || v) collate loose)"),
    "another column": ("id text, {unique}", "(v loose_ops)"),
    "a condition": ("id text, {unique}", "(id loose_ops) where id > 'b'"),
    "a column of another key": ("id text, {unique}", "(id loose_ops, v)"),
    "an exclusion constraint": ("id text, {unique}, exclude (id with =)", "(id)"),
}


@pytest.mark.parametrize("way", KEPT_APART)
def test_other_unique_indexes_are_allowed(db, batches, way):
    columns, index = KEPT_APART[way]
    db.execute(LOOSE)
    db.execute(f"create table t ({columns.format(unique='v text, unique (id)')})")
    db.execute(f"create unique index other on t {index}")
    made = batches("id text, v text", Upsert("public.t", key=("id",)))
    made.run(("a", "1", False))
    made.run(("A", "2", False))
    made.run(("a", "3", False))
    assert sorted(db.rows("select id, v from t")) == [("A", "2"), ("a", "3")]


TYPES = (
    "int", "bigint", "numeric(9,2)", "uuid", "cidr", "inet", "char(3)", "bytea", "boolean", "date", "timestamptz",
    "interval", "text[]", "int4range", "public.mood", "public.pair", "citext", "jsonb",
)  # fmt: skip


def test_the_default_operators_of_a_type_are_allowed(db):
    db.execute(
        "create extension if not exists citext; create type mood as enum ('a'); create type pair as (a int)"
    )
    for number, column in enumerate(TYPES):
        db.execute(
            f"create domain d{number} as {column}; "
            f"create table t{number} (id {column}, e d{number}, unique (id, e))"
        )
        with transaction(db.connection) as cursor:
            check_unique(cursor, TargetTable(f"public.t{number}"), ("e", "id"))
    db.execute("create type s as range (subtype = text); create table u (id s primary key)")
    with transaction(db.connection) as cursor:
        check_unique(cursor, TargetTable("public.u"), ("id",))


GREATEST = Aggregate("public.t", group_by=("id",), aggregates={"n": Count(), "v": Max("v")})


@pytest.mark.parametrize(
    ("column", "narrower", "wide"),
    [("v", "numeric(10,2)", "1.2345"), ("v", "int", "1.5"), ("id", "numeric(10,2)", "1.2345")],
)
def test_a_result_that_the_target_cannot_hold_any_more_is_refused(db, batches, column, narrower, wide):
    """The partial results are of a time when the pipeline had a wider type."""
    made = batches("id numeric, v numeric", GREATEST)
    made.run(("1", "1"), ("2", "0"))
    types = {"id": "numeric", "v": "numeric"} | {column: narrower}
    made.pipeline = batches(f"id {types['id']}, v {types['v']}", GREATEST).pipeline
    made.columns = made.pipeline.value.columns
    db.execute(f"alter table t alter {column} type {narrower}")
    made.run(("1", "0"))
    assert rows_that_the_audit_finds(made) == 0
    db.execute(f"update t_partial set {column} = {wide} where batch_id = 1 and id = 1")
    before = db.rows("select * from t order by 1")
    said = f"column {column}: it cannot hold the result of the group .*, which .*t_partial.* keeps as numeric"
    with pytest.raises(TargetMismatch, match=said):
        # A group of a narrower type is affected only where a replay retracts it.
        made.run(("1", "0")) if column == "v" else made.replay((0, 0, 2))
    assert db.rows("select * from t order by 1") == before
    db.execute(f"update t set {column} = {wide} where id = 1")
    assert rows_that_the_audit_finds(made) > 0


def test_nothing_is_added_to_a_result_that_a_narrower_target_has_rounded(db, batches):
    made = batches("id int, v numeric", GREATEST)
    made.run((1, "1.2345"))
    made.pipeline = batches("id int, v numeric(10,2)", GREATEST).pipeline
    made.columns = made.pipeline.value.columns
    db.execute("alter table t alter v type numeric(10,2)")
    with pytest.raises(TargetMismatch, match="column v: it cannot hold the result of the group .*1.2345"):
        made.run((1, "0"))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("alter v type numeric(10,2)", "column v: expected type numeric, .* found numeric.10,2"),
        ('alter id type text collate "loose"', "column id: its collation loose makes different texts equal"),
    ],
)
def test_partial_results_that_would_be_rounded_or_grouped_otherwise_are_refused(db, batches, statement, said):
    db.execute(LOOSE)
    made = batches("id text, v numeric", GREATEST)
    made.run(("a", "1.5"))
    db.execute(f"alter table t_partial {statement}")
    with pytest.raises(TargetMismatch, match=f"t_partial.*, {said}"):
        made.run(("a", "1.2345"))


def test_a_replay_of_many_ranges_reads_the_target_once(db, batches):
    """100 ranges without an index are one scan, and with one no scan at all."""
    db.execute(f"create table t (id int, {LINEAGE}) with (autovacuum_enabled = off)")
    db.execute(
        "insert into t select n, 'other', n % 100, n, now(), 7 from generate_series(1, 200000) n; analyze t"
    )
    made = batches("id int", Append("public.t"))
    for partition in range(100):
        made.log[partition] = []
    parts = [(OffsetRange("t", partition, 0, 10, ID), [1, 2]) for partition in range(100)]
    (table,) = find_writer(made.pipeline.traits).tables
    with transaction(db.connection) as cursor:
        assert table.missing_index(cursor) == "create index concurrently on public.t (batch_id);"
        source, condition = find_writer(made.pipeline.traits).lineage_table.select_rows(parts)
        explain = sql.SQL("explain delete from t t using {} where {}").format(source, condition)
        cursor.execute(explain)
        plan = [row[0] for row in cursor.fetchall()]
        assert sum("Seq Scan on t" in line for line in plan) == 1, plan
    db.execute("create index on t (batch_id)")
    with transaction(db.connection) as cursor:
        assert table.missing_index(cursor) is None
        cursor.execute(explain)
        plan = [row[0] for row in cursor.fetchall()]
        assert not any("Seq Scan on t" in line for line in plan), plan


def test_many_ranges_are_taken_back_at_once(db, batches):
    made = batches("id int", Append("public.t"))
    for partition in range(3):
        made.run(*((number,) for number in range(6)), partition=partition)
    made.run((99,), partition=1)
    for partition in range(3):
        made.log[partition] = [(row[0] + 100,) for row in made.log[partition]]
    parts = [(OffsetRange("t", 0, 1, 2, ID), [1]), (OffsetRange("t", 0, 4, 6, ID), [1])]
    with transaction(db.connection) as cursor:
        assert find_writer(made.pipeline.traits).lineage_table.count_by_part(
            cursor, [*parts, (OffsetRange("t", 1, 0, 9, ID), [2, 4])]
        ) == [
            1,
            2,
            7,
        ]
        assert find_writer(made.pipeline.traits).lineage_table.count(cursor, parts) == 3
    made.replay((0, 1, 2), (0, 4, 6), (2, 0, 3))
    found = db.rows("select kafka_partition, id from t order by kafka_partition, kafka_offset")
    assert [id_ for partition, id_ in found if partition == 0] == [0, 101, 2, 3, 104, 105]
    assert [id_ for partition, id_ in found if partition == 1] == [0, 1, 2, 3, 4, 5, 99]
    assert [id_ for partition, id_ in found if partition == 2] == [100, 101, 102, 3, 4, 5]
    assert db.rows(
        "select partition, offsets::text, batch_id from exactbatch.coverage order by partition, offsets"
    ) == [
        *((0, f"[{a},{b})", batch) for a, b, batch in ((0, 1, 1), (1, 2, 5), (2, 4, 1), (4, 6, 5))),
        *((1, f"[{a},{b})", batch) for a, b, batch in ((0, 6, 2), (6, 7, 4))),
        *((2, f"[{a},{b})", batch) for a, b, batch in ((0, 3, 5), (3, 6, 3))),
    ]


def test_tables_that_exactbatch_makes_can_be_replayed_under_publication(db):
    found = db.rows(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = 'exactbatch' and c.relkind = 'r' and c.relreplident <> 'f' "
        "and pg_get_replica_identity_index(c.oid) is null"
    )
    assert found == []


@pytest.mark.parametrize("sink", ["upsert", "aggregate"])
def test_key_whose_operators_login_does_not_find_is_refused(db, batches, sink):
    """`=` would be that of text: an index of citext takes for equal what it does not."""
    db.execute("create schema ext; create extension citext schema ext")
    chosen = SINKS[sink][0]
    made = batches("id ext.citext, v int", chosen)
    rest = (False,) if sink == "upsert" else ()
    with pytest.raises(
        TargetMismatch, match="column id: the operators of its type ext.citext are in the schema ext"
    ):
        made.run(("Bob", 1, *rest))
    assert db.rows("select count(*) from exactbatch.coverage") == [(0,)]


def test_key_may_name_its_columns_in_another_order_than_schema(db, batches):
    made = batches("a text, v int, b text", Upsert("public.t", key=("b", "a")))
    made.run(("x", 1, "y", False), ("y", 2, "x", False))
    made.run(("x", 3, "y", False))
    made.run(("y", None, "x", True))
    assert db.rows("select a, v, b from t") == [("x", 3, "y")]
    made.replay()
    assert db.rows("select a, v, b from t") == [("x", 3, "y")]


def test_values_too_long_for_an_index_are_named_by_their_offsets(db, batches):
    made = batches("id text, v int", Upsert("public.t", key=("id",)))
    digits = "".join(str(number * 7919 % 9973) for number in range(2000))  # what does not compress
    with pytest.raises(
        TargetMismatch,
        match=r"exceeds btree .*; this concerns 1 record of the batch, at t\[0\] offset 1 .*54000",
    ):
        made.run(("short", 1, False), (digits, 2, False))
    assert db.rows("select count(*) from exactbatch.coverage") == [(0,)]
    assert made.run(("short", 1, False)).wrote


def test_key_without_overlaps_does_not_identify_rows_to_publication(db, batches):
    db.execute(
        "create table t (id int, v int, during int4range default 'empty', days daterange default 'empty', "
        f"{LINEAGE}, primary key (during, days without overlaps)); create publication p for table t"
    )
    made = batches("id int, v int", Append("public.t"))
    with pytest.raises(
        TargetMismatch,
        match="the publication p replicates .* public.t, and the columns|the table has no replica",
    ):
        made.run((1, 1))
    assert db.rows("select count(*) from exactbatch.batch where status = 'committed'") == [(0,)]


@pytest.mark.parametrize("schema", ["information_schema", "pg_catalog", "exactbatch", "exactbatch_staging"])
def test_nothing_is_created_in_a_schema_of_others(db, batches, schema):
    made = batches("id int", Append(f"{schema}.loaded"))
    with pytest.raises(TargetMismatch, match="keeps its own tables in this schema"):
        made.run((1,))
    assert db.rows(
        "select to_regclass('information_schema.loaded') is null and to_regclass('pg_catalog.loaded') is null"
    ) == [(True,)]


def test_triggers_function_replaced_while_batch_runs_is_noticed(db, batches):
    """Its rows were checked against the table with the function as it was."""
    made = batches("id int, v int", Append("public.t"))
    made.run((0, 0))
    db.execute(trigger("t", "after insert", "return null;"))
    replaced = (
        "create or replace function meddle() returns trigger language plpgsql as $$ begin return new; end $$"
    )
    with pytest.raises(StagedRowsDiffer, match="function of the trigger meddle is now public.meddle"):
        made.run((1, 1), meanwhile=lambda: db.execute(replaced))
    assert made.run((1, 1)).wrote


@pytest.mark.parametrize("body", ["return null;", "new.offsets := '[0,1)'; return new;"])
def test_coverage_that_a_trigger_alters_is_noticed(db, batches, body):
    made = batches("id int, v int", Append("public.t"))
    db.execute(trigger("exactbatch.coverage", "before insert", body))
    with pytest.raises(TargetMismatch, match="exactbatch.coverage does not hold what was written into it"):
        made.run((1, 1), (2, 2))
    assert db.rows("select count(*) from t") == [(0,)]


@pytest.mark.parametrize("sink", SINKS)
def test_new_rows_of_a_large_table_are_indexed_soon(db, batches, sink):
    """Not when a fifth of the table is new, as by default: replays and audits read all that is not indexed."""
    chosen, table, rows = SINKS[sink]
    batches("id int, v int", chosen).run(*rows)
    assert db.rows(f"select unnest(reloptions) from pg_class where oid = '{table}'::regclass") == [
        ("autovacuum_vacuum_insert_scale_factor=0",),
        ("autovacuum_vacuum_insert_threshold=1000000",),
    ]
