"""What docs/howto/move-over.md says: a pipeline takes over from another program, and no record is lost or doubled."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from psycopg2.extensions import parse_dsn

from exactbatch import Json, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.local import LocalStack
from exactbatch.local.java import fetch_jars
from support.batch_runner import BatchRunner
from support.environment import DOCS, TESTS
from support.logins import password_of
from support.replays import ranges
from support.topics import Topic, record

pytestmark = pytest.mark.slow

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]
PAGE = DOCS / "howto" / "move-over.md"
LINEAGE = (
    "add column kafka_topic text, add column kafka_partition int, add column kafka_offset bigint, "
    "add column kafka_timestamp timestamptz, add column batch_id bigint"
)


class OldConsumer:
    """A program as it is often written: it inserts, and commits its offset afterwards."""

    def __init__(self, world: BatchRunner, topic: Topic, table: str) -> None:
        self._world, self._topic, self._table, self.group = world, topic, table, f"{topic.name}-loader"

    def consume(self, records: int, *, killed: bool = False) -> None:
        """Load some records; if `killed`, the program ends between the insert and the commit."""
        consumer = Consumer(
            {
                **self._topic.properties,
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([self._topic.name])
        messages = []
        while len(messages) < records:
            messages += consumer.consume(records - len(messages), timeout=1)
        for message in messages:
            value = json.loads(message.value())
            self._world.execute(
                f"insert into {self._table} (id, name, part, pos) "
                f"values ({value['id']}, '{value['name']}', {message.partition()}, {message.offset()})"
            )
        if not killed:
            consumer.commit(asynchronous=False)
        consumer.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_consumer_group_is_taken_over_where_it_stands(world, make_topic, make_pipeline, killed):
    topic = make_topic(2)
    for partition in (0, 1):
        topic.produce(*map(record, range(10 * partition, 10 * partition + 10)), partition=partition)
    old = OldConsumer(world, topic, f'public."{topic.name}_old"')
    world.execute(f'create table public."{topic.name}_old" (id int, name text, part int, pos bigint)')
    old.consume(12)
    old.consume(3, killed=killed)
    pipeline = make_pipeline(topic, start=f"group:{old.group}")
    world.run(pipeline)
    both = f'select id from public."{topic.name}_old" union all select id from public."{topic.name}"'
    assert len(world.rows(both)) == (23 if killed else 20)
    # What the old program wrote and did not commit is at or after the offset where the pipeline began.
    world.execute(
        f'delete from public."{topic.name}_old" o using exactbatch.stored_offset s '
        f"where s.pipeline = '{pipeline.name}' and s.topic = '{topic.name}' "
        f"and s.partition = o.part and o.pos >= s.first_offset"
    )
    assert sorted(world.rows(both)) == [(number,) for number in range(20)]
    assert world.is_exact(pipeline)


def test_an_append_goes_on_in_the_old_table_whose_rows_are_not_its_own(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(*map(record, range(6)))
    table = f'public."{topic.name}"'
    world.execute(f"create table {table} (id int, name text)")
    world.execute(f"insert into {table} select id, 'x' from generate_series(0, 3) id")
    world.execute(f"alter table {table} {LINEAGE}")
    pipeline = make_pipeline(topic, start={topic.name: {0: 4}})
    world.run(pipeline)
    assert world.rows(f"select id, kafka_offset from {table} order by id") == [
        *((number, None) for number in range(4)),
        (4, 4),
        (5, 5),
    ]
    found = audit(pipeline, world.settings, values=True)
    assert (found.is_exact, found.target.not_ours) == (True, 4)


def keyed(number: int, name: str | None) -> Mapping[str, Any]:
    value = None if name is None else json.dumps({"id": number, "name": name}).encode()
    return {"value": value, "key": json.dumps({"id": number}).encode()}


@pytest.mark.parametrize("history", [True, False])
def test_an_upsert_goes_on_in_the_old_table_and_a_replay_accounts_for_the_old_rows(
    world, replays, make_topic, make_pipeline, history
):
    topic = make_topic()
    for each in (*(keyed(number, "old") for number in range(4)), keyed(1, "new"), keyed(2, None)):
        topic.produce(each["value"], key=each["key"])
    table = f'public."{topic.name}"'
    world.execute(f"create table {table} (id int primary key, name text)")
    world.execute(f"insert into {table} select id, 'old' from generate_series(0, 3) id")
    if not history:
        world.execute(f"alter table {table} {LINEAGE}")
    pipeline = make_pipeline(
        topic,
        sink=Upsert(table, key=("id",), history=history),
        message_key=Json("id int"),
        start={topic.name: {0: 4}},
    )
    world.run(pipeline)
    expected = [(0, "old"), (1, "new"), (3, "old")]
    assert world.rows(f"select id, name from {table} order by id") == expected
    found = audit(pipeline, world.settings)
    assert (found.is_exact, found.target.stale, found.target.not_ours) == (
        not history,
        *((2, 0) if history else (0, 2)),
    )
    replays.run(pipeline, ranges((0, 4), topic=topic))
    assert world.rows(f"select id, name from {table} order by id") == expected
    found = audit(pipeline, world.settings, values=True)
    assert (found.is_exact, found.target.not_ours) == (True, 0)


def streamed(stack: LocalStack, world: BatchRunner, topic: Topic, checkpoint: Path, *fails: str) -> int:
    """Run the streaming job until it has processed what is new; return its exit status."""
    jars = fetch_jars("spark-kafka", stack.jars_dir)
    server = parse_dsn(world.settings.postgres)
    url = f"jdbc:postgresql://{server['host']}:{server['port']}/{server['dbname']}?user={server['user']}"
    url += f"&password={password_of(world.settings.postgres)}"
    arguments = [
        json.dumps(stack.kafka_properties),
        topic.name,
        url,
        f"{topic.name}_old",
        str(checkpoint),
        *fails,
    ]
    submit = f"--jars {','.join(map(str, sorted(jars.glob('*.jar'))))} pyspark-shell"
    done = subprocess.run(
        [sys.executable, "-m", "support.streaming_job", *arguments],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": submit, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode == 0) == (not fails), done.stderr
    return done.returncode


def start_of(checkpoint: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the page that reads a checkpoint."""
    [program] = re.findall(r"^```python\n(# checkpoint_start\.py\n.*?)^```", PAGE.read_text(), re.M | re.S)
    return subprocess.run(
        [sys.executable, "-c", program, str(checkpoint), *options], capture_output=True, text=True
    )


def test_a_streaming_query_is_taken_over_at_the_offsets_of_its_checkpoint(
    stack, world, make_topic, make_pipeline, tmp_path
):
    topic = make_topic(2)
    old = f'public."{topic.name}_old"'
    world.execute(f'create table {old} (id int, name text, "partition" int, "offset" bigint)')
    for partition in (0, 1):
        topic.produce(*map(record, range(10 * partition, 10 * partition + 10)), partition=partition)
    streamed(stack, world, topic, tmp_path)
    finished = start_of(tmp_path)
    assert ast.literal_eval(finished.stdout) == {topic.name: {0: 10, 1: 10}}, finished.stderr
    topic.produce(*map(record, range(20, 25)))
    streamed(stack, world, topic, tmp_path, "fails")
    assert world.rows(f"select count(*) from {old}") == [(25,)]
    unfinished = start_of(tmp_path)
    assert (unfinished.returncode, unfinished.stdout) == (1, "")
    assert "batch 1 was begun and not finished" in unfinished.stderr

    # As the page says: begin at the last batch that is finished, and delete what the unfinished one has written.
    start = ast.literal_eval(start_of(tmp_path, "--finished").stdout)
    assert start == {topic.name: {0: 10, 1: 10}}
    pipeline = make_pipeline(topic, start=start)
    world.run(pipeline)
    world.execute(
        f"delete from {old} o using exactbatch.stored_offset s "
        f"where s.pipeline = '{pipeline.name}' and s.topic = '{topic.name}' "
        f'and s.partition = o."partition" and o."offset" >= s.first_offset'
    )
    both = f'select id from {old} union all select id from public."{topic.name}" order by 1'
    assert world.rows(both) == [(number,) for number in range(25)]
    assert world.is_exact(pipeline)
