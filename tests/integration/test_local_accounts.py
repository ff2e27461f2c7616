"""Another account of the machine gets nothing from a local stack: no file, no connection, no folder left open."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.local import LocalStack, LocalStackError
from exactbatch.local.postgres import CLIENTS, UNPRIVILEGED, as_account, executables, postgres_account

OTHER = "daemon"


def as_other(*command: str | Path, account: str = OTHER) -> subprocess.CompletedProcess[str]:
    """Run a command as another account of this machine."""
    found = pwd.getpwnam(account)
    return subprocess.run(
        list(map(str, command)),
        user=found.pw_uid,
        group=found.pw_gid,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a command as another account")


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[LocalStack]:
    """A stack that was never up, below a folder that nobody else may enter."""
    home = tmp_path / "closed"
    home.mkdir(mode=0o700)
    stack = LocalStack(home, f"own-{uuid.uuid4().hex[:8]}")
    stack.postgres.configure({}, {"shared_buffers": "16MB"}, anywhere=True)
    yield stack
    stack.down(delete=True)


@needs_root
@pytest.mark.parametrize("account", [OTHER, UNPRIVILEGED])
def test_another_account_reads_no_file_of_a_stack(stack, account):
    """Not even the account that runs Postgres, which runs other servers of the machine, too."""
    folder = stack.folder.resolve()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in (
        stack.postgres.folder / "secret",
        stack.broker.folder / "secret",
        stack.broker.folder / "server.properties",
    ):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "Permission denied" in as_other("cat", file, account=account).stderr
    assert "Permission denied" in as_other("ls", folder, account=account).stderr
    assert "Permission denied" in as_other("ls", stack.postgres.data_dir.resolve(), account=account).stderr


@needs_root
@pytest.mark.parametrize("database", ["exactbatch", "postgres", "airflow", "replication"])
def test_postgres_refuses_another_account(stack, database):
    other = f"host=127.0.0.1 port={stack.postgres.port} user=postgres"
    command = "copy (select 1) to program 'id'"
    mode = "replication=true" if database == "replication" else f"dbname={database}"
    refused = as_other(executables() / "psql", "-w", "-c", command, f"{other} {mode}")
    assert refused.returncode != 0
    assert "no password supplied" in refused.stderr
    wrong = as_other(executables() / "psql", "-w", "-c", command, f"{other} {mode} password=postgres")
    assert "password authentication failed" in wrong.stderr


@pytest.mark.parametrize("port", ["client", "controller"])
@pytest.mark.parametrize(
    "login",
    [
        {},
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "exactbatch",
            "sasl.password": "x",
        },
    ],
    ids=["without a password", "with a wrong one"],
)
def test_kafka_refuses_a_client_that_does_not_know_the_password(stack, port, login):
    client = AdminClient(
        {"bootstrap.servers": f"127.0.0.1:{stack.broker.ports[port]}", "log_level": 0, **login}
    )
    with pytest.raises(KafkaException):
        client.list_topics(timeout=5)
    if port == "client":
        assert KafkaBroker(stack.kafka_properties).partitions([]) == ()


def test_postgres_opens_no_folder_and_can_be_used_below_a_closed_one(closed):
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in closed.folder.parents}
    closed.postgres.start()
    with closing(psycopg2.connect(closed.postgres_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) > 0 from pg_timezone_names")
        assert cursor.fetchone() == (True,)
        cursor.execute("do $$ begin perform 1; end $$")
    assert {each: stat.S_IMODE(each.stat().st_mode) for each in closed.folder.parents} == modes


@needs_root
def test_what_runs_as_its_account_may_execute_what_is_below_a_closed_folder(tmp_path):
    """As in a checkout below /root, where initdb asks access(2)."""
    (closed := tmp_path / "closed").mkdir(mode=0o700)
    program = Path(shutil.copy("/bin/true", closed))
    ask = [sys.executable, "-c", f"import os, sys; sys.exit(not os.access({str(program)!r}, os.X_OK))"]
    assert subprocess.run(as_account(postgres_account(), ask), check=False).returncode == 0


def test_data_from_before_there_was_a_password_stay_and_get_one(closed):
    closed.postgres.start()
    with (
        closing(psycopg2.connect(closed.postgres_dsn)) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("create table kept as select 7 as n")
        cursor.execute("alter role postgres password null")
    secret = closed.postgres.folder / "secret"
    before = secret.read_text()
    # As versions up to 0.5 left it.
    secret.unlink()
    (closed.postgres.data_dir / "pg_hba.conf").write_text("host all all 127.0.0.1/32 trust\n")
    assert not closed.postgres.is_up()
    closed.broker.configure({}, None, anywhere=True)
    with pytest.raises(
        LocalStackError, match="Postgres runs without a password, as earlier versions started it"
    ):
        closed.up()
    closed.postgres.stop()
    closed.postgres.start()
    assert (closed.postgres.data_dir / "pg_hba.conf").read_text() == CLIENTS
    assert secret.read_text() != before
    with closing(psycopg2.connect(closed.postgres_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select n from kept")
        assert cursor.fetchone() == (7,)
    with pytest.raises(psycopg2.OperationalError, match="no password supplied|fe_sendauth"):
        psycopg2.connect(closed.postgres_dsn, passfile="/dev/null")
