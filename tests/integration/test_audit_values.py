"""The auditor finds what is planted in the results of every sink, wrong values too, where it is asked to."""

import json
from dataclasses import replace
from typing import Any

import pytest
from psycopg2 import sql

from exactbatch import Aggregate, Append, Count, Json, Max, Upsert, Window
from exactbatch.audit.run_audit import audit
from exactbatch.audit.values import ExpectedValues
from exactbatch.errors import ConfigurationError
from support.audited_target import FORGE
from support.scenarios import KINDS, Play
from support.topics import record
from support.writers import table_of, writer_of

# Of {c}, the lineage table: the oldest event, whose key has had others since; and the last row of a partition.
OLDEST = (
    "(tableoid, ctid) = (select tableoid, ctid from {c} where delay is not null and kafka_partition = 0 "
    "order by kafka_offset limit 1)"
)
LAST = "(kafka_partition, kafka_offset) = (select 0, max(kafka_offset) from {c} where kafka_partition = 0)"
# What is done to the lineage table {c} and target {t}, and which findings there have to be.
BY_RECORD = {
    "a row is lost": ("delete from {c} where " + OLDEST, {"missing", "miscounted"}),
    "a row is there twice": (
        "insert into {c} select * from {c} where " + OLDEST,
        {"duplicated", "miscounted"},
    ),
    "an offset is shifted": (
        "update {c} set kafka_offset = kafka_offset + 1 where " + LAST,
        {"missing", "unexpected"},
    ),
    "a row is another batch's": (
        "update {c} set batch_id = batch_id + 1 where " + OLDEST,
        {"unexpected", "miscounted"},
    ),
    "a value is wrong": ("update {c} set delay = delay + 1 where " + OLDEST, {"changed"}),
    "a value is gone": ("update {c} set carrier = null where carrier is not null and " + OLDEST, {"changed"}),
    "a time is shifted": ("update {c} set at = at - interval '1 s' where " + OLDEST, {"changed"}),
    "Kafka's time is shifted": (
        "update {c} set kafka_timestamp = kafka_timestamp + interval '1 ms' where " + OLDEST,
        {"changed"},
    ),
    "two rows have each other's values": (
        "update {c} x set (id, carrier, at, delay, version) = (select id, carrier, at, delay, version from {c} y "
        "where y.kafka_partition = x.kafka_partition and y.kafka_offset = 1 - x.kafka_offset) "
        "where kafka_partition = 0 and kafka_offset in (0, 1)",
        {"changed"},
    ),
}
UPSERTED = {
    "a target row is wrong": ("update {t} set delay = 12345 where id = 3", {"stale"}),
    "a target row is lost": ("delete from {t} where id = 3", {"stale"}),
    "a target row of nothing": ("insert into {t} (id) values (99)", {"stale"}),
    "a delete is none": (
        "update {c} set deleted = true where " + OLDEST,
        {"changed"},
    ),
}
# One group of one batch in both tables, so that they agree with each other.
BOTH = "; update {t} set {set} where carrier = 'AA' and hour = '2026-05-01 12:00Z'"
GROUP = "update {c} set {set} where carrier = 'AA' and hour = '2026-05-01 12:00Z'"
AGGREGATED = {
    "a partial result is lost": ("delete from {c} where carrier = 'AA'", {"missing", "stale", "changed"}),
    "a partial result is there twice": (
        "insert into {c} select * from {c} where carrier = 'AA' limit 1",
        {"unexpected", "stale", "changed"},
    ),
    "a target row is wrong": ("update {t} set worst = worst + 1 where carrier = 'AA'", {"stale"}),
    "a target row is lost": ("delete from {t} where carrier is null", {"stale"}),
    "a sum is wrong in both": ((GROUP + BOTH).replace("{set}", "delay = delay + 1"), {"changed"}),
    "a least value is wrong in both": ((GROUP + BOTH).replace("{set}", "best = best - 1"), {"changed"}),
    "a window is shifted in both": (
        (GROUP + BOTH).replace("{set}", "hour = hour - interval '100 h'"),
        {"changed"},
    ),
    "two groups have each other's results in both": (
        "update {c} set carrier = case carrier when 'AA' then 'UA' else 'AA' end where carrier is not null; "
        "update {t} set carrier = case carrier when 'AA' then 'xx' else carrier end; "
        "update {t} set carrier = 'AA' where carrier = 'UA'; "
        "update {t} set carrier = 'UA' where carrier = 'xx'",
        {"changed"},
    ),
}
PLANTED = {
    "append": BY_RECORD,
    "partition": BY_RECORD,
    "by_batch": BY_RECORD,
    "open_partition": BY_RECORD,
    "upsert": BY_RECORD | UPSERTED,
    "upsert by offset": BY_RECORD | UPSERTED,
    "together": BY_RECORD | UPSERTED,
    # The ledger counts the rows of all targets together.
    "route": {
        name: (fault, expected - {"miscounted"}) for name, (fault, expected) in (BY_RECORD | UPSERTED).items()
    },
    "aggregate": AGGREGATED,
}


def test_something_is_planted_for_every_sink():
    """test_audit_without_history.py plants what an Upsert without history needs, whose old rows are gone."""
    assert {*PLANTED, "upsert_latest"} == set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_whatever_is_planted_is_found(play, kind):
    """Each fault is planted in sound tables and taken back. Wrong values show only where they are looked for."""
    played = play(kind)
    for step in ("produce", "tombstones", "bad", "advance", "produce", "advance"):
        getattr(played, step)()
    world, sink = played.world, played.pipeline.sink
    tables = {
        "c": writer_of(sink).lineage_table.identifier.as_string(world.connection),
        "t": table_of(sink, world.connection),
    }
    distinct = sorted(set(tables.values()))
    for number, table in enumerate(distinct):
        world.execute(f"create table kept_{number} as table {table}")
    assert _findings(played) == set()
    for name, (fault, expected) in PLANTED[kind].items():
        world.execute(fault.replace("{c}", tables["c"]).replace("{t}", tables["t"]))
        # What is stale besides follows from what was planted.
        found = _findings(played)
        assert found - {"stale"} == expected - {"stale"}, (name, found)
        assert "stale" in found or "stale" not in expected, (name, found)
        assert "stale" not in found or "both" not in name, (name, found)
        for number, table in enumerate(distinct):
            world.execute(f"truncate {table}; insert into {table} table kept_{number}")
    # All wrong values at once are nothing to an audit that does not look for them.
    wrong = [fault for fault, expected in PLANTED[kind].values() if expected == {"changed"}]
    world.execute("; ".join(wrong).replace("{c}", tables["c"]).replace("{t}", tables["t"]))
    assert _findings(played, values=False) - {"stale"} == set()
    for number, table in enumerate(distinct):
        world.execute(f"truncate {table}; insert into {table} table kept_{number}")
    assert _findings(played) == set()


def test_values_that_only_spark_can_tell_are_not_compared(play):
    played = play("append")
    played.produce(1)
    played.advance()
    transformed = replace(played.pipeline, transform="select * from records")
    with pytest.raises(ConfigurationError, match="needs rows that each follow from one record"):
        audit(transformed, played.world.settings, values=True)


SINKS = {
    "append": lambda name: Append(f'public."{name}"'),
    "upsert": lambda name: Upsert(f'public."{name}"', key=("id",)),
    "aggregate": lambda name: Aggregate(
        f'public."{name}"', group_by=("name",), aggregates={"n": Count(), "most": Max("id")}
    ),
}


@pytest.mark.parametrize("kind", SINKS)
def test_values_are_compared_without_loop_over_rows_for_each_row(
    world, make_topic, make_pipeline, monkeypatch, kind
):
    """Nobody has analyzed the tables of a batch that has just run."""
    topic = make_topic(1)
    topic.produce(*(record(number, f"n{number % 100}") for number in range(2000)), b"{")
    pipeline = make_pipeline(topic, sink=SINKS[kind](topic.name), max_rejects=1)
    assert world.run(pipeline).batch.rows == 2000
    plans: list[str] = []
    fetch = ExpectedValues._fetch

    def explained(self: ExpectedValues, query: sql.Composable) -> list[tuple[Any, ...]]:
        plans.append("\n".join(row[0] for row in fetch(self, sql.SQL("explain {}").format(query))))
        return fetch(self, query)

    monkeypatch.setattr(ExpectedValues, "_fetch", explained)
    found = audit(pipeline, world.settings, values=True)
    assert found.is_exact
    compared = [plan for plan in plans if "exactbatch_expected" in plan]
    assert compared
    assert not [plan for plan in compared if "Nested Loop" in plan]


def test_a_record_that_an_aggregate_rejected_and_nobody_names_does_not_end_the_audit(
    world, make_topic, make_pipeline
):
    """Postgres parses the values, and would end the statement with an error."""
    topic = make_topic(1)
    sink = Aggregate(
        f'public."{topic.name}"',
        group_by=("id", "span", Window("at", "1 hour")),
        aggregates={"n": Count()},
    )
    good = {"id": "0b1f1b4c-6f2d-4a8c-9a3e-1d2c3b4a5968", "span": "1 day", "at": "2024-02-29T10:00:00Z"}
    wrong = ({"id": "x"}, {"span": "never"}, {"at": None})
    topic.produce(*(json.dumps(good | each).encode() for each in ({}, *wrong)))
    value = Json("id uuid, span interval, at timestamptz")
    pipeline = make_pipeline(topic, sink=sink, value=value, max_rejects=3)
    assert world.run(pipeline).batch.rejected == 3
    assert audit(pipeline, world.settings, values=True).is_exact
    world.execute(f"{FORGE} delete from exactbatch.rejected_record")
    report = audit(pipeline, world.settings, values=True)
    assert {kind for kind, count in report.findings.items() if count} == {"miscounted"}
    world.execute(
        f"{FORGE} update {writer_of(sink).lineage_table.identifier.as_string(world.connection)} set records = 2, n = 2"
    )
    assert audit(pipeline, world.settings, values=True).findings["changed"] == 1


def test_rejects_of_an_aggregate_are_not_kept(world, make_topic, make_pipeline):
    """Nothing compares them one by one: with many of them, they would take the memory."""
    topic = make_topic(1)
    topic.produce(record(1), *[b"{"] * 9)
    pipeline = make_pipeline(topic, sink=SINKS["aggregate"](topic.name), max_rejects=9)
    world.run(pipeline)
    kept: list[int] = []
    add = ExpectedValues.add

    def counted(self: ExpectedValues, *given: Any) -> None:
        add(self, *given)
        kept.append(len(self._refused))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ExpectedValues, "add", counted)
        assert audit(pipeline, world.settings, values=True).is_exact
    assert kept
    assert not any(kept)


def _findings(played: Play, *, values: bool = True) -> set[str]:
    report = audit(played.pipeline, played.world.settings, values=values)
    return {kind for kind, count in report.findings.items() if count}
