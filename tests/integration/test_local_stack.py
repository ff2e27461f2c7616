"""The local stack's own life: up, down, kill, restart. Each test has a stack that nothing else uses."""

import json
import socket
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import psycopg2
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from exactbatch.local import LocalStack, LocalStackError
from exactbatch.local.child_process import wait_until_ended
from exactbatch.local.commands import app
from support.environment import HOME

pytestmark = pytest.mark.slow


@pytest.fixture
def own():
    stack = LocalStack(HOME, f"own-{uuid.uuid4().hex[:8]}")
    try:
        yield stack
    finally:
        stack.down(delete=True)


def execute(stack: LocalStack, *statements: str) -> list[tuple[object, ...]]:
    """Run statements, each in its own transaction; the rows of the last one."""
    with closing(psycopg2.connect(stack.postgres_dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def produce(stack: LocalStack, *values: str) -> None:
    admin = AdminClient(dict(stack.kafka_properties))
    for future in admin.create_topics([NewTopic("words", 1, 1)]).values():
        future.result(30)
    producer = Producer(dict(stack.kafka_properties))
    for value in values:
        producer.produce("words", value, partition=0)
    assert producer.flush(30) == 0


def consume(stack: LocalStack, count: int) -> list[str]:
    consumer = Consumer({**stack.kafka_properties, "group.id": "-", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("words", 0, 0)])
        return [message.value().decode() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


@pytest.mark.long
def test_two_stacks_that_start_at_once_take_ports_of_their_own(own):
    other = LocalStack(HOME, f"own-{uuid.uuid4().hex[:8]}")
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(LocalStack.up, (own, other))) == [True, True]
        assert [server.up for stack in (own, other) for server in stack.status()] == [True] * 4
        assert len({server.address for stack in (own, other) for server in stack.status()}) == 4
    finally:
        other.down(delete=True)


def test_up_is_idempotent_and_data_survive_down(own):
    assert own.up() is True
    before = own.environment
    pids = [server.pid for server in own.servers]
    assert own.up() is False
    assert [server.pid for server in own.servers] == pids
    produce(own, "a", "b")
    execute(own, "create table kept (x int)", "insert into kept values (1)")

    assert own.down() is True
    assert own.down() is False
    assert [server.up for server in own.status()] == [False, False]
    own.up()
    assert own.environment == before
    assert consume(own, 2) == ["a", "b"]
    assert execute(own, "select x from kept") == [(1,)]

    own.down(delete=True)
    assert not own.folder.exists()


@pytest.mark.long
def test_servers_that_are_killed_keep_what_was_acknowledged(own):
    own.up()
    environment = own.environment
    execute(own, "create table kept (x int)", "create unlogged table emptied (x int)")
    execute(own, "insert into kept select generate_series(1, 1000)", "insert into emptied values (1)")
    with closing(psycopg2.connect(own.postgres_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("insert into kept values (0)")  # not committed when the server dies
        own.postgres.kill()
        assert own.postgres.pid is None
    assert (own.postgres.data_dir / "postmaster.pid").exists()
    own.postgres.start()
    assert execute(own, "select count(*), min(x) from kept") == [(1000, 1)]
    assert execute(own, "select count(*) from emptied") == [(0,)]

    produce(own, "a", "b")
    own.broker.kill()
    assert own.broker.pid is None
    own.broker.start()
    assert consume(own, 2) == ["a", "b"]
    assert own.environment == environment


def test_postgres_whose_postmaster_alone_was_killed_starts_again(own):
    own.postgres.configure({}, None)
    own.postgres.start()
    assert own.postgres.pid is not None
    postmaster = psutil.Process(own.postgres.pid)
    postmaster.kill()
    assert wait_until_ended([postmaster], timeout_s=30)
    own.postgres.start()
    assert execute(own, "select 1") == [(1,)]


def test_another_servers_port_is_passed_over(own):
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        taken = first.getsockname()[1], second.getsockname()[1]
        own.up(kafka_port=taken[0], postgres_port=taken[1])
        assert own.broker.port not in taken
        assert own.postgres.port not in taken
    assert all(server.up for server in own.status())


def test_a_port_that_is_taken_between_stop_and_start_is_an_error(own):
    own.postgres.configure({}, None)
    with (
        socket.create_server(("127.0.0.1", own.postgres.port)),
        pytest.raises(LocalStackError, match=f"listens on port {own.postgres.port}, which Postgres needs"),
    ):
        own.postgres.start()


def test_settings_of_the_caller_hold_and_are_remembered(own):
    own.up(broker_properties={"num.partitions": "3"}, postgres_settings={"work_mem": "7MB"})
    assert execute(own, "show work_mem") == [("7MB",)]
    assert execute(own, "show fsync") == [("on",)]
    with pytest.raises(
        LocalStackError, match=r"runs with the settings {'work_mem': '7MB'}, but this command"
    ):
        own.up(postgres_settings={"work_mem": "8MB"})
    own.postgres.stop()
    own.up()
    assert execute(own, "show work_mem") == [("7MB",)]
    assert "num.partitions=3" in (own.folder / "kafka" / "server.properties").read_text()


def test_server_that_ends_at_once_shows_its_last_words_and_leaves_nothing(own):
    with pytest.raises(LocalStackError, match=r"(?s)Postgres ended instead of listening.*no_such_setting"):
        own.up(postgres_settings={"no_such_setting": "1"})
    assert [server.pid for server in own.servers] == [None, None]


def test_two_stacks_at_once(own):
    other = LocalStack(HOME, f"{own.name}-2")
    try:
        own.postgres.configure({}, None)
        own.postgres.start()
        other.postgres.configure({}, None)
        other.postgres.start()
        assert own.postgres.port != other.postgres.port
        other.postgres.stop()
        assert own.postgres.is_up()
    finally:
        other.down(delete=True)


def test_the_commands(own):
    where = ["--home", str(HOME), "--name", own.name]
    run = CliRunner().invoke
    assert run(app, ["status", *where]).exit_code == 3
    first = run(app, ["up", *where])
    assert first.exit_code == 0, first.output
    assert f"export EXACTBATCH_KAFKA='{json.dumps(own.kafka_properties)}'" in first.stdout
    assert f"export EXACTBATCH_POSTGRES='{own.postgres_dsn}'" in first.stdout
    again = run(app, ["up", *where])
    assert "was up already" in again.stdout
    described = json.loads(run(app, ["up", *where, "--json"]).stdout)
    assert described["postgres_dsn"] == own.postgres_dsn
    assert run(app, ["status", *where]).exit_code == 0

    exported = "".join(line + "\n" for line in first.stdout.splitlines() if line.startswith("export"))
    shell = subprocess.run(
        ["sh", "-c", exported + 'echo "$EXACTBATCH_KAFKA"'], capture_output=True, text=True, check=True
    )
    assert json.loads(shell.stdout) == own.kafka_properties

    assert run(app, ["down", *where, "--delete", "--yes"]).exit_code == 0
    assert not own.folder.exists()


def test_a_line_that_is_too_long_is_named_before_its_topic_is_created(stack, admin, tmp_path):
    file = tmp_path / "lines"
    where = ["--home", str(stack.home), "--name", stack.name]
    file.write_bytes(b"a\n\n" + b"x" * 10_000_001 + b"\n")
    failed = CliRunner().invoke(app, ["send", "lines", str(file), *where], env={"COLUMNS": "500"})
    assert (failed.exit_code, failed.stdout) == (42, "")
    assert (
        f"line 3 of {file} has 10,000,001 bytes, and a record may have 10,000,000. Nothing was"
        in failed.stderr
    )
    assert "lines" not in admin.list_topics(timeout=10).topics
    file.write_bytes(b"a\n\n" + b"x" * 10_000_000 + b"\n")
    sent = CliRunner().invoke(app, ["send", "lines", str(file), *where])
    assert (sent.exit_code, sent.stdout) == (0, "Sent 2 records to the topic lines.\n")
    admin.delete_topics(["lines"])["lines"].result(30)


def test_a_command_that_fails_prints_its_error_and_the_page_about_it(tmp_path):
    failed = CliRunner().invoke(app, ["up", "--home", str(tmp_path), "--name", "NO"])
    assert failed.exit_code == 42
    assert failed.stdout == ""
    assert failed.stderr == (
        'error: LocalStackError: expected a stack name of a-z, 0-9, - and _ other than "jars", found "NO"\n'
        "`exactbatch explain LocalStackError` explains the causes and what to do.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["up", "--open"], 42, "Add --airflow"),
        (["up", "--airflow", "--dags", "nowhere"], 2, "does not exist"),
        (["trigger", "orders"], 42, "Run `exactbatch local up --airflow`"),
        (["send", "orders", "-"], 42, "Run `exactbatch local up`"),
    ],
)
def test_what_needs_a_server_or_a_folder_says_so(tmp_path, monkeypatch, arguments, status, message):
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert (failed.exit_code, failed.stdout) == (status, "")
    assert message in failed.stderr
    assert list(tmp_path.iterdir()) == []
