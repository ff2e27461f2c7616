"""A column may have any name, also one that the program's own statements use for something else."""

import ast
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from psycopg2 import sql

from exactbatch import Aggregate, Append, Debezium, Json, Max, Pipeline, ToTopic, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.connection import transaction
from support.environment import JOBS
from support.replays import Replays, ranges
from support.staged_batches import ID, Batches, differences_that_the_audit_finds
from support.writers import writer_of

# What the program adds to rows.
OWN: Final = {
    *("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp"),
    *("batch_id", "deleted", "task_attempt"),
    *("final", "records", "revisions"),  # of an Aggregate
    *("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"),
}


def words(folder: str) -> list[str]:
    """All words of the statements that the program composes in a folder, and of names in them."""
    found: set[str] = set()
    for file in Path(JOBS, folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("SQL", "Identifier")
            ):
                texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                found.update(re.findall(r"[a-z_][a-z_0-9]*", " ".join(map(str, texts))))
    return sorted(found - OWN)


WORDS: Final = words("exactbatch")
SCHEMA: Final = ", ".join(f'"{word}" int' for word in WORDS)


def record(number: int) -> dict[str, int]:
    return {word: 10_000 * number + place for place, word in enumerate(WORDS)}


def stored(world: Any, table: str) -> list[dict[str, Any]]:
    rows = world.rows(f'select to_jsonb("exactbatch row") from {table} "exactbatch row"')
    return sorted(({word: row[word] for word in WORDS} for (row,) in rows), key=lambda row: row["a"])


def expected(*numbers: int) -> list[dict[str, int]]:
    return [record(number) for number in numbers]


def load(topic: Any, *numbers: int) -> None:
    for number in numbers:
        topic.produce(json.dumps(record(number)).encode())


# A statement that raises for the first record, so that the rows are tried one by one.
RAISES: Final = '100 / "a" > -1'


@pytest.mark.parametrize("commit", ["batch", "partition"])
def test_append(world, make_topic, make_pipeline, commit):
    topic, forward = make_topic(), ToTopic(make_topic().name, keyed_by=("r", "a"))
    load(topic, 0, 1, 2)
    pipeline = make_pipeline(
        topic,
        value=Json(SCHEMA),
        sink=Append("public.words"),
        commit=commit,
        max_rejects=1,
        **({} if commit == "partition" else {"checks": (RAISES,), "forward": forward}),
    )
    assert world.run(pipeline).batch.rejected == (commit == "batch")
    rows = expected(1, 2) if commit == "batch" else expected(0, 1, 2)
    assert stored(world, "public.words") == rows
    if commit == "batch":
        sent = world.rows("select key, value from exactbatch.outbox order by sequence")
        assert [json.loads(bytes(value)) for _, value in sent] == expected(1, 2)
        assert [json.loads(bytes(key)) for key, _ in sent] == [
            {name: each[name] for name in ("r", "a")} for each in expected(1, 2)
        ]
    assert Replays(world).run(pipeline, ranges((0, 3), topic=topic)).batch.rows == len(rows)
    assert stored(world, "public.words") == rows
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.parametrize("history", [True, False])
def test_upsert(world, make_topic, make_pipeline, history):
    topic = make_topic()
    load(topic, 1, 2, 2)
    pipeline = make_pipeline(
        topic,
        value=Json(SCHEMA),
        checks=(RAISES,),
        sink=Upsert("public.words", key=("a",), version=("is_fold", "epoch"), history=history),
        max_rejects=1,
    )
    world.run(pipeline)
    load(topic, 2, 0)
    assert world.run(pipeline).batch.rejected == 1
    assert stored(world, "public.words") == expected(1, 2)
    if history:
        Replays(world).run(pipeline, ranges((0, 5), topic=topic))
    assert stored(world, "public.words") == expected(1, 2)
    assert audit(pipeline, world.settings, values=True).is_exact


def test_aggregate(world, make_topic, make_pipeline):
    topic = make_topic()
    load(topic, 1, 2, 2)
    pipeline = make_pipeline(
        topic,
        value=Json(SCHEMA),
        sink=Aggregate(
            "public.words", group_by=WORDS[:30], aggregates={word: Max(word) for word in WORDS[30:]}
        ),
    )
    world.run(pipeline)
    Replays(world).run(pipeline, ranges((0, 3), topic=topic))
    assert stored(world, "public.words") == expected(1, 2)
    assert audit(pipeline, world.settings, values=True).is_exact


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["history", "latest only", "truncates"])
def test_keys_and_versions_of_an_upsert_from_which_values_are_left_out(connection, kind):
    all_names = words("exactbatch/sinks/upsert")
    for start in range(0, len(all_names), 28):
        names = all_names[start : start + 28]
        key, version = tuple(names[:-4] if kind != "truncates" else names), tuple(names[-4:])
        value = Debezium(", ".join(f'"{name}" int' for name in names) + ", body_of_row text")
        if kind == "truncates":
            version, value = ("commit_lsn", "lsn"), replace(value, version="postgres", truncate="apply")
        sink = Upsert(f"public.t{start}", key=key, version=version, history=kind != "latest only")
        made = Batches(connection, Pipeline(name=f"p{start}", topics=("t",), value=value, sink=sink))
        row, unavailable = partial(change, made), "late" if kind == "latest only" else None
        made.run(row(1, 10, "one"), row(2, 10, "two"), row(3, 10, "three"))
        made.run(row(1, 30, unavailable), row(2, 40, None, deleted=True))
        made.run(row(1, 20, "late"), row(2, 50, "new"), row(4, 60, "four"), partition=1)
        expected = [(1, "late"), (2, "new"), (3, "three"), (4, "four")]
        if kind == "truncates":
            made.run(row(None, 15, None, deleted=True))
            del expected[2]
        if kind != "latest only":
            made.replay((0, 0, 3))
            made.replay()
            assert differences_that_the_audit_finds(made) == 0
            with transaction(connection) as cursor:
                batches = range(1, 100_000)
                writer_of(sink).compactor.compact(cursor, [(OffsetRange("t", 0, 0, 5, ID), batches)])
        with transaction(connection) as cursor:
            cursor.execute(
                sql.SQL("select {} as number, body_of_row from {} order by 1").format(
                    sql.Identifier(key[0]), sql.Identifier("public", f"t{start}")
                )
            )
            assert [tuple(each) for each in cursor.fetchall()] == expected


def change(
    made: Batches, number: int | None, at: int, body: str | None, *, deleted: bool = False
) -> tuple[Any, ...]:
    """A change of a row with this number in each part of its key; without a body, it is left out."""
    sink, traits = made.pipeline.sink, made.pipeline.traits
    named = dict.fromkeys(sink.key, number) | dict.fromkeys(sink.version, at) | {"body_of_row": body}
    unavailable = (
        [["body_of_row"] if body is None and not deleted else None] if traits.keeps_unavailable else []
    )
    return *(named[column.name] for column in made.columns), deleted, *unavailable
