"""`exactbatch doctor` finds each of these faults, planted one by one, and names its remedy."""

import json
import socket
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import psycopg2
import pytest
from airflow.sdk import Connection
from psycopg2.extensions import make_dsn
from typer.testing import CliRunner

from exactbatch import Append, Json, Pipeline, ToTopic
from exactbatch.batch.tested_versions import TESTED, warn_if_untested
from exactbatch.cli.app import app
from exactbatch.errors import ConfigurationError
from exactbatch.formats import Avro, WithKeyAndHeaders
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.operations import lag
from exactbatch.operations.airflow_api import airflow_url
from exactbatch.operations.doctor import examine, finding, servers
from exactbatch.operations.doctor.finding import Finding, run_check
from exactbatch.operations.doctor.servers import check_encryption
from exactbatch.postgres.connection import transaction
from support.roles import ROLES
from support.topics import an_hour_ago, record


class Doctor:
    """`exactbatch doctor` in this process, with an environment that a test can damage."""

    def __init__(self, monkeypatch: Any, settings: Any) -> None:
        self.patch = monkeypatch
        self.module = ModuleType("pipelines_to_examine")
        monkeypatch.setitem(sys.modules, self.module.__name__, self.module)
        for name, value in settings.as_environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("EXACTBATCH_FAST_PATH", "off")  # to try it takes seconds

    def kafka(self, **properties: str) -> None:
        """Change client properties."""
        known = {"bootstrap.servers": "localhost:1"} | {
            name.replace("_", "."): value for name, value in properties.items()
        }
        self.patch.setenv("EXACTBATCH_KAFKA", json.dumps(known))

    def __call__(
        self, *pipelines: Pipeline, status: int | None = None, options: tuple[str, ...] = ()
    ) -> list[Any]:
        for number, pipeline in enumerate(pipelines):
            setattr(self.module, f"p{number}", pipeline)
        named = [f"{self.module.__name__}:p{number}" for number in range(len(pipelines))]
        done = CliRunner().invoke(app, ["doctor", *named, *options, "--json"])
        told = json.loads(done.stdout)
        findings = told["findings"]
        problems = sum(each["level"] == "problem" for each in findings)
        assert (done.exit_code, told["problems"]) == (3 if problems else 0, problems), done.output
        assert all(bool(each["remedy"]) == (each["level"] != "ok") for each in findings)
        assert {each["check"] for each in findings} >= CHECKS, "a check is left out"
        return findings


CHECKS = {
    "java", "packages", "spark", "tested versions", "fast path", "class archive", "Kafka connection",
    "Postgres connection",
    "server settings", "search path", "clocks", "ledger", "privileges", "pipelines", "targets", "topics", "retention",
    "freshness", "open transactions", "known records", "forwarding", "Airflow's pools", "encryption",
}  # fmt: skip


@pytest.fixture
def doctor(settings, monkeypatch):
    return Doctor(monkeypatch, settings)


@pytest.fixture
def pipeline(connection, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(record(1))
    return make_pipeline(topic)


def of(findings: list[Any], check: str) -> Any:
    """The only finding of a check that is not ok."""
    (found,) = [each for each in findings if each["check"] == check and each["level"] != "ok"]
    return found


def test_a_healthy_deployment_has_no_problem(doctor, pipeline):
    findings = doctor(pipeline)
    bad = {each["check"] for each in findings if each["level"] != "ok"}
    assert bad <= {"fast path", "class archive", "server settings", "packages"}, findings
    assert not [each for each in findings if each["level"] == "problem"]
    done = CliRunner().invoke(app, ["doctor", "pipelines_to_examine:p0"])
    assert (done.exit_code, "0 problems" in done.stdout) == (0, True)
    assert "→ To make large batches faster, unset EXACTBATCH_FAST_PATH." in done.stdout


def test_java_is_missing(doctor, pipeline, tmp_path):
    doctor.patch.setenv("JAVA_HOME", str(tmp_path))
    found = of(doctor(pipeline), "java")
    assert found["level"] == "problem"
    assert str(tmp_path) in found["found"]
    assert found["remedy"].startswith("Install Java 17")


def test_java_is_too_old(doctor, pipeline, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    doctor.patch.setenv("JAVA_HOME", str(tmp_path))
    found = of(doctor(pipeline), "java")
    assert "expected Java 17 or newer, found 11" in found["found"]
    assert found["remedy"].startswith("Install Java 17")


def test_a_package_is_out_of_its_range(doctor, pipeline, tmp_path):
    planted = tmp_path / "fastavro-0.5.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: fastavro\nVersion: 0.5\n")
    doctor.patch.syspath_prepend(str(tmp_path))
    found = of(doctor(pipeline), "packages")
    assert (found["level"], found["found"]) == ("problem", "expected fastavro <2,>=1.10, found 0.5")
    assert found["remedy"] == "Run pip install 'fastavro<2,>=1.10'."


@pytest.mark.parametrize(
    ("properties", "cause", "remedy"),
    [
        (
            {"bootstrap_servers": "nowhere.invalid:9092"},
            "its host name is not resolved",
            "Correct the host in EXACTBATCH_KAFKA",
        ),
        (
            {"bootstrap_servers": "127.0.0.1:1"},
            "it refuses connections",
            "Start the server, or correct host and port",
        ),
    ],
    ids=["name", "refused"],
)
def test_kafka_is_not_reached(doctor, pipeline, properties, cause, remedy):
    doctor.kafka(**properties)
    findings = doctor(pipeline)
    found = of(findings, "Kafka connection")
    assert cause in found["found"]
    assert found["remedy"].startswith(remedy)
    assert of(findings, "topics")["found"] == "not checked: it needs Kafka"


def test_a_kafka_login_that_nothing_can_make_is_no_wrong_password(doctor, pipeline):
    doctor.kafka(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER")
    found = of(doctor(pipeline), "settings")
    assert found["level"] == "problem"
    assert found["found"].startswith(
        "the Kafka property sasl.oauthbearer.method is missing, which sasl.mechanism=OAUTHBEARER needs"
    )
    assert found["remedy"].startswith("Set it to oidc or to a function of your own")


def test_a_server_of_tokens_that_is_down_is_named(doctor, pipeline):
    doctor.kafka(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_token_endpoint_url="http://127.0.0.1:1/token",
        sasl_oauthbearer_client_id="job",
        sasl_oauthbearer_client_secret="s3cret",
    )
    found = of(doctor(pipeline), "settings")
    assert found["found"].startswith(
        "the server of tokens at http://127.0.0.1:1/token does not answer: ConnectError"
    )
    assert "s3cret" not in str(found)


def test_kafka_has_no_tls(doctor, pipeline, stack):
    doctor.kafka(bootstrap_servers=stack.bootstrap_servers, security_protocol="SSL")
    found = of(doctor(pipeline), "Kafka connection")
    assert "because TLS fails" in found["found"]
    assert found["remedy"].startswith("Correct the TLS parameters in EXACTBATCH_KAFKA")


def test_kafka_accepts_and_never_answers(doctor, pipeline):
    with socket.create_server(("127.0.0.1", 0)) as server:
        doctor.kafka(bootstrap_servers=f"127.0.0.1:{server.getsockname()[1]}")
        started = time.monotonic()
        found = of(doctor(pipeline), "Kafka connection")
    assert "does not answer" in found["found"]
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        (
            {"host": "nowhere.invalid"},
            "its host name is not resolved",
            "Correct the host in EXACTBATCH_POSTGRES",
        ),
        ({"host": "127.0.0.1", "port": "1"}, "it refuses connections", "Start the server"),
        ({"user": "nobody_of_this_name"}, "it refuses the login", "Correct the user and the password"),
        ({"dbname": "no_such_database"}, "the database does not exist", "Create the database"),
        ({"host": "127.0.0.1", "sslmode": "require"}, "TLS fails", "Correct the TLS parameters"),
    ],
    ids=["name", "refused", "login", "database", "tls"],
)
def test_postgres_is_not_reached(doctor, pipeline, settings, changes, cause, remedy):
    doctor.patch.setenv("EXACTBATCH_POSTGRES", make_dsn(settings.postgres, **changes))
    findings = doctor(pipeline)
    found = of(findings, "Postgres connection")
    assert f"because {cause}" in found["found"]
    assert found["remedy"].startswith(remedy)
    assert of(findings, "ledger")["found"] == "not checked: it needs Postgres"


@pytest.mark.parametrize(
    ("dsn", "is_told"),
    [
        ("host=db.example.org", True),
        ("host=db.example.org sslmode=require", True),
        ("host=127.0.0.1,db.example.org sslmode=verify-ca", True),
        ("host=db.example.org sslmode=verify-full", False),
        ("host=127.0.0.1", False),
        ("host=/run/postgresql", False),
        ("host=", False),
    ],
)
def test_a_server_of_the_network_should_be_verified(settings, dsn, is_told):
    [found] = check_encryption(replace(settings, postgres=dsn), {})
    assert found.level == ("warning" if is_told else "ok")
    assert "verify-full" in found.remedy or not is_told


def test_a_password_of_a_registry_should_be_encrypted(settings):
    secret = {"schema.registry.basic.auth.user.info": "me:s3cret"}
    value = Avro(registry="http://registry.example.org:8081", fields="id int")
    keyed = WithKeyAndHeaders(Json("a int"), headers={"x": value})
    for form in (value, keyed):
        pipelines = {"p": Pipeline(name="p", topics=("t",), value=form, sink=Append("public.p"))}
        [found] = check_encryption(replace(settings, kafka={**settings.kafka, **secret}), pipelines)
        assert (found.level, "s3cret" in found.found) == ("problem", False)
        assert "http://registry.example.org:8081" in found.found
        [found] = check_encryption(settings, pipelines)
        assert found.level == "ok"


def test_the_settings_are_missing(doctor, pipeline):
    doctor.patch.setenv("EXACTBATCH_KAFKA", "{}")
    findings = doctor(pipeline)
    assert "bootstrap.servers is missing" in of(findings, "settings")["found"]
    assert of(findings, "Kafka connection")["found"] == "not checked: it needs the settings"


@pytest.mark.parametrize(
    ("version", "found", "remedy"),
    [
        (99, "the newer version 99", "Upgrade exactbatch."),
        (None, "found version", "Run `exactbatch migrate` to upgrade it."),
    ],
    ids=["newer", "older"],
)
def test_the_ledger_has_another_version(doctor, pipeline, connection, version, found, remedy):
    with transaction(connection) as cursor:
        if version is None:
            cursor.execute(
                "delete from exactbatch.schema_version "
                "where version = (select max(version) from exactbatch.schema_version)"
            )
        else:
            cursor.execute("insert into exactbatch.schema_version values (%s)", (version,))
    findings = doctor(pipeline)
    ledger = of(findings, "ledger")
    assert (found in ledger["found"], ledger["remedy"]) == (True, remedy)
    assert of(findings, "privileges")["found"] == "not checked: it needs the ledger"


def test_there_is_no_ledger(doctor, database):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.p"))
    found = of(doctor(pipeline), "ledger")
    assert "has no ledger" in found["found"]
    assert found["remedy"] == "If this is the right database, run `exactbatch migrate` once."


def test_a_privilege_is_missing(doctor, deployment, make_topic):
    topic = make_topic()
    pipeline = Pipeline(name=topic.name, topics=(topic.name,), value=Json("id int"), sink=Append("shop.item"))
    deployment.init(pipeline)
    deployment.execute(ROLES)
    doctor.patch.setenv("EXACTBATCH_POSTGRES", deployment.settings("job").postgres)
    assert not [each for each in doctor(pipeline) if each["check"] == "privileges" and each["level"] != "ok"]
    deployment.execute("revoke insert on exactbatch.coverage from exactbatch_job")
    deployment.execute("revoke update (next_offset) on exactbatch.stored_offset from exactbatch_job")
    deployment.execute("revoke create on schema exactbatch_staging from exactbatch_job")
    found = of(doctor(pipeline), "privileges")
    assert (
        "lacks create on schema exactbatch_staging, insert on exactbatch.coverage, update on exactbatch.stored_offset"
        in found["found"]
    )
    assert found["remedy"].startswith(
        "Run the statements of `exactbatch roles`, and grant exactbatch_job to 'test_job'"
    )
    deployment.execute(ROLES)
    deployment.execute("create table shop.item (id int)")
    found = of(doctor(pipeline), "targets")
    assert "lacks select, insert, update, delete on shop.item" in found["found"]
    assert found["remedy"].startswith("Grant it: grant select, insert, update, delete on shop.item to")


def test_a_target_cannot_hold_the_rows(doctor, pipeline, connection):
    with transaction(connection) as cursor:
        cursor.execute(f"create table {pipeline.traits.target} (id text)")
    found = of(doctor(pipeline), "targets")
    assert found["level"] == "problem"
    assert "expected" in found["found"] or "column" in found["found"]
    assert found["remedy"]


def test_a_check_of_targets_leaves_nothing_behind(doctor, pipeline, connection):
    doctor(pipeline)
    with transaction(connection) as cursor:
        cursor.execute("select to_regclass(%s)", (pipeline.traits.target,))
        assert cursor.fetchone()[0] is None


def test_a_server_setting_prevents_writing(doctor, pipeline, settings):
    name = psycopg2.extensions.parse_dsn(settings.postgres)["dbname"]
    admin = psycopg2.connect(settings.postgres)
    with admin, admin.cursor() as cursor:
        cursor.execute(f"alter database {name} set default_transaction_read_only = on")
    admin.close()
    found = [
        each for each in doctor(pipeline) if each["check"] == "server settings" and each["level"] == "problem"
    ]
    assert "default_transaction_read_only is on" in found[0]["found"]
    assert found[0]["remedy"].startswith("Reset it for the login or the database")


def test_others_may_create_functions_on_the_search_path(doctor, pipeline, settings):
    with closing(psycopg2.connect(settings.postgres)) as superuser, superuser, superuser.cursor() as cursor:
        cursor.execute("grant create on schema public to public")
    found = of(doctor(pipeline), "search path")
    assert found["level"] == "warning"
    assert "may create functions and operators, or have done so: public (role public)" in found["found"]
    assert found["remedy"].startswith(
        "Run revoke create on schema … from …, and drop what the role has created"
    )


def test_the_clock_is_wrong(doctor, pipeline):
    now = time.time
    doctor.patch.setattr("exactbatch.operations.doctor.database.time.time", lambda: now() - 60)
    found = of(doctor(pipeline), "clocks")
    assert "differ by 60.0 s" in found["found"] or "differ by 59." in found["found"]
    assert found["remedy"] == "Synchronize both machines with NTP."


def test_a_pipeline_is_not_registered(doctor, pipeline):
    other = replace(pipeline, name="another", sink=Append("public.another"))
    found = of(doctor(pipeline, other), "pipelines")
    assert "pipeline 'another' is not in the ledger" in found["found"]
    assert found["remedy"] == "Run `exactbatch register pipelines_to_examine:p1` once."


def test_a_pipeline_has_changed(doctor, pipeline):
    found = of(doctor(replace(pipeline, sink=Append("public.another"))), "pipelines")
    assert "expected target" in found["found"]
    assert found["remedy"].startswith("Undo the change, or register the pipeline under a new name")


def test_a_freshness_that_is_not_registered(doctor, pipeline):
    found = of(doctor(replace(pipeline, freshness=timedelta(hours=1))), "pipelines")
    assert found["level"] == "warning"
    assert "freshness is 1:00:00 in its code and not set in the ledger" in found["found"]
    assert found["remedy"].startswith("Store the new value in the ledger: exactbatch register ")


def test_a_registered_pipeline_has_no_code(doctor, pipeline):
    findings = [each for each in doctor() if each["check"] == "pipelines" and each["level"] == "warning"]
    assert [each["found"] for each in findings] == [
        f"pipeline {pipeline.name!r} is registered, and no module of the package 'pipelines' has it"
    ]
    assert findings[0]["remedy"].endswith(f"`exactbatch register … --rename {pipeline.name}`.")


def test_a_topic_is_missing(doctor, make_pipeline, pipeline, make_topic):
    absent = make_pipeline(replace(make_topic(), name="absent"))
    found = of(doctor(pipeline, absent), "topics")
    assert "the broker does not know the topic 'absent'" in found["found"]
    assert found["remedy"].startswith("Create the topic, or correct bootstrap.servers")


def test_retention_is_near(doctor, make_pipeline, make_topic):
    topic = make_topic(retention_ms=str(70 * 60_000))
    topic.produce(record(1), timestamp=an_hour_ago())
    found = of(doctor(make_pipeline(topic)), "retention")
    assert (found["level"], "may overtake the stored offset in 0." in found["found"]) == (
        "warning",
        True,
    ), found
    assert found["remedy"].startswith("Run the pipeline more often")


def test_retention_is_overdue(doctor, make_pipeline, make_topic):
    # The segment goes only when its last record is old enough.
    topic = make_topic(retention_ms=str(30 * 60_000))
    topic.produce(record(1), timestamp=an_hour_ago())
    topic.produce(record(2))
    found = of(doctor(make_pipeline(topic)), "retention")
    assert (found["level"], "at any time" in found["found"]) == ("problem", True)


def test_a_pipeline_whose_log_cannot_be_read_concerns_no_other(doctor, make_pipeline, make_topic):
    unread, near = make_topic(), make_topic(retention_ms=str(70 * 60_000))
    near.produce(record(1), timestamp=an_hour_ago())

    def measure_lag(broker, definition, stored):
        if definition.name == unread.name:
            raise ConfigurationError("an ACL denies reading. Grant Read.")
        return lag.measure_lag(broker, definition, stored)

    doctor.patch.setattr(examine, "measure_lag", measure_lag)
    findings = doctor(make_pipeline(unread), make_pipeline(near))
    assert of(findings, "topics")["found"] == f"pipeline {unread.name!r}: an ACL denies reading."
    retention = [each["found"] for each in findings if each["check"] == "retention"]
    assert retention[0].startswith(f"pipeline {near.name!r}")
    assert retention[1:] == [f"not checked for {unread.name}: it needs the topics"]
    for check in ("freshness", "open transactions"):
        (found,) = [each["found"] for each in findings if each["check"] == check]
        assert found == f"not checked for {unread.name}: it needs the topics"


def test_pipelines_that_are_left_at_the_deadline_are_not_ok(doctor, make_pipeline, make_topic):
    first, second = sorted((make_topic(), make_topic()), key=lambda each: each.name)
    end = threading.Event()

    def measure_lag(broker, definition, stored):
        if definition.name == second.name:
            end.wait(60)
        return lag.measure_lag(broker, definition, stored)

    doctor.patch.setattr(examine, "measure_lag", measure_lag)
    doctor.patch.setattr(examine, "DEADLINE", 5.0)
    findings = doctor(make_pipeline(first), make_pipeline(second))
    end.set()
    assert of(findings, "topics")["found"] == f"pipeline {second.name!r}: no answer within 5 s"
    for check in ("retention", "freshness", "open transactions"):
        (found,) = [each["found"] for each in findings if each["check"] == check]
        assert found == f"not checked for {second.name}: it needs the topics"


def test_many_pipelines_whose_broker_is_slow_are_all_checked(doctor, make_pipeline, make_topic):
    topic = make_topic()
    partitions = KafkaBroker.partitions

    def slow(*arguments):
        time.sleep(0.1)
        return partitions(*arguments)

    doctor.patch.setattr(KafkaBroker, "partitions", slow)
    doctor.patch.setattr(examine, "DEADLINE", 1.0)
    many = [make_pipeline(topic, name=f"{topic.name}_{number}") for number in range(20)]
    findings = doctor(*many)
    assert [each["found"] for each in findings if each["check"] == "topics"] == [
        "20 partitions are those that were processed"
    ]
    for check in ("retention", "freshness", "open transactions"):
        assert [each["level"] for each in findings if each["check"] == check] == ["ok"]


def test_pipelines_are_left_when_others_have_taken_the_time_of_a_check(doctor, make_pipeline, make_topic):
    topics = sorted((make_topic() for _ in range(3)), key=lambda each: each.name)
    end = threading.Event()

    def measure_lag(broker, definition, stored):
        if definition.name == topics[1].name:
            end.wait(60)
        return lag.measure_lag(broker, definition, stored)

    doctor.patch.setattr(examine, "measure_lag", measure_lag)
    doctor.patch.setattr(examine, "DEADLINE", 5.0)
    findings = doctor(*map(make_pipeline, topics))
    end.set()
    assert [each["found"] for each in findings if each["check"] == "topics"] == [
        f"pipeline {topics[1].name!r}: no answer within 5 s",
        f"not checked for {topics[2].name}: it needs Kafka",
        "1 partitions are those that were processed",
    ]
    (found,) = [each["found"] for each in findings if each["check"] == "retention"]
    assert found == f"not checked for {topics[1].name}, {topics[2].name}: it needs the topics"


def test_a_check_that_hangs_in_a_statement_leaves_the_connection_of_no_other(
    doctor, make_pipeline, make_topic
):
    def hang(connection, pipelines):
        with transaction(connection) as cursor:
            cursor.execute("select pg_sleep(8)")
        return []

    doctor.patch.setattr(examine, "check_targets", hang)
    doctor.patch.setattr(examine, "DEADLINE", 3.0)
    findings = doctor(make_pipeline(make_topic()))
    assert of(findings, "targets")["found"] == "no answer within 3 s"
    for check in ("forwarding", "topics", "retention"):
        assert {each["level"] for each in findings if each["check"] == check} == {"ok"}


def test_a_transaction_stays_open(doctor, make_pipeline, make_topic):
    topic = make_topic()
    hanging = topic.transaction(record(1), record(2), end="never")
    found = of(doctor(make_pipeline(topic)), "open transactions")
    assert "holds back 2 offsets from 0 on" in found["found"]
    assert "producer unknown" not in found["found"]
    assert "kafka-transactions.sh --abort" in found["remedy"]
    hanging.abort_transaction(30)


def test_a_topic_of_results_is_missing_or_compacted_and_results_wait(
    doctor, make_pipeline, make_topic, connection
):
    topic, compacted = make_topic(), make_topic(cleanup_policy="compact")
    missing = replace(make_pipeline(topic), forward=ToTopic("nowhere"))
    with transaction(connection):
        Ledger(connection).registry.register(missing)
    found = of(doctor(missing), "forwarding")
    assert (found["level"], "'nowhere' of its results: it does not exist" in found["found"]) == (
        "problem",
        True,
    )
    forwarding = replace(missing, forward=ToTopic(compacted.name))
    with transaction(connection) as cursor:
        Ledger(connection).registry.register(forwarding)
        cursor.execute("update exactbatch.forward set last_sequence = 3")
    levels = [each for each in doctor(forwarding) if each["check"] == "forwarding"]
    assert [each["level"] for each in levels] == ["warning", "warning"]
    assert "Kafka compacts it, and removes rows of an Append" in levels[0]["found"]
    assert f"exactbatch forward {topic.name}" in levels[1]["remedy"]
    with transaction(connection) as cursor:
        cursor.execute("update exactbatch.forward set sent_sequence = 3, topic_id = gen_random_uuid()")
    found = [each for each in doctor(forwarding) if each["check"] == "forwarding"]
    assert "it was deleted and created again" in found[0]["found"]


@contextmanager
def airflow(pools):
    """Answer the two requests of Airflow's REST API that the check sends, below the path /Air."""

    class Api(BaseHTTPRequestHandler):
        def _send(self, content: Any, status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            assert self.path == "/Air/auth/token"
            self._send({"access_token": "token"})

        def do_GET(self) -> None:
            folder, _, name = self.path.rpartition("/")
            assert folder == "/Air/api/v2/pools"
            slots = pools.get(unquote(name))
            self._send({"name": name, "slots": slots}, 404 if slots is None else 200)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://user:pass@{quote('http://127.0.0.1/Air', safe='')}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_pool_is_missing_or_has_no_slots(doctor, pipeline):
    with airflow({"default_pool": 128, "empty": 0, "my/pool": 1}) as uri:
        doctor.patch.setenv("AIRFLOW_CONN_API", uri)
        options = ("--airflow", "api", "--pool", "empty", "--pool", "replays", "--pool", "my/pool")
        findings = [each for each in doctor(pipeline, options=options) if each["check"] == "Airflow's pools"]
        as_json = {"host": "http://127.0.0.1/Air", "port": urlsplit(uri).port, "login": "user"}
        doctor.patch.setenv("AIRFLOW_CONN_API", json.dumps(as_json))
        found = [each for each in doctor(pipeline, options=options) if each["check"] == "Airflow's pools"]
        assert found == findings
    assert [each["found"].partition(",")[0] for each in findings] == [
        "the pool 'empty' has no slots",
        "Airflow has no pool 'replays'",
    ]
    assert findings[1]["remedy"] == "Run `airflow pools set replays 1 exactbatch`."
    found = of(doctor(pipeline, options=("--airflow", "api")), "Airflow's pools")
    assert "does not answer as expected" in found["found"]


@pytest.mark.parametrize(
    "uri",
    [
        "http://user:p%40ss@https%3A%2F%2Fairflow.example.org%2FAir:8443",
        "http://https://user:p%40ss@airflow.example.org:8443",
        "https://http://airflow.example.org",
    ],
)
def test_the_uri_of_a_connection_means_what_it_means_to_airflow(uri):
    theirs = Connection.from_uri(uri, conn_id="api")
    assert servers._access(uri) == (airflow_url(theirs.host, theirs.port), theirs.login, theirs.password)


def test_a_postgres_that_is_newer_than_what_was_tested_is_said(
    doctor, world, make_topic, make_pipeline, monkeypatch, caplog
):
    """By doctor, and in the log of a process that processes batches, once."""
    monkeypatch.setitem(TESTED, "Postgres", ("9", "13"))
    said = "is newer than those that exactbatch was tested with, 9 to 13"
    topic = make_topic()
    pipeline = make_pipeline(topic)
    found = of(doctor(pipeline), "tested versions")
    assert (found["level"], said in found["found"]) == ("warning", True), found
    warn_if_untested.cache_clear()
    for number in range(2):
        topic.produce(record(number))
        assert world.run(pipeline).wrote
    assert sum(said in each for each in caplog.messages) == 1, caplog.messages


def test_a_check_that_hangs_or_fails_is_a_finding():
    def hang():
        yield Finding("x", "ok", "before")
        time.sleep(30)

    def fail():
        raise ZeroDivisionError("division by zero")
        yield

    assert [each.level for each in run_check("x", hang, seconds=0.2)] == ["ok", "problem"]
    (found,) = run_check("y", fail)
    assert "ZeroDivisionError" in found.found
    with pytest.raises(ValueError, match="expected a remedy"):
        Finding("x", "problem", "no remedy")
    assert finding.DEADLINE <= 30


def test_the_ledger_is_not_changed(doctor, pipeline, connection):
    doctor(pipeline)
    with transaction(connection) as cursor:
        cursor.execute("select count(*) from exactbatch.batch")
        assert cursor.fetchone()[0] == 0
        assert Ledger(connection).plans.read_stored_offsets(pipeline) == ()
