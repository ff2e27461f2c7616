"""What cannot be undone is asked for on a terminal, refused without one, shown by --dry-run, and done with --yes."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest

from exactbatch import Append, Debezium, Json, Pipeline, ToTopic, Upsert
from exactbatch.cli.app import app
from exactbatch.errors.exit_status import WRONG_USAGE
from exactbatch.ledger import TimeBoundaries
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import transaction
from support.batch_runner import BatchRunner, MakePipeline, MakeTopic
from support.partitions import by_batch
from support.topics import record

AT = datetime(2026, 1, 1, tzinfo=UTC)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass
class Asked:
    """What a command is asked for: its words, and what its question and its dry run say."""

    pipeline: Pipeline
    words: list[str]
    question: str
    preview: str


Prepare = Callable[[BatchRunner, MakeTopic, MakePipeline], Asked]


def two_batches(
    world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline, **changes: Any
) -> Pipeline:
    """A pipeline with two batches, in the first of which a record is rejected."""
    topic = make_topic(retention_ms="-1")
    pipeline = make_pipeline(topic, **{"max_rejects": 1, **changes})
    for records in ((record(0), b"bad"), (record(1),)):
        topic.produce(*records)
        world.run(pipeline)
    return pipeline


def replay(*made: Any) -> Asked:
    preview = "2 offsets, 1 rows to retract"
    return Asked(two_batches(*made), ["replay", "--batch", "1"], "Process 2 offsets again", preview)


def rejects(*made: Any) -> Asked:
    preview = "1 offsets, 0 rows to retract"
    return Asked(two_batches(*made), ["rejects", "--replay"], "Process 1 offsets again", preview)


def withdraw(world: BatchRunner, *made: Any) -> Asked:
    pipeline = two_batches(world, *made)
    request = ReplayRequest(batch_ids=(1,))
    planned = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
    words = ["replay", "--withdraw", str(planned)]
    return Asked(pipeline, words, f"Withdraw replay {planned}", f"Replay {planned} would be withdrawn")


def boundaries(world: BatchRunner, *made: Any) -> Asked:
    pipeline = two_batches(world, *made)
    with transaction(world.connection):
        for day in (1, 2, 3):
            logs = world.log.partitions(pipeline.known_topics(()))
            TimeBoundaries(world.connection).pin(pipeline, AT.replace(day=day), dict.fromkeys(logs, 0))
    words = ["boundaries", "--forget", "2026-01-02", "2026-01-03"]
    return Asked(pipeline, words, "Forget 2 time boundaries", "2 time boundaries would be forgotten")


def merge(world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> Asked:
    topic = make_topic(retention_ms="-1")
    pipeline = make_pipeline(topic, sink=by_batch(topic.name))
    for number in range(2):
        topic.produce(record(number))
        world.run(pipeline)
    return Asked(pipeline, ["merge"], "Merge 2 partitions of", "2 to merge into 1")


def prune(*made: Any) -> Asked:
    return Asked(
        two_batches(*made), ["prune", "--all"], "Fold 2 batches?", "2 batches with 2 ranges are to be"
    )


def rename(*made: Any) -> Asked:
    pipeline = two_batches(*made)
    renamed = replace(pipeline, name="renamed")
    return Asked(
        renamed, ["register", "--rename", pipeline.name], "by renamed in all rows", "would be registered"
    )


def identity(*made: Any) -> Asked:
    moved = replace(two_batches(*made), sink=Append("public.moved"))
    return Asked(moved, ["register", "--accept-identity"], "forgets its previous", "public.moved would be")


def compact(world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> Asked:
    topic = make_topic(retention_ms="-1")
    sink = Upsert(f'public."{topic.name}"', key=("id",))
    pipeline = make_pipeline(topic, sink=sink, message_key=Json("id int"))
    topic.produce(record(0), record(0), key=b'{"id": 0}')
    world.run(pipeline)
    return Asked(pipeline, ["compact", "--all"], "Drop 1 changes?", "1 to drop, 1 to keep")


def forward(world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> Asked:
    to = ToTopic(make_topic().name, keyed_by=("id",), value=("name",))
    pipeline = two_batches(world, make_topic, make_pipeline, forward=to)
    preview = f"2 results would be sent to the topic {to.topic}. It may have some of them already."
    return Asked(pipeline, ["forward", "--accept-repeats"], "Send 2 results to the topic", preview)


def new_epoch(world: BatchRunner, make_topic: MakeTopic, make_pipeline: MakePipeline) -> Asked:
    topic = make_topic(retention_ms="-1")
    columns = ("commit_lsn", "lsn")
    pipeline = make_pipeline(
        topic,
        value=Debezium("id int, name text", version="postgres"),
        sink=Upsert(f'public."{topic.name}"', key=("id",), version=columns),
    )
    topic.produce(
        b'{"before": null, "after": {"id": 1, "name": "a"}, "op": "c", '
        b'"source": {"lsn": 20, "sequence": "[\\"10\\",\\"20\\"]", "snapshot": "false"}}'
    )
    world.run(pipeline)
    place = f"{topic.name}:0:1"
    preview = f"{topic.name}[0]: the new epoch would begin at offset 1"
    return Asked(
        pipeline, ["new-epoch", "--from", place], f"{topic.name}[0] from offset 1 on as newer", preview
    )


CASES = [replay, rejects, withdraw, boundaries, merge, prune, rename, identity, compact, forward, new_epoch]


@pytest.fixture
def run(world, monkeypatch, capsys):
    """Run `exactbatch …` for a pipeline in this process; return its exit status, and what it has printed in one line.

    `answer` is typed on a terminal, which there is only then.
    """
    module = ModuleType("pipelines_of_questions")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("COLUMNS", "200")
    for name, value in world.settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("exactbatch.cli.processing.process_planned", lambda *_, **__: None)  # it starts Spark

    def run(pipeline: Pipeline, words: list[str], *options: str, answer: str = "") -> tuple[int, str]:
        module.p = pipeline  # type: ignore[attr-defined]
        # A process whose input is closed has none.
        monkeypatch.setattr(sys, "stdin", _Terminal(f"{answer}\n") if answer else None)
        with pytest.raises(SystemExit) as ended:
            app([words[0], f"{module.__name__}:p", *words[1:], *options])
        told = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(f"{told.out} {told.err}".split())

    return run


@pytest.mark.parametrize("prepare", CASES, ids=lambda each: each.__name__)
def test_nothing_that_cannot_be_undone_is_done_without_an_answer(
    world, make_topic, make_pipeline, prepare, run
):
    asked = prepare(world, make_topic, make_pipeline)
    before = everything(world)
    status, told = run(asked.pipeline, asked.words, "--dry-run")
    assert (status, asked.preview in told) == (0, True), told
    assert everything(world) == before
    status, told = run(asked.pipeline, asked.words)
    assert (status, "there is no terminal to ask on: " in told) == (WRONG_USAGE, True), told
    assert asked.question in told
    assert "Nothing was changed. Add --yes" in told
    assert everything(world) == before
    status, told = run(asked.pipeline, asked.words, answer="n")
    assert (status, asked.question in told) == (1, True), told
    assert everything(world) == before
    status, told = run(asked.pipeline, asked.words, "--yes")
    assert (status, asked.question in told) == (0, False), told
    assert everything(world) != before


def everything(world: BatchRunner) -> dict[str, list[Any]]:
    """Return all rows of the ledger and of all targets, as text, by table."""
    tables = world.rows(
        "select c.oid::regclass::text from pg_class c where relkind = 'r' and relnamespace in "
        "('exactbatch'::regnamespace, 'public'::regnamespace) order by 1"
    )
    return {table: world.rows(f"select t::text from {table} t order by 1") for (table,) in tables}


@pytest.mark.parametrize(
    "words",
    [["merge"], ["prune", "--all"], ["boundaries", "--forget", "2026-01-01", "2026-01-02"]],
    ids=" ".join,
)
def test_where_there_is_nothing_to_do_there_is_no_question(make_topic, make_pipeline, run, words):
    topic = make_topic()
    status, told = run(make_pipeline(topic, sink=by_batch(topic.name)), words)
    assert status == 0, told
