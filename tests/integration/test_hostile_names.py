"""Names and values that would be SQL, or a format, if they ever became a part of a statement's text."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from psycopg2 import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from exactbatch import Aggregate, Append, Count, Json, Max, Sum, Upsert, Window
from exactbatch.audit.run_audit import audit
from exactbatch.errors import ConfigurationError, ExactbatchError, ReplayRefused, TargetMismatch
from exactbatch.ledger import Ledger
from exactbatch.operations.report import load_report
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, parse_range, parse_request
from exactbatch.postgres.connection import transaction
from support.batch_runner import BatchRunner
from support.topics import Topic

# Columns; a double quote cannot be in the schema of a format, but in what a transform gives.
ID: Final = "i'd); drop table public.canary; --%s %(x)s {} {0}"
NAME: Final = "n\\'a`me, (é🦆); drop table public.canary; --%s {id}"
AT: Final = "at.at' or 1=1; drop table public.canary; --%% {x}"
QUOTED: Final = "q\"; drop table public.canary; --%s {} `x` 'y' ü"
# A table for each kind, in a schema that the pipeline creates.
SCHEMA: Final = 's"; drop table public.canary; --%s {}'
VALUE: Final = Json(f'"{ID}" int, "{NAME}" text, "{AT}" timestamptz')
TEXTS: Final = (
    "'; drop table public.canary; --",
    'x"); drop table public.canary; --',
    "%s %(name)s %% {} {0} {name} $1 :name ${HOME} $(id) `id`",
    "\\'; drop table public.canary; -- \\\\ \\. \t \r \n é 🦆 \u2028",
    "$$; drop table public.canary; $$ E'\\x27'",
    "{{ ti.xcom_pull() }} {% raw %}",
)
BAD: Final = b"'; drop table public.canary; --%s {} \x00\xff\n\\."
MOMENT: Final = "2026-01-05T10:30:00Z"


def with_quoted(records: DataFrame) -> DataFrame:
    """A column more, with a double quote in its name."""
    name = F.col(f"`{NAME.replace('`', '``')}`")
    return records.withColumn(QUOTED, F.concat(name, F.lit("'; drop table public.canary; --%s {}")))


def from_sql() -> str:
    """The columns as they are, each by its name."""
    names = ", ".join(f"`{name.replace('`', '``')}`" for name in (ID, NAME, AT))
    return (
        f"select {names}, 'it''s; --%s' as `{QUOTED.replace('`', '``')}`, kafka_topic, kafka_partition, "
        f"kafka_offset, kafka_timestamp from records"
    )


@dataclass(frozen=True)
class Kind:
    """A sink, what of its target is compared, and what that is for the texts."""

    sink: Callable[[str], Any]
    columns: tuple[str, ...]
    expected: list[tuple[Any, ...]]
    beside: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)


RECORDS: Final = list(enumerate(TEXTS))
BY: Final = (NAME, Window(AT, "1 hour", QUOTED))
KINDS: Final = {
    "append": Kind(Append, (ID, NAME), RECORDS),
    "upsert": Kind(
        lambda target: Upsert(target, key=(ID,)),
        (ID, NAME),
        RECORDS,
        ("_change",),
        {"message_key": Json(f'"{ID}" int')},
    ),
    "upsert by text": Kind(lambda target: Upsert(target, key=(NAME,)), (ID, NAME), RECORDS, ("_change",)),
    "aggregate": Kind(
        lambda target: Aggregate(target, group_by=BY, aggregates={ID: Count(), AT: Sum(ID), "m%s'": Max(ID)}),
        (NAME, ID, AT, "m%s'"),
        [(text, 1, number, number) for number, text in RECORDS],
        ("_partial", "_watermark"),
    ),
    "partition": Kind(Append, (ID, NAME), RECORDS, changes={"commit": "partition"}),
    "transform": Kind(
        Append,
        (ID, QUOTED),
        [(number, f"{text}'; drop table public.canary; --%s {{}}") for number, text in RECORDS],
        changes={"transform": with_quoted},
    ),
    "sql": Kind(
        lambda target: Upsert(target, key=(ID,)),
        (ID, NAME, QUOTED),
        [(number, text, "it's; --%s") for number, text in RECORDS],
        ("_change",),
        {"transform": from_sql().replace("kafka_timestamp from", "kafka_timestamp, deleted from")},
    ),
}


def load(topic: Topic, key: Callable[[int], bytes]) -> None:
    """The texts, as records with hostile keys, headers and values, and one record that is none."""
    for number, text in RECORDS:
        value = json.dumps({ID: number, NAME: text, AT: MOMENT}).encode()
        topic.produce(value, key=key(number), headers=[(text, text.encode())])
    topic.produce(BAD, key=BAD, headers=[(TEXTS[0], BAD)])


def table(name: str) -> str:
    """A name as a pipeline writes it."""
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in (SCHEMA, name))


def tables(world: BatchRunner) -> set[tuple[str, str]]:
    """All tables beside those of the ledger."""
    return set(
        world.rows(
            "select schemaname, tablename from pg_tables where schemaname not like 'pg\\_%' "
            "and schemaname not in ('information_schema', 'exactbatch')"
        )
    )


def selected(world: BatchRunner, name: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    names = sql.SQL(", ").join(
        sql.SQL("{} as {}").format(sql.Identifier(column), sql.Identifier(f"c{i}"))
        for i, column in enumerate(columns)
    )
    with transaction(world.connection) as cursor:
        cursor.execute(sql.SQL("select {} from {}").format(names, sql.Identifier(SCHEMA, name)))
        return sorted(tuple(row) for row in cursor.fetchall())


@pytest.fixture
def topic(make_topic):
    """A topic with the most hostile name that Kafka permits."""
    return make_topic(name=f"--drop.table_public.canary--{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_and_values_are_names_and_values(world, topic, make_pipeline, kind):
    it = KINDS[kind]
    load(topic, lambda number: json.dumps({ID: number}).encode() if "key" in it.changes else BAD)
    world.execute("create table public.canary (id int)")
    name = f"t\"'; drop table public.canary; --%s {{}} {kind}"
    pipeline = make_pipeline(
        topic,
        name=f"-.{topic.name}",
        value=VALUE,
        sink=it.sink(table(name)),
        max_rejects=1,
        **it.changes,
    )
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rejected) == (len(TEXTS) + 1, 1)
    assert selected(world, name, it.columns) == sorted(it.expected)

    asked = parse_request(
        {"ranges": [{"topic": topic.name, "partition": 0, "from_offset": 1, "until_offset": len(TEXTS) + 1}]}
    )
    assert asked is not None
    batch_id = freeze_replay(world.connection, world.log, pipeline, asked, origin="cli").batch_id
    assert batch_id is not None
    assert world.process(pipeline, batch_id).batch.rejected == 1
    assert selected(world, name, it.columns) == sorted(it.expected)

    assert audit(pipeline, world.settings).is_exact
    with transaction(world.connection):
        (reject,) = Ledger(world.connection).rejects.read(pipeline, limit=None)
    assert reject.offset == len(TEXTS)
    assert world.rows("select key = %s and value = %s from exactbatch.rejected_record", BAD, BAD) == [(True,)]
    load_report(world.settings.postgres, world.log, pipeline, batch_id).as_json()
    load_status(world.connection, world.log, pipeline).as_json()
    made = {(SCHEMA, f"{name}{suffix}") for suffix in ("", *it.beside)}
    assert tables(world) == made | {("public", "canary")}


def test_target_that_exists_is_altered_cast_into_and_refused_by_its_own_names(world, topic, make_pipeline):
    """evolve, casts of text, a check constraint and a unique one."""
    load(topic, lambda number: BAD)
    world.execute("create table public.canary (id int)")
    name = "existing\"; --%s {}'"
    identifier = sql.Identifier(SCHEMA, name)

    def execute(statement: str, **parts: sql.Composable) -> None:
        with transaction(world.connection) as cursor:
            cursor.execute(sql.SQL(statement).format(table=identifier, **parts))

    execute("create schema {schema}", schema=sql.Identifier(SCHEMA))
    execute(
        "create table {table} ({id} smallint, {name} varchar(45), kafka_topic text, kafka_partition int, "
        "kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint)",
        id=sql.Identifier(ID),
        name=sql.Identifier(NAME),
    )
    pipeline = make_pipeline(
        topic, name=f"-.{topic.name}", value=VALUE, sink=Append(table(name)), max_rejects=10, evolve="add"
    )
    long = [number for number, text in RECORDS if len(text) > 45]
    batch = world.run(pipeline).batch
    assert batch.rejected == 1 + len(long)
    assert long
    assert [row[0] for row in selected(world, name, (ID,))] == [n for n, _ in RECORDS if n not in long]
    reasons = world.rows('select reason from exactbatch.rejected_record order by "offset"')
    assert any(repr(NAME) in reason for (reason,) in reasons)
    assert selected(world, name, (AT,))[0][0].isoformat() == "2026-01-05T10:30:00+00:00"

    constraints = {
        "check ({id} < 0) not valid": sql.Identifier("c\"'; drop table public.canary; --%s {}"),
        "unique ({name})": sql.Identifier("u\"'; drop table public.canary; --%s {}"),
    }
    for definition, constraint in constraints.items():
        names = {"id": sql.Identifier(ID), "name": sql.Identifier(NAME), "constraint": constraint}
        execute(f"alter table {{table}} add constraint {{constraint}} {definition}", **names)
        topic.produce(json.dumps({ID: 7, NAME: TEXTS[0], AT: MOMENT}).encode())
        message = world.refused(TargetMismatch, replace(pipeline, max_rejects=0))
        assert "drop table public.canary" in message
        execute("alter table {table} drop constraint {constraint}", constraint=constraint)
    assert ("public", "canary") in tables(world)


HOSTILE: Final = "1'; drop table public.canary; --%s {}"


@pytest.mark.parametrize(
    "parameters",
    [
        {"ranges": [{"topic": HOSTILE, "partition": 0, "from_offset": 0, "until_offset": 1}]},
        {"ranges": [{"topic": "{topic}", "partition": HOSTILE, "from_offset": 0, "until_offset": 1}]},
        {"ranges": [{"topic": "{topic}", "partition": 0, "from_offset": HOSTILE, "until_offset": 1}]},
        {"ranges": [{"topic": "{topic}", "partition": 0, "from_offset": 0, HOSTILE: 1}]},
        {"ranges": HOSTILE},
        {"start": HOSTILE, "end": "2026-01-01T00:00:00Z"},
        {"start": "2026-01-01T00:00:00Z", "end": HOSTILE},
        {"batch_ids": [HOSTILE]},
        {"batch_ids": HOSTILE},
        {"available_only": HOSTILE},
        {HOSTILE: HOSTILE},
    ],
)
def test_hostile_parameters_of_a_run_are_refused(world, topic, make_pipeline, parameters):
    world.execute("create table public.canary (id int)")
    topic.produce(b"{}")
    pipeline = make_pipeline(topic)
    given = json.loads(json.dumps(parameters).replace("{topic}", topic.name))
    with pytest.raises(ExactbatchError) as refused:
        plan(world, pipeline, parse_request(given))
    assert isinstance(refused.value, ConfigurationError | ReplayRefused), refused
    assert ("public", "canary") in tables(world)


def test_hostile_range_of_command_line_is_no_part_of_log(world, topic, make_pipeline):
    world.execute("create table public.canary (id int)")
    topic.produce(b"{}")
    pipeline = make_pipeline(topic)
    world.run(pipeline)
    with pytest.raises(ReplayRefused, match="drop table"):
        plan(world, pipeline, ReplayRequest(ranges=(parse_range(f"{HOSTILE}:0:0-1"),)))
    assert ("public", "canary") in tables(world)


def plan(world: BatchRunner, pipeline: Any, request: ReplayRequest | None) -> None:
    assert request is not None
    freeze_replay(world.connection, world.log, pipeline, request, origin="manual")
