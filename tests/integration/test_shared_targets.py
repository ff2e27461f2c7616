"""Pipelines that share tables, or whose rules change: the same values, or an error and nothing written."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Sum, Upsert, Window
from exactbatch.errors import ConfigurationError, IdentityChanged, TargetMismatch
from exactbatch.ledger import Ledger, migrate
from exactbatch.ledger.definition import build_definition
from exactbatch.ledger.schema import migrations
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support import staged_batches
from support.staged_batches import Batches
from support.writers import writer_of

COLUMNS = "id int, carrier text, v int, w int, at timestamptz"
UPSERT = Upsert("public.t", key=("id",), version="v")
HOURLY = Aggregate(
    "public.t", group_by=("carrier", Window("at", "1 hour", "hour")), aggregates={"n": Count()}
)
APPEND = Append("public.t")
SINKS = [UPSERT, HOURLY, APPEND, Aggregate("public.t", group_by=("carrier",), aggregates={"n": Count()})]
Row = tuple[Any, ...]


def pipeline(name: str, sink: Any, columns: str = COLUMNS) -> Pipeline:
    return Pipeline(name=name, topics=(name,), value=Json(columns), sink=sink)


@pytest.fixture
def ledger(connection):
    return Ledger(connection)


@pytest.fixture
def rows(connection):
    def select(statement: str) -> list[Row]:
        with transaction(connection) as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]

    return select


REFUSED = {
    "windows": (HOURLY, replace(HOURLY, group_by=("carrier", Window("at", "2 hours", "hour"))), "t", "key"),
    "measures": (HOURLY, replace(HOURLY, aggregates={"n": Sum("v")}), "t", "key"),
    "versions": (UPSERT, replace(UPSERT, version="w"), "t", "version"),
    "a version and none": (UPSERT, replace(UPSERT, version=None), "t", "version"),
    "keys": (UPSERT, replace(UPSERT, key=("carrier",)), "t", "key"),
    "an upsert and an aggregate": (UPSERT, HOURLY, "t", "sink"),
    "an upsert and an append": (UPSERT, APPEND, "t", "sink"),
    "spelled differently": (UPSERT, replace(HOURLY, target='"public"."t"'), "t", "sink"),
    "without its schema": (APPEND, replace(UPSERT, target="t"), "t", "sink"),
    "changes": (UPSERT, Append("public.t_change"), "t_change", "target"),
    "the changes of an upsert as another's target": (
        UPSERT,
        replace(UPSERT, target="public.t_change"),
        "t_change",
        "target",
    ),
    "partial results": (HOURLY, Append('public."t_partial"'), "t_partial", "target"),
    "event times": (HOURLY, replace(UPSERT, target="public.t_watermark"), "t_watermark", "target"),
}


@pytest.mark.parametrize("turned", [False, True], ids=["", "the other way round"])
@pytest.mark.parametrize(("first", "second", "table", "differs"), REFUSED.values(), ids=REFUSED)
def test_pipelines_whose_values_would_mix_are_refused(
    connection, ledger, first, second, table, differs, turned
):
    """At init; and, where both are registered, before a plan, a batch, an audit and a publish."""
    one, other = pipeline("one", first), pipeline("other", second)
    if turned:
        one, other = replace(one, sink=second), replace(other, sink=first)
    with transaction(connection):
        ledger.registry.register(one)
    message = f"'other' and 'one' both write to the table public.{table}, and their {differs} differs"
    with transaction(connection), pytest.raises(ConfigurationError, match=message):
        ledger.registry.register(other)
    with transaction(connection):
        ledger.registry.register(other, accept_identity=True)
    for check in (ledger.registry.check, ledger.registry.lock, ledger.registry.register):
        for refused in (one, other):
            with transaction(connection), pytest.raises(ConfigurationError, match="Neither runs"):
                check(refused)
    with transaction(connection):
        ledger.registry.register(
            replace(one, sink=replace(one.sink, target="elsewhere")), accept_identity=True
        )
        ledger.registry.check(other)


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.kind.name)
def test_pipelines_of_one_definition_share_a_target(connection, ledger, sink):
    one, other = pipeline("one", sink), pipeline("other", replace(sink, target='"public"."t"'))
    with transaction(connection):
        for shared in (one, other, pipeline("apart", Append("public.u"))):
            assert ledger.registry.register(shared)
            ledger.registry.lock(shared)
        assert ledger.registry.find_sharing(one) == ["other"]
        assert ledger.registry.find_sharing(other) == ["one"]


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.kind.name)
def test_a_definition_has_all_tables_of_its_sink(sink):
    assert {table.name for table in writer_of(sink).tables} <= build_definition(pipeline("p", sink)).tables


def test_two_upserts_of_one_target_have_to_agree_on_latest_change(connection, rows):
    """One registers while the other has a batch: that does not commit, nor does any before they agree."""
    columns = "id int, v int, w int"
    one = Batches(connection, pipeline("one", UPSERT, columns))
    one.run((1, 5, 5, False))
    by_w = pipeline("other", replace(UPSERT, version="w"), columns)

    def meanwhile() -> None:
        with transaction(connection):
            Ledger(connection).registry.register(by_w, accept_identity=True)

    with pytest.raises(ConfigurationError, match="both write to the table public.t.*'one' has 'v'"):
        one.run((1, 4, 9, False), meanwhile=meanwhile)
    assert rows("select id, v, w from t") == [(1, 5, 5)]
    assert rows("select id, v, w from t_change") == [(1, 5, 5)]


def test_aggregates_that_share_target_get_measure_one_after_other(connection, ledger):
    wider = replace(HOURLY, aggregates={"n": Count(), "v": Sum("v")})
    with transaction(connection):
        for name in ("one", "other"):
            ledger.registry.register(pipeline(name, HOURLY))
        ledger.registry.register(pipeline("one", wider), accept_identity=True)
    for name, sink in (("one", wider), ("other", HOURLY)):
        with transaction(connection), pytest.raises(ConfigurationError, match="their key differs"):
            ledger.registry.lock(pipeline(name, sink))
    with transaction(connection):
        ledger.registry.register(pipeline("other", wider), accept_identity=True)
        for name in ("one", "other"):
            ledger.registry.lock(pipeline(name, wider))


@pytest.mark.parametrize(("old", "new"), [("v", "w"), ("w", None), (None, "v")])
def test_another_version_is_another_identity(connection, ledger, old, new):
    was, now = (pipeline("p", replace(UPSERT, version=version)) for version in (old, new))
    with transaction(connection):
        ledger.registry.register(was)
    message = f"expected version {old or ''!r}, as registered, found {new or ''!r}"
    for check in (ledger.registry.register, ledger.registry.check, ledger.registry.lock):
        with transaction(connection), pytest.raises(IdentityChanged, match=message):
            check(now)
    with transaction(connection):
        assert ledger.registry.register(now, accept_identity=True)
        ledger.registry.check(now)


def test_a_batch_does_not_go_on_by_another_version(connection, rows):
    batches = Batches(connection, pipeline("p", UPSERT, "id int, v int, w int"))
    batches.run((1, 5, 5, False), (2, 5, 5, False), (2, 4, 9, False))
    batches.pipeline = replace(batches.pipeline, sink=replace(UPSERT, version="w"))
    with pytest.raises(IdentityChanged, match="expected version 'v', as registered, found 'w'"):
        batches.run((1, 4, 9, False))
    assert rows("select id, v from t order by id") == [(1, 5), (2, 5)]


def test_version_of_older_registration_is_kept_from_next_init_on(connection, ledger, rows, tmp_path):
    with transaction(connection) as cursor:
        cursor.execute("drop schema exactbatch cascade; drop schema exactbatch_staging cascade")
    for number, text in migrations()[:7]:
        (tmp_path / f"{number:04d}_old.sql").write_text(text)
    migrate(connection, tmp_path)
    with transaction(connection) as cursor:
        cursor.execute(
            "insert into exactbatch.pipeline (name, target, sink, key, lineage) values "
            "('one', 'public.t', 'upsert', '{id}', 'record'), ('other', 'public.t', 'upsert', '{id}', 'record')"
        )
    migrate(connection)
    one, other = pipeline("one", UPSERT), pipeline("other", replace(UPSERT, version="w"))
    with transaction(connection):
        for unknown in (one, other):  # nothing says yet that they differ
            ledger.registry.check(unknown)
        assert ledger.registry.register(one) is True
        assert ledger.registry.register(one) is False
        ledger.registry.check(one)
    assert rows("select name, version from exactbatch.pipeline order by name") == [
        ("one", "v"),
        ("other", None),
    ]
    with transaction(connection), pytest.raises(ConfigurationError, match="their version differs"):
        ledger.registry.register(other)
    with transaction(connection), pytest.raises(IdentityChanged, match="expected version 'v'"):
        ledger.registry.check(replace(one, sink=other.sink))


def test_upserts_that_share_a_target_write_the_same_columns(connection, rows):
    """A replay of identical records would leave nulls where the other pipeline's values were."""
    one = Batches(connection, pipeline("one", UPSERT, "id int, v int, name text"))
    one.run((1, 1, "x", False))
    wider = replace(pipeline("other", UPSERT, "id int, v int, name text, mail text"), evolve="add")
    other = Batches(connection, wider)
    other.run((1, 2, "x", "x@x", False))
    for again in (one.replay, lambda: one.run((1, 3, "y", False))):
        with pytest.raises(TargetMismatch, match="does not write the columns mail. .* with other: "):
            again()
    assert rows("select id, v, name, mail from t") == [(1, 2, "x", "x@x")]
    one.pipeline, one.columns = replace(wider, name="one", topics=("one",)), other.columns
    one.run((2, 1, "y", "y@y", False))
    assert rows("select id, mail from t order by id") == [(1, "x@x"), (2, "y@y")]


@pytest.mark.parametrize("history", [True, False])
def test_offsets_of_different_logs_do_not_order_the_changes_of_a_key(connection, rows, monkeypatch, history):
    """The topic was deleted and created again: its offsets begin at 0, below those of the older changes."""
    unversioned = Upsert("public.t", key=("id",), history=history)
    old, new = (
        replace(pipeline(name, unversioned, "id int, v int"), topics=("one",)) for name in ("old", "new")
    )
    first = Batches(connection, old)
    first.run((1, 1, False), (1, 2, False))
    second = Batches(connection, new)
    second.run((1, 1, False), (1, 2, False))  # the same log
    third = Batches(connection, replace(new, name="third"))
    monkeypatch.setattr(staged_batches, "ID", UUID(int=2))
    with pytest.raises(
        ConfigurationError,
        match=r"pipelines 'new' and 'old' and 'third' load different logs of topic 'one' into",
    ):
        third.run((1, 3, False))
    assert rows("select id, v from t") == [(1, 2)]


def test_a_version_orders_changes_of_different_logs(connection, rows, monkeypatch):
    old, new = (replace(pipeline(name, UPSERT, "id int, v int"), topics=("one",)) for name in ("old", "new"))
    Batches(connection, old).run((1, 0, False), (1, 1, False))
    monkeypatch.setattr(staged_batches, "ID", UUID(int=2))
    Batches(connection, new).run((1, 2, False))
    assert rows("select id, v from t") == [(1, 2)]


def test_upsert_that_is_alone_may_have_more_columns_beside_its_own(connection, rows):
    alone = Batches(connection, pipeline("alone", UPSERT, "id int, v int"))
    alone.run((1, 1, False))
    with transaction(connection) as cursor:
        cursor.execute("alter table t_change add note text")
    alone.run((2, 1, False))
    assert rows("select id from t order by id") == [(1,), (2,)]


def test_event_times_that_another_pipeline_needs_stay_however_it_writes_target(connection, rows):
    """A topic is taken out of a pipeline; one that shares its target has processed the topic as well."""
    columns = "carrier text, at timestamptz"
    one = Batches(connection, pipeline("one", HOURLY, columns))
    one.run(("AA", "2026-01-01 05:00:00+00"))
    shared = replace(pipeline("other", replace(HOURLY, target='"public"."t"'), columns), topics=("one",))
    Batches(connection, shared).run(("AA", "2026-01-01 06:00:00+00"))
    moved = replace(pipeline("one", HOURLY, columns), topics=("another",))
    with transaction(connection) as cursor:
        find_writer(moved.traits).forget_topics(
            cursor, Ledger(connection).registry.find_removed_topics(moved)
        )
    assert rows("select topic from t_watermark group by topic") == [("one",)]
    with transaction(connection) as cursor:
        cursor.execute("update exactbatch.pipeline set target = 'public.apart' where name = 'other'")
        find_writer(moved.traits).forget_topics(
            cursor, Ledger(connection).registry.find_removed_topics(moved)
        )
    assert rows("select topic from t_watermark") == []
