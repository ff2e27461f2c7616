"""`exactbatch new` and `exactbatch try` on topics that are not as they should be; neither writes to a server."""

import json
import sys
from dataclasses import replace
from types import ModuleType
from uuid import UUID

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from exactbatch import Aggregate, Append, Avro, Count, Csv, Json, Pipeline, Upsert, Window
from exactbatch.cli.app import app
from exactbatch.compiled.availability import VARIABLE
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.sample import Bounds, sample
from exactbatch.postgres.connection import transaction
from support.registry import registry_server
from support.topics import Topic


@pytest.fixture(autouse=True)
def _fast_path(monkeypatch):
    """Let the fast path pay for these few records, as it does for many: a sample must outlive its consumer."""
    monkeypatch.setenv(VARIABLE, "0")


@pytest.fixture
def command(settings, tmp_path, monkeypatch):
    """Run `exactbatch …` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str):
        return CliRunner().invoke(app, list(arguments))

    return run


@pytest.fixture
def tried(command, monkeypatch, database):
    """Run `exactbatch try` for a pipeline; return its exit status and what it prints as JSON."""
    module = ModuleType("pipelines_to_try")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(pipeline: Pipeline, *options: str):
        module.p = pipeline
        done = command("try", "pipelines_to_try:p", "--json", *options)
        assert done.exit_code in (0, 3), done.output
        return done.exit_code, json.loads(done.stdout)

    return run


def pipeline_of(topic: Topic, value, **changes):
    return Pipeline(name="p", topics=(topic.name,), value=value, sink=Append("public.p"), **changes)


def words(done) -> str:
    return " ".join(done.output.split())


def files(tmp_path):
    return sorted(path.name for path in tmp_path.rglob("*.py"))


# new


def test_a_topic_without_records_is_refused(make_topic, command, tmp_path):
    done = command("new", "p", "--topic", make_topic(3).name)
    assert done.exit_code == 42
    assert "has no committed record in its 3 partitions" in words(done)
    assert files(tmp_path) == []


def test_a_topic_that_does_not_exist_is_refused_and_not_created(command, tmp_path, admin):
    done = command("new", "p", "--topic", "no-such-topic")
    assert done.exit_code == 42
    assert "TopicMissing" in done.output
    assert "no-such-topic" not in admin.list_topics(timeout=10).topics
    assert files(tmp_path) == []


def test_records_of_open_and_aborted_transactions_are_not_sampled(make_topic, command, tmp_path):
    topic = make_topic()
    topic.transaction(b'{"a": 1}', end="abort")
    producer = topic.transaction(b'{"b": 1}', end="open")
    done = command("new", "p", "--topic", topic.name)
    assert done.exit_code == 42
    assert "open transactions" in words(done)
    topic.end_transaction(producer, "commit")
    done = command("new", "p", "--topic", topic.name, "--json", "--dry-run")
    assert [column["name"] for column in json.loads(done.stdout)["columns"]] == ["b"]
    assert files(tmp_path) == []


@pytest.mark.parametrize("existing", ["pipelines/p.py", "dags/p.py", "tests/pipelines/test_p.py"])
def test_a_file_that_exists_is_named_and_nothing_is_written(make_topic, command, tmp_path, existing):
    topic = make_topic()
    topic.produce(b'{"a": 1}')
    path = tmp_path / existing
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    done = command("new", "p", "--topic", topic.name)
    assert done.exit_code == 42
    assert str(path) in done.output.replace("\n", "")
    assert path.read_text() == "mine"
    assert files(tmp_path) == [path.name]


def test_schema_ids_need_the_address_of_the_registry(make_topic, command, tmp_path):
    topic = make_topic()
    topic.produce(b"\0\0\0\0\7abc")
    done = command("new", "p", "--topic", topic.name)
    assert done.exit_code == 42
    assert "the ID of a schema (7)" in words(done)
    assert "--registry" in done.output
    assert files(tmp_path) == []


def test_headers_that_name_schemas_are_read(make_topic, command, tried, tmp_path, monkeypatch):
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "long"}],
    }
    topic, guid = make_topic(1), UUID(int=77)
    headers = [("__value_schema_id", b"\1" + guid.bytes)]
    topic.produce(*(bytes([2 * number, 0]) for number in range(20)), headers=headers)
    topic.produce(b"\0\0\0\0\7" + b"\x7f\0")  # -64, after a prefix
    without = command("new", "p", "--topic", topic.name)
    assert without.exit_code == 42
    assert f"the ID of a schema (7, {guid})" in words(without)
    assert "__value_schema_id" in words(without)
    with registry_server() as registry:
        registry.has(7, schema, guid=guid)
        done = command("new", "p", "--topic", topic.name, "--registry", registry.address)
        assert done.exit_code == 0, done.output
        test = (tmp_path / "tests" / "pipelines" / "test_p.py").read_text()
        assert '"__value_schema_id",\n' in test
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in [name for name in sys.modules if name.partition(".")[0] == "pipelines"]:
            monkeypatch.delitem(sys.modules, name)  # those of another project
        exec(compile(test, "test_p.py", "exec"), written := {})
        written["test_records_become_rows"]()
        value = written["p"].value
        assert isinstance(value, Avro)
        status, shown = tried(pipeline_of(topic, value))
        assert (status, shown["with_rows"], shown["rejected"]) == (0, 21, 0)
        status, shown = tried(pipeline_of(topic, replace(value, fields="id boolean, at bigint")))
        assert (status, shown["rejected"]) == (3, 21)
        assert shown["groups"][0]["reason"].startswith("schema ")


def test_json_whose_headers_name_schemas_needs_no_registry(make_topic, command, tmp_path):
    topic = make_topic(1)
    headers = [("__value_schema_id", b"\1" + UUID(int=78).bytes)]
    topic.produce(*(b'{"id": %d}' % number for number in range(20)), headers=headers)
    done = command("new", "q", "--topic", topic.name)
    assert done.exit_code == 0, done.output
    assert 'Json("id bigint")' in (tmp_path / "pipelines" / "q.py").read_text()


def test_a_broken_record_is_named(make_topic, command):
    topic = make_topic()
    topic.produce(*[b'{"a": 1}'] * 20, b"{oops")
    done = command("new", "my-p", "--topic", topic.name)
    assert done.exit_code == 0, done.output
    assert f"{topic.name}[0] offset 20" in words(done)
    assert "so the pipeline is named my_p" in words(done)
    assert "copies of real records" in words(done)
    assert "exactbatch register my_p" in words(done)


def test_the_sample_has_records_from_both_ends_and_between(make_topic, settings):
    topic = make_topic()
    topic.produce(*(b"%d" % number for number in range(1000)))
    (partition,) = KafkaBroker(settings.kafka).partitions([topic.name])
    found = sample(settings.kafka, [partition], Bounds(100))
    offsets = [offset for _, records in found.parts for offset in records.offset_array.tolist()]
    assert offsets == sorted(set(offsets))
    assert 80 <= len(found) <= 120
    assert {0, 999} <= set(offsets)
    assert any(300 < offset < 700 for offset in offsets)


def test_older_records_are_read_where_offsets_have_no_records(make_topic, settings):
    topic = make_topic()
    topic.produce(*(b"%d" % number for number in range(10)))
    topic.transaction(*[b"x"] * 300, end="abort")
    (partition,) = KafkaBroker(settings.kafka).partitions([topic.name])
    found = sample(settings.kafka, [partition], Bounds(5), newest_only=True)
    assert [value for _, records in found.parts for value in records.values().to_pylist()] == [
        b"5",
        b"6",
        b"7",
        b"8",
        b"9",
    ]


def test_a_sample_ends_at_its_bytes(make_topic, settings):
    topic = make_topic(2)
    for partition in range(2):
        topic.produce(*[b"x" * 10_000] * 200, partition=partition)
    partitions = KafkaBroker(settings.kafka).partitions([topic.name])
    found = sample(settings.kafka, partitions, Bounds(400, bytes=500_000))
    assert found.ended_by == "bytes"
    assert 50 <= len(found) < 400


def test_of_many_partitions_some_are_read(make_topic, settings, command):
    topic = make_topic(150)
    producer = Producer(topic.properties)
    for partition in range(150):
        producer.produce(topic.name, b'{"a": %d}' % partition, partition=partition)
    assert producer.flush(30) == 0
    done = command("new", "p", "--topic", topic.name, "--json", "--dry-run")
    assert json.loads(done.stdout)["sampled"] == 100
    assert "100 partitions were read" in words(command("new", "p", "--topic", topic.name, "--dry-run"))


def test_a_time_that_python_cannot_hold_is_shown(make_topic, command):
    topic = make_topic()
    at = {"field": "at", "type": "int64", "name": "io.debezium.time.Timestamp"}
    row = {"field": "after", "type": "struct", "fields": [{"field": "id", "type": "int32"}, at]}
    source = {"connector": "postgresql", "lsn": 5}
    change = {"before": None, "after": {"id": 1, "at": 253402300800000}, "source": source, "op": "c"}
    value = {"schema": {"type": "struct", "fields": [row]}, "payload": change}
    topic.produce(json.dumps(value).encode(), key='{"id": 1}')
    done = command("new", "p", "--topic", topic.name, "--json", "--dry-run")
    assert [each["at"] for each in json.loads(done.stdout)["rows"]] == ["10000-01-01 00:00:00"]
    assert "10000-01-01 00:00:00" in words(command("new", "p", "--topic", topic.name, "--dry-run"))


# try


def test_a_reject_comes_with_the_change_that_accepts_it(make_topic, tried):
    topic = make_topic()
    topic.produce(
        *[b'{"wind_dir": 270, "at": 1767225600000}'] * 3, b'{"wind_dir": 270.0}', b'{"wind_dir": 1.5}', None
    )
    status, shown = tried(pipeline_of(topic, Json("wind_dir int, at timestamptz")))
    assert status == 3
    assert (shown["records"], shown["with_rows"], shown["tombstones"], shown["rejected"]) == (6, 0, 1, 5)
    changes = {
        group["column"]: (group["count"], group["change"], group["offset"]) for group in shown["groups"]
    }
    assert changes == {
        "at": (3, "declare at timestamptz, with epoch={'at': 'ms'}", 0),
        "wind_dir": (2, "declare wind_dir double precision", 3),
    }
    changed = Json("wind_dir double precision, at timestamptz", epoch={"at": "ms"})
    status, shown = tried(pipeline_of(topic, changed))
    assert (status, shown["with_rows"], shown["groups"]) == (0, 5, [])


def test_nothing_is_written(make_topic, tried, database, admin):
    import psycopg2

    topic = make_topic()
    topic.produce(b'{"id": 1}', b"{")
    status, shown = tried(pipeline_of(topic, Json("id int, u uuid"), checks=("id > 0",)))
    assert (status, shown["rejected"]) == (3, 1)
    assert "max_rejects" in shown["groups"][0]["change"]
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
        )
        assert cursor.fetchone() == (0,)
        cursor.execute("select to_regnamespace('exactbatch')")
        assert cursor.fetchone() == (None,)
    connection.close()
    groups = [each.group_id for each in admin.list_consumer_groups().result().valid]
    assert not [group for group in groups if "p" in group.split(".")[-1:]]


def test_values_that_the_types_of_postgres_refuse(make_topic, tried):
    topic = make_topic()
    topic.produce(b'{"u": "no uuid", "n": 5}', b'{"u": null, "n": -5}')
    status, shown = tried(pipeline_of(topic, Json("u uuid, n int"), checks=("n > 0",)))
    assert status == 3
    assert {group["column"]: group["change"] for group in shown["groups"]} == {
        "u": "declare u text",
        None: "change the check, or correct what sends it",
    }
    assert shown["rows"] == []


def test_values_that_an_existing_target_refuses(make_topic, tried, connection):
    with transaction(connection) as cursor:
        cursor.execute(
            "create table p (name varchar(3), n smallint, kafka_topic text, kafka_partition int, kafka_offset bigint, "
            "kafka_timestamp timestamptz, batch_id bigint)"
        )
    topic = make_topic()
    topic.produce(b'{"name": "abcd", "n": 1}', b'{"name": "abc", "n": 70000}', b'{"name": "ab", "n": 2}')
    status, shown = tried(pipeline_of(topic, Json("name text, n int")))
    assert status == 3
    assert {group["column"]: group["change"] for group in shown["groups"]} == {
        "name": 'alter table public.p alter column "name" type text',
        "n": 'alter table public.p alter column "n" type integer',
    }
    assert [row["name"] for row in shown["rows"]] == ["ab"]
    status, shown = tried(pipeline_of(topic, Json("name text, n int, other int")))
    assert status == 3
    assert 'alter table public.p add column "other" integer' in shown["refused"]
    status, shown = tried(pipeline_of(topic, Json("name text, other int"), evolve="add"))
    assert (status, shown["refused"], shown["with_rows"]) == (3, None, 2)


def test_an_event_without_its_time_is_rejected_before_the_first_batch(make_topic, tried):
    topic = make_topic()
    topic.produce(b'{"at": "2026-01-01T00:00:00Z", "carrier": "LH"}', b'{"at": null, "carrier": "LH"}')
    for group, rejected in ((Window("at", "1 hour"), 1), (Window("kafka_timestamp", "1 hour"), 0)):
        sink = Aggregate(
            "public.p", (group, "carrier"), {"n": Count()}, allowed_lateness="1 hour", on_late="reject"
        )
        pipeline = replace(pipeline_of(topic, Json("at timestamptz, carrier text")), sink=sink)
        _, shown = tried(pipeline)
        assert (shown["refused"], shown["with_rows"], shown["rejected"]) == (None, 2 - rejected, rejected)
        for each in shown["groups"]:
            assert each["reason"] == (
                "column 'at': expected the time of the event, in the years 1 to 9999, found null"
            )
            assert each["change"] == "correct what sends it, or allow for such records with max_rejects"


def test_types_are_compared_before_the_batch_that_adds_a_column(make_topic, tried, connection):
    with transaction(connection) as cursor:
        cursor.execute(
            "create table p (n integer, kafka_topic text, kafka_partition int, kafka_offset bigint, "
            "kafka_timestamp timestamptz, batch_id bigint)"
        )
    topic = make_topic()
    topic.produce(b'{"n": 1, "extra": "no uuid"}', b'{"n": 3000000000}', b'{"n": 2}')
    _, shown = tried(pipeline_of(topic, Json("n bigint, extra uuid"), evolve="add"))
    assert {group["column"]: group["change"] for group in shown["groups"]} == {
        "n": 'alter table public.p alter column "n" type bigint',
        "extra": "declare extra text, in the pipeline and in the target",
    }
    assert [row["n"] for row in shown["rows"]] == [2]


def test_types_are_compared_with_a_target_that_has_no_table_of_changes_yet(make_topic, tried, connection):
    with transaction(connection) as cursor:
        cursor.execute("create table p (id int primary key, n smallint, u text)")
    topic = make_topic()
    topic.produce(b'{"id": 1, "n": 70000}', b'{"id": 2, "n": 1, "u": "no uuid"}', b'{"id": 3, "n": 1}')
    pipeline = replace(
        pipeline_of(topic, Json("id int, n int, u uuid")), sink=Upsert("public.p", key=("id",))
    )
    _, shown = tried(pipeline)
    assert (
        {group["column"]: group["change"] for group in shown["groups"]}
        == {
            "n": 'alter table public.p alter column "n" type integer',
            "u": "declare u text, in the pipeline and in the target",  # the table of changes has the pipeline's types
        }
    )
    assert [row["id"] for row in shown["rows"]] == [3]


def test_types_are_compared_with_each_of_several_targets(make_topic, tried, connection):
    with transaction(connection) as cursor:
        cursor.execute(
            "create table log (id int, n smallint, deleted boolean, kafka_topic text, kafka_partition int, "
            "kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint)"
        )
    topic = make_topic()
    topic.produce(b'{"id": 1, "n": 70000}', b'{"id": 2, "n": 1}')
    sink = [Append("public.log"), Upsert("public.p", key=("id",))]
    pipeline = replace(pipeline_of(topic, Json("id int, n int")), sink=sink)
    _, shown = tried(pipeline)
    assert ([row["id"] for row in shown["rows"]], shown["rejected"], shown["refused"]) == ([2], 1, None)
    _, shown = tried(replace(pipeline, value=Json("id int, n int, extra int")))
    assert 'alter table public.log add column "extra" integer' in shown["refused"]


@pytest.mark.parametrize("errcode", ["P0001", "23514", "42704"])
def test_an_error_that_a_function_of_the_target_raises_for_a_value_is_a_reject(
    make_topic, tried, connection, errcode
):
    with transaction(connection) as cursor:
        cursor.execute(
            "create function is_even(n int) returns boolean language plpgsql immutable as $$ begin "
            f"if n % 2 = 1 then raise exception '% is odd', n using errcode = '{errcode}'; end if; return true; "
            "end $$"
        )
        cursor.execute("create domain even as int check (is_even(value))")
        cursor.execute(
            "create table p (n even, kafka_topic text, kafka_partition int, kafka_offset bigint, "
            "kafka_timestamp timestamptz, batch_id bigint)"
        )
    topic = make_topic()
    topic.produce(*(b'{"n": %d}' % number for number in range(4)))
    pipeline = pipeline_of(topic, Json("n int"), checks=("n < 2",))
    _, shown = tried(pipeline)
    assert [row["n"] for row in shown["rows"]] == [0]
    assert {(each["count"], each["reason"]) for each in shown["groups"]} == {
        (2, "column 'n': 1 is odd, found 1"),
        (1, 'check "n < 2" failed: n = 2'),
    }
    _, shown = tried(replace(pipeline, checks=("m < 2",)))
    assert 'column "m" does not exist' in shown["refused"]
    assert shown["groups"] == []


def test_tombstones_of_an_upsert_are_rows_that_delete(make_topic, tried):
    topic = make_topic()
    topic.produce(b'{"id": 1, "x": 2}', None, key="1")
    pipeline = Pipeline(
        name="p",
        topics=(topic.name,),
        value=Json("id int, x int"),
        message_key=Csv("id int"),
        sink=Upsert("public.p", key=("id",)),
    )
    status, shown = tried(pipeline)
    assert (status, shown["with_rows"], [row["deleted"] for row in shown["rows"]]) == (0, 2, [False, True])


def test_the_newest_records_are_decoded(make_topic, tried):
    topic = make_topic(2)
    for number in range(40):
        topic.produce(b'{"n": %d}' % number, partition=number % 2, timestamp=1_767_225_600_000 + number)
    status, shown = tried(pipeline_of(topic, Json("n int")), "--records", "10")
    assert status == 0
    assert sorted(row["n"] for row in shown["rows"]) == list(range(30, 40))


def test_times_that_python_cannot_hold_are_rows(make_topic, tried, command):
    topic = make_topic()
    topic.produce(
        *(b'{"a": %d}' % time for time in (253402300800000, -62198755200000, 0)), b'{"a": null, "b": ["x"]}'
    )
    value = Json("a timestamptz, b text[]", epoch={"a": "ms"})
    pipeline = pipeline_of(topic, value, checks=("a > '0099-01-01 BC'",))
    status, shown = tried(pipeline)
    assert (status, shown["groups"]) == (0, [])
    assert [row["a"] for row in shown["rows"]] == [
        "10000-01-01 00:00:00+00",
        "0002-01-01 00:00:00+00 BC",
        "1970-01-01 00:00:00+00:00",
        None,
    ]
    done = command("try", "pipelines_to_try:p")
    assert done.exit_code == 0, done.output
    assert "0002-01-01 00:00:00+00" in words(done)


def test_an_empty_topic_has_nothing_to_reject(make_topic, tried):
    status, shown = tried(pipeline_of(make_topic(), Json("n int")))
    assert (status, shown["records"], shown["rows"]) == (0, 0, [])
