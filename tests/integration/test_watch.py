"""`exactbatch status --watch`: one connection, a lost one is replaced, and Ctrl-C ends it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest

from support.topics import record


@pytest.fixture
def watched(make_topic, make_pipeline, settings, tmp_path) -> Iterator[Callable[..., "Watch"]]:
    """Start `exactbatch status … --watch` for a pipeline, with stdout at a terminal or in a pipe."""
    topic = make_topic()
    topic.produce(record(1), record(2))
    make_pipeline(topic)
    (tmp_path / "watched.py").write_text(
        "from exactbatch import Append, Json, Pipeline\n"
        f"pipeline = Pipeline(name={topic.name!r}, topics=({topic.name!r},), "
        f"value=Json('id int, name text'), sink=Append('public.\"{topic.name}\"'))\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        **settings.as_environment(),
        "PYTHONPATH": path,
        "COLUMNS": "100",
        "TERM": "xterm",
    }
    started: list[Watch] = []

    def start(*options: str, terminal: bool) -> Watch:
        started.append(Watch(environment, settings.postgres, options, terminal=terminal))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


class Watch:
    """A process that watches, and what it has printed."""

    def __init__(self, environment: dict[str, str], postgres: str, options: Any, *, terminal: bool) -> None:
        self._postgres, self.printed = postgres, ""
        self._read, write = pty.openpty() if terminal else os.pipe()
        command = [
            "-m",
            "exactbatch.cli",
            "status",
            "watched:pipeline",
            "--watch",
            "--every",
            "0.3",
            *options,
        ]
        self.process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=write, stderr=subprocess.PIPE, text=True
        )
        os.close(write)
        os.set_blocking(self._read, False)

    def until(self, condition: Callable[[str], bool]) -> str:
        """Read until what has been printed since the last call satisfies a condition; return it."""
        since, deadline = len(self.printed), time.monotonic() + 60
        while not condition(self.printed[since:]):
            assert time.monotonic() < deadline, self.printed
            try:
                self.printed += os.read(self._read, 100_000).decode()
            except BlockingIOError:
                time.sleep(0.05)
        return self.printed[since:]

    def sessions(self) -> list[int]:
        """The server processes of its connections."""
        return [
            pid
            for (pid,) in self._query(
                "select pid from pg_stat_activity where application_name = 'exactbatch cli'"
            )
        ]

    def cut(self) -> None:
        """End its connection to Postgres."""
        self._query(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'exactbatch cli'"
        )

    def _query(self, statement: str) -> list[Any]:
        connection = psycopg2.connect(self._postgres)
        with connection, connection.cursor() as cursor:
            cursor.execute(statement + " and datname = current_database()")
            rows = cursor.fetchall()
        connection.close()
        return rows


def test_it_redraws_in_place_over_one_connection_and_ends_with_ctrl_c(watched):
    watch = watched(terminal=True)
    watch.until(lambda text: "newest batches" in text)
    first = watch.sessions()
    redrawn = watch.until(lambda text: text.count("newest batches") >= 3)
    assert "\x1b[1A" in redrawn, "it moves the cursor up"
    assert (watch.sessions(), len(first)) == (first, 1)
    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(30) == 130
    assert "Traceback" not in watch.process.stderr.read()


def test_a_lost_connection_is_told_and_replaced(watched):
    watch = watched(terminal=True)
    watch.until(lambda text: "newest batches" in text)
    first = watch.sessions()
    watch.cut()
    lost = watch.until(lambda text: "no answer, trying again" in text)
    assert "PostgresUnavailable" in lost
    watch.until(
        lambda text: text.rpartition("\x1b[2K")[0].count("newest batches") > 1 and "no answer" not in text
    )
    assert len(watch.sessions()) == 1
    assert watch.sessions() != first


def test_json_is_one_object_on_each_line(watched):
    watch = watched("--json", terminal=False)
    text = watch.until(lambda text: text.count("\n") >= 2)
    told = [json.loads(line) for line in text.splitlines()[:2]]
    assert [each["partitions"][0]["lag"] for each in told] == [2, 2]
    watch.cut()
    line = next(
        line
        for line in watch.until(lambda text: '"error"' in text and text.endswith("\n")).splitlines()
        if "error" in line
    )
    assert "the connection to Postgres was lost" in json.loads(line)["error"]
    watch.until(lambda text: '"partitions"' in text)
    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(30) == 130
