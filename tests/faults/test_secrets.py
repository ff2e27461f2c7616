"""Secrets are nowhere to be read: not in logs, arguments, Spark's event log, errors or what commands print.

`tests/e2e` looks for them in Airflow.
"""

import json
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg2.extensions import make_dsn, parse_dsn
from typer.testing import CliRunner

from exactbatch import Append, Json, Pipeline, Tuning
from exactbatch.audit.run_audit import audit
from exactbatch.batch.job import process_batch
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.client_properties import check_properties
from exactbatch.ledger import Ledger, migrate
from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST, find_port
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.postgres.connection import connect, transaction
from exactbatch.settings import KAFKA, POSTGRES, Settings
from support.certificates import Authority
from support.environment import HOME
from support.faults.drivers import BatchLauncher, Driver, spark_options
from support.logins import superuser_login
from support.secure_broker import KEY_PASSWORD, USER, SecureBroker, secure_broker
from support.topics import Topic, record
from support.waiting import wait_for

LOGIN: Final = "planted_job"
# What is looked for: each secret holds one, whatever way its other characters are quoted in.
POSTGRES_PASSWORD: Final = 'planted-pgword it\'s "%s" {x} \\ ü'
WRONG_PASSWORD: Final = "planted-wr0ngword 'x"
PLANTED: Final = ("scram-pa55", "planted-pgword", "planted-wr0ngword", "k3y-pa55word", "planted-registryword")
SOON: Final = {"socket.connection.setup.timeout.ms": 1500}
NAME: Final = "planted"


@dataclass
class Deployment:
    """A broker and a database that ask for passwords, and a pipeline between them."""

    settings: Settings
    broker: SecureBroker
    pipeline: Pipeline
    connection: Any
    logs: list[Path]

    def changed(self, kafka: dict[str, Any] | None = None, **postgres: Any) -> Settings:
        """Settings with something else in them."""
        return Settings(
            kafka={**self.settings.kafka, **SOON, **(kafka or {})},
            postgres=make_dsn(self.settings.postgres, connect_timeout=5, **postgres),
        )


@pytest.fixture
def login(database: str) -> Iterator[None]:
    """A login that works in the test's database alone."""
    with superuser_login(database, LOGIN, POSTGRES_PASSWORD):
        yield


@pytest.fixture
def deployment(stack: LocalStack, database: str, login: None, tmp_path: Path) -> Iterator[Deployment]:
    postgres = make_dsn(database, user=LOGIN, password=POSTGRES_PASSWORD)
    with secure_broker(HOME, f"secrets-{os.getpid()}", Authority(tmp_path, "authority")) as broker:
        # Beside what the broker asks for, all that may be secret in a Kafka connection.
        more = {
            "ssl.key.password": KEY_PASSWORD,
            "schema.registry.basic.auth.user.info": "me:planted-registryword",
        }
        settings = Settings(kafka=broker.scram() | more, postgres=postgres)
        admin = AdminClient(broker.plain)
        admin.create_topics([NewTopic(NAME, 2, 1)])[NAME].result(30)
        wait_for(lambda: NAME in admin.list_topics(timeout=30).topics)
        topic = Topic(NAME, broker.plain)
        topic.produce(*(record(n) for n in range(20)), b"bad")
        topic.produce(*(record(n) for n in range(20, 30)), partition=1)
        pipeline = Pipeline(
            name=NAME,
            topics=(NAME,),
            value=Json("id int, name text"),
            sink=Append("public.planted"),
            transform="select * from records where id % 2 = 0",
            max_rejects=1,
            tuning=Tuning(lock_timeout="10 seconds", read_timeout="5 seconds"),
        )
        connection = connect(settings.postgres, application="tests")
        migrate(connection)
        with transaction(connection):
            Ledger(connection).registry.register(pipeline)
        yield Deployment(settings, broker, pipeline, connection, [broker.log, stack.postgres.log_file])
        connection.close()


@pytest.fixture
def world(deployment: Deployment, tmp_path: Path) -> Iterator[BatchLauncher]:
    world = BatchLauncher(None, deployment.connection, deployment.settings, tmp_path)
    yield world
    for each in world.drivers:
        each.close()


def submit(folder: Path) -> str:
    """Everything that Spark can tell, in the log and in an event log."""
    folder.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.log.level": "INFO",
    }
    return spark_options(" ".join(f"--conf {name}={value}" for name, value in conf.items()))


@pytest.mark.slow
def test_secrets_are_in_no_argument_log_event_log_error_or_output(
    deployment: Deployment,
    world: BatchLauncher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    pipeline, settings = deployment.pipeline, deployment.settings
    batch_id = freeze_advance(deployment.connection, KafkaBroker(settings.kafka), pipeline, origin="cli")
    assert batch_id is not None

    def launch(name: str, failpoints: str) -> Driver:
        world._write_module(pipeline)
        return world.start(
            ["--pipeline", f"pipeline_{NAME}:pipeline", "--batches", f"pipeline_{NAME}:{batch_id}:"],
            {
                **settings.as_environment(),
                "PYSPARK_SUBMIT_ARGS": submit(tmp_path / name),
                "EXACTBATCH_FAILPOINTS": failpoints,
            },
        )

    gate = tmp_path / "go"
    # One driver fails on its executors, with all that Spark then tells, while another waits to be looked at.
    failed = launch("failed", "stage.before_copy_commit=error")
    held = launch("held", f"job.after_stage=hold:{gate}")
    wait_for(Path(f"{gate}.held").exists, driver=held)
    arguments = "\n".join([*held.arguments, *failed.arguments])
    assert failed.wait() == 1, failed.output
    assert "TasksFailed" in failed.output
    gate.touch()
    assert held.wait() == 0, held.output
    assert "org.apache.spark" in arguments

    events = {
        name: "".join(each.read_text() for each in (tmp_path / name).rglob("*") if each.is_file())
        for name in ("held", "failed")
    }
    assert all("SparkListenerTaskEnd" in each for each in events.values())
    assert "failpoint stage.before_copy_commit" in events["failed"]
    commands, refusals = run_commands(deployment, tmp_path, monkeypatch)
    found = {
        "arguments": arguments,
        "drivers": held.output + failed.output,
        "event log": "".join(events.values()),
        "errors": errors(deployment),
        "commands": commands,
        "refusals": refusals,
        "log": caplog.text,
        "servers": "".join(each.read_text(errors="replace") for each in deployment.logs),
        "ledger": dump(deployment.connection),
        "reprs": repr([settings, world.settings, pipeline]),
    }
    for place, text in found.items():
        assert text, place
        for secret in PLANTED:
            assert secret not in text, f"{secret} in {place}: …{around(text, secret)}…"
    # What is looked for is what there was to be seen.
    environment = json.dumps(settings.as_environment())
    assert all(secret in environment for secret in PLANTED if secret != "planted-wr0ngword")


def run_commands(deployment: Deployment, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """What the commands print, with the right secrets and with wrong ones."""
    monkeypatch.syspath_prepend(folder)
    told, refused = [], []
    for settings, into in (
        (deployment.settings, told),
        (deployment.changed({"sasl.password": WRONG_PASSWORD}), refused),
        (deployment.changed(password=WRONG_PASSWORD), refused),
    ):
        for name, value in settings.as_environment().items():
            monkeypatch.setenv(name, value)
        for command in ("plan", "status", "rejects", "audit") if into is told else ("plan",):
            for form in ([], ["--json"]):
                done = CliRunner().invoke(app, [command, f"pipeline_{NAME}:pipeline", *form])
                assert (done.exit_code == 0) == (into is told), done.output
                into.append(done.output + "".join(traceback.format_exception(done.exception or None)))
    for name, value in (
        (KAFKA, json.dumps(dict(deployment.settings.kafka))[:-1]),
        (POSTGRES, f"{deployment.settings.postgres} and more of 'planted-pgword"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(KAFKA, json.dumps(dict(deployment.settings.kafka)))
            patch.setenv(name, value)
            done = CliRunner().invoke(app, ["plan", f"pipeline_{NAME}:pipeline"])
            assert name in done.output
            refused.append(done.output + "".join(traceback.format_exception(done.exception or None)))
    return "".join(told), "".join(refused)


def errors(deployment: Deployment) -> str:
    """Every error that connections can give, with the whole of its trace, those that caused it included."""
    nobody = find_port(None)
    settings, pipeline = deployment.settings, deployment.pipeline
    wrong: dict[str, Callable[[], Any]] = {
        "Kafka's password": lambda: asked({"sasl.password": WRONG_PASSWORD}),
        "Kafka's address": lambda: asked({"bootstrap.servers": f"{HOST}:{nobody}"}),
        "Kafka's host": lambda: asked(deployment.broker.by_address(settings.kafka)),
        "Kafka's mechanism": lambda: asked({"sasl.mechanism": "PLAIN"}),
        "an unknown property": lambda: check_properties({**settings.kafka, "sasl.passwort": WRONG_PASSWORD}),
        "an unknown property of librdkafka": lambda: check_properties(
            {**settings.kafka, "no.such": WRONG_PASSWORD}
        ),
        "Postgres' password": lambda: batch(deployment.changed(password=WRONG_PASSWORD)),
        "Postgres' user": lambda: batch(deployment.changed(user="nobody_here")),
        "Postgres' address": lambda: batch(deployment.changed(port=nobody)),
        "Postgres' database": lambda: batch(deployment.changed(dbname="nowhere")),
        "the connection string": lambda: connect(f"{settings.postgres} x", application="tests"),
        "the batch's Kafka": lambda: batch(deployment.changed({"sasl.password": WRONG_PASSWORD})),
        "the audit's Kafka": lambda: audit(pipeline, deployment.changed({"sasl.password": WRONG_PASSWORD})),
        "the audit's Postgres": lambda: audit(pipeline, deployment.changed(password=WRONG_PASSWORD)),
    }

    def asked(kafka: dict[str, Any]) -> Any:
        return KafkaBroker(deployment.changed(kafka).kafka).partitions([NAME])

    def batch(settings: Settings) -> Any:
        with transaction(deployment.connection) as cursor:
            cursor.execute("select max(batch_id) from exactbatch.batch")
            (batch_id,) = cursor.fetchone()
        return process_batch(None, pipeline, batch_id, settings)  # type: ignore[arg-type] # fails before Spark

    texts = []
    for what, attempt in wrong.items():
        try:
            attempt()
        except ExactbatchError as error:
            texts.append(f"{what}: {''.join(traceback.format_exception(error))}{error!r}")
        else:
            # A batch that is committed asks Kafka nothing.
            assert what == "the batch's Kafka", what
    told = "".join(texts)
    assert f'password authentication failed for user "{LOGIN}"' in told
    assert "sasl.password" in told
    assert USER not in PLANTED
    return told


def dump(connection: Any) -> str:
    """All that the ledger holds."""
    with transaction(connection) as cursor:
        cursor.execute("select tablename from pg_tables where schemaname = 'exactbatch' order by 1")
        tables = [name for (name,) in cursor.fetchall()]
        text = []
        for name in tables:
            cursor.execute(f"select t::text from exactbatch.{name} t")
            text += [row for (row,) in cursor.fetchall()]
    return "\n".join(text)


def around(text: str, secret: str) -> str:
    at = text.find(secret)
    return text[max(0, at - 200) : at + 100]


def test_a_connection_string_that_does_not_parse_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(f"host=x password={POSTGRES_PASSWORD}", application="tests")
    shown = "".join(traceback.format_exception(caught.value))
    assert "planted-pgword" not in shown
    assert "password" in parse_dsn("password=x")
