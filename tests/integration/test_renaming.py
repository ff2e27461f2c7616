"""A pipeline under a new name goes on where it stands; one that would load a target twice is refused."""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from exactbatch import Append, OffsetRange, Pipeline
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, IdentityChanged, NotRegistered, StatementRefused
from exactbatch.ledger import DagRun, Ledger, Registry, TimeBoundaries
from exactbatch.model import Fingerprint, LogPartition, Plan
from exactbatch.postgres.connection import transaction
from support.audited_target import AuditedTarget, findings
from support.topics import Topic, record

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]
NAMED = (
    "stored_offset",
    "batch",
    "coverage",
    "rejected_record",
    "time_boundary",
    "replay_horizon",
    "run_life",
    "empty_run",
    "fingerprint",
)


@pytest.fixture
def world(connection, settings, make_topic, make_pipeline):
    """A pipeline with a committed batch, and a row in each table of the ledger that has its name."""
    topic = make_topic()
    topic.produce(*map(record, range(10)))
    world = AuditedTarget(connection, settings, make_pipeline(topic, max_rejects=1))
    world.load(rejects=(3,))
    pipeline = world.pipeline
    with transaction(connection):
        ledger = Ledger(connection)
        (stored,) = ledger.plans.read_stored_offsets(pipeline)
        where = {"topic": stored.topic, "partition": 0, "topic_id": stored.topic_id}
        part = LogPartition(**where, leader_epoch=0, earliest=0, last_stable=9, high_watermark=9)
        TimeBoundaries(connection).pin(pipeline, datetime(2026, 1, 1, tzinfo=UTC), {part: 4})
        ledger.fingerprints.add(
            pipeline.name, [Fingerprint(stored.topic, 0, stored.topic_id, 999, None, b"digest")]
        )
        ledger.coverage.raise_horizon(pipeline, OffsetRange(stored.topic, 0, 0, 1, stored.topic_id))
        run = DagRun(pipeline.name, "r")
        ledger.plans.write_replay(
            pipeline, [OffsetRange(stored.topic, 0, 5, 9, stored.topic_id)], origin="cli", run=run
        )
        ledger.plans.begin_run(pipeline, run)
        ledger.plans.write_advance(pipeline, Plan(seeds=(), losses=(), ranges=()), origin="schedule", run=run)
    return world


def names(world: AuditedTarget, table: str) -> set[str]:
    with transaction(world.connection) as cursor:
        cursor.execute(f"select distinct pipeline from exactbatch.{table}")
        return {row[0] for row in cursor.fetchall()}


def under(world: AuditedTarget, name: str, **changes: Any) -> Pipeline:
    return replace(world.pipeline, name=name, **changes)


def register(world: AuditedTarget, pipeline: Pipeline, **how: Any) -> bool:
    with transaction(world.connection):
        return Ledger(world.connection).registry.register(pipeline, **how)


def test_a_renamed_pipeline_takes_all_its_rows_along(world):
    old = world.pipeline
    world.pipeline = under(world, "renamed")
    assert register(world, world.pipeline, rename=old.name) is True
    for table in NAMED:
        assert names(world, table) == {"renamed"}, table
    assert register(world, world.pipeline, rename=old.name) is False  # once more, by the same script
    with transaction(world.connection):
        Ledger(world.connection).registry.lock(world.pipeline)
    Topic(old.topics[0], dict(world.settings.kafka)).produce(record(10))
    world.load()
    assert world.execute("select from {t}") == 10
    assert findings(world.audit()) == {}
    said = "'renamed' is registered with the same target, .*with `--rename renamed`"
    with transaction(world.connection), pytest.raises(NotRegistered, match=said):
        Ledger(world.connection).registry.check(old)


def test_new_name_for_same_topics_and_target_is_refused_with_both_ways_out(world):
    """It would load each record a second time, and every audit would be exact."""
    old, new = world.pipeline.name, under(world, "new")
    with transaction(world.connection), pytest.raises(NotRegistered) as caught:
        Ledger(world.connection).registry.check(new)
    assert f"{old!r} is registered with the same target" in str(caught.value)
    assert f"run `exactbatch register` for 'new' with `--rename {old}`, and it continues where" in str(
        caught.value
    )
    with pytest.raises(ConfigurationError) as refused:
        register(world, new)
    assert f"pipelines {old!r} and 'new' both load '{old}' into the table public.{old}" in str(refused.value)
    assert f"with `--rename {old}`" in str(refused.value)
    assert "`exactbatch register` for 'new' with `--share-topics`" in str(refused.value)
    # Another topic beside; and one that was taken out of the other pipeline, whose records are in the target.
    with pytest.raises(ConfigurationError, match="both load"):
        register(world, under(world, "new", topics=("another", old)))
    with transaction(world.connection) as cursor:
        cursor.execute("update exactbatch.pipeline set topics = '{else}'")
    with pytest.raises(ConfigurationError, match="both load"):
        register(world, new)
    assert register(world, under(world, "new", topics=("another",))) is True


def test_pipelines_meant_to_load_same_topics_run_beside_each_other(world):
    new = under(world, "new")
    assert register(world, new, share_topics=True) is True
    assert register(world, new) is False
    assert register(world, world.pipeline) is False
    with transaction(world.connection):
        for each in (new, world.pipeline):
            Ledger(world.connection).registry.lock(each)
    # What is allowed to one is not to the next.
    with pytest.raises(ConfigurationError, match="both load"):
        register(world, under(world, "newer"))


def test_a_topic_that_is_added_to_a_pipeline_is_no_way_around(world, make_topic):
    apart = under(world, "apart", topics=(make_topic().name,))
    assert register(world, apart) is True
    both = replace(apart, topics=(*apart.topics, *world.pipeline.topics))
    for check in (Registry.check, Registry.lock, Registry.register):
        with transaction(world.connection), pytest.raises(ConfigurationError, match="both load"):
            check(Registry(world.connection), both)


def test_what_cannot_be_renamed(world):
    with pytest.raises(NotRegistered, match="pipeline 'nobody' is not in the ledger"):
        register(world, under(world, "new"), rename="nobody")
    register(world, under(world, "taken"), share_topics=True)
    with pytest.raises(ConfigurationError, match="are both registered, so .* cannot be renamed to 'taken'"):
        register(world, under(world, "taken"), rename=world.pipeline.name)
    elsewhere = under(world, "new", sink=Append("public.elsewhere"))
    with pytest.raises(IdentityChanged, match="expected target"):
        register(world, elsewhere, rename=world.pipeline.name)
    assert names(world, "batch") == {world.pipeline.name}


@pytest.mark.parametrize(
    "statement",
    [
        "update exactbatch.batch set pipeline = 'taken'",
        "update exactbatch.stored_offset set pipeline = 'taken'",
        "update exactbatch.batch set announced_at = now(), rows = 0",
    ],
)
def test_nobody_moves_the_past_to_another_pipeline_by_hand(world, statement):
    register(world, under(world, "taken"), share_topics=True)
    with pytest.raises(StatementRefused, match="SQLSTATE 23001"):
        world.execute(statement)


def test_a_batch_that_was_announced_stays_so(world):
    announced = "update exactbatch.batch set announced_at = now() where status = 'committed'"
    assert world.execute(announced) == 1
    with pytest.raises(StatementRefused, match="can not be changed any more"):
        world.execute("update exactbatch.batch set announced_at = null where status = 'committed'")


def test_audit_names_offsets_that_two_pipelines_have_in_one_target(world, make_pipeline):
    """As they were left behind by a rename before there was one."""
    other = AuditedTarget(world.connection, world.settings, under(world, "other"))
    register(world, other.pipeline, share_topics=True)
    other.load()
    for each, name in ((world, "other"), (other, world.pipeline.name)):
        found = each.audit()
        assert findings(found) == {}
        (note,) = found.target.notes
        assert f"pipeline {name!r} also has 10 of these offsets in the same target, from 0 on, which" in note
    world.execute("update exactbatch.pipeline set shares_topics = false")
    assert findings(world.audit()) == findings(other.audit()) == {"doubled": (10, [])}


def test_the_command_line_renames_and_forgets(world, settings, monkeypatch):
    module = ModuleType("pipelines_renamed")
    module.new = under(world, "new")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def command(name: str, *options: str) -> str:
        done = CliRunner().invoke(app, [name, "pipelines_renamed:new", *options])
        return f"{done.exit_code} {' '.join(done.output.split())}"

    assert command("register").startswith("42 error: ConfigurationError: pipelines")
    assert command("register", "--rename", world.pipeline.name, "--yes").startswith("0 Pipeline new")
    assert "2026-01-01 00:00:00" in command("boundaries")
    assert '"forgotten": 0' in command("boundaries", "--forget", "2026-01-02", "2026-01-03", "--json")
    forgotten = command("boundaries", "--forget", "2026-01-01", "2026-01-01", "--yes")
    assert "Forgot 1 time boundaries" in forgotten
    assert names(world, "time_boundary") == set()
