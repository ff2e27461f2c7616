"""What docs/howto/change-schema.md says: columns change, and every record has the right row afterwards."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from exactbatch import Append, Json, Pipeline, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.errors import IdentityChanged, TargetMismatch, TooManyRejects
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import transaction
from support.batch_runner import BatchRunner
from support.replays import Replays, ranges
from support.topics import Topic

pytestmark = pytest.mark.slow

MakeTopic = Callable[..., Topic]
MakePipeline = Callable[..., Pipeline]
# For each sink, the tables that a statement has to change.
SINKS = {
    "append": (lambda table: Append(table), ("",)),
    "upsert": (lambda table: Upsert(table, key=("id",)), ("", "_change")),
    "latest": (lambda table: Upsert(table, key=("id",), history=False), ("", "_deleted")),
}
BEGUN = "id int, name text, big int"


@dataclass
class Changing:
    """A pipeline that changes, and its topic, whose record n has n in all of its members."""

    world: BatchRunner
    replays: Replays
    topic: Topic
    pipeline: Pipeline
    tables: Sequence[str]
    sent: int = 0

    def send(self, records: int = 1, **members: Any) -> None:
        for number in range(self.sent, self.sent + records):
            value = {"id": number, "name": f"n{number}", "big": number, "size": number, **members}
            self.topic.produce(json.dumps(value).encode())
        self.sent += records

    def run(self, columns: str | None = None, **changes: Any) -> None:
        """Change the pipeline, and process what is new."""
        self.pipeline = self.changed(columns, **changes)
        self.world.run(self.pipeline)

    def changed(self, columns: str | None = None, **changes: Any) -> Pipeline:
        return replace(self.pipeline, **({"value": Json(columns)} if columns else {}), **changes)

    def refused(self, expected: type[Exception], pipeline: Pipeline) -> str:
        with pytest.raises(expected) as caught:
            self.world.run(pipeline)
        return str(caught.value)

    def replay(self, from_offset: int, until_offset: int) -> None:
        self.replays.run(self.pipeline, ranges((from_offset, until_offset), topic=self.topic))

    def alter(self, change: str) -> None:
        """Change all tables in one transaction, as the page says."""
        self.world.execute("; ".join(f"alter table {table} {change}" for table in self.tables))

    def column(self, name: str) -> list[Any]:
        return [row[0] for row in self.world.rows(f"select {name} from {self.tables[0]} order by id")]

    def findings(self) -> dict[str, int]:
        return {
            kind: n
            for kind, n in audit(self.pipeline, self.world.settings, values=True).findings.items()
            if n
        }


@pytest.fixture(params=[*SINKS])
def changing(request, world, replays, make_topic, make_pipeline):
    make_sink, suffixes = SINKS[request.param]
    topic = make_topic()
    tables = [f'public."{topic.name}{suffix}"' for suffix in suffixes]
    pipeline = make_pipeline(topic, value=Json(BEGUN), sink=make_sink(tables[0]))
    changing = Changing(world, replays, topic, pipeline, tables[: 1 if request.param == "latest" else 2])
    changing.send(3)
    changing.run()
    return changing


def test_a_column_is_added_and_a_replay_fills_it(changing):
    changing.send()
    changing.run(f"{BEGUN}, size int", evolve="add")
    assert changing.column("size") == [None, None, None, 3]
    assert sum(changing.findings().values()) >= 3  # old rows lack what their records have
    changing.replay(0, 3)
    assert changing.column("size") == [0, 1, 2, 3]
    assert changing.findings() == {}


def test_a_type_is_widened_first_in_the_table_and_then_in_the_pipeline(changing):
    changing.send(big=2**40)
    wider = changing.changed("id int, name text, big bigint")
    assert "out of range for type integer" in changing.refused(TooManyRejects, wider)
    changing.alter("alter column big type bigint")
    changing.replay(0, 2)  # by the program that knows only the narrow type
    changing.run("id int, name text, big bigint")
    assert changing.column("big") == [0, 1, 2, 2**40]
    assert changing.findings() == {}


def test_a_column_is_renamed_while_the_pipeline_is_paused(changing):
    changing.alter("rename column big to amount")
    changing.send()
    assert "expected a column big of type integer, found none" in changing.refused(
        TargetMismatch, changing.pipeline
    )
    changing.run("id int, name text, amount int from 'big'")
    assert changing.column("amount") == [0, 1, 2, 3]
    assert changing.findings() == {}


def test_an_old_program_that_may_add_columns_adds_the_old_name_again_and_a_replay_mends_it(changing):
    changing.alter("rename column big to amount")
    changing.send()
    changing.run(evolve="add")
    assert changing.column("amount") == [0, 1, 2, None]
    changing.alter("drop column big")
    changing.send()
    changing.run("id int, name text, amount int from 'big'", evolve="refuse")
    assert sum(changing.findings().values()) == 1
    changing.replay(3, 4)
    assert changing.column("amount") == [0, 1, 2, 3, 4]
    assert changing.findings() == {}


def test_a_column_is_dropped_first_from_the_pipeline(changing):
    changing.send()
    changing.run("id int, big int")
    assert changing.column("name") == ["n0", "n1", "n2", None]
    changing.replay(0, 1)
    # A replay writes the rows of an Append again, and only changes those of an Upsert.
    assert changing.column("name")[0] == (None if isinstance(changing.pipeline.sink, Append) else "n0")
    changing.alter("drop column name")
    changing.send()
    changing.run()
    assert changing.column("big") == [0, 1, 2, 3, 4]
    assert changing.findings() == {}


def test_a_null_that_the_target_refuses_is_a_reject(changing):
    changing.world.execute(f"alter table {changing.tables[0]} alter column big set not null")
    changing.send(big=None)
    message = changing.refused(TargetMismatch, changing.pipeline)
    assert f"{changing.topic.name}[0] offset 3" in message
    changing.run(max_rejects=1)
    assert changing.column("big") == [0, 1, 2]
    assert changing.findings() == {}


def test_the_tables_move_to_another_name(changing):
    moved = f'public."moved_{changing.topic.name}"'
    changing.send()
    for table in changing.world.rows(
        "select relname from pg_class where relkind = 'r' and starts_with(relname, %s)", changing.topic.name
    ):
        changing.world.execute(f'alter table public."{table[0]}" rename to "moved_{table[0]}"')
    pipeline = changing.changed(sink=replace(changing.pipeline.sink, target=moved))
    with pytest.raises(IdentityChanged, match="expected target"):
        changing.world.plan(pipeline)
    with transaction(changing.world.connection):
        Ledger(changing.world.connection).registry.register(pipeline, accept_identity=True)
    changing.tables = [moved]
    changing.run(sink=pipeline.sink)
    changing.replay(0, 2)
    assert changing.column("big") == [0, 1, 2, 3]
    assert changing.findings() == {}


def test_another_key_needs_another_pipeline_which_loads_the_log_again(
    world, replays, make_topic, make_pipeline
):
    topic = make_topic()
    pipeline = make_pipeline(topic, value=Json(BEGUN), sink=Upsert(f'public."{topic.name}"', key=("id",)))
    changing = Changing(world, replays, topic, pipeline, [f'public."{topic.name}"'])
    changing.send(3, name="same")
    changing.run()
    other = Upsert(f'public."{topic.name}"', key=("name",))
    with pytest.raises(IdentityChanged, match="expected key"):
        world.plan(changing.changed(sink=other))
    changing.tables = [f'public."{topic.name}_by_name"']
    by_name = Upsert(changing.tables[0], key=("name",))
    changing.pipeline = make_pipeline(topic, name=f"{topic.name}_2", value=Json(BEGUN), sink=by_name)
    changing.run()
    assert changing.column("id") == [2]
    assert changing.findings() == {}
