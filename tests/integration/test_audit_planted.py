"""What a database, a role or a target can do to committed results, and what the audit says of it.

Each state is one that a batch could once commit without an error. It is planted in a copy of a database with the
sound results of a real batch, and looked for by an audit of values.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Sum, Upsert, Window
from exactbatch.audit.run_audit import audit
from exactbatch.settings import Settings
from exactbatch.sinks.capabilities import KeepsEventTimes
from exactbatch.sinks.writers import find_writer

VALUE: Final = Json(
    "id int, name text, word public.citext, amount numeric, price text, span interval, clock timetz, "
    "at timestamptz, day text"
)
COLUMNS: Final = "id, name, word, amount, price, span, clock, at, day"
LINEAGE: Final = "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, batch_id"
_AT: Final = '"at": "2026-01-01T10:00:00Z", "clock": "10:00:00+00:00"'
OLD: Final = f'{{"id": 1, "name": "old", "word": "bob", "amount": 1.0, "span": "30 days", {_AT}}}'
NEW: Final = (
    f'{{"id": 1, "name": "Müller", "word": "Bob", "amount": 1.00, "price": "1.239", "span": "1 mon", '
    f'"day": "01/02/2026", {_AT}}}'
)
SECOND: Final = f'{{"id": 2, "name": "Łódź", "word": "x", "amount": 2, "span": "-1 day +02:03:04", {_AT}}}'
THIRD: Final = f'{{"id": 3, "name": "abc", "word": "y", "amount": 7, {_AT}}}'
# A batch and its ranges once more, as another one of this pipeline or of a new one.
ANOTHER_BATCH: Final = (
    "insert into exactbatch.batch (batch_id, pipeline, kind, origin, status, records, rows, rejected, tombstones, "
    "dropped, committed_at) overriding system value "
    "select 900, {pipeline}, 'advance', 'cli', status, records, rows, rejected, tombstones, dropped, committed_at "
    "from exactbatch.batch; "
)
ITS_RANGES: Final = (
    "insert into exactbatch.batch_range (batch_id, topic, partition, from_offset, until_offset, topic_id, "
    "records) select 900, topic, partition, from_offset, until_offset, topic_id, records "
    "from exactbatch.batch_range; "
)
ANOTHER_PIPELINE: Final = (
    "insert into exactbatch.pipeline (name, target, sink, lineage) values ('o', 'o', 'append', 'record'); "
)


@dataclass(frozen=True)
class Planted:
    """What stands in the tables, how it gets there, and what an audit finds: how many of which kind.

    In the statement {t} is the target, {c} the table of its changes or partial results, {w} that of event times.
    """

    what: str
    statement: str
    found: Mapping[str, int]


def changed(number: int) -> dict[str, int]:
    return {"changed": number}


def stale(number: int) -> dict[str, int]:
    return {"stale": number}


def once_more(
    topic: str = "kafka_topic", partition: str = "kafka_partition", offset: str = "kafka_offset"
) -> str:
    """The first row again, with another lineage."""
    return (
        f"insert into {{c}} ({COLUMNS}, {LINEAGE}) select {COLUMNS}, {topic}, {partition}, {offset}, "
        f"kafka_timestamp, batch_id from {{c}} where kafka_offset = 0"
    )


APPENDED: Final = (
    Planted(
        "text decoded with the wrong encoding: `MÃ¼ller` instead of `Müller`",
        "update {c} set name = convert_from(convert_to(name, 'UTF8'), 'LATIN1')",
        changed(2),
    ),
    Planted("a citext in another case", "update {c} set word = upper(word::text)", changed(3)),
    Planted("30 days instead of a month", "update {c} set span = '30 days' where id = 1", changed(1)),
    Planted(
        "an interval read with another IntervalStyle",
        "update {c} set span = '-1 day -02:03:04' where id = 2",
        changed(1),
    ),
    Planted(
        "times read in another time zone",
        "update {c} set at = at + interval '5 h', clock = clock - interval '5 h' where id = 3",
        changed(1),
    ),
    Planted(
        "a date read with another DateStyle",
        "alter table {c} alter day type date using case when day is null then null else date '2026-02-01' end",
        changed(1),
    ),
    Planted(
        "a number with another scale: 1.0 instead of 1.00",
        "update {c} set amount = 1.0 where id = 1",
        changed(1),
    ),
    Planted(
        "text truncated by a column type that was altered between check and publish",
        "alter table {c} alter name type varchar(3) using left(name, 3)",
        changed(2),
    ),
    Planted(
        "a number rounded by a column type",
        "alter table {c} alter price type numeric(10,2) using price::numeric",
        changed(1),
    ),
    Planted(
        "all rows twice, because a replay's delete was swallowed",
        ANOTHER_BATCH.replace("{pipeline}", "pipeline")
        + ITS_RANGES
        + f"insert into {{c}} ({COLUMNS}, {LINEAGE}) select {COLUMNS}, kafka_topic, kafka_partition, "
        f"kafka_offset, kafka_timestamp, 900 from {{c}}",
        {"duplicated": 3, "unexpected": 3, "miscounted": 1},
    ),
    Planted(
        "an unlogged target that a crash has emptied",
        "truncate {c}; alter table {c} set unlogged",
        {"missing": 3, "miscounted": 1, "unsafe": 1},
    ),
    Planted(
        "a row twice, because a foreign partition's server committed by itself",
        once_more(),
        {"duplicated": 1, "miscounted": 1},
    ),
    Planted(
        "a row for a record that is a reject",
        "delete from exactbatch.rejected_record; " + once_more(offset="3"),
        {"changed": 1, "miscounted": 2},
    ),
    Planted(
        "a second copy of a row under another topic",
        once_more(topic="'other'"),
        {"misplaced": 1, "miscounted": 1},
    ),
    Planted(
        "a second copy of a row in a nonexistent partition",
        once_more(partition="7"),
        {"misplaced": 1, "miscounted": 1},
    ),
    Planted(
        "a second copy of a row at a negative offset",
        once_more(offset="-1"),
        {"misplaced": 1, "miscounted": 1},
    ),
    Planted(
        "a second copy of a row with the batch of a pipeline that has another target",
        ANOTHER_PIPELINE
        + ANOTHER_BATCH.replace("{pipeline}", "'o'")
        + once_more().replace("batch_id from", "900 from"),
        {"duplicated": 1, "unexpected": 1},
    ),
)
UPSERTED: Final = (
    Planted(
        "the old citext instead of the new one",
        "update {t} set word = 'bob' where id = 1",
        stale(1),
    ),
    Planted("the old 30 days instead of a month", "update {t} set span = '30 days' where id = 1", stale(1)),
    Planted("the old 1.0 instead of 1.00", "update {t} set amount = 1.0 where id = 1", stale(1)),
    Planted(
        "an older version in place of a newer one",
        f"update {{t}} t set ({COLUMNS}) = (select {COLUMNS} from {{c}} c where c.name = 'old') where id = 1",
        stale(1),
    ),
    Planted("a row missing, because a trigger swallowed it", "delete from {t} where id = 2", stale(1)),
    Planted(
        "a row left over, because its delete was swallowed",
        f"insert into {{t}} ({COLUMNS}) select {COLUMNS} from {{c}} where id = 3 and not deleted",
        stale(1),
    ),
    Planted(
        "text truncated by the target's type",
        "alter table {t} alter name type varchar(3) using left(name, 3)",
        changed(2) | stale(2),
    ),
    Planted(
        "all changes twice, because a replay's delete was swallowed",
        ANOTHER_BATCH.replace("{pipeline}", "pipeline")
        + ITS_RANGES
        + f"insert into {{c}} ({COLUMNS}, deleted, {LINEAGE}) select {COLUMNS}, deleted, kafka_topic, "
        f"kafka_partition, kafka_offset, kafka_timestamp, 900 from {{c}}",
        {"duplicated": 5, "unexpected": 5, "miscounted": 1},
    ),
)
BY_NAME: Final = (
    Planted(
        "one row for two keys that the target's type considers equal",
        "delete from {t} where id = 1; update {t} set name = 'bob'; alter table {t} alter name type public.citext",
        stale(3),
    ),
)
AGGREGATED: Final = (
    Planted(
        "a group missing, because a trigger swallowed it", "delete from {t} where name = 'abc'", stale(1)
    ),
    Planted(
        "an old sum that a trigger kept", "update {t} set total = total - 1 where name = 'abc'", stale(1)
    ),
    Planted("a sum with another scale", "update {t} set total = trim_scale(total) where total = 1", stale(1)),
    Planted(
        "partial results twice, and the target computed from them",
        "insert into {c} select * from {c}; update {t} set events = events * 2, total = total * 2",
        {"unexpected": 3, "changed": 3},
    ),
    Planted("an impossible number of revisions", "update {t} set revisions = 5 where name = 'abc'", stale(1)),
    Planted(
        "an event time that a replay failed to delete",
        "insert into {w} select topic, partition, 900, event_time + interval '9 days' from {w}",
        {"stale": 3, "misplaced": 1},
    ),
    Planted(
        "a window whose `final` contradicts the watermark",
        "update {t} set final = not final where name = 'abc'",
        stale(1),
    ),
)
# What decides, where nothing else is set, how values are written and read, and which statements succeed.
SETTINGS: Final = (
    "timezone = 'America/New_York'",
    "datestyle = 'SQL, DMY'",
    "intervalstyle = 'sql_standard'",
    "extra_float_digits = -15",
    "bytea_output = 'escape'",
    "client_encoding = 'LATIN1'",
    "search_path = ''",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_read_only = on",
    "statement_timeout = '1s'",
    "idle_in_transaction_session_timeout = '1s'",
    "quote_all_identifiers = on",
)
KINDS: Final[dict[str, tuple[Callable[[str], Any], tuple[Planted, ...], tuple[str | None, ...]]]] = {
    "Append": (Append, APPENDED, (NEW, SECOND, THIRD, "no JSON")),
    "Upsert": (
        lambda name: Upsert(name, key=("id",)),
        UPSERTED,
        (OLD, SECOND, THIRD, "no JSON", NEW, None),
    ),
    "Upsert by name": (
        lambda name: Upsert(name, key=("name",)),
        BY_NAME,
        ('{"id": 1, "name": "bob"}', '{"id": 2, "name": "Bob"}'),
    ),
    "Aggregate": (
        lambda name: Aggregate(
            name,
            group_by=("name", Window("at", "1 hour", "hour")),
            aggregates={"events": Count(), "total": Sum("amount")},
            allowed_lateness="1 hour",
        ),
        AGGREGATED,
        (NEW, SECOND, THIRD, "no JSON"),
    ),
}


@pytest.fixture
def make_sound(world, make_topic, make_pipeline):
    """Commit one batch of records by Spark; nobody is connected to the database afterwards."""

    def make(kind: str) -> Pipeline:
        make_sink, _, records = KINDS[kind]
        world.execute("create extension citext schema public")
        topic = make_topic()
        for value in records:
            topic.produce(None if value is None else value.encode(), key=b'{"id": 3}')
        sink = make_sink(f'public."{topic.name}"')
        pipeline = make_pipeline(topic, value=VALUE, sink=sink, max_rejects=1)
        if isinstance(sink, Upsert):
            pipeline = replace(pipeline, message_key=Json("name text" if "name" in sink.key else "id int"))
        world.run(pipeline)
        world.connection.close()
        return pipeline

    return make


@contextmanager
def copy_of(settings: Settings) -> Iterator[Settings]:
    """The database of the settings once more, under another name, for as long as this lasts."""
    name = parse_dsn(settings.postgres)["dbname"]
    copy = f"{name}_copy"
    with closing(psycopg2.connect(make_dsn(settings.postgres, dbname="postgres"))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"create database {copy} template {name}")
            try:
                yield replace(settings, postgres=make_dsn(settings.postgres, dbname=copy))
            finally:
                cursor.execute(f"drop database {copy} with (force)")


def found_after(pipeline: Pipeline, settings: Settings, statement: str) -> dict[str, int]:
    """What an audit finds once a statement is done, in a copy of the database."""
    with copy_of(settings) as copied:
        with closing(psycopg2.connect(copied.postgres)) as connection, connection.cursor() as cursor:
            tables = {
                "{t}": find_writer(pipeline.traits).tables[-1].identifier,
                "{c}": find_writer(pipeline.traits).lineage_table.identifier,
            }
            if isinstance(writer := find_writer(pipeline.traits), KeepsEventTimes):
                tables["{w}"] = writer.event_times.identifier
            for name, table in tables.items():
                statement = statement.replace(name, table.as_string(connection))
            cursor.execute(statement)
            connection.commit()
        report = audit(pipeline, copied, values=True)
        return {kind: count for kind, count in report.findings.items() if count}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_is_found(world, make_sound, kind):
    pipeline = make_sound(kind)
    assert found_after(pipeline, world.settings, "select 1") == {}
    wrong = {
        planted.what: found
        for planted in KINDS[kind][1]
        if (found := found_after(pipeline, world.settings, planted.statement)) != planted.found
    }
    assert wrong == {}


@pytest.mark.parametrize("kind", ["Append", "Upsert", "Aggregate"])
def test_what_a_login_and_a_database_have_set_decides_nothing(world, make_sound, kind):
    """An audit of sound results is exact whatever the settings are."""
    name = f"{parse_dsn(world.settings.postgres)['dbname']}_copy"
    pipeline = make_sound(kind)
    statement = "".join(f"alter database {name} set {setting}; " for setting in SETTINGS)
    assert found_after(pipeline, world.settings, statement) == {}


def test_a_column_that_the_schema_has_lost_is_not_compared(world, make_sound):
    """The target keeps its old values, and newer changes have none."""
    pipeline = replace(make_sound("Upsert"), value=Json("id int, name text"))
    assert found_after(pipeline, world.settings, "update {c} set word = null, price = null") == {}
    assert found_after(pipeline, world.settings, "update {t} set name = 'x'") == {"stale": 2}
