"""Rejected records: how many there may be, what users see of them, and processing exactly them again."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from exactbatch import Pipeline
from exactbatch.cli.app import app
from exactbatch.errors import ReplayRefused, TooManyRejects
from exactbatch.ledger import Ledger
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import transaction
from exactbatch.settings import KAFKA, POSTGRES
from support.topics import Topic, record

Command = Callable[..., Any]


@pytest.fixture
def command(world, tmp_path, monkeypatch):
    """Run `exactbatch …` over a pipeline in this process, whose Spark session it uses; the JSON it prints."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in world.settings.as_environment().items():
        assert name in (KAFKA, POSTGRES)
        monkeypatch.setenv(name, value)

    def run(pipeline: Pipeline, schema: str, *arguments: str) -> Any:
        module = f"rejects_{abs(hash((pipeline.name, schema)))}"
        (tmp_path / f"{module}.py").write_text(
            "from exactbatch import Append, Json, Pipeline\n"
            f"p = Pipeline(name={pipeline.name!r}, topics={pipeline.topic_names!r}, value=Json({schema!r}), "
            f"sink=Append({pipeline.traits.target!r}), max_rejects={pipeline.max_rejects}, "
            f"max_reject_share={pipeline.max_reject_share})\n"
        )
        monkeypatch.setattr("exactbatch.cli.processing.spark_session", lambda *_, **__: _Same(world.spark))
        result = CliRunner().invoke(app, ["rejects", f"{module}:p", "--json", "--yes", *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


class _Same:
    """The test's session, which outlives the command."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __enter__(self) -> Any:
        return self._spark

    def __exit__(self, *_: object) -> None:
        return None


def test_a_share_of_the_records_may_be_rejected(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(*[record(n) for n in range(18)], b"bad", b"worse")
    pipeline = make_pipeline(topic, max_reject_share=0.09)
    batch_id = world.plan(pipeline)
    with pytest.raises(
        TooManyRejects,
        match=r"2 or more of the 20 records read were rejected \(10 %\); max_reject_share=0.09 allows 1\.",
    ):
        world.process(pipeline, batch_id)
    assert world.process(replace(pipeline, max_reject_share=0.1), batch_id).batch.rejected == 2


def test_rejects_are_listed_grouped_and_processed_again(world, make_topic, make_pipeline, command):
    topic = make_topic(2)
    wrong = [b'{"id": "%d", "name": "x"}' % n for n in range(3)]
    topic.produce(record(0), wrong[0], wrong[1], record(3), b"no json")
    topic.produce(record(0), wrong[2], partition=1)
    pipeline = make_pipeline(topic, max_rejects=9)
    first = world.run(pipeline).batch
    told = command(pipeline, "id int, name text", "--limit", "2")
    assert [(each["partition"], each["offset"], each["bytes"]) for each in told["rejects"]] == [
        (0, 1, 24),
        (0, 2, 24),
    ]
    assert [(each["records"], each["first"]) for each in told["reasons"]] == [
        (3, f"{topic.name}[0] 1"),
        (1, f"{topic.name}[0] 4"),
    ]
    assert "expected number, found string" in told["reasons"][0]["reason"]
    world.execute(f'alter table public."{topic.name}" alter id type text')
    preview = command(pipeline, "name text", "--replay", "--dry-run")
    assert [(r["partition"], r["from_offset"], r["until_offset"]) for r in preview["plan"]["ranges"]] == [
        (0, 1, 3),
        (0, 4, 5),
        (1, 1, 2),
    ]
    report = command(pipeline, "name text", "--replay")
    assert (report["kind"], report["records"], report["rows"], report["rejected"]) == ("replay", 4, 3, 1)
    assert world.rows('select "offset", batch_id from exactbatch.rejected_record') == [
        (4, report["batch_id"])
    ]
    assert world.rows(f'select count(*) from public."{topic.name}" where batch_id = %s', first.batch_id) == [
        (3,)
    ]
    assert world.is_exact(pipeline)


def test_rejects_of_a_topic_that_is_loaded_no_longer_are_left_out(world, make_topic, make_pipeline, command):
    first, second = make_topic(), make_topic()
    for topic in (first, second):
        topic.produce(record(0), b"bad")
    pipeline = replace(make_pipeline(first, max_rejects=9), topics=(first.name, second.name))
    with transaction(world.connection):
        Ledger(world.connection).registry.register(pipeline)
    batch_id = world.run(pipeline).batch.batch_id
    fewer = replace(pipeline, topics=(first.name,))
    with transaction(world.connection):
        Ledger(world.connection).registry.register(fewer)
    report = command(fewer, "id int, name text", "--replay")
    assert (report["kind"], report["records"], report["rejected"]) == ("replay", 1, 1)
    with pytest.raises(
        ReplayRefused,
        match=rf"batch {batch_id} also has offsets of '{second.name}', which pipeline .* no longer loads",
    ):
        freeze_replay(world.connection, world.log, fewer, ReplayRequest(batch_ids=(batch_id,)), origin="cli")


def test_nothing_was_rejected(world, make_topic, make_pipeline, command):
    topic: Topic = make_topic()
    topic.produce(record(0))
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    nothing = {"records": 0, "all_reasons": 0, "reasons": [], "rejects": []}
    assert command(pipeline, "id int, name text") == nothing
    assert command(pipeline, "id int, name text", "--replay") == {"batch_id": None}


@pytest.mark.slow
def test_a_bad_record_costs_at_most_20_times_a_good_one(world, make_topic, make_pipeline):
    """From the plan to the commit. It was 2,500 times as long: each was decoded alone, several times."""
    seconds = {}
    for kind, value in (
        ("warm", b'{"id":%d}'),
        ("good", b'{"id":%d}'),
        ("bad", b'{"id":"%d"}'),
        ("cut", b'{"id":%d'),
    ):
        topic = make_topic()
        topic.produce(*[value % number for number in range(100_000)])
        pipeline = make_pipeline(topic, max_reject_share=1.0)
        began = time.monotonic()
        batch = world.run(pipeline).batch
        seconds[kind] = time.monotonic() - began
        assert (batch.records, batch.rejected) == (100_000, 100_000 if kind in ("bad", "cut") else 0)
    assert seconds["bad"] < 20 * seconds["good"], seconds
    assert seconds["cut"] < 20 * seconds["good"], seconds
