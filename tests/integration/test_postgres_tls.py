"""TLS to Postgres with sslmode=verify-full: of planning, of the driver and of the executors' COPY."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from exactbatch import Json, Upsert
from exactbatch.audit.run_audit import audit
from exactbatch.batch import job as batch_job
from exactbatch.batch.staging.stager import stage_tasks
from exactbatch.batch.staging.task import StageTask
from exactbatch.errors import PostgresUnavailable, TasksFailed
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.local import LocalStack
from exactbatch.local.child_process import HOST
from exactbatch.operations.report import load_report
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import connect
from exactbatch.settings import Settings
from support.batch_runner import BatchRunner
from support.certificates import Authority
from support.logins import password_of
from support.tls_proxy import TlsProxy
from support.topics import record

NAME: Final = "localhost"  # the certificate is for this name, and not for the address
LEDGER: Final = {"tests", "exactbatch", "exactbatch launch", "exactbatch task", "exactbatch audit"}


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """One that has issued the certificate, and a stranger."""
    folder = tmp_path_factory.mktemp("certificates")
    return Authority(folder, "authority"), Authority(folder, "stranger")


@pytest.fixture
def proxy(stack, authorities):
    proxy = TlsProxy(authorities[0].issue("postgres", [NAME]), HOST, stack.postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def dsn(proxy, database, authorities):
    """dsn(**changes): the connection string with verify-full and the password."""

    def make(**changes: Any) -> str:
        verified = {"sslmode": "verify-full", "sslrootcert": str(authorities[0].certificate)}
        return str(
            make_dsn(
                database,
                **{
                    "host": NAME,
                    "port": proxy.port,
                    "password": password_of(database),
                    **verified,
                    **changes,
                },
            )
        )

    return make


@pytest.mark.parametrize("kind", ["append", "upsert", "partition", "transform"])
def test_every_connection_of_a_batch_is_encrypted(
    spark, connection, proxy, dsn, settings, make_topic, make_pipeline, kind
):
    topic = make_topic(2)
    topic.produce(*(record(n) for n in range(5)), b"bad")
    topic.produce(*(record(n) for n in range(5, 9)), partition=1)
    changes: dict[str, Any] = {
        "append": {},
        "upsert": {"sink": Upsert(f'public."{topic.name}"', key=("id",)), "message_key": Json("id int")},
        "partition": {"commit": "partition"},
        "transform": {"transform": "select * from records"},
    }[kind]
    pipeline = make_pipeline(topic, max_rejects=1, **changes)
    encrypted = Settings(kafka=settings.kafka, postgres=dsn())
    world = BatchRunner(spark, connect(encrypted.postgres, application="tests"), encrypted)
    try:
        batch = world.run(pipeline).batch
        assert (batch.records, batch.rows, batch.rejected) == (10, 9, 1)
        request = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 0, 6),))
        batch_id = freeze_replay(world.connection, world.log, pipeline, request, origin="cli").batch_id
        assert batch_id is not None
        assert world.process(pipeline, batch_id).batch.rows == 5
        assert audit(pipeline, encrypted).is_exact
        load_report(encrypted.postgres, KafkaBroker(encrypted.kafka), pipeline, batch_id)
    finally:
        world.connection.close()
    assert set(proxy.applications) >= {"tests", "exactbatch", "exactbatch task"}, proxy.applications
    # One for each task that copies, beside those of the driver: two ranges, and the one of the replay.
    assert proxy.applications.count("exactbatch task") >= 3
    assert proxy.plain == 0


def test_plain_connection_is_refused_by_server_of_these_tests(proxy, dsn):
    """Otherwise the test above would show nothing."""
    with pytest.raises(PostgresUnavailable, match="expected TLS, found a plain connection"):
        connect(dsn(sslmode="disable"), application="tests")
    # The second, without our startup options, tells whether these were refused.
    assert (proxy.plain, proxy.applications) == (2, [])


WRONG: Final = [
    ("authority", "certificate verify failed"),
    ("host", "does not match host name"),
    ("no file", "root certificate file"),
    ("no TLS", "server does not support SSL, but SSL was required"),
]


def wrong(name: str, dsn: Callable[..., str], stack: LocalStack, stranger: Authority) -> str:
    """A connection string with something wrong."""
    return {
        "authority": lambda: dsn(sslrootcert=str(stranger.certificate)),
        "host": lambda: dsn(host=HOST),
        "no file": lambda: dsn(sslrootcert="/nowhere/authority.pem"),
        "no TLS": lambda: dsn(port=stack.postgres.port),
    }[name]()


@pytest.mark.parametrize(("name", "said"), WRONG)
def test_the_driver_says_what_is_wrong(stack, dsn, authorities, name, said):
    with pytest.raises(PostgresUnavailable) as caught:
        connect(wrong(name, dsn, stack, authorities[1]), application="tests")
    assert said in str(caught.value)
    assert "Check the connection string" in str(caught.value)
    assert password_of(dsn()) not in str(caught.value)


@pytest.mark.parametrize(("name", "said"), WRONG)
def test_batch_whose_executors_cannot_connect_says_why_and_leaves_nothing_behind(
    spark, connection, stack, dsn, settings, authorities, make_topic, make_pipeline, monkeypatch, name, said
):
    """The driver can connect: where the executors run, files or names are others."""
    topic = make_topic()
    topic.produce(record(1))
    pipeline = make_pipeline(topic)
    world = BatchRunner(spark, connection, Settings(kafka=settings.kafka, postgres=dsn()))
    theirs = wrong(name, dsn, stack, authorities[1])

    def tasks(*arguments: Any) -> list[StageTask]:
        return [
            replace(task, postgres=replace(task.postgres, dsn=theirs)) for task in stage_tasks(*arguments)
        ]

    monkeypatch.setattr(batch_job, "stage_tasks", tasks)
    message = world.refused(TasksFailed, pipeline)
    assert said in message
    assert password_of(dsn()) not in message


def test_the_proxy_hands_on_what_the_server_says(dsn):
    with pytest.raises(psycopg2.OperationalError, match='database "nowhere" does not exist'):
        psycopg2.connect(dsn(dbname="nowhere"))
